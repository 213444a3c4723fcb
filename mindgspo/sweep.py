"""Sweeps: one experiment under several settings, in runs one after the other or several at once, and their comparison.

    sweep file -> configurations, all checked -> child processes -> run folders -> comparison.html

A run is known by its folder, so the same sweep skips finished runs and resumes the others.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from mindgspo.checkpoint.run_folder import open_run_folder
from mindgspo.config import ExperimentConfig, load_config
from mindgspo.config.data import OVERALL
from mindgspo.config.hub import Fetch
from mindgspo.config.load import override_of, read_layers
from mindgspo.config.messages import config_error, schema_problems
from mindgspo.config.paths import experiment_file
from mindgspo.config.section import Section
from mindgspo.errors import ConfigError
from mindgspo.io import make_folder
from mindgspo.launch.failures import last_lines
from mindgspo.launch.processes import Processes, children_now
from mindgspo.metrics.compare import PAGE, RunComparison, compare_runs, write_comparison
from mindgspo.metrics.files import METRICS_FILE, read_records, read_summary
from mindgspo.metrics.glossary import metrics, unknown_names
from mindgspo.parallel.platform import worker_process
from mindgspo.text import counted, did_you_mean, duration, listed
from mindgspo.trainer.check import check_experiment
from mindgspo.trainer.resume_checks import check_config, is_complete

MOST_RUNS = 1_000
_LONGEST_NAME, _HASH_DIGITS = 80, 8
_LAST_LINES, _POLL_S = 8, 0.1
_GRACE_S = 15.0
"""Time for a run to end its own processes and its servers."""


class SweepFile(Section):
    """One run for each combination of `settings`, times the entries of `runs`."""

    experiment: Path
    """YAML file of the experiment, relative to this file; or a shipped one, as on the command line."""
    settings: dict[str, Any] = Field(default={})
    """Values by dotted key. Those of a list are tried one by one; anything else is the same for all runs."""
    runs: tuple[dict[str, Any], ...] = Field(default=({},), min_length=1)
    """Further settings by dotted key, one entry for each variant; `experiment` in an entry is its name."""
    metric: str = OVERALL
    """Metric whose last value sorts the table, the highest first."""
    run_dir: Path | None = None
    """Folder of the run folders, relative to the current folder. None: runs/<name of this file>."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """One run of a sweep."""

    name: str
    variant: str
    """Its name without the seed."""
    experiment: Path
    overrides: tuple[str, ...]
    config: ExperimentConfig

    @property
    def folder(self) -> Path:
        """The run folder."""
        assert self.config.run_dir is not None, "config is not resolved"
        return self.config.run_dir

    @property
    def log(self) -> Path:
        """File beside the run folder with what the run prints."""
        return self.folder.with_name(f"{self.name}.log")

    def arguments(self) -> list[str]:
        """Arguments of `mindgspo` that start or resume the run."""
        overrides = [*self.overrides, *(["resume=auto"] if self.folder.exists() else [])]
        return ["run", str(self.experiment), *(word for one in overrides for word in ("--set", one))]

    def is_finished(self) -> bool:
        """Whether its folder holds this very run, complete. Raises ConfigError for other settings, RunFolderError while
        a process writes there."""
        if not self.folder.exists():
            return False
        folder = open_run_folder(self.folder, resume="auto", overwrite=False)
        folder.close()
        check_config(self.config, folder)
        return is_complete(self.config, folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The runs of a sweep file."""

    runs: tuple[SweepRun, ...]
    folder: Path
    metric: str

    @property
    def page(self) -> Path:
        """The comparison of its runs."""
        return self.folder / PAGE

    def compare(self) -> RunComparison | None:
        """Compare the runs that have logged a step, and write the page; None if there are none."""
        begun = [one for one in self.runs if next(read_records(one.folder / METRICS_FILE), None) is not None]
        if not begun:
            return None
        variants = [one.variant for one in begun]
        comparison = compare_runs([one.folder for one in begun], variants=variants, metric=self.metric)
        write_comparison(comparison, self.folder)
        return comparison


# ----- the file


