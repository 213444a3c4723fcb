"""`mindgspo convert config`: configurations of other suites as experiments of this one."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from mindgspo.cli.options import SetOption


class Suite(str, Enum):
    """Whose configuration is read."""

    mindformers = "mindformers"
    mindrlhf = "mindrlhf"
    mindspeed = "mindspeed"
    trl = "trl"
    verl = "verl"


def convert_config(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Files of a suite: MindFormers' finetune or predict YAML, or both; MindRLHF's GRPO YAML, with the "
            "MindFormers files that it names behind it; MindSpeed-RL's YAML, with that of its model behind it; TRL's "
            "GRPO YAML; or verl's command: a script, a command line, or overrides one per line.",
        ),
    ],
    from_: Annotated[
        Suite | None,
        typer.Option("--from", help="Whose configuration the first FILE is, by default what its keys say."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="YAML file to write; an existing one is never touched. By default it goes to standard output."
        ),
    ] = None,
    set_: SetOption = None,
) -> None:
    """Write another suite's configuration as an experiment.

    Every key is reported on. The report, on standard error, names what could not be taken over and why, what had to be
    assumed, what must still be set, and what `mindgspo check` would refuse, with the nearest legal value. Nothing of a
    script is run.
    """
    from mindgspo.io import write_new_file
    from mindgspo_migrate.convert import convert, report_lines

    converted = convert(files, None if from_ is None else from_.value, set_ or [])
    if out is None:
        print(converted.yaml, end="")
    else:
        write_new_file(out, converted.yaml.encode())
    for line in report_lines(converted):
        print(line, file=sys.stderr)
    if out is not None:
        print(f"written: {out}; next: mindgspo check {out}", file=sys.stderr)
