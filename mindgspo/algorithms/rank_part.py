"""The graphs and parameters with which one rank takes part in an update: gradients, their sum, norm, step, moments.

What enters: a policy cell, a loss cell, and where the rank stands. What leaves: results of micro-batches, changed
weights, whole moments for a checkpoint. Driven by `update`, which knows no plan. `OwnPart` is the rank that is alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from mindspore import ParameterTuple, Tensor, nn

from mindgspo.algorithms.accumulator import (
    GradientAccumulator,
    GradientNorm,
    Objective,
    OptimizerStep,
    gradients_of,
)
from mindgspo.algorithms.adamw import AdamW
from mindgspo.algorithms.gradient_sum import GradientSum
from mindgspo.algorithms.pipeline import PipelineStage
from mindgspo.algorithms.sharded_adamw import ShardedAdamW
from mindgspo.config.schema import OptimizerSection
from mindgspo.parallel.collectives import GraphOfRanks, meet, world_ranks
from mindgspo.parallel.layout import Layout, Shape
from mindgspo.parallel.parameter_memory import set_values, values_of
from mindgspo.parallel.process_groups import group_name
from mindgspo.parallel.replicas import Arrays
from mindgspo.parallel.reshard.resharder import gather_to_first_rank
from mindgspo.parallel.training_layout import TrainingLayout
from mindgspo.types import Batch

InputsOf = Callable[[Batch], tuple[Tensor, ...]]


class OwnPart:
    """Everything is here."""

    def __init__(self, policy: nn.Cell, loss: nn.Cell, section: OptimizerSection) -> None:
        self.weights = ParameterTuple(policy.trainable_params())
        self.gradients = gradients_of(self.weights)
        self._build(policy, loss, section)
        self.step = self._together(OptimizerStep(self.optimizer, self.gradients))

    def _build(self, policy: nn.Cell, loss: nn.Cell, section: OptimizerSection) -> None:
        self.accumulator: nn.Cell = GradientAccumulator(Objective(policy, loss), self.weights, self.gradients)
        self._accumulate: Callable[..., tuple[Tensor, ...]] = self.accumulator
        self.optimizer: AdamW | ShardedAdamW = AdamW(self.weights, section)
        self.norm = GradientNorm(self.gradients)

    def _together(self, cell: nn.Cell) -> Callable[..., Tensor]:
        """The cell as it is called."""
        return cell

    def run(self, batches: Sequence[Batch], inputs_of: InputsOf) -> list[Arrays]:
        """Add the gradients of the micro-batches up; (loss, metrics, log-ratios, entropy, d loss / d logp) of each, or
        [] on a rank where no loss comes out."""
        # All graphs are launched before the first result is read: the device does not wait for the host.
        pending = [self._accumulate(*inputs_of(batch)) for batch in batches]
        return [tuple(tensor.asnumpy() for tensor in result) for result in pending]

    def summed_norm(self) -> float:
        """Bring every rank's gradients together; their global norm."""
        return float(self.norm().asnumpy())

    def moment_shapes(self) -> dict[str, Shape]:
        """{name: shape} of the whole moments."""
        return {parameter.name: tuple(parameter.shape) for parameter in self._moments()}

    def whole_moments(self) -> dict[str, np.ndarray]:
        """Copies of the whole moments by name."""
        return {parameter.name: values_of(parameter).copy() for parameter in self._moments()}

    def load_moments(self, whole: Mapping[str, np.ndarray]) -> None:
        """Take the own part of whole moments."""
        for parameter in self._moments():
            set_values(parameter, np.asarray(whole[parameter.name], np.float32))

    def _moments(self) -> tuple:
        return (*self.optimizer.first_moments, *self.optimizer.second_moments)


class RankPart(OwnPart):
    """One rank of a training plan."""

    def __init__(self, policy: nn.Cell, loss: nn.Cell, section: OptimizerSection, layout: TrainingLayout) -> None:
        self._layout = layout
        super().__init__(policy, loss, section)

    def _build(self, policy: nn.Cell, loss: nn.Cell, section: OptimizerSection) -> None:
        layout, place = self._layout, self._layout.place
        names = [weight.name for weight in self.weights]
        self._stage = None
        if place.plan.pipeline_stage > 1:
            self._stage = PipelineStage(policy, loss, self.weights, self.gradients)
            self.accumulator = self._stage.accumulator
        else:
            self.accumulator = GradientAccumulator(Objective(policy, loss), self.weights, self.gradients)
            self._accumulate = GraphOfRanks(self.accumulator, place.model_ranks)
        rows = [layout.own_rows(name) for name in names]
        if any(bounds is not None for bounds in rows):
            replicas, index = place.grid.data_group(place.rank), place.at.data
            self.optimizer = ShardedAdamW(self.weights, section, rows=rows, replicas=replicas, index=index)
        else:
            self.optimizer = AdamW(self.weights, section)
        self._sum = GradientSum(self.gradients, [layout.gradient_ranks[name] for name in names])
        counted = [
            gradient for name, gradient in zip(names, self.gradients, strict=True) if layout.counts_in_norm(name)
        ]
        self.norm = self._together(GradientNorm(counted, group_name(world_ranks())))

    def _together(self, cell: nn.Cell) -> Callable[..., Tensor]:
        return GraphOfRanks(cell, world_ranks())

    def run(self, batches: Sequence[Batch], inputs_of: InputsOf) -> list[Arrays]:
        if self._stage is None:
            return super().run(batches, inputs_of)
        return [tuple(tensor.asnumpy() for tensor in result) for result in self._stage.run(batches, inputs_of)]

    def summed_norm(self) -> float:
        if self._sum.is_needed:
            self._sum.compile()
        # Replicas may have had micro-batches of other shapes, hence graphs to compile.
        meet(world_ranks())
        if self._sum.is_needed:
            self._sum().asnumpy()
        return super().summed_norm()

    def moment_shapes(self) -> dict[str, Shape]:
        return {name: layout.shape for name, layout in self._moment_layouts().items()}

    def whole_moments(self) -> dict[str, np.ndarray]:
        own = {parameter.name: values_of(parameter) for parameter in self._moments()}
        return gather_to_first_rank(self._moment_layouts(), own)

    def load_moments(self, whole: Mapping[str, np.ndarray]) -> None:
        layouts = self._moment_layouts()
        for parameter in self._moments():
            held = layouts[parameter.name].slice_of(self._layout.place.rank)
            assert held is not None, parameter.name
            set_values(parameter, np.ascontiguousarray(whole[parameter.name][held.index], np.float32))

    def _moment_layouts(self) -> dict[str, Layout]:
        return {f"adamw.{kind}.{name}": layout for kind in ("m", "v") for name, layout in self._layout.moments.items()}
