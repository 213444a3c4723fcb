"""Accuracy on the held-out problems while a run goes on.

What enters: the parts of an experiment and how far it has come. What leaves: metrics in the log, accuracy and best step
in the progress. Called by `loop` before, between and after the training steps.
"""

from __future__ import annotations

from mindgspo.metrics import RunLog
from mindgspo.trainer.evaluate import evaluate
from mindgspo.trainer.parts import TrainingParts
from mindgspo.trainer.progress import Progress


def validate(parts: TrainingParts, log: RunLog, progress: Progress) -> None:
    """Accuracy on data.eval with the weights of the present, noted in `progress`, with all its metrics in the log."""
    with parts.timers("testing"):
        evaluation = evaluate(parts, list(parts.eval_set), progress.step)
    progress.evaluated(evaluation.accuracy, evaluation.accuracy)
    log.log_metrics(progress.step, {**evaluation.metrics, **parts.timers.collect()})
