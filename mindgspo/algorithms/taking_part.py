"""How this process takes part in the updates of a policy: chosen by where the policy's model stands.

What enters: a policy, a loss, the optimizer's section. What leaves: a `PolicyUpdater`. Called by the trainer's build
and by the warm-up.
"""

from __future__ import annotations

from mindspore import nn

from mindgspo.algorithms.logical_part import LogicalPart
from mindgspo.algorithms.update import PolicyUpdater
from mindgspo.config.optimizer_section import OptimizerSection
from mindgspo.models.names import parameter_shapes
from mindgspo.models.weights import weight_layouts
from mindgspo.parallel.placement import LogicalPlacement
from mindgspo.parallel.training_layout import TrainingLayout


def updater_of(policy: nn.Cell, loss: nn.Cell, section: OptimizerSection) -> PolicyUpdater:
    """For a process that is alone, for one that calls the collectives itself, or for one whose graph is divided."""
    model = policy.model
    place = model.place
    if isinstance(place, LogicalPlacement):
        part = LogicalPart(
            policy,
            loss,
            section,
            num_micro_batches=place.divided.micro_batch_num,
            layouts=weight_layouts(model.config, place) if place.is_divided else None,
        )
        return PolicyUpdater(policy, loss, section, part=part)
    if place.plan.world_size == 1:
        return PolicyUpdater(policy, loss, section)
    layout = TrainingLayout.of(parameter_shapes(model.config), model.config, place)
    return PolicyUpdater(policy, loss, section, layout)
