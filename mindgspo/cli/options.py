"""Arguments and options that several commands share; settings on a command line, `--set a.b=c` or bare `a.b=c` after a
command's arguments, and their completion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from mindgspo.text import did_you_mean

if TYPE_CHECKING:
    from typer import Context

SET = "--set"


# Other suites' names of the commands.
_COMMANDS = {"train": "run", "evaluate": "eval", "resume": "run", "chat": "generate", "infer": "generate"}


class CommandGroup(TyperGroup):
    """Commands; other suites' names lead to ours, and typer corrects misspelt ones."""

    def resolve_command(self, ctx: Context, args: list[str]) -> Any:
        """Resolve a command like typer; for another suite's name, say what it is called here."""
        if args[0] in _COMMANDS and not ctx.resilient_parsing:
            ctx.fail(f"No such command: {args[0]}; it is called {_COMMANDS[args[0]]} here")
        return super().resolve_command(ctx, args)


class SettingsCommand(TyperCommand):
    """A command with `--set` that takes settings as bare words, too. Both may be mixed; the later one wins."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse like typer, with `--set` put before every bare setting."""
        return super().parse_args(ctx, list(self._with_set(ctx, args)))

    def _with_set(self, ctx: Context, args: Sequence[str]) -> Iterator[str]:
        options = [param for param in self.params if isinstance(param, TyperOption)]
        takes_value = {name for option in options if not option.is_flag for name in option.opts}
        known = {name for option in options for name in (*option.opts, *option.secondary_opts)}
        arguments_left = sum(isinstance(param, TyperArgument) for param in self.params)
        words = iter(args)
        for word in words:
            if word.startswith("-"):
                if word not in takes_value and "." in (key := word.lstrip("-").partition("=")[0]):
                    ctx.fail(f"No such option: {word}; settings are written without dashes: {key}=VALUE")
                yield word
                if word in takes_value:
                    yield from (value for value in [next(words, None)] if value is not None)
                elif word.partition("=")[0] not in known:
                    yield from words  # which typer refuses, with the option's name
            elif arguments_left:
                arguments_left -= 1
                yield word
            elif "=" in word:
                yield from (SET, word)
            elif not ctx.resilient_parsing:  # which is set while a line is completed
                names = [name for option in options for name in option.opts]
                hint = did_you_mean(f"--{word}", names, cutoff=0.8, show=str)
                ctx.fail(f"{word!r} is no setting: write KEY=VALUE, e.g. trainer.max_steps=20{hint}")

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        """Add the settings to the usage line."""
        return [*super().collect_usage_pieces(ctx), "[KEY=VALUE]..."]

    def format_epilog(self, ctx: Context, formatter: Any) -> None:
        """Explain the settings at the end of `--help`."""
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("KEY=VALUE overrides a setting as --set does. The last one wins.")

    def shell_complete(self, ctx: Context, incomplete: str) -> list[Any]:
        """Options, or settings after the arguments."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        (option,) = (param for param in self.params if SET in param.opts)
        return option.shell_complete(ctx, incomplete)


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """(word, meaning) of everything that an unfinished setting can become: keys up to the next dot or equals sign, and
    after it the values of fields that have few."""
    from mindgspo.config import ExperimentConfig
    from mindgspo.config.messages import section_of

    dotted, equals, _ = incomplete.partition("=")
    *sections, key = dotted.split(".")
    section = ExperimentConfig
    for name in sections:
        below = section_of(section, name) if name in section.model_fields else None
        if below is None:
            return []
        section = below
    prefix = "".join(f"{name}." for name in sections)
    if equals:
        field = section.model_fields.get(key)
        return [] if field is None else [(f"{dotted}={value}", "") for value in _values(field.annotation)]
    return [
        (f"{prefix}{name}{'=' if section_of(section, name) is None else '.'}", first_sentence(field.description or ""))
        for name, field in section.model_fields.items()
    ]


def _values(annotation: Any) -> Iterator[str]:
    """The spellings in YAML of a choice of words, a switch, or an alternative of these."""
    if annotation is bool:
        yield from ("true", "false")
    elif get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    elif get_origin(annotation) not in (list, tuple, dict):
        for option in get_args(annotation):
            yield from _values(option)


def first_sentence(text: str) -> str:
    """Without the full stop."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".")


def _file_of_experiment(path: Path) -> Path:
    from mindgspo.config.paths import experiment_file

    return experiment_file(path)


ConfigArgument = Annotated[
    Path,
    typer.Argument(
        help="YAML file of the experiment; or a shipped one: quickstart, gsm8k/gspo_qwen2_5_7b, ...",
        callback=_file_of_experiment,
    ),
]


def model_folder(path: Path | None) -> Path | None:
    """The folder that a command line names itself or by a name on a hub."""
    from mindgspo.config.hub import hub_path

    return path and hub_path(path)


def _tokenizer_folder(path: Path | None) -> Path | None:
    from mindgspo.config.hub import hub_path

    return path and hub_path(path, "tokenizer")


ModelArgument = Annotated[
    Path,
    typer.Argument(
        help="Hugging Face folder, e.g. runs/<experiment>/export; or a name on a hub, e.g. Qwen/Qwen3-0.6B.",
        callback=model_folder,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        SET,
        metavar="KEY=VALUE",
        help="Override a setting, e.g. --set seed=2. May be repeated.",
        autocompletion=complete_setting,
    ),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Move an existing run folder aside.")]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="Stop unless the plans need exactly so many worker processes.")
]
NodesOption = Annotated[
    int, typer.Option("--nodes", min=1, help="Number of machines that the workers are spread over.")
]
NodeRankOption = Annotated[
    int, typer.Option("--node-rank", min=0, help="Number of this machine, from 0; machine 0 has rank 0.")
]
MasterAddrOption = Annotated[str, typer.Option("--master-addr", help="Address of the machine with --node-rank 0.")]
MasterPortOption = Annotated[
    int | None,
    typer.Option("--master-port", help="Port at that address. Several machines need one; else a free one is taken."),
]
MemoryOption = Annotated[
    float | None,
    typer.Option(
        "--memory-gb",
        min=0.1,
        max=1e6,
        help="Memory of one card in GiB, 64 (Atlas 800T A2) by default; for device CPU the machine's, by default what "
        "it has.",
    ),
]
TokenizerOption = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="DIR",
        help="Folder of the tokenizer, if the model's folder has none; or its name on a hub.",
        callback=_tokenizer_folder,
    ),
]
EosTokenOption = Annotated[
    list[str] | None,
    typer.Option(
        "--eos-token", help="Token that ends a response, instead of those that the folder names. May be repeated."
    ),
]
EmulateOption = Annotated[
    bool,
    typer.Option(
        "--emulate-ascend",
        help="Run on emulated Ascend cards: device Ascend, executed by MindSpore's own Ascend backend, with operators "
        "computed on this CPU. For tests; far slower than device CPU.",
    ),
]


def emulated_overrides(is_wanted: bool, overrides: list[str] | None) -> list[str]:
    """The `--set` entries of a command; with --emulate-ascend the process uses an emulated card from here on."""
    if not is_wanted:
        return overrides or []
    from mindgspo.parallel.platform.emulator import enter_emulated_cards

    enter_emulated_cards()
    return [*(overrides or []), "device=Ascend"]
