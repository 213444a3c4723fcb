"""How far a run has come: what survives a stop beside weights, optimizer and data cursor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """An evaluation, usually the best. step: training steps behind its weights. value: of eval.best_metric; higher is
    better."""

    step: int
    value: float


@dataclass(slots=True, kw_only=True)
class Progress:
    """step: training steps done. accuracy_before, reward_before: before the first one, None where nothing was evaluated
    then. accuracy, reward: of the latest evaluation, the reward None where no answer could be scored. best: over all
    evaluations, None before the first; latest: the last one. training_seconds, tokens: summed over steps.
    seconds_before: seconds that the run took before this process's clock read 0, which is negative as soon as that
    clock started elsewhere."""

    accuracy_before: float | None = None
    accuracy: float | None = None
    reward_before: float | None = None
    reward: float | None = None
    best: Best | None = None
    latest: Best | None = None
    step: int = 0
    training_seconds: float = 0.0
    tokens: int = 0
    seconds_before: float = 0.0

    def advance(self, metrics: Mapping[str, float]) -> None:
        """Count one more step."""
        self.step += 1
        self.training_seconds += metrics["perf/time_per_step"]
        self.tokens += int(metrics["perf/total_num_tokens"])

    def evaluated(self, accuracy: float, value: float | None, reward: float | None = None) -> None:
        """Take note of an evaluation at the present step. value: of eval.best_metric, None where it came to nothing.

        Of equally good ones the first is best. A second one at a step, around a warm-up, replaces the first.
        """
        if self.step == 0 and self.accuracy_before is None:
            self.accuracy_before, self.reward_before = accuracy, reward
        self.accuracy, self.reward = accuracy, reward
        self.latest = None if value is None else Best(step=self.step, value=value)
        if value is not None and (self.best is None or self.best.step == self.step or value > self.best.value):
            self.best = Best(step=self.step, value=value)

    @property
    def is_at_best(self) -> bool:
        """Whether the present weights were evaluated, and are the best so far."""
        return self.best is not None and self.best.step == self.step

    def seconds(self, now: float) -> float:
        """Wall seconds of the run over all its processes; now: this process's clock."""
        return self.seconds_before + now

    def state(self, now: float) -> dict[str, object]:
        """JSON-able; `from_state` reads it back."""
        return {
            "accuracy_before": self.accuracy_before,
            "accuracy": self.accuracy,
            "reward_before": self.reward_before,
            "reward": self.reward,
            "best": None if self.best is None else asdict(self.best),
            "latest": None if self.latest is None else asdict(self.latest),
            "step": self.step,
            "training_seconds": self.training_seconds,
            "tokens": self.tokens,
            "seconds": self.seconds(now),
        }

    @staticmethod
    def from_state(state: Mapping[str, Any], *, started: float) -> Progress:
        """The progress saved in a checkpoint. started: this process's clock when it took the run over."""
        return Progress(
            accuracy_before=_number(state["accuracy_before"]),
            accuracy=_number(state["accuracy"]),
            reward_before=_number(state.get("reward_before")),
            reward=_number(state.get("reward")),
            best=_best(state.get("best")),
            latest=_best(state.get("latest")),
            step=int(state["step"]),
            training_seconds=float(state["training_seconds"]),
            tokens=int(state["tokens"]),
            seconds_before=float(state["seconds"]) - started,
        )


def _number(value: Any) -> float | None:
    """Raises ValueError, TypeError for what is no finite number."""
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{value} is not finite")
    return value


def _best(state: Mapping[str, Any] | None) -> Best | None:
    return None if state is None else Best(step=int(state["step"]), value=_number(float(state["value"])))
