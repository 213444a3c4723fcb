"""Collectives inside compiled graphs, without gradients: our own operators over shared memory on CPU
(`mindgspo_kernels/shared_memory.cc`), MindSpore's on Ascend.

`ranks`: ascending, at least two, including this process. Every rank of a group makes the same callables in the same
order and runs them in the same order, on tensors of the same shape and dtype; on CPU a mismatch is an error. Results
are in the order of `ranks`. On CPU, 16-bit types are summed in float32 and rounded once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import mindspore as ms
from mindspore import Tensor, nn, ops

from mindgspo.parallel.collectives.host import group_name
from mindgspo.parallel.ops.kernels import kernel
from mindgspo.parallel.plans.placement import Ranks
from mindgspo.parallel.platform.runtime import current_device

_made: Counter[Ranks] = Counter()


class _Kernel(nn.Cell):
    """construct(x) of an operator of `graph.cc`. shape: result shape as a function of x's."""

    def __init__(self, name: str, ranks: Ranks, shape: Callable, axes: tuple[int, int] = (0, 0)) -> None:
        super().__init__(auto_prefix=False)
        self.cell = _description(ranks, axes)
        self.operator = kernel(name, lambda x, cell: shape(x), lambda x, cell: x)

    def construct(self, x: Tensor) -> Tensor:
        return self.operator(x, self.cell)


class _GatherUsed(nn.Cell):
    """The CPU cell of `all_gather_used`."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(auto_prefix=False)
        self.cell = _description(ranks, (0, 0))
        size = len(ranks)
        self.operator = kernel(
            "all_gather_used", lambda x, tokens, cell: [size * x[0], *x[1:]], lambda x, tokens, cell: x
        )

    def construct(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.operator(x, tokens, self.cell)


class _GatherAll(nn.Cell):
    """The Ascend cell of `all_gather_used`."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(auto_prefix=False)
        self.gather = ops.AllGather(group=group_name(ranks))

    def construct(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.gather(x)


def _description(ranks: Ranks, axes: tuple[int, int]) -> Tensor:
    """Return the description of a group that `Group` of graph.cc reads: [number of the callable, *axes, *ranks]."""
    _made[ranks] += 1
    return Tensor([_made[ranks], *axes, *ranks], ms.int32)


def all_reduce(ranks: Ranks) -> Callable[[Tensor], Tensor]:
    """Return a callable for the sum of all ranks' x."""
    if current_device() == "Ascend":
        return ops.AllReduce(group=group_name(ranks))
    return _Kernel("all_reduce", ranks, lambda x: x)


def all_gather(ranks: Ranks) -> Callable[[Tensor], Tensor]:
    """Return a callable that joins all ranks' x [M, ..] to [ranks * M, ..]."""
    if current_device() == "Ascend":
        return ops.AllGather(group=group_name(ranks))
    return _Kernel("all_gather", ranks, lambda x: [len(ranks) * x[0], *x[1:]])


def all_gather_used(ranks: Ranks) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a callable like `all_gather` of (x, tokens): the last element of `tokens` is the number of leading rows of
    this rank's x that are in use. The other rows arrive as zeros on CPU, unchanged on Ascend."""
    return _GatherAll(ranks) if current_device() == "Ascend" else _GatherUsed(ranks)


def reduce_scatter(ranks: Ranks) -> Callable[[Tensor], Tensor]:
    """Return a callable for this rank's rows [M / ranks, ..] of the sum of all ranks' x [M, ..]."""
    if current_device() == "Ascend":
        return ops.ReduceScatter(group=group_name(ranks))
    return _Kernel("reduce_scatter", ranks, lambda x: [x[0] // len(ranks), *x[1:]])


def all_to_all(ranks: Ranks, split_axis: int, concat_axis: int) -> Callable[[Tensor], Tensor]:
    """Return a callable that cuts x along split_axis into one block per rank, exchanges the blocks, and joins those for
    this rank along concat_axis."""
    if current_device() == "Ascend":
        return ops.AlltoAll(len(ranks), split_axis, concat_axis, group_name(ranks))

    def shape(x: list[int]) -> list[int]:
        result = list(x)
        result[split_axis] //= len(ranks)
        result[concat_axis] *= len(ranks)
        return result

    return _Kernel("all_to_all", ranks, shape, (split_axis, concat_axis))
