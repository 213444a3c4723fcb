"""What a Python program gives to its run beside settings: reward functions, and callbacks that see each line of
metrics.jsonl and may end the run.

Callbacks are called after the line is written. A run that one of them ends, on purpose or by an exception, first
finishes its step and saves a checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from mindgspo.errors import ConfigError, TrainingError
from mindgspo.metrics.files import plain_number
from mindgspo.rewards import RewardFunction
from mindgspo.text import did_you_mean, shorten

logger = logging.getLogger(__name__)

ON_STEP, ON_EVALUATION, ON_END = METHODS = ("on_step", "on_evaluation", "on_end")
STOP = "stop"
"""What a method returns to end the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenObjects:
    """Objects of the process that trains; there are none if it is another than the program's."""

    rewards: Mapping[str, RewardFunction] = field(default_factory=dict)
    """By their entries in reward.functions; see `Scorer`."""
    callbacks: Sequence[object] = ()
    """See `Callbacks`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsRecord:
    """A line of metrics.jsonl."""

    step: int
    """Training steps done."""
    total_steps: int
    metrics: Mapping[str, int | float]
    """By the names of docs/metrics.md; read-only."""


class Callbacks:
    """The callbacks of a run. stopped_by: the method that has asked for its end, None if none has."""

    def __init__(self, objects: Sequence[object], total_steps: int) -> None:
        self._objects, self._total_steps = objects, total_steps
        self.stopped_by: str | None = None
        self._failure: TrainingError | None = None

    @property
    def end_run(self) -> bool:
        """Whether no further step is to begin."""
        return self.stopped_by is not None or self._failure is not None

    def tell(self, method: str, step: int, metrics: Mapping[str, float]) -> None:
        """Call a method of all objects. An exception is kept for `raise_failure`; nothing is called after it."""
        numbers = {key: plain_number(key, metrics[key]) for key in sorted(metrics)}
        record = MetricsRecord(step=step, total_steps=self._total_steps, metrics=MappingProxyType(numbers))
        for one in self._objects:
            if self._failure is None and hasattr(one, method):
                try:
                    self._call(one, method, record)
                except Exception as error:
                    self._failure = _failed(one, method, error, f"at step {step}, which is saved for resume=auto")
                    logger.warning("%s; this step is finished first", self._failure)

    def _call(self, one: object, method: str, record: MetricsRecord) -> None:
        answer = getattr(one, method)(record)
        if answer is None:
            return
        if not isinstance(answer, str) or answer != STOP:
            raise ValueError(f"returned {shorten(repr(answer))}; return {STOP!r} to end the run, else nothing")
        self.stopped_by = self.stopped_by or f"{type(one).__name__}.{method}"

    def raise_failure(self) -> None:
        """Raises TrainingError if a callback has failed; the run is saved by then."""
        if self._failure is not None:
            raise self._failure


def check_callbacks(objects: Sequence[object]) -> None:
    """Raises ConfigError for objects that would never be called."""
    if not isinstance(objects, list | tuple):
        raise ConfigError(f"callbacks: expected a list of objects, got {shorten(repr(objects))}")
    for number, one in enumerate(objects):
        place, kind = f"callbacks[{number}]", type(one).__name__
        if isinstance(one, type):
            raise ConfigError(f"{place}: {one.__name__} is a class; write {one.__name__}()")
        named = [name for name in dir(one) if name.startswith("on_")]
        for name in named:
            if name not in METHODS:
                raise ConfigError(f"{place}: {kind}.{name} is never called{did_you_mean(name, METHODS)}")
        if not named:
            raise ConfigError(f"{place}: {kind} has no method that is called; they are {', '.join(METHODS)}")


def call_at_end(objects: Sequence[object], run: object) -> None:
    """Call on_end(run) of all objects that have it. Raises TrainingError for the first that fails."""
    for one in objects:
        if hasattr(one, ON_END):
            try:
                getattr(one, ON_END)(run)
            except Exception as error:
                raise _failed(one, ON_END, error, "after the end of the run") from error


def _failed(one: object, method: str, error: Exception, when: str) -> TrainingError:
    said = f"{type(error).__name__}: {shorten(' '.join(str(error).split()), 200)}"
    failure = TrainingError(f"callback {type(one).__name__}.{method} failed {when}: {said}")
    failure.__cause__ = error
    return failure
