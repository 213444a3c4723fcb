#!/usr/bin/env python3
"""Train variants of one experiment with several seeds, one run after the other, and lay them side by side.

    python tools/compare_algorithms.py                          GSPO against GRPO on the arithmetic task, seeds 1, 2, 3
    python tools/compare_algorithms.py --only-plot              table and picture again, nothing is trained
    python tools/compare_algorithms.py --variant gspo algorithm.name=gspo --variant wide algorithm.clip_high=8e-4
    python tools/compare_algorithms.py --condition few --condition many trainer.prompts_per_mini_batch=2
                                                                every variant under every condition

Where the experiment has a supervised warm-up, it is run once per seed, and all variants of that seed start from the
same weights. Finished runs are reused, stopped ones continued. Below --output:

    comparison.png, comparison.md     the picture and the table, also printed
    comparison_cost.png               accuracy against updates and against generated responses
    seed1/warm-up, seed1/gspo, ...    run folders; their output on the terminal is in seed1/warm-up.log, seed1/gspo.log;
                                      with conditions seed1/many/gspo, ...

Exit codes: 0; 1 if a run fails (its log is named) or a setting is wrong; 2 for a wrong command line; 130 for Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import numpy as np

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.errors import ConfigError, MindGSPOError, TrainingError
from mindgspo.io import write_file
from mindgspo.metrics.compare import (
    ACCURACY,
    CLIP_FRACTION,
    GRADIENT,
    REWARD,
    ROUTING,
    ComparedRun,
    band_text,
    by_condition,
    by_variant,
    display_name,
    draw_curves,
    line_style,
)
from mindgspo.metrics.files import read_summary
from mindgspo.metrics.plot_style import (
    LIGHT,
    Theme,
    entitle,
    label_x,
    label_y,
    new_figure,
    not_recorded,
    png_bytes,
    style,
)
from mindgspo.metrics.run_folder import HELD_OUT_ACCURACY, RunRecord, accuracies, read_run
from mindgspo.trainer.resume_checks import check_same_experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes


EXPERIMENT = Path(__file__).resolve().parents[1] / "examples" / "arithmetic" / "gspo.yaml"
WARM_UP = "warm-up"
VARIANTS = {"gspo": ("algorithm.name=gspo",), "grpo": ("algorithm.name=grpo",)}
LOG_LINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One child process: `mindgspo <command> <experiment> --set ...`, its run folder, its log.

    condition: "" without conditions. config: what the child will resolve its command line to.
    """

    name: str
    condition: str
    seed: int
    command: str
    experiment: Path
    settings: tuple[str, ...]
    run_dir: Path
    config: ExperimentConfig

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (f"seed {self.seed}", self.condition, self.name)))

    @property
    def log(self) -> Path:
        return self.run_dir.with_name(f"{self.run_dir.name}.log")

    def is_finished(self) -> bool:
        """Whether its run folder holds this very run, complete. ConfigError if it holds one with other settings."""
        if read_summary(self.run_dir).get("finished") is not True:
            return False
        try:
            check_same_experiment(self.config, self.run_dir / "config.yaml")
        except ConfigError as error:
            raise ConfigError(f"{error}. Here: choose another --output") from None
        return True

    def arguments(self) -> list[str]:
        """The child's command line."""
        overrides = [word for setting in self.settings for word in ("--set", setting)]
        return [sys.executable, "-m", "mindgspo.cli", self.command, str(self.experiment), *overrides]


Launch = Callable[[Job], int]


NO_CONDITION: dict[str, tuple[str, ...]] = {"": ()}


def plan(
    experiment: Path,
    output: Path,
    variants: dict[str, tuple[str, ...]],
    seeds: Sequence[int],
    common: Sequence[str],
    conditions: dict[str, tuple[str, ...]] = NO_CONDITION,
) -> list[Job]:
    """All jobs in order: per seed the warm-up, then every variant under every condition; a variant's settings override
    those of a condition. ConfigError for a setting that is wrong."""
    warms_up = load_config(experiment, common).warmup is not None
    jobs = []
    for seed in seeds:
        folder = output / f"seed{seed}"
        shared = [*common, f"seed={seed}", "resume=auto", "logging.progress=false"]
        if warms_up:
            jobs.append(_job(WARM_UP, "", seed, "sft", experiment, shared, folder / WARM_UP))
            export = json.dumps(str(folder / WARM_UP / "export"))
            shared += ["warmup=null", f"model.path={export}"]
        for condition, changed in conditions.items():
            for name, settings in variants.items():
                own = [*shared, f"experiment={json.dumps(name)}", *changed, *settings]
                jobs.append(_job(name, condition, seed, "run", experiment, own, folder / condition / name))
    return jobs


