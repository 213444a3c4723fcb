"""Commands that look at runs: list, report, compare."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer


def runs_command(
    folder: Annotated[Path, typer.Argument(help="Folder of runs, or one run.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, with all verdicts.")] = False,
) -> None:
    """List the runs of a folder: state, step, accuracy, verdict.

    A run is running, finished, failed, stopped, or broken if its files cannot be read. The latest comes first.
    """
    from mindgspo.checkpoint.runs import overviews, run_table

    found = overviews(folder)
    if as_json:
        print(json.dumps([dataclasses.asdict(one) for one in found], indent=2, allow_nan=False))
        return
    for line in run_table(found):
        print(line)


def sweep_command(
    sweep: Annotated[Path, typer.Argument(help="YAML file of the sweep: an experiment, and values of settings.")],
    jobs: Annotated[
        int, typer.Option(min=1, max=64, help="Runs at a time; on Ascend each gets cards of its own, by the plans.")
    ] = 1,
) -> None:
    """Run an experiment under several settings, and compare the runs.

    All combinations are checked before the first begins. The same command again skips finished runs and resumes the
    others. Whenever a run ends, comparison.html is written anew; exit code 1 if a run failed, which keeps no other from
    running.
    """
    from mindgspo.doctor.cards import free_cards
    from mindgspo.doctor.machine import this_machine
    from mindgspo.interrupts import advise
    from mindgspo.metrics.compare import outcome_rows
    from mindgspo.sweep import cards_of_jobs, load_sweep, run_all, unfinished
    from mindgspo.text import aligned, counted, listed

    found = load_sweep(sweep)
    waiting = unfinished(found.runs)
    cards = cards_of_jobs(waiting, jobs, free_cards(this_machine()))
    print(f"{counted(len(found.runs), 'run')} in {found.folder}, {len(found.runs) - len(waiting)} of them finished")
    advise("the same command again resumes the sweep")
    failed = run_all(waiting, cards, ended=found.compare)
    if (comparison := found.compare()) is not None:
        print("", *aligned(outcome_rows(comparison), left=1), "", f"page: {found.page}", sep="\n")
    if failed:
        print(f"{counted(len(failed), 'run')} failed: {listed(failed)}")
        raise typer.Exit(1)


def report_command(run_dir: Annotated[Path, typer.Argument(help="Run folder, e.g. runs/arithmetic-gspo.")]) -> None:
    """Draw reward.png and report.html of a run again.

    This also works while the run is going on.
    """
    from mindgspo.metrics import plot_run, write_report

    print(f"plot: {plot_run(run_dir)}")
    print(f"report: {write_report(run_dir)}")


def compare_command(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN RUN...", help="Run folders, at least two; they may differ in length or go on."),
    ],
    target: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML file of published figures, for a single RUN.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for comparison.png and comparison.html.")] = Path("comparison"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """Compare runs, or judge one by published figures.

    Settings and outcomes are printed, accuracy with its 95 % interval; curves are drawn into comparison.png and into a
    page that opens anywhere, comparison.html. With --target, each metric passes or fails by the file's threshold; exit
    code 1 if one fails or was not recorded.
    """
    from mindgspo.metrics.compare import compare_runs, comparison_lines, write_comparison

    if target is not None:
        if len(runs) != 1:
            raise typer.BadParameter("--target judges one run folder; name one")
        return _judge(runs[0], target, as_json=as_json)
    if len({run.resolve() for run in runs}) < max(2, len(runs)):
        raise typer.BadParameter("name at least two run folders, each of them once, or one with --target")
    comparison = compare_runs(runs)
    picture, page = write_comparison(comparison, out)
    if as_json:
        names = ("outcomes", "settings", "environment")
        parts = {name: [dataclasses.asdict(one) for one in getattr(comparison, name)] for name in names}
        print(json.dumps({**parts, "picture": str(picture), "page": str(page)}, indent=2))
        return
    for line in comparison_lines(comparison):
        print(line)
    print(f"\npicture: {picture}\npage: {page}")


def _judge(folder: Path, target_file: Path, *, as_json: bool) -> None:
    from mindgspo.config.paths import experiment_file
    from mindgspo.metrics.run_folder import read_run
    from mindgspo.metrics.target import judge, load_target, target_lines

    target, run = load_target(experiment_file(target_file)), read_run(folder, with_samples=False)
    lines = judge(run, target)
    if as_json:
        print(json.dumps([dataclasses.asdict(one) for one in lines], indent=2))
    else:
        for line in target_lines(run, target, lines):
            print(line)
    if not all(one.passed for one in lines):
        raise typer.Exit(1)
