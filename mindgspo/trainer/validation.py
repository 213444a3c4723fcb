"""Evaluates the policy on data.eval before, between and after the training steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np

from mindgspo.config.data import CHANGE, OVERALL, OVERALL_REWARD, REWARD_CHANGE, EvalSection
from mindgspo.data.dataset import PromptDataset
from mindgspo.evaluation.estimates import Estimate, change_estimate, reward_change_estimate
from mindgspo.evaluation.evaluator import Evaluator, with_bounds
from mindgspo.metrics import RunLog, Timers, verdict_lines
from mindgspo.metrics.run_folder import reward_text
from mindgspo.trainer.progress import Progress


class Baseline:
    """Which held-out problems the first evaluation of a run solved, and the rewards of its answers: what later ones are
    compared with."""

    def __init__(self) -> None:
        self._solved: np.ndarray | None = None
        self._rewards: tuple[float, ...] = ()

    def changes(self, solved: Sequence[bool], rewards: Sequence[float]) -> dict[str, Estimate]:
        """Changes of accuracy and mean reward since the first call, by name. That one only takes note; so does one
        about another number of problems (a run that began with another's checkpoint, on other rows)."""
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
        decode: Callable[[Sequence[int]], str],
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
        progress.evaluated(evaluation.accuracy, metrics.get(best_metric), metrics.get(OVERALL_REWARD))
        log.log_metrics(progress.step, metrics)
        for one in evaluation.sets:
            for groups in (one.single, one.sampled):
                log.log_validation(progress.step, one.name, groups, self._decode)
        for line in verdict_lines(log.history, step=progress.step, best=_best_text(best_metric, progress)):
            log.note(line)


def _best_text(name: str, progress: Progress) -> str:
    best = progress.best
    if best is None:
        return f"{name} was not measured"
    where = "here" if best.step == progress.step else f"at step {best.step}"
    value = f"{best.value:.1%}" if "/acc/" in name else reward_text(best.value)
    named = {OVERALL: "", OVERALL_REWARD: "reward "}.get(name, f"{name} ")
    return f"best {named}{value} {where}"
