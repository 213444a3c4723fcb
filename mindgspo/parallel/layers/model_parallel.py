"""Differentiable communication between the ranks of a plan inside a compiled graph.

Every public function returns a cell that does nothing in a group of one rank. Cells that change the number of rows take
the number of own rows in use as their last input (see `ops.kernels`).

Gradients: a value replicated over ranks carries its whole gradient on each of them; a value split over ranks, the
gradient of each part. So a sum over ranks passes its gradient on unchanged, and a replicated value that each rank uses
for its own part gets the sum of the ranks' gradients. If model_parallel also splits the tokens between layers
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
    """The identity, for groups of one rank."""

    def construct(self, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        return x


class EnterModelParallel(nn.Cell):
    """Input x of layers that each rank computes a part of: equal on all ranks, its gradients are summed."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(auto_prefix=False)
        self.sum = all_reduce(ranks)

    def construct(self, x: Tensor, tokens: Tensor) -> Tensor:
        return x

    def bprop(self, x, tokens, out, dout):
        # Without this product, MindSpore 2.10 drops the gradient of the residual path past this layer from graphs that
        # differentiate by weights only (gradients of the layers below were off by a fifth).
        return self.sum(dout) * 1.0, zeros_like(tokens)


class LeaveModelParallel(nn.Cell):
    """Sum of all ranks' parts; every rank gets the same gradient."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(auto_prefix=False)
        self.sum = all_reduce(ranks)

    def construct(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.sum(x)

    def bprop(self, x, tokens, out, dout):
        return dout, zeros_like(tokens)


class GatherTokens(nn.Cell):
    """All ranks' rows in rank order; backward, their gradients are summed over the ranks and scattered."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(auto_prefix=False)
        self.gather, self.scatter = all_gather_used(ranks), reduce_scatter(ranks)

    def construct(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.gather(x, tokens)

    def bprop(self, x, tokens, out, dout):
        return self.scatter(dout), zeros_like(tokens)


class ScatterTokens(GatherTokens):
    """This rank's rows of the sum of all ranks' parts: the transpose of `GatherTokens`."""

    def construct(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.scatter(x)

    def bprop(self, x, tokens, out, dout):
        return self.gather(dout, tokens), zeros_like(tokens)


class JoinParts(nn.Cell):
    """All ranks' parts in order, for computations that all ranks repeat; each rank keeps its own part's gradient."""

    def __init__(self, ranks: Ranks, number: int) -> None:
        super().__init__(auto_prefix=False)
        self.gather, self.number = all_gather(ranks), number

    def construct(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.gather(x)

    def bprop(self, x, tokens, out, dout):
        rows = x.shape[0]
        return dout[self.number * rows : (self.number + 1) * rows], zeros_like(tokens)


class OwnRun(nn.Cell):
    """Rows of run number `number` of `count` equal runs."""

    def __init__(self, number: int, count: int) -> None:
        super().__init__(auto_prefix=False)
        self.number, self.count = number, count

    def construct(self, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        rows = x.shape[0] // self.count
        return x[self.number * rows : (self.number + 1) * rows]


class EnterOwnRun(OwnRun):
    """`OwnRun` of rows that all `ranks` hold; several ranks may take the same run and compute parts of its results."""

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


class InTurn(nn.Cell):
    """construct(x, out) -> (x, out), where out comes from a block, and x goes into another one with the same input:
    that one's collectives run after the first one's, and before them in a backward pass."""

    def construct(self, x: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        return ops.depend(x, out), out

    def bprop(self, x, out, result, dresult):
        return dresult[0], ops.depend(dresult[1], dresult[0])


class HeadsOfAllTokens(nn.Cell):
    """Exchange this rank's tokens of all heads for all ranks' tokens of its own heads (Ulysses, arXiv 2309.14509).

    construct(query [M, A, D], key [M, B, D], value [M, B, D]) -> [M * ranks, A / ranks, D] and so on.
    """

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(auto_prefix=False)
        self.to_heads, self.to_tokens = all_to_all(ranks, 1, 0), all_to_all(ranks, 0, 1)

    def construct(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Chained, because independent collectives might run in another order on another rank.
        query = self.to_heads(query)
        key = self.to_heads(ops.depend(key, query))
        return query, key, self.to_heads(ops.depend(value, key))

    def bprop(self, query, key, value, out, dout):
        dquery = self.to_tokens(dout[0])
        dkey = self.to_tokens(ops.depend(dout[1], dquery))
        return dquery, dkey, self.to_tokens(ops.depend(dout[2], dkey))


class TokensOfAllHeads(HeadsOfAllTokens):
    """The inverse of `HeadsOfAllTokens` for attention's output [M, A, D]."""

    def construct(self, out: Tensor) -> Tensor:
        return self.to_tokens(out)

    def bprop(self, x, out, dout):
        return (self.to_heads(dout),)


class TokensInUse(nn.Cell):
    """Numbers of rows in use: construct(mask, rows) -> (own, region, mask).

    own, region: int32 [1], rows in use between model-parallel regions and inside them. If the plan splits no tokens,
        both are the mask itself, whose last element is that number.
    mask: from `SegmentMask` of all tokens.
    rows: rows of a region, M.
    has_kernels: whether the model consists of kernels; other operators compute every row.

    On Ascend and in a single process the numbers are not read.
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
    """Return the rows in use of run number `number` of equal runs of `rows`; the first `used_1` rows are in use."""
    return ops.minimum(ops.maximum(used_1 - number * rows, 0), rows)


class GatherColumns(nn.Cell):
    """Join columns: [S, V / ranks] -> [S, V] on every rank, float32; not differentiable."""

    def __init__(self, place: Placement) -> None:
        super().__init__(auto_prefix=False)
        self.gather, self.count = all_gather(place.model_ranks), place.model_parallel

    def construct(self, part: Tensor) -> Tensor:
        num_slots, width = part.shape
        parts = self.gather(part).reshape(self.count, num_slots, width)
        return parts.transpose(1, 0, 2).reshape(num_slots, -1)


class FromFirstRank(nn.Cell):
    """Tokens drawn by the first rank of the group, on every rank: (ids int32 [S], log-probs float32 [S])."""

    def __init__(self, place: Placement) -> None:
        super().__init__(auto_prefix=False)
        self.sum = all_reduce(place.model_ranks)
        self.is_first = Tensor(np.float32(place.at.model == 0))

    def construct(self, ids_S: Tensor, logprobs_S: Tensor) -> tuple[Tensor, Tensor]:
        # One message; float32 holds every token id exactly (below 2^24).
        both = ops.concat((ops.cast(ids_S, ms.float32).reshape(1, -1), logprobs_S.reshape(1, -1))) * self.is_first
        both = self.sum(both)
        return ops.cast(both[0], ms.int32), both[1]


class OwnDraw(nn.Cell):
    """`FromFirstRank` for a group of one rank."""

    def construct(self, ids_S: Tensor, logprobs_S: Tensor) -> tuple[Tensor, Tensor]:
        return ids_S, logprobs_S


def enter_model_parallel(place: Placement) -> nn.Cell:
    """Return the cell for the input of column-parallel layers, applied once for all layers that share it."""
    if place.model_parallel == 1:
        return Unchanged()
    return (GatherTokens if place.plan.use_seq_parallel else EnterModelParallel)(place.model_ranks)


def leave_model_parallel(place: Placement) -> nn.Cell:
    """Return the cell for the output of a row-parallel layer."""
    if place.model_parallel == 1:
        return Unchanged()
    return (ScatterTokens if place.plan.use_seq_parallel else LeaveModelParallel)(place.model_ranks)


def join_context_parallel(place: Placement) -> nn.Cell:
    """Return the cell that joins the results of all parts of the sequences before the loss."""
    return Unchanged() if place.plan.context_parallel == 1 else JoinParts(place.context_ranks, place.at.context)


def gather_columns(place: Placement) -> nn.Cell:
    """Return the cell for logits [S, V / ranks]."""
    return Unchanged() if place.model_parallel == 1 else GatherColumns(place)


def from_first_rank(place: Placement) -> nn.Cell:
    """Return the cell for drawn tokens and their log-probs."""
    return OwnDraw() if place.model_parallel == 1 else FromFirstRank(place)
