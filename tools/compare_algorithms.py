#!/usr/bin/env python3
"""Train variants of one experiment with several seeds, one run after the other, and lay them side by side.

    python tools/compare_algorithms.py                          GSPO against GRPO on the arithmetic task, seeds 1, 2, 3
    python tools/compare_algorithms.py --only-plot              table and picture again, nothing is trained
    python tools/compare_algorithms.py --variant gspo algorithm.name=gspo --variant wide algorithm.clip_high=8e-4

Where the experiment has a supervised warm-up, it is run once per seed, and all variants of that seed start from the
same weights. Finished runs are reused, stopped ones continued. Below --output:

    comparison.png, comparison.md     the picture and the table, also printed
    comparison_cost.png               accuracy against updates and against generated responses
    seed1/warm-up, seed1/gspo, ...    run folders; their output on the terminal is in seed1/warm-up.log, seed1/gspo.log

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

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.errors import ConfigError, MindGSPOError, TrainingError
from mindgspo.metrics.comparison import ComparedRun, comparison_table, draw_comparison
from mindgspo.metrics.comparison_cost import draw_costs
from mindgspo.metrics.files import replace_file
from mindgspo.metrics.plot_style import LIGHT
from mindgspo.metrics.run_folder import read_run
from mindgspo.metrics.summary import read_summary
from mindgspo.trainer.resume import check_same_experiment

EXPERIMENT = Path(__file__).resolve().parents[1] / "examples" / "arithmetic" / "gspo.yaml"
WARM_UP = "warm-up"
VARIANTS = {"gspo": ("algorithm.name=gspo",), "grpo": ("algorithm.name=grpo",)}
LOG_LINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One child process: `mindgspo <command> <experiment> --set ...`, its run folder, its log.

    config: what the child will resolve its command line to.
    """

    name: str
    seed: int
    command: str
    experiment: Path
    settings: tuple[str, ...]
    run_dir: Path
    config: ExperimentConfig

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


def plan(
    experiment: Path, output: Path, variants: dict[str, tuple[str, ...]], seeds: Sequence[int], common: Sequence[str]
) -> list[Job]:
    """All jobs in order: per seed the warm-up, then every variant. ConfigError for a setting that is wrong."""
    warms_up = load_config(experiment, common).warmup is not None
    jobs = []
    for seed in seeds:
        folder = output / f"seed{seed}"
        shared = [*common, f"seed={seed}", "resume=auto", "logging.progress=false"]
        if warms_up:
            jobs.append(_job(WARM_UP, seed, "sft", experiment, shared, folder / WARM_UP))
            export = json.dumps(str(folder / WARM_UP / "export"))
            shared += ["warmup=null", f"model.path={export}"]
        for name, settings in variants.items():
            own = [*shared, f"experiment={json.dumps(name)}", *settings]
            jobs.append(_job(name, seed, "run", experiment, own, folder / name))
    return jobs


def _job(name: str, seed: int, command: str, experiment: Path, settings: Sequence[str], run_dir: Path) -> Job:
    settings = (*settings, f"run_dir={json.dumps(str(run_dir))}")
    # The weights of the warm-up are not there yet.
    config = load_config(experiment, settings, check_files=False)
    if command == "sft":  # as `mindgspo sft` names it
        config = config.model_copy(update={"experiment": f"{config.experiment}-sft"})
    return Job(
        name=name,
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
        title = f"[{number}/{len(jobs)}] seed {job.seed}, {job.name}"
        if job.is_finished():
            print(f"{title}: finished before", flush=True)
            continue
        print(f"{title}: running, output in {job.log}", flush=True)
        job.run_dir.parent.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        code = launch(job)
        if code != 0:
            raise TrainingError(f"seed {job.seed}, {job.name}: exit code {code}; its output is in {job.log}{_end(job)}")
        if read_summary(job.run_dir).get("finished") is not True:
            raise TrainingError(f"seed {job.seed}, {job.name}: ended without a result; its output is in {job.log}")
        print(f"{title}: {time.perf_counter() - started:.0f} s", flush=True)


def _end(job: Job) -> str:
    """The last lines of the log, indented."""
    if not job.log.is_file():
        return ""
    lines = job.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
    return "".join(f"\n    {line}" for line in lines)


def report(jobs: Sequence[Job], output: Path) -> None:
    """Print and write the table, draw the picture. RunFolderError for a run that is not there."""
    runs = sorted(
        (
            ComparedRun(variant=job.name, seed=job.seed, run=read_run(job.run_dir))
            for job in jobs
            if job.command == "run"
        ),
        key=lambda one: [job.name for job in jobs].index(one.variant),
    )
    table = comparison_table(runs)
    replace_file(output / "comparison.md", f"{table}\n".encode())
    replace_file(output / "comparison.png", draw_comparison(runs, LIGHT))
    replace_file(output / "comparison_cost.png", draw_costs(runs, LIGHT))
    print(f"\n{table}\n\npictures: {output / 'comparison.png'}, {output / 'comparison_cost.png'}")


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path, nargs="?", default=EXPERIMENT, help="default: the arithmetic task")
    parser.add_argument("--output", type=Path, default=Path("runs/compare"), help="default: runs/compare")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument(
        "--variant",
        nargs="+",
        action="append",
        metavar=("NAME", "KEY=VALUE"),
        help="a name and the settings that make it; may be repeated. Default: gspo and grpo",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of all runs")
    parser.add_argument("--only-plot", action="store_true", help="train nothing")
    arguments = parser.parse_args(words)
    if len(set(arguments.seeds)) < len(arguments.seeds):
        parser.error(f"--seeds: one stands there twice: {arguments.seeds}")
    variants = {} if arguments.variant else VARIANTS
    for name, *settings in arguments.variant or []:
        if name in variants or name == WARM_UP or "=" in name:
            parser.error(f"--variant {name}: the first word is a name of its own, then come KEY=VALUE settings")
        variants[name] = tuple(settings)
    arguments.variants = variants
    return arguments


def main(words: Sequence[str] | None = None, launch: Launch = run_child) -> int:
    arguments = parse_arguments(words)
    output = arguments.output.resolve()
    try:
        jobs = plan(arguments.experiment, output, arguments.variants, arguments.seeds, arguments.set)
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
