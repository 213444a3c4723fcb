"""The command line: one function per command, each parses and calls the package.

Heavy imports stay inside the functions, so that `--help` and configuration errors answer at once. A
`MindGSPOError` is printed as one message with exit code 1, a wrong command line with exit code 2; only a defect of
ours shows a traceback. Commands stand in files by what they take; this one puts them together.
"""

from __future__ import annotations

import errno
import importlib.metadata
import io
import platform
import resource
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer
from typer.completion import completion_init

from mindgspo.cli import experiment, model
from mindgspo.cli.checkpoint import checkpoint_app
from mindgspo.cli.compare import compare
from mindgspo.cli.completion import completion
from mindgspo.cli.convert import convert_app
from mindgspo.cli.data import data_app
from mindgspo.cli.doctor import doctor
from mindgspo.cli.generate import generate
from mindgspo.cli.init import init
from mindgspo.cli.replay import replay
from mindgspo.cli.reward import reward_app
from mindgspo.cli.runs import runs
from mindgspo.cli.serve import serve
from mindgspo.cli.settings import CommandGroup, SettingsCommand
from mindgspo.cli.strategy import strategy_app
from mindgspo.errors import MindGSPOError, OutOfMemoryError
from mindgspo.io import DISK_ERRORS, write_error
from mindgspo.parallel.platform.runtime import is_emulated, is_worker
from mindgspo.text import PrintableStream, error_text

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="GSPO reinforcement learning of language models on MindSpore.",
)

# One line each, in the order of `mindgspo --help`.
app.command()(init)
app.command(cls=SettingsCommand)(experiment.run)
app.command(cls=SettingsCommand)(experiment.sft)
app.command(cls=SettingsCommand)(serve)
app.command(cls=SettingsCommand)(experiment.check)
app.command(cls=SettingsCommand)(experiment.plan)
app.command(cls=SettingsCommand)(experiment.dryrun)
app.command("eval", cls=SettingsCommand)(model.evaluate)
app.command()(generate)
app.command()(model.logprobs)
app.command()(runs)
app.command()(experiment.report)
app.command()(compare)
app.command(cls=SettingsCommand)(doctor)
app.command()(replay)
app.command()(completion)
app.add_typer(checkpoint_app, name="checkpoint")
app.add_typer(data_app, name="data")
app.add_typer(convert_app, name="convert")
app.add_typer(reward_app, name="reward")
app.add_typer(strategy_app, name="strategy")
for added in importlib.metadata.entry_points(group="mindgspo.commands"):  # by packages beside this one
    *group, command = added.name.split(".")
    (convert_app if group == ["convert"] else app).command(command)(added.load())
completion_init()  # typer answers the scripts of `mindgspo completion`


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(
            f"mindgspo {_version('mindgspo')} (MindSpore {_version('mindspore')}, Python {platform.python_version()})"
        )
        raise typer.Exit


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print versions and exit.")
    ] = False,
) -> None:
    """Options that stand before a command."""


def run_command(arguments: Sequence[str] | None) -> int:
    """Run one command and return the exit code: 0, 1 for a `MindGSPOError`, 2 for usage."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a GBK terminal must not stop a command at a character it lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    if is_worker() and is_emulated():  # as its launcher is
        from mindgspo.parallel.platform.emulator import install_emulated_card

        install_emulated_card()
    # Whatever a command prints may come from data, model files or responses.
    with redirect_stdout(PrintableStream(sys.stdout)), redirect_stderr(PrintableStream(sys.stderr)):
        return _exit_code(arguments)


def _exit_code(arguments: Sequence[str] | None) -> int:
    try:
        app(args=arguments, prog_name="mindgspo", standalone_mode=True)
    except SystemExit as ended:
        return int(ended.code or 0)
    except MindGSPOError as error:
        print(error_text(error), file=sys.stderr)
        return 1
    except OSError as error:  # a file of the user's, wherever it was used: gone, a name too long, no right, no space
        if error.errno in DISK_ERRORS:
            place = f"{error.strerror}; make room there"  # of standard output, or of what a library writes
            print(error_text(write_error(Path(error.filename), error) if error.filename else place), file=sys.stderr)
            return 1
        if error.errno in (errno.EMFILE, errno.ENFILE):
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            print(
                error_text(f"too many open files: the limit is {limit} (ulimit -n); set 4096 or more"), file=sys.stderr
            )
            return 1
        if error.filename is None:
            raise
        print(error_text(f"{error.filename}: {error.strerror}"), file=sys.stderr)
        return 1
    except MemoryError as error:
        print(error_text(OutOfMemoryError.of(error)), file=sys.stderr)
        return 1
    except RuntimeError as error:  # of MindSpore, with a code of CANN's in it
        if str(error) == "can't start new thread":
            print(error_text(OutOfMemoryError.of(error)), file=sys.stderr)
            return 1
        from mindgspo.launch.error_codes import find, told

        if not (meaning := told(find(str(error).splitlines()))):
            raise
        traceback.print_exc()
        print(*meaning, sep="\n", file=sys.stderr)
        return 1
    raise AssertionError("typer ends every command with SystemExit")
