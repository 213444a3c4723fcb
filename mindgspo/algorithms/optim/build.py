"""Chooses the update backend by where the policy's model is placed."""

from __future__ import annotations

from mindspore import nn

from mindgspo.algorithms.optim.auto_parallel import AutoParallelUpdate
from mindgspo.algorithms.optim.backend import UpdateBackend
from mindgspo.algorithms.optim.update import RankUpdate
from mindgspo.config.schema import OptimizerSection
from mindgspo.models.weights import weight_layouts
from mindgspo.parallel.placement import AutoParallelPlacement


def build_update_backend(policy: nn.Cell, loss: nn.Cell, section: OptimizerSection) -> UpdateBackend:
    """One rank that calls the collectives itself, or a graph that the compiler divides over cards."""
    model, place = policy.model, policy.model.place
    if isinstance(place, AutoParallelPlacement):
        return AutoParallelUpdate(
            policy,
            loss,
            section,
            num_micro_batches=place.divided.micro_batch_num,
            layouts=weight_layouts(model.config, place) if place.is_divided else None,
        )
    return RankUpdate(policy, loss, section, place)
