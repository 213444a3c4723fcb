"""A run folder as data, for the plot and the report.

What enters: metrics.jsonl, samples.jsonl, validation.jsonl, summary.json, config.yaml, whichever exist. What leaves: a
`RunRecord`. The text in it comes from models and data sets and is untrusted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mindgspo.errors import RunFolderError
from mindgspo.metrics.files import CONFIG_FILE, METRICS_FILE, RUN_FILE, SAMPLES_FILE, VALIDATION_FILE, read_records
from mindgspo.metrics.recorded import Series
from mindgspo.metrics.summary import read_summary


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What a run folder holds.

    name: the folder's name, and whether its cards were emulated. metrics: lines of metrics.jsonl. first_samples,
    last_samples: lines of samples.jsonl of the first and of the last logged step (the last is empty if there is one
    step only). first_validation, last_validation: the same of validation.jsonl. summary: {} while the run goes on.
    config_text: the resolved YAML, "" if absent.
    """

    name: str
    metrics: tuple[Mapping[str, object], ...]
    first_samples: tuple[Mapping[str, object], ...]
    last_samples: tuple[Mapping[str, object], ...]
    summary: Mapping[str, object]
    config_text: str
    first_validation: tuple[Mapping[str, object], ...] = ()
    last_validation: tuple[Mapping[str, object], ...] = ()

    def names(self) -> Iterable[str]:
        """Every metric that was written, in the order of first appearance."""
        return dict.fromkeys(key for row in self.metrics for key in row if key != "step")

    def series(self, key: str) -> Series:
        """All values of a metric; empty if it was never written."""
        rows = [(row["step"], row[key]) for row in self.metrics if key in row]
        return Series(steps=tuple(row[0] for row in rows), values=tuple(row[1] for row in rows))


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
    first_validation, last_validation = _first_and_last_samples(run_dir / VALIDATION_FILE)
    config = run_dir / CONFIG_FILE
    return RunRecord(
        name=run_dir.resolve().name + (" (emulated Ascend cards)" if _is_emulated(run_dir / RUN_FILE) else ""),
        metrics=metrics,
        first_samples=first,
        last_samples=last,
        summary=read_summary(run_dir),
        config_text=config.read_text(encoding="utf-8") if config.is_file() else "",
        first_validation=first_validation,
        last_validation=last_validation,
    )


def _is_emulated(path: Path) -> bool:
    """Whether the run began on emulated cards. A damaged file is an error for whoever continues the run."""
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("emulated") is True
    except (OSError, ValueError, AttributeError):
        return False


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