def load_sweep(path: Path) -> Sweep:
    """Read a sweep file and the configuration of each run. Raises ConfigError with every problem, one per line."""
    mapping = read_layers(path, ())
    try:
        file = SweepFile.model_validate_json(json.dumps(mapping), strict=True)
    except ValidationError as error:
        raise config_error(str(path), schema_problems(error, SweepFile)) from None
    if problems := list(_file_problems(file)):
        raise config_error(str(path), problems)
    own, shipped = path.parent / file.experiment, experiment_file(file.experiment)
    experiment = own if own.exists() or shipped == file.experiment else shipped
    folder = file.run_dir or Path("runs") / path.stem
    runs, found = [], dict[str, list[str]]()
    for name, variant, settings in _combinations(path, file, experiment.stem):
        settings = {**settings, "experiment": name, "run_dir": str((folder / name).absolute())}
        overrides = tuple(override_of(key, value, path.parent.resolve()) for key, value in settings.items())
        try:
            config = load_config(experiment, overrides, fetch=Fetch.INPUTS)
        except ConfigError as error:
            for line in str(error).split("\n  ")[1:] or [str(error)]:
                found.setdefault(line, []).append(name)
            continue
        runs.append(SweepRun(name=name, variant=variant, experiment=experiment, overrides=overrides, config=config))
    if found:
        raise config_error(str(path), [f"{line} (in {listed(names, 1)})" for line, names in found.items()])
    return Sweep(runs=tuple(runs), folder=folder, metric=file.metric)


def _file_problems(file: SweepFile) -> Iterator[str]:
    varied = {key: len(values) for key, values in file.settings.items() if isinstance(values, list)}
    for key in (key for key, number in varied.items() if number == 0):
        yield f"settings.{key}: an empty list; give it values, or leave it out"
    for place, given in (("settings", file.settings), *((f"runs[{n}]", one) for n, one in enumerate(file.runs))):
        if "run_dir" in given:
            yield f"{place}.run_dir: each run has a folder of its own; set run_dir of the sweep instead"
        for key in [key for key in given if key in varied] if place != "settings" else ():
            yield f"{place}.{key}: settings.{key} has values for every run already; remove one of them"
    if (number := len(file.runs) * math.prod(varied.values())) > MOST_RUNS:
        yield f"settings: {number:,} combinations, and a sweep has at most {MOST_RUNS:,}; leave values out"
    if unknown_names([file.metric]):
        yield f"metric: {file.metric} is no metric{did_you_mean(file.metric, metrics())} (docs/metrics.md)"


def _combinations(path: Path, file: SweepFile, stem: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, variant and settings of each run. Raises ConfigError if two would have one name."""
    varied = {key: values for key, values in file.settings.items() if isinstance(values, list)}
    common = {key: value for key, value in file.settings.items() if key not in varied}
    keys = {key for one in (varied, *file.runs) for key in one}
    last_words = Counter(key.rpartition(".")[2] for key in keys)

    def name_of(entry: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
        shown = chosen if "experiment" in entry else {**entry, **chosen}
        words = [_plain(str(entry["experiment"]))] if "experiment" in entry else []
        for key, value in shown.items():
            last = key.rpartition(".")[2]
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            words.append(_plain(f"{last if last_words[last] == 1 else key}-{text}"))
        name = "_".join(words) or _plain(stem)
        if len(name) <= _LONGEST_NAME:
            return name
        digest = hashlib.sha256(json.dumps([entry, chosen]).encode()).hexdigest()[:_HASH_DIGITS]
        return f"{name[: _LONGEST_NAME - _HASH_DIGITS - 1]}-{digest}"

    used = set[str]()
    for entry, *values in itertools.product(file.runs, *varied.values()):
        chosen = dict(zip(varied, values, strict=True))
        seedless = [{key: value for key, value in one.items() if key != "seed"} for one in (entry, chosen)]
        name = name_of(entry, chosen)
        if name in used:
            raise ConfigError(
                f"{path}: two runs would be called {name}, so they would share a folder; remove a value that stands "
                "there twice, or give entries of `runs` names: {experiment: NAME, ...}"
            )
        used.add(name)
        yield name, name_of(*seedless), {**common, **entry, **chosen}


def _plain(text: str) -> str:
    """The text as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".")