def _job(
    name: str, condition: str, seed: int, command: str, experiment: Path, settings: Sequence[str], run_dir: Path
) -> Job:
    settings = (*settings, f"run_dir={json.dumps(str(run_dir))}")
    # The weights of the warm-up are not there yet.
    config = load_config(experiment, settings, check_files=False)
    if command == "sft":  # as `mindgspo sft` names it
        config = config.model_copy(update={"experiment": f"{config.experiment}-sft"})
    return Job(
        name=name,
        condition=condition,
        seed=seed,
        command=command,
        experiment=experiment,
        settings=settings,
        run_dir=run_dir,
        config=config,
    )


def run_child(job: Job) -> int:
    """Run the job to its end; returns its exit code. What it prints is appended to its log."""
    with job.log.open("ab") as log:
        return subprocess.run(job.arguments(), stdout=log, stderr=subprocess.STDOUT, check=False).returncode


def run_all(jobs: Sequence[Job], launch: Launch = run_child) -> None:
    """Every job that is not finished, in order. TrainingError, naming its log, for the first that fails."""
    for number, job in enumerate(jobs, start=1):
        title = f"[{number}/{len(jobs)}] {job.title}"
        if job.is_finished():
            print(f"{title}: finished before", flush=True)
            continue
        print(f"{title}: running, output in {job.log}", flush=True)
        job.run_dir.parent.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        code = launch(job)
        if code != 0:
            raise TrainingError(f"{job.title}: exit code {code}; its output is in {job.log}{_end(job)}")
        if read_summary(job.run_dir).get("finished") is not True:
            raise TrainingError(f"{job.title}: ended without a result; its output is in {job.log}")
        print(f"{title}: {time.perf_counter() - started:.0f} s", flush=True)


def _end(job: Job) -> str:
    """The last lines of the log, indented."""
    if not job.log.is_file():
        return ""
    lines = job.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
    return "".join(f"\n    {line}" for line in lines)


def report(jobs: Sequence[Job], output: Path) -> None:
    """Print and write the table, draw the pictures. RunFolderError for a run that is not there."""
    order = list(dict.fromkeys((job.condition, job.name) for job in jobs))
    runs = sorted(
        (
            ComparedRun(variant=job.name, seed=job.seed, run=read_run(job.run_dir), condition=job.condition)
            for job in jobs
            if job.command == "run"
        ),
        key=lambda one: order.index((one.condition, one.variant)),
    )
    table = comparison_table(runs)
    write_file(output / "comparison.md", f"{table}\n".encode())
    write_file(output / "comparison.png", draw_comparison(runs, LIGHT))
    pictures = [output / "comparison.png"]
    if len(by_condition(runs)) == 1:
        write_file(output / "comparison_cost.png", draw_costs(runs, LIGHT))
        pictures.append(output / "comparison_cost.png")
    print(f"\n{table}\n\npictures: {', '.join(map(str, pictures))}")


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path, nargs="?", default=EXPERIMENT, help="default: the arithmetic task")
    parser.add_argument("--output", type=Path, default=Path("runs/compare"), help="default: runs/compare")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    for option, meaning in (
        ("--variant", "the settings that make it; may be repeated. Default: gspo and grpo"),
        ("--condition", "settings under which every variant runs; may be repeated. Default: none"),
    ):
        name = ("NAME", "KEY=VALUE")
        parser.add_argument(option, nargs="+", action="append", metavar=name, help=f"a name and {meaning}")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of all runs")
    parser.add_argument("--only-plot", action="store_true", help="train nothing")
    arguments = parser.parse_args(words)
    if len(set(arguments.seeds)) < len(arguments.seeds):
        parser.error(f"--seeds: one stands there twice: {arguments.seeds}")
    arguments.variants = _named(parser, "--variant", arguments.variant) or VARIANTS
    arguments.conditions = _named(parser, "--condition", arguments.condition) or NO_CONDITION
    return arguments


