"""What the ranks of a model-parallel group tell each other inside a compiled graph, with the gradients that belong to
it.

Every public function returns a cell that costs nothing where the rank is alone.

Legend: M flattened tokens, H hidden units, S decode slots, V vocabulary entries.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindgspo.parallel.collective_ops import all_gather, all_reduce
from mindgspo.parallel.placement import Placement
from mindgspo.parallel.ranks import Ranks


class Unchanged(nn.Cell):
    """The cell of a rank that is alone."""

    def construct(self, x: Tensor) -> Tensor:
        return x


class EnterModelParallel(nn.Cell):
    """x on every rank, before layers that each compute their own part of the output: its gradients are summed."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(auto_prefix=False)
        self.sum = all_reduce(ranks)

    def construct(self, x: Tensor) -> Tensor:
        return x

    def bprop(self, x, out, dout):
        # Without the product MindSpore 2.10 compiles a graph that differentiates by weights alone without the gradient
        # that passes by this layer on the residual path (seen: gradients off by a fifth below, none missing above).
        return (self.sum(dout) * 1.0,)


class LeaveModelParallel(nn.Cell):
    """The sum of every rank's part; all ranks go on with the same gradient."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(auto_prefix=False)
        self.sum = all_reduce(ranks)

    def construct(self, x: Tensor) -> Tensor:
        return self.sum(x)

    def bprop(self, x, out, dout):
        return (dout,)


class GatherColumns(nn.Cell):
    """[S, V / ranks] -> [S, V] on every rank, float32; not differentiable."""

    def __init__(self, place: Placement) -> None:
        super().__init__(auto_prefix=False)
        self.gather = all_gather(place.model_ranks)
        self.count = place.model_parallel

    def construct(self, part: Tensor) -> Tensor:
        num_slots, width = part.shape
        parts = self.gather(part).reshape(self.count, num_slots, width)
        return parts.transpose(1, 0, 2).reshape(num_slots, -1)


class FromFirstRank(nn.Cell):
    """What the first rank of the group has drawn, on every rank: (ids int32 [S], log-probs float32 [S])."""

    def __init__(self, place: Placement) -> None:
        super().__init__(auto_prefix=False)
        self.sum = all_reduce(place.model_ranks)
        self.is_first = Tensor(np.float32(place.at.model == 0))

    def construct(self, ids_S: Tensor, logprobs_S: Tensor) -> tuple[Tensor, Tensor]:
        # One message; float32 holds every token id exactly (below 2^24).
        both = ops.stack((ops.cast(ids_S, ms.float32), logprobs_S)) * self.is_first
        both = self.sum(both)
        return ops.cast(both[0], ms.int32), both[1]


class OwnDraw(nn.Cell):
    """`FromFirstRank` of a rank that is alone."""

    def construct(self, ids_S: Tensor, logprobs_S: Tensor) -> tuple[Tensor, Tensor]:
        return ids_S, logprobs_S


def enter_model_parallel(place: Placement) -> nn.Cell:
    """To be applied to the input of column-parallel layers, once for all that share it."""
    if place.model_parallel == 1:
        return Unchanged()
    return EnterModelParallel(place.model_ranks)


def leave_model_parallel(place: Placement) -> nn.Cell:
    """To be applied to the output of a row-parallel layer."""
    if place.model_parallel == 1:
        return Unchanged()
    return LeaveModelParallel(place.model_ranks)


def gather_columns(place: Placement) -> nn.Cell:
    """To be applied to logits [S, V / ranks]."""
    if place.model_parallel == 1:
        return Unchanged()
    return GatherColumns(place)


def from_first_rank(place: Placement) -> nn.Cell:
    """To be applied to drawn tokens and their log-probs."""
    return OwnDraw() if place.model_parallel == 1 else FromFirstRank(place)
