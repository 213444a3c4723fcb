"""Overview of a folder of runs: progress, results and diagnosis of each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from mindgspo.checkpoint.run_folder import is_open
from mindgspo.errors import MindGSPOError, RunFolderError
from mindgspo.launch.failures import read_failure
from mindgspo.metrics.diagnosis import MOST_FINDINGS, FindingLevel, diagnose
from mindgspo.metrics.files import METRICS_FILE, RUN_FILE, read_records, read_summary
from mindgspo.metrics.run_folder import (
    HELD_OUT_ACCURACY,
    HELD_OUT_REWARD,
    RunRecord,
    best_evaluation,
    held_out_figures,
    read_run,
    reward_text,
    run_settings,
)
from mindgspo.text import aligned, shorten

_WIDEST_VERDICT = 70


class RunState(str, Enum):
    """RUNNING: a process writes into it. FAILED: a worker recorded why it ended. STOPPED: no process writes, and it is
    not complete. BROKEN: its files cannot be read."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverview:
    """One run."""

    name: str
    state: RunState
    step: int | None = None
    """Step of the last line of metrics.jsonl."""
    total_steps: int | None = None
    """None if its data set decides."""
    accuracy: float | None = None
    """Accuracy of the latest evaluation, a share."""
    reward: float | None = None
    """Mean reward of the same answers; None if it equals the accuracy."""
    best: float | None = None
    """The best value of eval.best_metric."""
    best_step: int | None = None
    verdicts: tuple[str, ...] = ()
    """The gravest findings of the diagnosis, or why it failed or cannot be read."""
    age_s: float
    """Seconds since it wrote something."""


def overviews(folder: Path) -> list[RunOverview]:
    """The runs in a folder, or the one that the folder is itself, the latest first. RunFolderError if there is none."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "no such folder"
        raise RunFolderError(f"{folder}: {what}; runs are in runs/ unless run_dir says otherwise")
    if _is_run(folder):
        return [overview(folder)]
    found = [overview(path) for path in folder.iterdir() if path.is_dir() and _is_run(path)]
    if not found:
        raise RunFolderError(f"{folder}: no run folders here; each of them has {RUN_FILE} or {METRICS_FILE}")
    return sorted(found, key=lambda one: (one.age_s, one.name))


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (RUN_FILE, METRICS_FILE))


def overview(folder: Path) -> RunOverview:
    """One run; a broken one is described, too."""
    written = max((folder / name).stat().st_mtime for name in (RUN_FILE, METRICS_FILE) if (folder / name).is_file())
    name, age_s = folder.resolve().name, max(0.0, time.time() - written)
    try:
        summary = read_summary(folder)
        if is_open(folder):
            state = RunState.RUNNING
        else:
            state = RunState.FINISHED if summary.get("finished") is True else RunState.STOPPED
        failure = _failure(folder, since=written) if state is RunState.STOPPED else None
        if failure is not None:
            state = RunState.FAILED
        has_steps = next(read_records(folder / METRICS_FILE), None) is not None
        run = read_run(folder, with_samples=False) if has_steps else None
    except (MindGSPOError, OSError) as error:
        return RunOverview(name=name, state=RunState.BROKEN, verdicts=(str(error),), age_s=age_s)
    if run is None:
        verdicts = ("no step yet",) if failure is None else (failure,)
        return RunOverview(name=name, state=state, step=0, verdicts=verdicts, age_s=age_s)
    accuracy, best = HELD_OUT_ACCURACY.series(run), best_evaluation(run)
    reward = HELD_OUT_REWARD.series(run) if HELD_OUT_REWARD in held_out_figures(run) else None
    return RunOverview(
        name=run.name,
        state=state,
        step=max(row["step"] for row in run.metrics),
        total_steps=_total_steps(run),
        accuracy=accuracy.values[-1] if accuracy else None,
        reward=reward.values[-1] if reward else None,
        best=None if best is None else best.value,
        best_step=None if best is None else best.step,
        verdicts=_verdicts(run) if failure is None else (failure, *_verdicts(run)),
        age_s=age_s,
    )


def _total_steps(run: RunRecord) -> int | None:
    """A warm-up alone ends at step 0, whatever was planned."""
    if run.summary.get("finished") is True and isinstance(run.summary.get("steps"), int):
        return run.summary["steps"]
    return run_settings(run).max_steps


def _failure(folder: Path, *, since: float) -> str | None:
    """Message of the first worker to fail, unless the run has continued since. since: seconds since the epoch."""
    try:
        records = [read_failure(path) for path in (folder / "logs").glob("failure_*.json")]
    except (ValueError, TypeError) as error:
        raise RunFolderError(f"{folder / 'logs'}: a failure_*.json is damaged ({error}); remove it") from error
    latest = [record for record in records if record is not None and record.time >= since]
    if not latest:
        return None
    first = min(latest, key=lambda record: record.time)
    return first.message if first.is_user_error else f"{first.error}: {first.message}"


def _verdicts(run: RunRecord) -> tuple[str, ...]:
    found = [one for one in diagnose(run) if one.level is not FindingLevel.GOOD]
    return tuple(f"{one.level.value}: {one.text}" for one in found[:MOST_FINDINGS]) or ("nothing needs attention",)


def run_table(runs: Sequence[RunOverview]) -> list[str]:
    """One line per run below a header, with the first verdict only. Rewards have a column if any run has them."""
    header = ("run", "state", "step", "accuracy", "reward", "best", "last written", "verdict")
    rows = [header, *map(_row, runs)]
    if all(run.reward is None for run in runs):
        place = header.index("reward")
        rows = [row[:place] + row[place + 1 :] for row in rows]
    return aligned(rows)


def _row(run: RunOverview) -> tuple[str, ...]:
    total = "" if run.total_steps is None else f"/{run.total_steps}"
    best = "" if run.best is None else f"{run.best:.3f} at {run.best_step}"
    return (
        run.name,
        run.state.value,
        "" if run.step is None else f"{run.step}{total}",
        "" if run.accuracy is None else f"{run.accuracy:.1%}",
        "" if run.reward is None else reward_text(run.reward),
        best,
        f"{age(run.age_s)} ago",
        shorten(" ".join(run.verdicts[0].split()), _WIDEST_VERDICT) if run.verdicts else "",
    )


def age(seconds: float) -> str:
    """12 s, 5 min, 3 h, 2 days."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"
