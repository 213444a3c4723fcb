"""Runs beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN RUN...", help="Run folders, at least two; they may differ in length or go on."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for comparison.png and comparison.html.")] = Path("comparison"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """Compare runs: settings, outcomes, curves.

    Accuracy is printed with its 95 % interval; the curves are drawn into comparison.png and into a page that opens
    anywhere, comparison.html.
    """
    import json
    from dataclasses import asdict

    from mindgspo.metrics.compare import compare_runs, comparison_lines, write_comparison

    if len({run.resolve() for run in runs}) < max(2, len(runs)):
        raise typer.BadParameter("name at least two run folders, each of them once")
    comparison = compare_runs(runs)
    picture, page = write_comparison(comparison, out)
    if as_json:
        names = ("outcomes", "settings", "environment")
        parts = {name: [asdict(one) for one in getattr(comparison, name)] for name in names}
        print(json.dumps({**parts, "picture": str(picture), "page": str(page)}, indent=2))
        return
    for line in comparison_lines(comparison):
        print(line)
    print(f"\npicture: {picture}\npage: {page}")
