"""The command that lists runs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder of runs, or one run.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, with all verdicts.")] = False,
) -> None:
    """List the runs of a folder: state, step, accuracy, verdict.

    A run is running, finished, failed, stopped, or broken where its files cannot be read. The latest comes first.
    """
    from mindgspo.checkpoint.runs import overviews, run_table

    found = overviews(folder)
    if as_json:
        print(json.dumps([dataclasses.asdict(one) for one in found], indent=2, allow_nan=False))
        return
    for line in run_table(found):
        print(line)
