"""Progress of a run, and its evaluations on data.eval before, between and after the training steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np

from mindgspo.config.data import CHANGE, OVERALL, OVERALL_REWARD, REWARD_CHANGE, EvalSection
from mindgspo.data.dataset import PromptDataset
from mindgspo.evaluation.estimates import Estimate, change_estimate, reward_change_estimate
from mindgspo.evaluation.evaluator import Evaluator, with_bounds
from mindgspo.metrics import RunLog, Timers, verdict_lines
from mindgspo.metrics.diagnosis import collapse
from mindgspo.metrics.run_folder import reward_text
from mindgspo.parallel.platform.cluster import text_for_all
from mindgspo.text import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """An evaluation, usually the best."""

    step: int
    """Training steps that its weights have had."""
    value: float
    """Value of eval.best_metric; higher is better."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """Counts and scores of a run that survive a stop."""

    accuracy_before: float | None = None
    """Accuracy before the first step; None if nothing was evaluated then."""
    accuracy: float | None = None
    """Accuracy of the latest evaluation."""
    reward_before: float | None = None
    reward: float | None = None
    """Mean reward of the latest evaluation; None if no answer could be scored."""
    best: Best | None = None
    """Best evaluation; None before the first."""
    latest: Best | None = None
    """Last evaluation."""
    gain: Best | None = None
    """Last evaluation that improved by at least eval.stop.min_delta on the one that had done so before."""
    evaluations_without_gain: int = 0
    """Since then."""
    stopped: str = ""
    """Why the run ends before its last step; "" if it does not. Not saved: a run that goes on may have other rules."""
    step: int = 0
    """Training steps done."""
    training_seconds: float = 0.0
    """Sum over steps."""
    tokens: int = 0
    """Sum over steps."""
    seconds_before: float = 0.0
    """Seconds that the run took before this process's clock read 0; negative if that clock started at another
    origin."""

    def advance(self, metrics: Mapping[str, float]) -> None:
        """Count one more step."""
        self.step += 1
        self.training_seconds += metrics["perf/time_per_step"]
        self.tokens += int(metrics["perf/total_num_tokens"])

    def evaluated(
        self, accuracy: float, value: float | None, reward: float | None = None, *, min_delta: float = 0.0
    ) -> None:
        """Record an evaluation at the present step. value: of eval.best_metric, None if it was not measured. min_delta:
        the least improvement that counts for an early stop.

        Of equally good evaluations, the first is best. A second one at a step, around a warm-up, replaces the first.
        """
        if self.step == 0 and self.accuracy_before is None:
            self.accuracy_before, self.reward_before = accuracy, reward
        self.accuracy, self.reward = accuracy, reward
        self.latest = None if value is None else Best(step=self.step, value=value)
        if value is not None and (self.best is None or self.best.step == self.step or value > self.best.value):
            self.best = Best(step=self.step, value=value)
        if value is None:
            return
        gain = math.inf if self.gain is None or self.gain.step == self.step else value - self.gain.value
        self.evaluations_without_gain += 1
        if gain > 0 and gain >= min_delta - 1e-9:  # differences of decimals are off by a last bit
            self.gain, self.evaluations_without_gain = Best(step=self.step, value=value), 0

    @property
    def is_at_best(self) -> bool:
        """Whether the present weights were evaluated, and are the best so far."""
        return self.best is not None and self.best.step == self.step

    def seconds(self, now: float) -> float:
        """Wall seconds of the run over all its processes; now: this process's clock."""
        return self.seconds_before + now

    def state(self, now: float) -> dict[str, object]:
        """JSON-able; `from_state` reads it back."""
        saved = asdict(self)
        del saved["seconds_before"], saved["stopped"]
        return {**saved, "seconds": self.seconds(now)}

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
            gain=_best(state.get("gain")),
            evaluations_without_gain=int(state.get("evaluations_without_gain", 0)),
            step=int(state["step"]),
            training_seconds=float(state["training_seconds"]),
            tokens=int(state["tokens"]),
            seconds_before=float(state["seconds"]) - started,
        )


def _number(value: Any) -> float | None:
    """Raises ValueError or TypeError for anything but None and finite numbers."""
    return None if value is None else _finite(value)


def _finite(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} is not finite")
    return value


def _best(state: Mapping[str, Any] | None) -> Best | None:
    return None if state is None else Best(step=int(state["step"]), value=_finite(float(state["value"])))


