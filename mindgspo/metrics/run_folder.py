"""The records of a run, as the diagnosis, the plots and the report read them.

`RunHistory` is a run that is going on, filled by `RunLog`; `RunRecord` is one read from its folder. Text in a run
folder comes from models and data sets and is untrusted.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from mindgspo.config.algorithm import POLICY_LOSSES
from mindgspo.config.data import CHANGE, OVERALL, OVERALL_REWARD, REWARD_CHANGE
from mindgspo.config.yaml_dialect import parse_document
from mindgspo.errors import RunFolderError
from mindgspo.io import read_json
from mindgspo.metrics.files import (
    CONFIG_FILE,
    ENVIRONMENT_FILE,
    METRICS_FILE,
    RUN_FILE,
    VALIDATION_FILE,
    read_records,
    read_summary,
    recorded_number,
)
from mindgspo.text import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The content of a run folder."""

    name: str
    """The folder's name, and whether its cards were emulated."""
    metrics: tuple[Mapping[str, Any], ...]
    """Lines of metrics.jsonl."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Fields of summary.json; {} while the run goes on."""
    config_text: str = ""
    """The resolved YAML; "" if absent."""
    first_validation: tuple[Mapping[str, object], ...] = ()
    last_validation: tuple[Mapping[str, object], ...] = ()
    """Lines of validation.jsonl of the first and the last evaluation; the last is empty if there is only one."""
    starts: tuple[Mapping[str, object], ...] = ()
    """Lines of environment.jsonl."""

    def names(self) -> Iterable[str]:
        """Every metric that was written, in the order of first appearance."""
        return dict.fromkeys(key for row in self.metrics for key in row if key != "step")

    def series(self, key: str) -> Series:
        """All values of a metric; empty if it was never written."""
        rows = [(row["step"], row[key]) for row in self.metrics if key in row]
        return Series(steps=tuple(row[0] for row in rows), values=tuple(row[1] for row in rows))


def read_run(run_dir: Path, *, with_samples: bool = True) -> RunRecord:
    """Read a run folder. RunFolderError if it does not exist or holds no metrics yet.

    with_samples: also the held-out answers, which are long.
    """
    run_dir = Path(run_dir)
    metrics_path = run_dir / METRICS_FILE
    if not metrics_path.is_file():
        raise RunFolderError(
            f"{run_dir}: no {METRICS_FILE} here. Give the folder of a run (the YAML's run_dir, "
            f"default runs/<experiment>) that has finished at least one step"
        )
    # Names hold what data calls itself; they go to fonts, pages and terminals.
    metrics = tuple({printable(key): value for key, value in row.items()} for row in read_records(metrics_path))
    if not metrics:
        raise RunFolderError(f"{metrics_path}: no complete line yet; wait for the first step to end")
    _check(metrics, metrics_path)
    first, last = _first_and_last(run_dir / VALIDATION_FILE) if with_samples else ((), ())
    config = run_dir / CONFIG_FILE
    return RunRecord(
        name=run_dir.resolve().name + (" (emulated Ascend cards)" if _is_emulated(run_dir / RUN_FILE) else ""),
        metrics=metrics,
        summary=read_summary(run_dir),
        config_text=config.read_text(encoding="utf-8") if config.is_file() else "",
        first_validation=first,
        last_validation=last,
        starts=tuple(read_records(run_dir / ENVIRONMENT_FILE)),
    )


def _is_emulated(path: Path) -> bool:
    """Whether the run began on emulated cards. A damaged file is an error only when the run is continued."""
    try:
        return read_json(path).get("emulated") is True
    except (OSError, ValueError, AttributeError):
        return False


def _check(metrics: tuple[Mapping[str, object], ...], path: Path) -> None:
    for number, row in enumerate(metrics, start=1):
        if not isinstance(row.get("step"), int):
            raise RunFolderError(f"{path}, line {number}: has no integer 'step'")
        for key, value in row.items():
            if recorded_number(value) is None:
                raise RunFolderError(f"{path}, line {number}: {key!r} is not a number")


_Samples = tuple[Mapping[str, object], ...]


def _first_and_last(path: Path) -> tuple[_Samples, _Samples]:
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


class RecordedRun(Protocol):
    """A run, finished or not. summary: {} while it goes on. config_text: the resolved YAML, "" if unknown."""

    @property
    def summary(self) -> Mapping[str, object]: ...

    @property
    def config_text(self) -> str: ...

    def names(self) -> Iterable[str]:
        """Every metric that was written, in the order of first appearance."""
        ...

    def series(self, key: str) -> Series:
        """All values of a metric; empty if it was never written."""
        ...


