"""The command line: one function per command, each parses and calls the package.

Heavy imports stay inside the functions, so that `--help` and configuration errors answer at once. A `MindGSPOError` is
printed as one message with exit code 1, a wrong command line with exit code 2; only our own defects show a traceback.
Commands are in files by the kind of their input; this one combines them.
"""

from __future__ import annotations

import errno
import importlib.metadata
import io
import platform
import resource
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.completion import completion_init, get_completion_script  # pyright: ignore[reportPrivateImportUsage]

from mindgspo.cli import experiment, model
from mindgspo.cli.checkpoint import checkpoint_app
from mindgspo.cli.convert import convert_app
from mindgspo.cli.data import data_app
from mindgspo.cli.doctor import doctor_command, replay_command
from mindgspo.cli.generate import generate_command
from mindgspo.cli.init import init_command
from mindgspo.cli.options import CommandGroup, SettingsCommand
from mindgspo.cli.runs import compare_command, report_command, runs_command, sweep_command
from mindgspo.cli.serve import serve_command
from mindgspo.cli.strategy import strategy_app
from mindgspo.errors import ConfigError, MindGSPOError, OutOfMemoryError
from mindgspo.io import DISK_ERRORS, write_error
from mindgspo.parallel.platform.runtime import is_emulated
from mindgspo.parallel.platform.worker_process import is_worker
from mindgspo.progress import told_waits
from mindgspo.text import PrintableStream, error_text, shorten

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="GSPO reinforcement learning of language models on MindSpore.",
)


def _print_version() -> None:
    found = {}
    for package in ("mindgspo", "mindspore"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    print(f"mindgspo {found['mindgspo']} (MindSpore {found['mindspore']}, Python {platform.python_version()})")
    raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=lambda wanted: _print_version() if wanted else None,
            is_eager=True,
            help="Print versions and exit.",
        ),
    ] = False,
) -> None:
    """Options that stand before a command."""  # fmt: skip


def completion_command(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell that you use.")],
) -> None:
    """Print a script that lets your shell complete commands.

    \b
    mindgspo completion bash >> ~/.bashrc
    mindgspo completion zsh >> ~/.zshrc
    mindgspo completion fish > ~/.config/fish/completions/mindgspo.fish

    The next shell that you open then completes commands, options, and the keys and values of settings.
    """
    script = get_completion_script(prog_name="mindgspo", complete_var="_MINDGSPO_COMPLETE", shell=shell)
    if shell == "bash":  # which breaks words at =, and would add a blank after a key
        script = script.replace(
            "    return 0", "    [[ ${COMPREPLY[0]-} == *[.=] ]] && compopt -o nospace\n    return 0"
        )
        script += "\nCOMP_WORDBREAKS=${COMP_WORDBREAKS//=/}"
    print(script)


# In the order of `mindgspo --help`.
app.command("init")(init_command)
app.command("run", cls=SettingsCommand)(experiment.run_command)
app.command("sft", cls=SettingsCommand, help=experiment.SFT_HELP)(experiment.run_command)
app.command("sweep")(sweep_command)
app.command("serve", cls=SettingsCommand)(serve_command)
app.command("check", cls=SettingsCommand)(experiment.check_command)
app.command("plan", cls=SettingsCommand)(experiment.plan_command)
app.command("dryrun", cls=SettingsCommand)(experiment.dryrun_command)
app.command("eval", cls=SettingsCommand)(model.evaluate_command)
app.command("generate")(generate_command)
app.command("logprobs")(model.logprobs_command)
app.command("runs")(runs_command)
app.command("report")(report_command)
app.command("compare")(compare_command)
app.command("doctor", cls=SettingsCommand)(doctor_command)
app.command("replay")(replay_command)
app.command("completion")(completion_command)
app.add_typer(checkpoint_app, name="checkpoint")
app.add_typer(data_app, name="data")
app.add_typer(convert_app, name="convert")
app.add_typer(model.reward_app, name="reward")
app.add_typer(strategy_app, name="strategy")

_EXTRAS = {"convert.config": "migrate", "convert.gguf": "gguf", "conformance": "conformance"}
"""Commands of packages beside this one, each with the extra that brings it."""


def add_installed_commands() -> None:
    """Add the commands of companion packages; a missing or broken package is reported when its command is called."""
    installed = {point.name: point for point in importlib.metadata.entry_points(group="mindgspo.commands")}
    for name in {**_EXTRAS, **installed}:
        *group, command = name.split(".")
        to = convert_app if group == ["convert"] else app
        try:
            if name in installed:
                to.command(command)(installed[name].load())
                continue
            why = f"is not installed: pip install 'mindgspo[{_EXTRAS[name]}]', or pip install -e tools/{_EXTRAS[name]}"
        except Exception as error:  # whatever a third-party package raises while it is imported
            why = shorten(f"{type(error).__name__}: {error}", 200)
            distribution = installed[name].dist
            why = f"cannot be imported ({why}); install {distribution.name if distribution else name} again"
        settings = {"ignore_unknown_options": True, "help_option_names": []}
        to.command(command, hidden=True, context_settings=settings)(
            _unavailable(f"mindgspo {' '.join((*group, command))} {why}")
        )


def _unavailable(message: str) -> Callable[..., Any]:
    def command(words: Annotated[list[str] | None, typer.Argument(help="Whatever it takes.")] = None) -> None:
        """Say why this command is missing."""
        raise ConfigError(message)

    return command


add_installed_commands()
completion_init()  # typer answers the scripts of `mindgspo completion`


def run_program(arguments: Sequence[str] | None) -> int:
    """Run one command and return the exit code: 0, 1 for a `MindGSPOError`, 2 for usage."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a GBK terminal must not stop a command at a character it lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    if is_worker() and is_emulated():  # as its launcher is
        from mindgspo.parallel.platform.emulator import install_emulated_card

        install_emulated_card()
    # Anything that a command prints may come from data, model files or responses.
    with redirect_stdout(PrintableStream(sys.stdout)), redirect_stderr(PrintableStream(sys.stderr)):
        try:
            with told_waits():
                app(args=arguments, prog_name="mindgspo", standalone_mode=True)
        except SystemExit as ended:
            return int(ended.code or 0)
        except Exception as error:
            if (message := _message(error)) is None:
                raise
            print(message, file=sys.stderr)
            return 1
    raise AssertionError("typer ends every command with SystemExit")


def _message(error: Exception) -> str | None:
    """The text for the user; None for our own defects, which keep their traceback."""
    match error:
        case MindGSPOError():
            return error_text(error)
        case OSError():
            return _file_message(error)
        case ModuleNotFoundError(name="mindspore"):
            return error_text(
                "MindSpore is not installed: pip install 'mindgspo[mindspore]'; on an Atlas server that of its CANN"
            )
        case MemoryError() | RuntimeError(args=("can't start new thread",)):
            return error_text(OutOfMemoryError.of(error))
        case RuntimeError():  # MindSpore's, with an error code of CANN in it
            from mindgspo.launch.error_codes import find, told

            if meaning := told(find(str(error).splitlines())):
                return "".join(traceback.format_exception(error)) + "\n".join(meaning)
    return None


def _file_message(error: OSError) -> str | None:
    """Message about a user's file, wherever it was used: missing, name too long, no permission, no space."""
    if error.errno in DISK_ERRORS:
        place = f"{error.strerror}; make room there"  # of standard output, or of what a library writes
        return error_text(write_error(Path(error.filename), error) if error.filename else place)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return error_text(f"too many open files: the limit is {limit} (ulimit -n); set 4096 or more")
    return None if error.filename is None else error_text(f"{error.filename}: {error.strerror}")
