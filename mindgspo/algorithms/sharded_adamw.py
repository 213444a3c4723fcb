"""AdamW whose moments are spread over the data-parallel replicas: each updates its rows and hands them to the others.

What enters: gradients, already summed over the replicas, and the scalars of `adamw`. What leaves: changed weights,
equal on all replicas, and the own part of the moments. Called by the cells of `accumulator`, in the place of `AdamW`.

Legend: D replicas, F elements of a flat bucket of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from mindgspo.algorithms.adamw import AdamW, StepScalars, decays, short_runs
from mindgspo.algorithms.gradient_sum import BUCKET_BYTES, runs_within
from mindgspo.config.optimizer_section import OptimizerSection
from mindgspo.parallel.parameter_memory import zero_parameter
from mindgspo.parallel.process_groups import group_name
from mindgspo.parallel.ranks import Ranks

Rows = tuple[int, int]


class ShardedAdamW(nn.Cell):
    """As `AdamW`; the update of a row is the same to the last bit.

    weights: this rank's slices. rows: for each the rows whose moments are this rank's, None for a weight whose moments
    every replica keeps (its rows do not divide). replicas: the data-parallel group, in order.
    """

    def __init__(
        self,
        weights: ParameterTuple,
        section: OptimizerSection,
        *,
        rows: Sequence[Rows | None],
        replicas: Ranks,
        index: int,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.weights = weights
        self.rows = tuple(rows)
        self.runs = short_runs(len(weights))
        own = ParameterTuple(
            [
                weight if bounds is None else _rows_of(weight, bounds)
                for weight, bounds in zip(weights, rows, strict=True)
            ]
        )
        self.adamw = AdamW(own, section, names=[weight.name for weight in weights])
        assert self.adamw.decays == tuple(section.weight_decay > 0 and decays(weight) for weight in weights)
        self.own = own
        self.num_replicas = len(replicas)
        self.sum = ops.AllReduce(group=group_name(replicas))
        placed = np.zeros((len(replicas), 1), np.float32)
        placed[index] = 1.0
        self.placed_D1 = Tensor(placed)
        sharded = [i for i, bounds in enumerate(rows) if bounds is not None]
        sizes = {i: prod(own[i].shape) * len(replicas) * 4 for i in sharded}
        self.buckets = tuple(runs_within(sharded, sizes, BUCKET_BYTES))

    @property
    def first_moments(self) -> ParameterTuple:
        """See `AdamW`; of the own rows."""
        return self.adamw.first_moments

    @property
    def second_moments(self) -> ParameterTuple:
        """See `AdamW`; of the own rows."""
        return self.adamw.second_moments

    @property
    def row_copies(self) -> tuple[Parameter, ...]:
        """Copies of the own rows, which the update writes."""
        return tuple(own for own, bounds in zip(self.own, self.rows, strict=True) if bounds is not None)

    def scalars(self, step: int, lr: float, grad_norm: float) -> StepScalars:
        """See `AdamW`."""
        return self.adamw.scalars(step, lr, grad_norm)

    def construct(
        self, gradients: tuple[Tensor, ...], clip_scale: Tensor, step_size: Tensor, root_eps: Tensor, decay: Tensor
    ) -> Tensor:
        for first, last in self.runs:
            self.update_run(first, last, gradients, clip_scale, step_size, root_eps, decay)
        done = step_size
        for bucket in self.buckets:
            done = self.share_bucket(bucket, done)
        return step_size

    def update_run(
        self,
        first: int,
        last: int,
        gradients: tuple[Tensor, ...],
        clip_scale: Tensor,
        step_size: Tensor,
        root_eps: Tensor,
        decay: Tensor,
    ) -> None:
        """The own rows of weights number `first` to `last` - 1."""
        for i in range(first, last):
            self.adamw.update_one(i, self.own_rows(i, gradients[i]), clip_scale, step_size, root_eps, decay)

    def own_rows(self, i: int, gradient: Tensor) -> Tensor:
        """The gradient of the own rows, which are copied beside the weight."""
        if self.rows[i] is None:
            return gradient
        first, last = self.rows[i]
        ops.assign(self.own[i], self.weights[i][first:last])
        return gradient[first:last]

    def share_bucket(self, bucket: tuple[int, ...], done: Tensor) -> Tensor:
        """Changed rows to and from the other replicas, once `done` is."""
        parts = ()
        for i in bucket:
            parts += (self.own[i].reshape(1, -1),)
        flat_DF = self.sum(ops.depend(ops.concat(parts, 1), done) * self.placed_D1)
        first = 0
        for i in bucket:
            size = self.own[i].size
            ops.assign(self.weights[i], flat_DF[:, first : first + size].reshape(self.weights[i].shape))
            first += size
        return flat_DF[0, 0]


def _rows_of(weight: Parameter, bounds: Rows) -> Parameter:
    shape = (bounds[1] - bounds[0], *weight.shape[1:])
    return zero_parameter(shape, f"adamw.rows.{weight.name}", requires_grad=False)
