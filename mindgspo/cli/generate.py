"""The command that answers prompts, or talks."""

from __future__ import annotations

import signal
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mindgspo.cli.options import EmulateOption, EosTokenOption, TokenizerOption, emulated_overrides, model_folder
from mindgspo.progress import activity

if TYPE_CHECKING:
    from mindgspo.evaluation.generate import Chat, GenerateOptions

_COMMANDS = "/reset begins anew, /quit or Ctrl-D ends, Ctrl-C stops an answer"


def generate_command(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL_OR_RUN",
            help="Model folder, name on a hub, run folder, or checkpoints/step_XXXXXXXX of a run.",
            callback=model_folder,
        ),
    ],
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Prompt to answer; - reads it from standard input.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="File of prompts to answer, *.jsonl with the key prompt or messages, or one prompt per line. Prints "
            "one JSON line for each."
        ),
    ] = None,
    env: Annotated[
        Path | None,
        typer.Option(
            metavar="EXPERIMENT.yaml",
            help="Play an episode with this experiment's environment and show the conversation. Runs the environment's "
            "code.",
        ),
    ] = None,
    row: Annotated[
        int | None, typer.Option(min=0, help="With --env: the held-out row to play, from 0, by default the first.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=100, help="Temperature; 0 takes the likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Sample from the likeliest tokens that hold this probability; 1 is off."),
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="Sample from this many likeliest tokens; 0 is off.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer in tokens.")] = None,
    num_samples: Annotated[int, typer.Option(min=1, max=65_536, help="Answers per prompt.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples.")] = 1,
    batch: Annotated[
        int, typer.Option(min=1, help="Answers generated at the same time. Changes speed and memory only.")
    ] = 32,
    system_prompt: Annotated[str | None, typer.Option(help="System message of every conversation.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Go on with the text itself, without the chat template.")] = False,
    tokenizer: TokenizerOption = None,
    eos_token: EosTokenOption = None,
    device: Annotated[Literal["CPU", "Ascend"], typer.Option(help="Where graphs run.")] = "CPU",
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option(help="Type of weights and activations.")
    ] = "float32",
    emulate_ascend: EmulateOption = False,
) -> None:
    """Answer a prompt or a file of prompts, chat, or play.

    The model is that of a folder, or of a run: its export, else its newest checkpoint. Without --prompt and --file it
    is a chat: /reset begins a new conversation, /quit or Ctrl-D ends the chat, Ctrl-C stops an answer. Answers are
    sampled as the options say, else as generation_config.json says, else greedily. With --env it plays an episode of a
    held-out row, or of --prompt where the environment needs no answer.
    """
    if prompt is not None and file is not None:
        raise typer.BadParameter("give --prompt or --file, not both")
    if env is not None:
        if file is not None or raw or system_prompt is not None or (prompt is not None and row is not None):
            raise typer.BadParameter("--env goes with either --prompt or --row; the experiment says how prompts begin")
    elif row is not None:
        raise typer.BadParameter("--row goes with --env EXPERIMENT.yaml")
    elif prompt is None and file is None and (raw or num_samples > 1):
        raise typer.BadParameter("--raw and --num-samples go with --prompt or --file; a chat has one answer at a time")
    if emulate_ascend:  # before MindSpore is imported
        emulated_overrides(True, None)
        device = "Ascend"
    with activity("starting"):
        from mindgspo.evaluation.generate import GenerateOptions

    options = GenerateOptions(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        max_new_tokens=max_new_tokens,
        num_samples=num_samples,
        seed=seed,
        batch=batch,
        device=device,
        dtype=dtype,
        tokenizer=tokenizer,
        eos_tokens=tuple(eos_token or ()),
        system_prompt=system_prompt,
        is_raw=raw,
    )
    if prompt == "-":
        prompt = sys.stdin.read()
    if env is not None:
        _play(model, env, options, prompt, row or 0)
    elif prompt is not None:
        _answer(model, prompt, options)
    elif file is not None:
        _answer_file(model, file, options)
    else:
        _chat(model, options)


def _answer(model: Path, prompt: str, options: GenerateOptions) -> None:
    from mindgspo.evaluation.generate import generate_completions

    (found,) = generate_completions(model, [prompt], options)
    for number, one in enumerate(found.completions, start=1):
        if len(found.completions) > 1:
            print(f"--- {number} of {len(found.completions)}: {one.ids.size} tokens, {one.finish_reason.value}")
        print(one.text)


def _play(model: Path, experiment: Path, options: GenerateOptions, prompt: str | None, row: int) -> None:
    from mindgspo.evaluation.generate import play_episodes

    for line in play_episodes(model, experiment, options, prompt=prompt, row=row):
        print(line, flush=True)


def _answer_file(model: Path, file: Path, options: GenerateOptions) -> None:
    from mindgspo.evaluation.generate import generate_completions, json_row
    from mindgspo.evaluation.inputs import read_prompts

    for found in generate_completions(model, read_prompts(file), options):
        print(json_row(found), flush=True)


def _chat(model: Path, options: GenerateOptions) -> None:
    from mindgspo.errors import ConfigError
    from mindgspo.evaluation.generate import Chat
    from mindgspo.text import error_text

    chat = Chat(model, options)
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        print(f"{chat.place}: {_COMMANDS}")
    while (line := _next_line(is_terminal)) is not None:
        word = line.strip()
        if word == "/quit":
            return
        if word == "/reset":
            chat.reset()
        elif word.startswith("/") and word[1:].isalpha():
            print(f"no command {word}: {_COMMANDS}")
        elif word:
            try:
                _say(chat, line)
            except ConfigError as error:
                print(error_text(error), file=sys.stderr)


def _say(chat: Chat, text: str) -> None:
    from mindgspo import interrupts

    with interrupts.counting() as count:
        for piece in chat.say(text, count):
            print(piece, end="", flush=True)
        print(" [stopped]" if count() else "")


def _next_line(is_terminal: bool) -> str | None:
    """Read one line; None at the end of input. Ctrl-C drops the line typed so far."""
    if not is_terminal:
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None
    import readline  # noqa: F401  (input() then has a history and edits its line)

    from mindgspo.text import raw_stream

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with redirect_stdout(raw_stream(sys.stdout)):  # else input() takes it for no terminal
            return input("> ")
    except KeyboardInterrupt:
        print()
        return ""
    except EOFError:
        print()
        return None
    finally:
        signal.signal(signal.SIGINT, before)
