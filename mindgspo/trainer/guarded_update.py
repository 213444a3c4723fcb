"""One update of a step, and what becomes of it where its loss or gradient is not finite: the run stops, or goes on
without it.

What enters: the parts and the micro-batches of an update. What leaves: its result, None where it was skipped. Called by
`step`, on every rank. Losses and norm are known to all ranks before the optimizer's step, so that all decide alike.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence

import numpy as np

from mindgspo import faults
from mindgspo.algorithms.optim.backend import UpdateResult
from mindgspo.errors import NonFiniteError, TrainingError
from mindgspo.trainer.failures import save_batches
from mindgspo.trainer.parts import TrainingParts
from mindgspo.trainer.ranks import is_first
from mindgspo.types import Batch

_log = logging.getLogger(__name__)


def guarded_update(
    parts: TrainingParts, batches: Sequence[Batch], *, name: str, lr: float, kl_coef: float
) -> UpdateResult | None:
    """Apply one update and count it; None if it was skipped, as trainer.on_nonfinite may say.

    name: of the files that a broken batch is saved in. Raises TrainingError where the run must stop.
    """
    batches = _with_faults(batches)
    try:
        result = parts.updater.update(batches, lr, kl_coef=kl_coef)
    except NonFiniteError as error:
        said = f"{name}: {error}; {save_batches(parts.failures_dir, name, batches)}"
        _require_skip(parts, said, error)
        parts.skips.count()
        if is_first():
            _log.warning("%s; the update is skipped, number %d of this run", said, parts.skips.total)
        return None
    parts.weight_version += 1
    parts.skips.in_a_row = 0
    return result


def _require_skip(parts: TrainingParts, said: str, error: NonFiniteError) -> None:
    section, skips = parts.config.trainer, parts.skips
    if section.on_nonfinite == "stop":
        raise TrainingError(
            f"{said}. trainer.on_nonfinite=skip would go on without such updates; the run can be resumed with it"
        ) from error
    for key, limit, done in (
        ("max_nonfinite_skips_in_a_row", section.max_nonfinite_skips_in_a_row, skips.in_a_row),
        ("max_nonfinite_skips", section.max_nonfinite_skips, skips.total),
    ):
        if done >= limit:
            raise TrainingError(
                f"{said}. trainer.{key} = {limit} updates were skipped before: look at the weights of the newest "
                "checkpoint, optimizer.lr and the saved batches; the limit may be raised in a resumed run"
            ) from error


def reported(metrics: Mapping[str, float], *, num_skipped: int) -> dict[str, float]:
    """The metrics of a step. What a skipped update's batch has made NaN or infinite is left out: it is no figure."""
    if not num_skipped:
        return dict(metrics)
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _with_faults(batches: Sequence[Batch]) -> Sequence[Batch]:
    """The micro-batches of an update; where `update.batch` is armed with nan, none of them has a finite advantage: a
    rank that is meant computes some of them, whichever these are."""
    if not faults.reach("update.batch"):
        return batches
    return [
        dataclasses.replace(batch, advantages_NK=np.where(batch.mask_NK, np.float32(np.nan), batch.advantages_NK))
        for batch in batches
    ]
