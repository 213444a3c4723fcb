"""Accuracy on the held-out problems while a run goes on.

What enters: the parts of an experiment and the step. What leaves: the accuracy, with all its metrics in the log. Called
by `loop` before, between and after the training steps.
"""

from __future__ import annotations

from mindgspo.metrics import RunLog
from mindgspo.trainer.evaluate import evaluate
from mindgspo.trainer.parts import TrainingParts


def validated(parts: TrainingParts, log: RunLog, *, step: int) -> float:
    """Accuracy on data.eval, with all its metrics in the log."""
    with parts.timers("testing"):
        evaluation = evaluate(parts, list(parts.eval_set), step)
    log.log_metrics(step, {**evaluation.metrics, **parts.timers.collect()})
    return evaluation.accuracy
