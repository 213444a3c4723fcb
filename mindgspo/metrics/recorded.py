"""What a run has recorded so far, as the rules of the diagnosis and the plots ask for it.

What enters: one line of metrics after the other. What leaves: the series of a metric. `RunHistory` is a run that goes
on, filled by `sinks`; `run_folder.RunRecord` is one that lies in a folder.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from mindgspo.config.eval_section import OVERALL

ACCURACY = re.compile(r"val-core/(?P<source>.+)/acc/mean@1")
"""Greedy accuracy of one set or data source."""


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


class Recorded(Protocol):
    """A run, finished or not. summary: {} while it goes on. config_text: the resolved YAML, "" if unknown."""

    @property
    def summary(self) -> Mapping[str, object]: ...

    @property
    def config_text(self) -> str: ...

    def names(self) -> Iterable[str]:
        """Every metric that was written, in the order of first appearance."""

    def series(self, key: str) -> Series:
        """All values of a metric; empty if it was never written."""


def accuracies(run: Recorded) -> dict[str, Series]:
    """Greedy accuracy by set or data source, in the order of first appearance."""
    found = {match["source"]: name for name in run.names() if (match := ACCURACY.fullmatch(name))}
    return {source: run.series(name) for source, name in found.items()}


def overall_accuracy(run: Recorded) -> Series:
    """Greedy accuracy over all problems; of the first set or data source in folders that do not have it."""
    return run.series(OVERALL) or next(iter(accuracies(run).values()), Series(steps=(), values=()))


def latest(run: Recorded, key: str) -> float | None:
    """The last value of a metric; None if it was never written."""
    series = run.series(key)
    return series.values[-1] if series else None


class RunHistory:
    """The metrics of a run that goes on: 16 bytes per number, 30 MB for 200 metrics of 10,000 steps."""

    summary: Mapping[str, object] = {}

    def __init__(self, config_text: str = "") -> None:
        self.config_text = config_text
        self._columns: dict[str, tuple[array[int], array[float]]] = {}

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """One more line; several may share a step."""
        for name, value in metrics.items():
            if name != "step":
                steps, values = self._columns.setdefault(name, (array("q"), array("d")))
                steps.append(step)
                values.append(value)

    def names(self) -> Iterable[str]:
        return self._columns.keys()

    def series(self, key: str) -> Series:
        steps, values = self._columns.get(key, ((), ()))
        return Series(steps=tuple(steps), values=tuple(values))