def _named(
    parser: argparse.ArgumentParser, option: str, given: Sequence[Sequence[str]] | None
) -> dict[str, tuple[str, ...]]:
    """Settings by name."""
    found: dict[str, tuple[str, ...]] = {}
    for name, *settings in given or ():
        if name in found or name == WARM_UP or "=" in name:
            parser.error(f"{option} {name}: the first word is a name of its own, then come KEY=VALUE settings")
        found[name] = tuple(settings)
    return found


# ----- table and pictures


@dataclass(frozen=True, slots=True)
class _Column:
    """A figure of a run: its heading, how it is found, how it and its deviation are written. is_optional: the column is
    left out where no run has it."""

    heading: str
    figure: Callable[[RunRecord], float | None]
    form: str
    deviation_form: str
    is_optional: bool = False


# ----- the table


def _run_mean(metric: str) -> Callable[[RunRecord], float | None]:
    def mean(run: RunRecord) -> float | None:
        series = run.series(metric)
        return fmean(series.values) if series else None

    return mean


def _run_max(metric: str) -> Callable[[RunRecord], float | None]:
    def largest(run: RunRecord) -> float | None:
        return max(run.series(metric).values, default=None)

    return largest


def _best(run: RunRecord) -> float | None:
    return max(HELD_OUT_ACCURACY.series(run).values, default=None)


def _generated(run: RunRecord) -> float | None:
    series = run.series("samples/generated")
    return sum(series.values) if series else None


def _seconds(run: RunRecord) -> float | None:
    value = run.summary.get("seconds")
    return float(value) if isinstance(value, (int, float)) else None


_COLUMNS = (
    _Column("accuracy before", lambda run: HELD_OUT_ACCURACY.span(run)[0], "{:.3f}", "{:.3f}"),
    _Column("best", _best, "{:.3f}", "{:.3f}"),
    _Column("accuracy after", lambda run: HELD_OUT_ACCURACY.span(run)[1], "{:.3f}", "{:.3f}"),
    _Column("steps behind", _run_mean("staleness/token_mean"), "{:.1f}", "{:.1f}", is_optional=True),
    _Column("responses clipped", _run_mean("actor/pg_clipfrac_seq"), "{:.2g}", "{:.1g}"),
    _Column("tokens clipped", _run_mean("actor/pg_clipfrac"), "{:.2g}", "{:.1g}"),
    _Column("gradient norm", _run_mean("actor/grad_norm"), "{:.2g}", "{:.1g}", is_optional=True),
    _Column("largest gradient norm", _run_max("actor/grad_norm"), "{:.2g}", "{:.1g}", is_optional=True),
    _Column("routing mismatch", _run_mean("router/mismatch"), "{:.2%}", "{:.2%}", is_optional=True),
    _Column("routing drift", _run_mean("router/drift"), "{:.2%}", "{:.2%}", is_optional=True),
    _Column("responses generated", _generated, "{:,.0f}", "{:,.0f}"),
    _Column("seconds", _seconds, "{:.0f}", "{:.0f}"),
)


def _of_set(name: str) -> _Column:
    """Accuracy after, on one of several held-out sets."""

    def last(run: RunRecord) -> float | None:
        series = accuracies(run).get(name)
        return series.values[-1] if series else None

    return _Column(f"{name} after", last, "{:.3f}", "{:.3f}", is_optional=True)


