"""What the ranks of a plan tell each other inside a compiled graph, with the gradients that belong to it.

Every public function returns a cell that costs nothing where there is nobody to talk to. Cells that change the number
of rows take, behind them, how many of the own ones are in use (see `kernel_ops`).

Gradients: what several ranks hold alike carries its whole gradient on each of them; what each holds a part of, the
gradient of that part. So a sum over ranks passes its gradient on as it is, and what ranks read alike and use for parts
of their own gets the sum of their gradients. Where model_parallel splits the tokens between layers as well
(use_seq_parallel), sums leave each rank its own tokens, and their gradients are gathered.

Legend: M flattened tokens, H hidden units, A query heads, B key/value heads, D head size, S decode slots, V vocabulary
entries.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindgspo.parallel.collectives.graph import all_gather, all_gather_used, all_reduce, all_to_all, reduce_scatter
from mindgspo.parallel.plans.placement import Placement, Ranks
from mindgspo.parallel.platform.runtime import current_device

zeros_like = ops.ZerosLike()


class Unchanged(nn.Cell):
    """The cell of a rank that is alone."""

    def construct(self, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        return x


class EnterModelParallel(nn.Cell):
    """x on every rank, before layers that each compute their own part of the output: its gradients are summed."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(auto_prefix=False)
        self.sum = all_reduce(ranks)

    def construct(self, x: Tensor, tokens: Tensor) -> Tensor:
        return x

    def bprop(self, x, tokens, out, dout):
        # Without the product MindSpore 2.10 compiles a graph that differentiates by weights alone without the gradient
        # that passes by this layer on the residual path (seen: gradients off by a fifth below, none missing above).
        return self.sum(dout) * 1.0, zeros_like(tokens)