class Baseline:
    """Solved problems and rewards of the first evaluation of a run, with which later ones are compared."""

    def __init__(self) -> None:
        self._solved: np.ndarray | None = None
        self._rewards: tuple[float, ...] = ()

    def changes(self, solved: Sequence[bool], rewards: Sequence[float]) -> dict[str, Estimate]:
        """Changes of accuracy and mean reward since the first call, by name. The first call only records; so does a
        call with another number of problems (a run that started from another's checkpoint, on other rows)."""
        outcome = np.asarray(solved, bool)
        if self._solved is None or self._solved.size != outcome.size:
            self._solved, self._rewards = outcome, tuple(rewards)
            return {}
        found = {CHANGE: change_estimate(self._solved, outcome)}
        if rewards and len(self._rewards) == len(rewards):
            found[REWARD_CHANGE] = reward_change_estimate(self._rewards, rewards)
        return found

    def state(self) -> dict[str, object]:
        """JSON-able; `load_state` reads it back."""
        if self._solved is None:
            return {}
        solved = np.packbits(self._solved).tobytes().hex()
        return {"problems": int(self._solved.size), "solved": solved, "rewards": list(self._rewards)}

    def load_state(self, state: Mapping[str, object]) -> None:
        """Continue from what `state` returned."""
        self._solved, self._rewards = None, ()
        if state:
            self._rewards = tuple(map(float, cast(list, state.get("rewards", ()))))
            bits, problems = np.frombuffer(bytes.fromhex(str(state["solved"])), np.uint8), int(str(state["problems"]))
            if not 0 <= problems <= 8 * bits.size:
                raise ValueError(f"{problems} problems, and outcomes of {8 * bits.size} at most")
            self._solved = np.unpackbits(bits, count=problems).astype(bool)


class Validation:
    """The evaluations of a run. sets: held-out problems by the name of their set. decode: ids as text, for the logs."""

    def __init__(
        self,
        evaluator: Evaluator,
        sets: Mapping[str, PromptDataset],
        section: EvalSection,
        *,
        timers: Timers,
        decode: Callable[[Iterable[int]], str],
    ) -> None:
        self.evaluator, self.sets, self.baseline = evaluator, sets, Baseline()
        self._section, self._timers, self._decode = section, timers, decode

    def run(self, log: RunLog, progress: Progress, *, weight_version: int) -> None:
        """Accuracy on data.eval with the present weights, noted in `progress`, with all its metrics in the log."""
        with self._timers("testing"):
            sets = {name: list(rows) for name, rows in self.sets.items()}
            evaluation = self.evaluator.evaluate(sets, progress.step, weight_version=weight_version)
        metrics = {**evaluation.metrics, **self._timers.collect()}
        for name, change in self.baseline.changes(evaluation.solved, evaluation.rewards).items():
            metrics |= with_bounds(name, change)
        best_metric = self._section.best_metric
        assert best_metric is not None, "config is not resolved"
        least = self._section.stop.min_delta
        progress.evaluated(evaluation.accuracy, metrics.get(best_metric), metrics.get(OVERALL_REWARD), min_delta=least)
        log.log_metrics(progress.step, metrics)
        for one in evaluation.sets:
            for groups in (one.single, one.sampled):
                log.log_validation(progress.step, one.name, groups, self._decode)
        for line in verdict_lines(log.history, step=progress.step, best=_best_text(best_metric, progress)):
            log.note(line)

    def look_for_stop(self, log: RunLog, progress: Progress) -> None:
        """Note in `progress` whether eval.stop ends the run now. All ranks call it, and rank 0 decides."""
        if self._section.stop.is_on:
            progress.stopped = text_for_all(lambda: _reason_to_stop(self._section, log, progress))


def _reason_to_stop(section: EvalSection, log: RunLog, progress: Progress) -> str:
    stop, last = section.stop, progress.gain
    if stop.patience is not None and last is not None and progress.evaluations_without_gain >= stop.patience:
        least = f"by {stop.min_delta:g} " if stop.min_delta else ""
        return (
            f"{section.best_metric} has not risen {least}in {counted(progress.evaluations_without_gain, 'evaluation')} "
            f"since {_value_text(section.best_metric, last.value)} at step {last.step} (eval.stop.patience)"
        )
    lost = collapse(log.history) if stop.on_collapse else ""
    return lost and f"the policy has collapsed: {lost} (eval.stop.on_collapse)"


def _value_text(name: str | None, value: float) -> str:
    return f"{value:.1%}" if "/acc/" in str(name) else reward_text(value)


def _best_text(name: str, progress: Progress) -> str:
    best = progress.best
    if best is None:
        return f"{name} was not measured"
    where = "here" if best.step == progress.step else f"at step {best.step}"
    value = _value_text(name, best.value)
    named = {OVERALL: "", OVERALL_REWARD: "reward "}.get(name, f"{name} ")
    return f"best {named}{value} {where}"
