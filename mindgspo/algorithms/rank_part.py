"""The graphs and parameters with which one rank takes part in an update: gradients, their sum, norm, step, moments.

What enters: a policy cell, a loss cell, and where the rank stands. What leaves: results of micro-batches, changed
weights, whole moments for a checkpoint. Driven by `update`, which knows no plan. `OwnPart` is the rank that is alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn

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
from mindgspo.config.optimizer_section import OptimizerSection
from mindgspo.parallel.collectives import GraphOfRanks, meet, world_ranks
from mindgspo.parallel.device_ops import attention_segments
from mindgspo.parallel.layout import Layout, Shape
from mindgspo.parallel.parameter_memory import set_values, values_of
from mindgspo.parallel.placement import ALONE, Placement
from mindgspo.parallel.process_groups import group_name
from mindgspo.parallel.replicas import Arrays, Replicas
from mindgspo.parallel.reshard.resharder import gather_to_first_rank
from mindgspo.parallel.training_layout import TrainingLayout
from mindgspo.tensor_files import TensorSource
from mindgspo.types import Batch

Judge = Callable[[Sequence[float], float], None]
"""Hears the losses of all micro-batches and the norm before the step; raises to refuse it."""


class HeldMoments:
    """The optimizer's moments on a rank: whole, or parts by layout."""

    optimizer: AdamW | ShardedAdamW
    rank = 0

    def moment_shapes(self) -> dict[str, Shape]:
        """{name: shape} of the whole moments."""
        layouts = self._moment_layouts()
        if layouts is not None:
            return {name: layout.shape for name, layout in layouts.items()}
        return {parameter.name: tuple(parameter.shape) for parameter in self.held_moments()}

    def whole_moments(self) -> dict[str, np.ndarray]:
        """Copies of the whole moments by name; where ranks hold parts, rank 0 gets them and the others nothing."""
        layouts = self._moment_layouts()
        own = {parameter.name: values_of(parameter) for parameter in self.held_moments()}
        if layouts is not None:
            return gather_to_first_rank(layouts, own)
        return {name: array.copy() for name, array in own.items()}

    def load_moments(self, whole: TensorSource) -> None:
        """Take the own part of whole moments; no more of each is read."""
        layouts = self._moment_layouts()
        for parameter in self.held_moments():
            index: tuple[slice, ...] = ()
            if layouts is not None:
                held = layouts[parameter.name].slice_of(self.rank)
                assert held is not None, parameter.name
                index = held.index
            array = whole.read_slice(parameter.name, index)
            set_values(parameter, np.ascontiguousarray(array, np.float32))

    def held_moments(self) -> tuple[Parameter, ...]:
        """Those that this rank has values of."""
        moments = (*self.optimizer.first_moments, *self.optimizer.second_moments)
        layouts = self._moment_layouts()
        if layouts is None:
            return moments
        return tuple(parameter for parameter in moments if self.rank in layouts[parameter.name].rank_list)

    def _moment_layouts(self) -> dict[str, Layout] | None:
        """By the moments' names; None where they are whole."""
        return None


class OwnPart(HeldMoments):
    """Everything is here."""

    def __init__(self, policy: nn.Cell, loss: nn.Cell, section: OptimizerSection, place: Placement = ALONE) -> None:
        self._replicas = Replicas(place)
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

    def update(
        self, batches: Sequence[Batch], *, kl_coef: float, number: int, lr: float, judge: Judge
    ) -> tuple[list[Arrays], float]:
        """Update number `number` (1, 2, ...) from the micro-batches of all replicas.

        Returns (loss, metrics, log-ratios, entropy, log-probs, d loss / d logp) of every micro-batch, and the gradient
        norm.
        """
        found = self.run(self._replicas.own(batches), kl_coef)
        results = self._replicas.collect(found, num_items=len(batches))
        grad_norm = self.summed_norm()
        judge([float(result[0]) for result in results], grad_norm)
        self.step(*self.optimizer.scalars(number, lr, grad_norm))
        return results, grad_norm

    def run(self, batches: Sequence[Batch], kl_coef: float) -> list[Arrays]:
        """Add the gradients of the own micro-batches up; their results, or [] on a rank where no loss comes out."""
        # All graphs are launched before the first result is read: the device does not wait for the host.
        pending = [self._accumulate(*tensors_of(batch, kl_coef)) for batch in batches]
        return [tuple(tensor.asnumpy() for tensor in result) for result in pending]

    def summed_norm(self) -> float:
        """Bring every rank's gradients together; their global norm."""
        return float(self.norm().asnumpy())


class RankPart(OwnPart):
    """One rank of a training plan."""

    def __init__(self, policy: nn.Cell, loss: nn.Cell, section: OptimizerSection, layout: TrainingLayout) -> None:
        self._layout, self.rank = layout, layout.place.rank
        super().__init__(policy, loss, section, layout.place)

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

    def run(self, batches: Sequence[Batch], kl_coef: float) -> list[Arrays]:
        if self._stage is None:
            return super().run(batches, kl_coef)
        results = self._stage.run(batches, lambda batch: tensors_of(batch, kl_coef))
        return [tuple(tensor.asnumpy() for tensor in result) for result in results]

    def summed_norm(self) -> float:
        if self._sum.is_needed:
            self._sum.compile()
        # Replicas may have had micro-batches of other shapes, hence graphs to compile.
        meet(world_ranks())
        if self._sum.is_needed:
            self._sum().asnumpy()
        return super().summed_norm()

    def _moment_layouts(self) -> dict[str, Layout]:
        return {f"adamw.{kind}.{name}": layout for kind in ("m", "v") for name, layout in self._layout.moments.items()}


def inputs_of(batch: Batch, kl_coef: float = 0.0) -> tuple[np.ndarray, ...]:
    """The arrays of a batch in the order of `Objective.construct`."""
    return (
        np.zeros(batch.mask_NK.shape, np.float32),
        batch.ids_RT,
        batch.positions_RT,
        batch.segments_RT,
        batch.predict_P,
        batch.targets_P,
        batch.place_NK,
        batch.mask_NK,
        batch.old_logp_NK,
        batch.ref_logp_NK,
        batch.advantages_NK,
        batch.correction_NK,
        np.float32(batch.num_sequences),
        np.float32(batch.num_tokens),
        np.float32(kl_coef),
    )


def tensors_of(batch: Batch, kl_coef: float) -> tuple[Tensor, ...]:
    """The same as a graph of one micro-batch wants them on this device."""
    probe, ids, positions, segments, *rest = inputs_of(batch, kl_coef)
    ends = attention_segments(segments, num_segments=batch.samples_N.size)
    return tuple(Tensor(array) for array in (probe, ids, positions, ends, *rest))