def accuracies(run: RecordedRun) -> dict[str, Series]:
    """Greedy accuracy by set or data source, in the order of first appearance."""
    found = {match["source"]: name for name in run.names() if (match := ACCURACY.fullmatch(name))}
    return {source: run.series(name) for source, name in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """A figure over all held-out problems, with one answer to each."""

    name: str
    key: str
    """Metric of the figure; <key>/low and <key>/high are the ends of its interval."""
    change: str
    """Metric of its change since the first evaluation, with ends of its own."""
    is_share: bool
    """Whether it is a share of the problems, shown in percent."""

    def text(self, value: float) -> str:
        """The figure as people read it."""
        return f"{value:.1%}" if self.is_share else reward_text(value)

    def difference(self, value: float, *, unit: bool = True) -> str:
        """A change of the figure as people read it."""
        if self.is_share:
            return f"{value * 100:+.1f}{' points' if unit else ''}"
        return ("+" if value >= 0 else "") + reward_text(value)

    def series(self, run: RecordedRun, end: str = "") -> Series:
        """Over all problems; of the first set or data source in folders that do not have it. end: "/low" or "/high"."""
        tail = self.key.removeprefix("val-core/")
        names = (self.key, *(f"val-core/{part}/{tail}" for part in accuracies(run)))
        return run.series(next(filter(run.series, names), self.key) + end)

    def span(self, run: RecordedRun) -> tuple[float | None, float | None]:
        """Before and after: from the summary, else the first and the last evaluation."""
        before, after = (run.summary.get(f"{self.name}_{when}") for when in ("before", "after"))
        series = self.series(run)
        if len(series.values) > 1:
            before = series.values[0] if before is None else before
            after = series.values[-1] if after is None else after
        return recorded_number(before), recorded_number(after)


HELD_OUT_ACCURACY = HeldOut(name="accuracy", key=OVERALL, change=CHANGE, is_share=True)
HELD_OUT_REWARD = HeldOut(name="reward", key=OVERALL_REWARD, change=REWARD_CHANGE, is_share=False)


def held_out_figures(run: RecordedRun) -> tuple[HeldOut, ...]:
    """The figures to show, first the one by which the run is judged (eval.best_metric): accuracy, and the reward where
    it is another number."""
    accuracy, reward = HELD_OUT_ACCURACY.series(run).values, HELD_OUT_REWARD.series(run).values
    pairs = zip(accuracy, reward, strict=False)
    if not any(not math.isclose(one, other, abs_tol=1e-9) for one, other in pairs):
        return (HELD_OUT_ACCURACY,)
    is_first = "/reward/" in run_settings(run).best_metric
    return (HELD_OUT_REWARD, HELD_OUT_ACCURACY) if is_first else (HELD_OUT_ACCURACY, HELD_OUT_REWARD)


def reward_text(value: float) -> str:
    """Three decimals, or three digits of a small number."""
    return f"{value:.3f}" if abs(value) >= 0.1 or abs(value) < 1e-12 else f"{value:.3g}"


def latest(run: RecordedRun, key: str) -> float | None:
    """The last value of a metric; None if it was never written."""
    series = run.series(key)
    return series.values[-1] if series else None


def exact_tokens(run: RecordedRun) -> int | None:
    """Tokens whose log-probs were compared bit for bit, all of them equal; None if no step compared any."""
    series = run.series("training/exact_logprobs_tokens")
    return int(sum(series.values)) if series else None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings that change how metrics are read; None: unknown."""

    algorithm: str | None
    """Name of the policy loss."""
    log_clip_range: tuple[float, float] | None
    """Lowest and highest log ratio that is not clipped; None also where the loss does not clip from both sides."""
    max_new_tokens: int | None = None
    """The longest response."""
    max_steps: int | None = None
    """None also where the data set decides."""
    best_metric: str = OVERALL
    """The metric by which the best evaluation is chosen."""

    @property
    def clips_responses(self) -> bool | None:
        """Whether whole responses are clipped, as in gspo. None: unknown."""
        if self.algorithm is None or self.algorithm not in POLICY_LOSSES:
            return None
        recipe = POLICY_LOSSES[self.algorithm]
        return recipe.ratio_level in ("sequence", "sequence_token") and recipe.clip is not None


def run_settings(run: RecordedRun) -> RunSettings:
    """Settings of the run's configuration, as far as it can be read."""
    try:
        document = parse_document(run.config_text)
    except yaml.YAMLError:
        document = None
    section, rollout, evaluation, trainer = (
        _section(document, key) for key in ("algorithm", "rollout", "eval", "trainer")
    )
    longest, best, steps = rollout.get("max_new_tokens"), evaluation.get("best_metric"), trainer.get("max_steps")
    name = section.get("name", run.summary.get("algorithm"))
    name = name if isinstance(name, str) else None
    return RunSettings(
        algorithm=name,
        log_clip_range=_log_clip_range(name, section.get("clip_low"), section.get("clip_high")),
        max_new_tokens=longest if isinstance(longest, int) else None,
        max_steps=steps if isinstance(steps, int) else None,
        best_metric=best if isinstance(best, str) else OVERALL,
    )


def _section(document: object, key: str) -> Mapping[str, object]:
    section = document.get(key) if isinstance(document, Mapping) else None
    return section if isinstance(section, Mapping) else {}


def _log_clip_range(algorithm: str | None, low: object, high: object) -> tuple[float, float] | None:
    if not isinstance(low, (int, float)) or not isinstance(high, (int, float)) or not (0 < low < 1 and high > 0):
        return None
    if algorithm == "gmpo":  # its range bounds the logarithm itself
        return -float(low), float(high)
    return math.log1p(-low), math.log1p(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestEvaluation:
    """The evaluation with the highest eval.best_metric."""

    metric: str
    step: int
    value: float
    is_only: bool
    """Whether there was no other to choose from."""


def best_evaluation(run: RecordedRun) -> BestEvaluation | None:
    """The evaluation with the highest eval.best_metric; of equals the first, of several at one step the last."""
    metric = run_settings(run).best_metric
    series = run.series(metric)
    by_step = dict(zip(series.steps, series.values, strict=True))
    if not by_step:
        return None
    step = max(by_step, key=by_step.__getitem__)
    return BestEvaluation(metric=metric, step=step, value=by_step[step], is_only=len(by_step) == 1)
