"""Judges a run by a target file: published figures of another run, and how far from each of them this one may be."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from mindgspo.config.load import read_layers
from mindgspo.config.messages import config_error, schema_problems
from mindgspo.config.section import Section
from mindgspo.metrics.run_folder import RunRecord
from mindgspo.text import aligned, counted, did_you_mean


class PublishedFigure(Section):
    """One metric of the published run; on a side without a threshold, any value passes."""

    value: float
    """The published value, in the metric's unit."""
    below: float | None = Field(default=None, ge=0)
    """How far a run may be below it, in the metric's unit."""
    above: float | None = Field(default=None, ge=0)
    """How far a run may be above it, in the metric's unit."""
    below_percent: float | None = Field(default=None, ge=0)
    """The same as below, in percent of the value."""
    above_percent: float | None = Field(default=None, ge=0)
    """The same as above, in percent of the value."""
    over: Literal["mean", "last"] = "mean"
    """What is compared: the mean over the steps of the target, or the value of the run's last step."""

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """The smallest and the largest value that pass; None: any."""
        low, high = (
            size if percent is None else abs(self.value) * percent / 100
            for size, percent in ((self.below, self.below_percent), (self.above, self.above_percent))
        )
        return None if low is None else self.value - low, None if high is None else self.value + high

    def problems(self) -> Iterator[str]:
        """Yield every violated rule between its keys."""
        for side in ("below", "above"):
            if None not in (getattr(self, side), getattr(self, f"{side}_percent")):
                yield f"{side} and {side}_percent are two words for one threshold; keep one"
        if self.bounds == (None, None):
            yield "any value would pass; give below or above, or either of them with _percent"


class Target(Section):
    """The content of a target file."""

    run: str
    """What was published, e.g. the name of its job."""
    source: str
    """Where it was published."""
    steps: tuple[int, int]
    """The first and the last step that means are taken over; the run must have all of them."""
    metrics: dict[str, PublishedFigure] = Field(min_length=1)
    """Figures by the metric's name in metrics.jsonl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLine:
    """The judgement of one metric."""

    metric: str
    published: float
    low: float | None
    high: float | None
    """The smallest and the largest value that pass; None: any."""
    value: float | None
    """The run's own; None: it cannot be judged, and `note` says why."""
    steps: str
    """The steps that the value is of, e.g. "5-14"."""
    passed: bool
    note: str


def load_target(path: Path) -> Target:
    """Read a target file. Raises ConfigError with every problem found, one per line."""
    try:
        target = Target.model_validate_json(json.dumps(read_layers(path, ())), strict=True)
    except ValidationError as error:
        raise config_error(str(path), schema_problems(error, Target)) from None
    problems = [f"metrics.{name}: {rule}" for name, figure in target.metrics.items() for rule in figure.problems()]
    first, last = target.steps
    if not 1 <= first <= last:
        problems.append(f"steps: [{first}, {last}] is not a range of steps, which count from 1; e.g. [5, 14]")
    if problems:
        raise config_error(str(path), problems)
    return target


def judge(run: RunRecord, target: Target) -> list[TargetLine]:
    """One line per metric of the target, in its order. A metric that the run lacks, or has not in all steps that its
    mean is taken over, fails."""
    last_step = max(row["step"] for row in run.metrics)
    lines = []
    for name, figure in target.metrics.items():
        series = run.series(name)
        by_step = dict(zip(series.steps, series.values, strict=True))
        first, last = (last_step, last_step) if figure.over == "last" else target.steps
        values = [by_step[step] for step in range(first, last + 1) if step in by_step]
        (low, high), value, note = figure.bounds, None, ""
        if len(values) == last + 1 - first:
            value = sum(values) / len(values)
        elif not series:
            note = f"not recorded{did_you_mean(name, run.names(), cutoff=0.85, show=str)}"
        else:
            note = f"recorded in {len(values)} of these {counted(last + 1 - first, 'step')}; the run is at {last_step}"
        passed = value is not None and (low is None or value >= low) and (high is None or value <= high)
        steps = str(last) if first == last else f"{first}-{last}"
        lines.append(
            TargetLine(metric=name, published=figure.value, low=low, high=high, value=value, steps=steps,
                       passed=passed, note=note)
        )  # fmt: skip
    return lines


def target_lines(run: RunRecord, target: Target, lines: Sequence[TargetLine]) -> Iterator[str]:
    """What was judged, a table, and how many metrics pass."""
    yield f"{run.name} by {target.run}, {target.source}"
    rows = [["metric", "published", "allowed", "this run", "of steps", "verdict"]]
    for one in lines:
        verdict = "pass" if one.passed else f"FAIL: {one.note}" if one.note else "FAIL"
        rows.append([one.metric, _text(one.published), _allowed(one), _text(one.value), one.steps, verdict])
    yield from aligned(rows)
    yield f"{sum(one.passed for one in lines)} of {counted(len(lines), 'metric')} pass"


def _allowed(line: TargetLine) -> str:
    if line.high is None:
        return f">= {_text(line.low)}"
    return f"<= {_text(line.high)}" if line.low is None else f"{_text(line.low)} .. {_text(line.high)}"


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:,.5g}"
