"""Which evaluation of a run was the best, as far as its metrics tell. Called by plots and report.

What enters: what a run has recorded. What leaves: step and value, None where nothing was evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass

from mindgspo.metrics.recorded import Recorded
from mindgspo.metrics.run_settings import run_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class BestEvaluation:
    """metric: by which it was chosen. value: of it. is_only: there was no other to choose from."""

    metric: str
    step: int
    value: float
    is_only: bool


def best_evaluation(run: Recorded) -> BestEvaluation | None:
    """The evaluation with the highest eval.best_metric; of equals the first, of several at one step the last."""
    metric = run_settings(run).best_metric
    series = run.series(metric)
    by_step = dict(zip(series.steps, series.values, strict=True))
    if not by_step:
        return None
    step = max(by_step, key=by_step.__getitem__)
    return BestEvaluation(metric=metric, step=step, value=by_step[step], is_only=len(by_step) == 1)