class LeaveModelParallel(nn.Cell):
    """The sum of every rank's part; all ranks go on with the same gradient."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(auto_prefix=False)
        self.sum = all_reduce(ranks)

    def construct(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.sum(x)

    def bprop(self, x, tokens, out, dout):
        return dout, zeros_like(tokens)


class GatherTokens(nn.Cell):
    """Every rank's rows, in order of the ranks; each rank's gradients of them are summed, and it gets its own."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(auto_prefix=False)
        self.gather, self.scatter = all_gather_used(ranks), reduce_scatter(ranks)

    def construct(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.gather(x, tokens)

    def bprop(self, x, tokens, out, dout):
        return self.scatter(dout), zeros_like(tokens)


class ScatterTokens(nn.Cell):
    """The own rows of the sum of every rank's part: the reverse of `GatherTokens`."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(auto_prefix=False)
        self.gather, self.scatter = all_gather_used(ranks), reduce_scatter(ranks)

    def construct(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.scatter(x)

    def bprop(self, x, tokens, out, dout):
        return self.gather(dout, tokens), zeros_like(tokens)


class JoinParts(nn.Cell):
    """Every rank's part, in order, for what all of them go on to compute alike; each gets the gradient of its own."""

    def __init__(self, ranks: Ranks, number: int) -> None:
        super().__init__(auto_prefix=False)
        self.gather, self.number = all_gather(ranks), number

    def construct(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.gather(x)

    def bprop(self, x, tokens, out, dout):
        rows = x.shape[0]
        return dout[self.number * rows : (self.number + 1) * rows], zeros_like(tokens)


class OwnRun(nn.Cell):
    """Run number `number` of `count` equal runs of rows."""

    def __init__(self, number: int, count: int) -> None:
        super().__init__(auto_prefix=False)
        self.number, self.count = number, count

    def construct(self, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        rows = x.shape[0] // self.count
        return x[self.number * rows : (self.number + 1) * rows]


class EnterOwnRun(OwnRun):
    """`OwnRun` of rows that all of `ranks` have and of which each computes with one run; several may take the same one
    and compute parts of what comes of it."""

    def __init__(self, ranks: Ranks, number: int, count: int) -> None:
        super().__init__(number, count)
        self.sum = all_reduce(ranks)
        self.pad = ops.Concat(0)

    def bprop(self, x, tokens, out, dout):
        none = zeros_like(dout)
        parts = ()
        for number in range(self.count):
            parts += (dout if number == self.number else none,)
        return self.sum(self.pad(parts)) * 1.0, zeros_like(tokens)


class HeadsOfAllTokens(nn.Cell):
    """(own tokens' queries [M, A, D], keys, values [M, B, D]) -> those of the own heads of all ranks' tokens
    (Ulysses, arXiv 2309.14509)."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(auto_prefix=False)
        self.to_heads, self.to_tokens = all_to_all(ranks, 1, 0), all_to_all(ranks, 0, 1)

    def construct(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # One after the other: collectives that do not wait for each other might cross between ranks.
        query = self.to_heads(query)
        key = self.to_heads(ops.depend(key, query))
        return query, key, self.to_heads(ops.depend(value, key))

    def bprop(self, query, key, value, out, dout):
        dquery = self.to_tokens(dout[0])
        dkey = self.to_tokens(ops.depend(dout[1], dquery))
        return dquery, dkey, self.to_tokens(ops.depend(dout[2], dkey))


class TokensOfAllHeads(nn.Cell):
    """The reverse of `HeadsOfAllTokens` for attention's output [M, A, D]."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(auto_prefix=False)
        self.to_heads, self.to_tokens = all_to_all(ranks, 1, 0), all_to_all(ranks, 0, 1)

    def construct(self, out: Tensor) -> Tensor:
        return self.to_tokens(out)

    def bprop(self, x, out, dout):
        return (self.to_heads(dout),)


class TokensInUse(nn.Cell):
    """construct(mask, rows) -> (own, region, mask): how many of the rows between the model-parallel regions, and inside
    them, are in use, int32 [1], and mask. Of a plan that splits no tokens it is the mask, which ends with that number.

    mask: what `SegmentMask` made of all tokens. rows: those of a region, M. has_kernels: whether the model is made of
    kernels; small operators compute every row. Nobody reads the numbers on Ascend and in a process that is alone.
    """

    def __init__(self, place: Placement, *, has_kernels: bool) -> None:
        super().__init__(auto_prefix=False)
        plan = place.plan
        self.parts = plan.model_parallel if plan.use_seq_parallel else 1
        self.number_region = place.at.context
        self.number_own = place.at.context * self.parts + (place.at.model if self.parts > 1 else 0)
        self.has_kernels, is_split = has_kernels, self.parts > 1 or plan.context_parallel > 1
        is_unread = current_device() == "Ascend" or plan.world_size == 1
        self.is_mask = is_unread or (has_kernels and not is_split)

    def construct(self, mask: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        if self.is_mask:
            return mask, mask, mask
        own, every_1 = rows // self.parts, ops.ones((1,), ms.int32)
        if not self.has_kernels:
            return every_1 * own, every_1 * rows, mask
        used_1 = ops.cast(mask.reshape(-1)[-1:], ms.int32)
        return used_of_run(used_1, self.number_own, own), used_of_run(used_1, self.number_region, rows), mask


def used_of_run(used_1: Tensor, number: int, rows: int) -> Tensor:
    """How many rows are in use of run number `number` of equal runs of `rows`, of which the first `used_1` are."""
    return ops.minimum(ops.maximum(used_1 - number * rows, 0), rows)


class GatherColumns(nn.Cell):
    """[S, V / ranks] -> [S, V] on every rank, float32; not differentiable."""

    def __init__(self, place: Placement) -> None:
        super().__init__(auto_prefix=False)
        self.gather, self.count = all_gather(place.model_ranks), place.model_parallel

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
    return (GatherTokens if place.plan.use_seq_parallel else EnterModelParallel)(place.model_ranks)


def leave_model_parallel(place: Placement) -> nn.Cell:
    """To be applied to the output of a row-parallel layer."""
    if place.model_parallel == 1:
        return Unchanged()
    return (ScatterTokens if place.plan.use_seq_parallel else LeaveModelParallel)(place.model_ranks)


def join_context_parallel(place: Placement) -> nn.Cell:
    """To be applied to what each part of the sequences finds, before the loss."""
    return Unchanged() if place.plan.context_parallel == 1 else JoinParts(place.context_ranks, place.at.context)


def gather_columns(place: Placement) -> nn.Cell:
    """To be applied to logits [S, V / ranks]."""
    return Unchanged() if place.model_parallel == 1 else GatherColumns(place)


def from_first_rank(place: Placement) -> nn.Cell:
    """To be applied to drawn tokens and their log-probs."""
    return OwnDraw() if place.model_parallel == 1 else FromFirstRank(place)
