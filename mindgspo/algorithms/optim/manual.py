"""Update backends that call the collectives themselves: one process, and a CPU cluster with data and tensor
parallelism.

Each rank holds its slices of the weights, whole moments of these slices, and one gradient per weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mindspore import Parameter, Tensor, nn

from mindgspo.algorithms.optim.accumulation import Accumulation
from mindgspo.algorithms.optim.adamw import AdamW
from mindgspo.algorithms.optim.backend import UpdateBackend, moment_layouts_of
from mindgspo.algorithms.optim.gradients import GradientNorm, OptimizerStep
from mindgspo.config.schema import OptimizerSection
from mindgspo.models.names import parameter_shapes
from mindgspo.parallel.collectives import GraphOfRanks, meet, sum_in_shared_memory, world_ranks
from mindgspo.parallel.layout import Layout
from mindgspo.parallel.parameter_layouts import gradient_ranks, parameter_layouts
from mindgspo.parallel.parameter_memory import values_of
from mindgspo.parallel.placement import ALONE, Placement
from mindgspo.parallel.ranks import Ranks
from mindgspo.parallel.replicas import Arrays, Replicas
from mindgspo.parallel.runtime import CompiledCell
from mindgspo.types import Batch


class SingleUpdate(UpdateBackend):
    """The update of one process, which holds the whole model."""

    def __init__(self, policy: nn.Cell, loss: nn.Cell, section: OptimizerSection, place: Placement = ALONE) -> None:
        super().__init__(policy, loss)
        self._replicas = Replicas(place)
        self.accumulation = Accumulation(policy, loss, self.weights, place)
        self.accumulator, self.gradients = self.accumulation.cell, self.accumulation.gradients
        self.optimizer = AdamW(self.weights, section)
        self._norm: Callable[..., Tensor] = GradientNorm(self.gradients)
        self._step: Callable[..., Tensor] = CompiledCell(OptimizerStep(self.optimizer, self.gradients))

    def _apply(self, batches: Sequence[Batch], *, kl_coef: float, lr: float) -> tuple[list[Arrays], float]:
        measured = self.accumulation(self._replicas.own(batches), kl_coef)
        results = self._replicas.collect(measured, num_items=len(batches))
        grad_norm = self._grad_norm()
        self._refuse_non_finite([float(result[0]) for result in results], grad_norm)
        self._step(*self.optimizer.scalars(self._updates + 1, lr, grad_norm))
        return results, grad_norm

    def _grad_norm(self) -> float:
        """Of the gradients, once every rank's are added up."""
        if self.accumulator.kernel is not None:
            return math.sqrt(float(self.accumulation.squares[0]))
        return float(self._norm().asnumpy())


class ManualUpdate(SingleUpdate):
    """The update of one rank of a CPU cluster: gradients are summed over the ranks that share a weight."""

    def __init__(self, policy: nn.Cell, loss: nn.Cell, section: OptimizerSection) -> None:
        model, place = policy.model, policy.model.place
        super().__init__(policy, loss, section, place)
        self.rank = place.rank
        self._layouts = parameter_layouts(parameter_shapes(model.config), model.config, place.plan)
        ranks = gradient_ranks(self._layouts, model.config, place.plan, place.rank)
        names = [weight.name for weight in self.weights]
        shared: dict[Ranks, list[Parameter]] = {}
        for name, gradient in zip(names, self.gradients, strict=True):
            if len(ranks[name]) > 1:
                shared.setdefault(ranks[name], []).append(gradient)
        self._shared = sorted(shared.items(), key=lambda one: one[0])  # in one order on all ranks
        # Of the ranks that hold the same slice, the first one counts it in the norm.
        counted = [
            gradient
            for name, gradient in zip(names, self.gradients, strict=True)
            if self._layouts[name].ranks_with_slice_of(self.rank)[0] == self.rank
        ]
        self._norm = GraphOfRanks(GradientNorm(counted, world_ranks()), world_ranks())
        self._step = GraphOfRanks(OptimizerStep(self.optimizer, self.gradients), world_ranks())

    def _grad_norm(self) -> float:
        for ranks, gradients in self._shared:
            sum_in_shared_memory([values_of(gradient) for gradient in gradients], ranks)
        # Replicas may have had micro-batches of other shapes, hence graphs to compile.
        meet(world_ranks())
        return float(self._norm().asnumpy())

    def _moment_layouts(self) -> dict[str, Layout]:
        return moment_layouts_of(self._layouts)
