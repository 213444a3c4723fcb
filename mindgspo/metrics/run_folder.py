"""A run folder as data, for the plot and the report.

What enters: metrics.jsonl, samples.jsonl, summary.json, config.yaml, whichever exist. What leaves: a
`RunRecord`. The text in it comes from models and data sets and is untrusted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mindgspo.errors import RunFolderError
from mindgspo.metrics.files import CONFIG_FILE, METRICS_FILE, SAMPLES_FILE, read_records
from mindgspo.metrics.summary import read_summary

ACCURACY = re.compile(r"val-core/(?P<source>.+)/acc/mean@1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values of one metric over steps, in the order of the file; equal lengths."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.steps) == len(self.values), f"{len(self.steps)} steps, {len(self.values)} values"

    def __bool__(self) -> bool:
        return bool(self.steps)

    def recent_mean(self, count: int = 20) -> float:
        """Mean of the last `count` values."""
        recent = self.values[-count:]
        return sum(recent) / len(recent)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What a run folder holds.

    name: the folder's name. metrics: lines of metrics.jsonl. first_samples, last_samples: lines of
    samples.jsonl of the first and of the last logged step (the last is empty if there is one step only).
    summary: {} while the run goes on. config_text: the resolved YAML, "" if absent.
    """

    name: str
    metrics: tuple[Mapping[str, object], ...]
    first_samples: tuple[Mapping[str, object], ...]
    last_samples: tuple[Mapping[str, object], ...]
    summary: Mapping[str, object]
    config_text: str

    def series(self, key: str) -> Series:
        """All values of a metric; empty if it was never written."""
        rows = [(row["step"], row[key]) for row in self.metrics if key in row]
        return Series(steps=tuple(row[0] for row in rows), values=tuple(row[1] for row in rows))

    def accuracies(self) -> dict[str, Series]:
        """Greedy accuracy by data source, in the order of first appearance."""
        keys = dict.fromkeys(key for row in self.metrics for key in row if ACCURACY.fullmatch(key))
        return {ACCURACY.fullmatch(key)["source"]: self.series(key) for key in keys}


def read_run(run_dir: Path) -> RunRecord:
    """Read a run folder. RunFolderError if it does not exist or holds no metrics yet."""
    run_dir = Path(run_dir)
    metrics_path = run_dir / METRICS_FILE
    if not metrics_path.is_file():
        raise RunFolderError(
            f"{run_dir}: no {METRICS_FILE} here. Give the folder of a run (the YAML's run_dir, "
            f"default runs/<experiment>) that has finished at least one step"
        )
    metrics = tuple(read_records(metrics_path))
    if not metrics:
        raise RunFolderError(f"{metrics_path}: no complete line yet; wait for the first step to end")
    _check(metrics, metrics_path)
    first, last = _first_and_last_samples(run_dir / SAMPLES_FILE)
    config = run_dir / CONFIG_FILE
    return RunRecord(
        name=run_dir.resolve().name,
        metrics=metrics,
        first_samples=first,
        last_samples=last,
        summary=read_summary(run_dir),
        config_text=config.read_text(encoding="utf-8") if config.is_file() else "",
    )


def _check(metrics: tuple[Mapping[str, object], ...], path: Path) -> None:
    for number, row in enumerate(metrics, start=1):
        if not isinstance(row.get("step"), int):
            raise RunFolderError(f"{path}, line {number}: has no integer 'step'")
        for key, value in row.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise RunFolderError(f"{path}, line {number}: {key!r} is not a number")


_Samples = tuple[Mapping[str, object], ...]


def _first_and_last_samples(path: Path) -> tuple[_Samples, _Samples]:
    """One pass that keeps two steps only: the file of a long run does not fit into memory."""
    first: list[Mapping[str, object]] = []
    last: list[Mapping[str, object]] = []
    for record in read_records(path):
        if not first or record.get("step") == first[0].get("step"):
            first.append(record)
        elif last and record.get("step") == last[0].get("step"):
            last.append(record)
        else:
            last = [record]
    return tuple(first), tuple(last)
