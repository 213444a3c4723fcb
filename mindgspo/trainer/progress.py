"""How far a run has come: what survives a stop beside weights, optimizer and data cursor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Progress:
    """step: training steps done. accuracy_before: before the first one; accuracy: of the latest evaluation.
    training_seconds, tokens: summed over steps. seconds_before: seconds that the run took before this process's
    clock read 0, which is negative as soon as that clock started elsewhere."""

    accuracy_before: float
    accuracy: float
    step: int = 0
    training_seconds: float = 0.0
    tokens: int = 0
    seconds_before: float = 0.0

    def advance(self, metrics: Mapping[str, float]) -> None:
        """Count one more step."""
        self.step += 1
        self.training_seconds += metrics["perf/time_per_step"]
        self.tokens += int(metrics["perf/total_num_tokens"])

    def seconds(self, now: float) -> float:
        """Wall seconds of the run over all its processes; now: this process's clock."""
        return self.seconds_before + now

    def state(self, now: float) -> dict[str, float]:
        """JSON-able; `from_state` reads it back."""
        return {
            "accuracy_before": self.accuracy_before,
            "accuracy": self.accuracy,
            "step": self.step,
            "training_seconds": self.training_seconds,
            "tokens": self.tokens,
            "seconds": self.seconds(now),
        }

    @staticmethod
    def from_state(state: Mapping[str, float], *, started: float) -> Progress:
        """The progress saved in a checkpoint. started: this process's clock when it took the run over."""
        return Progress(
            accuracy_before=state["accuracy_before"],
            accuracy=state["accuracy"],
            step=int(state["step"]),
            training_seconds=state["training_seconds"],
            tokens=int(state["tokens"]),
            seconds_before=state["seconds"] - started,
        )