def comparison_table(runs: Sequence[ComparedRun]) -> str:
    """Markdown: a line per run, then a line per variant with mean and standard deviation (ddof 1) over its seeds.

    Clip fractions, gradient norms, staleness and routing are means over the steps of a run. "-" where a run did not
    record a figure. Several held-out sets have a column each.
    """
    sets = dict.fromkeys(name for one in runs for name in accuracies(one.run))
    columns = [
        column
        for column in (*_COLUMNS, *(_of_set(name) for name in sets if len(sets) > 1))
        if not column.is_optional or any(column.figure(one.run) is not None for one in runs)
    ]
    conditions = by_condition(runs)
    names = ["condition", "algorithm", "seed"][len(conditions) == 1 :]
    lines = [[*names, *(column.heading for column in columns)], ["---"] * (len(columns) + len(names))]
    for one in runs:
        name = [one.condition, one.variant, str(one.seed)][-len(names) :]
        lines.append([*name, *(_cell(column, column.figure(one.run)) for column in columns)])
    for condition, compared in conditions.items():
        for variant, siblings in by_variant(compared).items():
            if len(siblings) > 1:
                cells = [_summary_cell(column, [column.figure(one.run) for one in siblings]) for column in columns]
                lines.append([*[condition, variant, f"mean of {len(siblings)}"][-len(names) :], *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(column: _Column, value: float | None) -> str:
    return "-" if value is None else column.form.format(value)


def _summary_cell(column: _Column, values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "-"
    return f"{column.form.format(fmean(known))} \N{PLUS-MINUS SIGN} {column.deviation_form.format(stdev(known))}"


# ----- the picture


def draw_comparison(runs: Sequence[ComparedRun], theme: Theme) -> bytes:
    """Reward, held-out accuracy, clip fraction, gradient norm under conditions and, where it was recorded, how far
    routing drifts: a line per variant for the mean over its seeds, a band from the smallest to the largest of them. All
    but accuracy are moving means."""
    panels = [REWARD, ACCURACY, CLIP_FRACTION]
    panels += [GRADIENT] if len(by_condition(runs)) > 1 else []
    panels += [ROUTING] if any(one.run.series("router/drift") for one in runs) else []
    return draw_curves(runs, theme, panels, columns=len(panels))


_COSTS = (
    ("actor/updates", "Accuracy by updates", "optimizer updates"),
    ("samples/generated", "Accuracy by generated responses", "responses generated for training"),
)


def spent(run: RunRecord, metric: str, steps: Sequence[int]) -> list[float]:
    """The sum of a metric over all steps up to each of `steps`; 0 where it was never recorded."""
    series = run.series(metric)
    return [sum(value for at, value in zip(series.steps, series.values, strict=True) if at <= step) for step in steps]


def draw_costs(runs: Sequence[ComparedRun], theme: Theme) -> bytes:
    """Held-out accuracy of every variant, mean and range over its seeds, against what was spent: updates on the left,
    generated responses on the right (their mean over the seeds)."""
    assert runs, "a comparison of no runs"
    figure = new_figure(theme, 11, 4.2)
    for axes, (metric, title, unit) in zip(figure.subplots(1, 2, sharey=True), _COSTS, strict=True):
        style(axes, theme)
        entitle(axes, theme, title, f"greedy answers{band_text(runs)}")
        label_x(axes, theme, unit)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        _draw(axes, runs, theme, metric)
        label_y(axes, theme, "share of problems solved")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=10, labelcolor=theme.ink, loc="lower right")
    return png_bytes(figure, theme)


def _draw(axes: Axes, runs: Sequence[ComparedRun], theme: Theme, metric: str) -> None:
    is_empty = True
    for index, (variant, siblings) in enumerate(by_variant(runs).items()):
        accuracies = [HELD_OUT_ACCURACY.series(one.run) for one in siblings]
        shared = sorted(set.intersection(*(set(series.steps) for series in accuracies)))
        if not shared:
            continue
        is_empty = False
        rows = np.array(
            [[dict(zip(one.steps, one.values, strict=True))[step] for step in shared] for one in accuracies]
        )
        cost = np.mean([spent(one.run, metric, shared) for one in siblings], axis=0)
        colour, line = line_style(theme, index)
        axes.fill_between(cost, rows.min(axis=0), rows.max(axis=0), color=colour, alpha=0.16, linewidth=0)
        axes.plot(
            cost,
            rows.mean(axis=0),
            line,
            color=colour,
            linewidth=2.2,
            marker="o",
            markersize=4,
            label=display_name(variant),
        )
    if is_empty:
        not_recorded(axes, theme)


def main(words: Sequence[str] | None = None, launch: Launch = run_child) -> int:
    arguments = parse_arguments(words)
    output = arguments.output.resolve()
    try:
        jobs = plan(
            arguments.experiment, output, arguments.variants, arguments.seeds, arguments.set, arguments.conditions
        )
        if not arguments.only_plot:
            run_all(jobs, launch)
        report(jobs, output)
    except MindGSPOError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
