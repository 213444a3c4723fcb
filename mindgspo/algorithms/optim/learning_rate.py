"""The learning rate of one update: linear rise, then constant or cosine.

Pure Python.
"""

from __future__ import annotations

import math

from mindgspo.config.schema import OptimizerSection


def learning_rate(
    update_index: int, total_updates: int, section: OptimizerSection, *, updates_per_step: int = 1
) -> float:
    """Learning rate of update `update_index` (0, ..., total_updates - 1).

    The schedule takes all updates, or those of `schedule_steps` training steps; what comes later has its last one.

    The rise takes the updates of `warmup_steps` training steps, or `warmup_ratio` of all updates (rounded): its first
    update gets lr / rise, not 0, so that no update is spent without effect; its last one gets lr. cosine then falls
    from lr to exactly lr * min_lr_ratio at the last update.
    """
    assert 0 <= update_index < total_updates, f"update {update_index} of {total_updates}"
    if section.schedule_steps is not None:
        total_updates = section.schedule_steps * updates_per_step
        update_index = min(update_index, total_updates - 1)
    if section.warmup_steps is None:
        rise = round(section.warmup_ratio * total_updates)
    else:
        rise = section.warmup_steps * updates_per_step
    if update_index < rise:
        return section.lr * (update_index + 1) / rise
    if section.schedule == "constant":
        return section.lr

    last = total_updates - rise - 1
    progress = (update_index - rise) / last if last > 0 else 0.0
    height = 0.5 * (1.0 + math.cos(math.pi * progress))
    return section.lr * (section.min_lr_ratio + (1.0 - section.min_lr_ratio) * height)