# ----- the runs


def unfinished(runs: Sequence[SweepRun]) -> list[SweepRun]:
    """The runs that are not finished, their inputs checked as by `mindgspo check`, once for those that share them.

    Raises the errors of `mindgspo.errors`.
    """
    waiting = [one for one in runs if not one.is_finished()]
    inputs = {repr((c.model, c.tokenizer, c.data, c.reward, c.environment)): c for c in (one.config for one in waiting)}
    for config in inputs.values():
        for _ in check_experiment(config):
            pass
    return waiting


def cards_of_jobs(runs: Sequence[SweepRun], jobs: int, free: Sequence[int]) -> list[tuple[int, ...]]:
    """The cards of each of the jobs that run at a time; none named: whatever the machine has. free: cards of the
    machine that may be given to them. Raises ConfigError if they are too few."""
    plans = [one.config.plans for one in runs if one.config.device == "Ascend"]
    if jobs == 1 or not plans:
        return [()] * jobs
    own = max(one.config.has_own_servers * one.config.plans.infer.world_size for one in runs)
    size = max(plan.train.world_size for plan in plans) + own
    if jobs * size > len(free):
        most = len(free) // size
        fix = f"nearest: --jobs {most}" if most else "change the plans"
        needs = f"runs of {counted(size, 'card')} each need {jobs * size}"
        raise ConfigError(f"--jobs {jobs}: {needs}, and {len(free)} are free here; {fix}")
    return [tuple(free[number * size : (number + 1) * size]) for number in range(jobs)]


def run_all(
    runs: Sequence[SweepRun],
    jobs: Sequence[tuple[int, ...]],
    *,
    command: Callable[[SweepRun], Sequence[str]] = lambda run: ["-m", "mindgspo.cli", *run.arguments()],
    ended: Callable[[], object] = lambda: None,
) -> list[str]:
    """Run all to their ends, as many at a time as there are jobs, and return the names of those that failed.

    jobs: the cards of each; see `cards_of_jobs`. command: what follows the interpreter. ended: called after each run.
    If this process is interrupted, so are the runs; if it is killed, they are killed.
    """
    waiting, free = deque(enumerate(runs, start=1)), deque(jobs)
    processes, at_work, failed = Processes({}, children_now()), dict[int, tuple[SweepRun, tuple[int, ...], float]](), []
    try:
        while waiting or at_work:
            while waiting and free:
                number, run = waiting.popleft()
                at_work[number] = run, free.popleft(), time.monotonic()
                print(f"[{number}/{len(runs)}] {run.name}: begins, output in {run.log}", flush=True)
                processes.started[number] = _started(run, at_work[number][1], command(run))
            for number, code in processes.poll().items():
                run, cards, began = at_work.pop(number)
                free.append(cards)
                problem = _problem(run, code)
                told = problem or f"finished in {duration(time.monotonic() - began)}"
                print(f"[{number}/{len(runs)}] {run.name}: {told}", flush=True)
                if problem:
                    failed.append(run.name)
                    print(*(f"    {line}" for line in last_lines(run.log, _LAST_LINES)), sep="\n", flush=True)
                ended()
            time.sleep(_POLL_S)
    finally:
        processes.end(_GRACE_S)
    return failed


def _started(run: SweepRun, cards: tuple[int, ...], words: Sequence[str]) -> subprocess.Popen:
    make_folder(run.folder.parent)
    chosen = {"ASCEND_RT_VISIBLE_DEVICES": ",".join(map(str, cards))} if cards else {}
    with run.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, **chosen},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which ends them in order
            preexec_fn=worker_process.die_with_parent,
        )


def _problem(run: SweepRun, code: int) -> str:
    """What went wrong with a run that has ended; "" if nothing did."""
    if code:
        return f"failed with exit code {code if code > 0 else 128 - code}; its output ends with:"
    finished = read_summary(run.folder).get("finished") is True
    return "" if finished else "failed, it ended without a result; its output ends with:"
