"""The first minutes on cards: what most likely fails there, each with nothing around it.

Scalars are joined in runs, a router's largest entries found, and one token attends over a long cache, beside the memory
that the plan gives it; then all cards add up in a new group, to which rank 0 comes late, as a rank does whose graphs
compile for longer: HCCL ends the wait after HCCL_CONNECT_TIMEOUT (EI0006).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import mindspore as ms
import numpy as np
from mindspore import Tensor, communication, mint, nn, ops

from mindgspo.algorithms.optim.adamw import short_runs
from mindgspo.parallel.ops.device import aclnn_on_cards
from mindgspo.parallel.platform import runtime
from mindgspo.planner.ascend_memory import paged_workspace

_SCALARS = 434  # weights of Qwen2.5-14B that are no biases: as many squares are added up for the gradient's norm
_ROWS, _EXPERTS, _CHOSEN = 1024, 128, 8
_BLOCKS, _BLOCK, _HEADS, _KV_HEADS, _SIZE = 128, 128, 8, 2, 128
_GROUP = "mindgspo_first_minutes"


def first_minutes(late_s: float) -> Iterator[tuple[str, bool]]:
    """(what, whether it is right) of each, on an Ascend card. late_s: seconds that rank 0 comes late."""
    scalars = np.arange(_SCALARS, dtype=np.float32)
    found = runtime.call_compiled(_Join(), *map(Tensor, scalars)).asnumpy()
    yield f"{_SCALARS} scalars joined in runs of 32", np.array_equal(found, scalars)
    values = np.random.default_rng(1).permutation(_ROWS * _EXPERTS).reshape(_ROWS, _EXPERTS).astype(np.float32)
    largest, places = (one.asnumpy() for one in runtime.call_compiled(_Largest(), Tensor(values)))
    order = np.argsort(-values, axis=1)[:, :_CHOSEN]
    is_right = np.array_equal(places, order) and np.array_equal(largest, np.take_along_axis(values, order, 1))
    yield f"the {_CHOSEN} largest of [{_ROWS}, {_EXPERTS}]", is_right
    yield _attention()
    if runtime.world_size() > 1:
        yield _late_sum(late_s)


def _attention() -> tuple[str, bool]:
    """Block b of the sequence has keys (b - 64) / 64 and values b / 128, so that the mean follows by hand; the cache
    holds the blocks in reverse."""
    place = np.arange(_BLOCKS)[::-1].reshape(-1, 1, 1, 1)
    cache = (_BLOCKS, _BLOCK, _KV_HEADS, _SIZE)
    keys, values = (
        np.broadcast_to(one, cache).astype(np.float32, order="C") for one in ((place - 64) / 64, place / 128)
    )
    query = np.full((1, 1, _HEADS * _SIZE), 1 / 8, np.float32)
    lengths, tables = np.array([_BLOCKS * _BLOCK], np.int32), np.arange(_BLOCKS, dtype=np.int32)[::-1].reshape(1, -1)
    given = [Tensor(one, dtype=ms.bfloat16) for one in (query, keys, values)]
    before = runtime.peak_device_bytes() or 0
    with runtime.paged_kernels():
        out = runtime.call_compiled(_Attend(), *given, Tensor(np.ascontiguousarray(tables)), Tensor(lengths))
        found = ops.cast(out, ms.float32).asnumpy()
    taken = (runtime.peak_device_bytes() or 0) - before
    planned = paged_workspace(_BLOCKS * _BLOCK, "bfloat16") + 2 * (2 * keys.size + 3 * query.size) + (4 << 20)
    blocks = np.arange(_BLOCKS)
    weights = np.exp((blocks - 64) / 64 / 8 * _SIZE**0.5)
    is_right = np.allclose(found, (weights * blocks / 128).sum() / weights.sum(), rtol=1e-2) and taken <= planned
    sizes = f"{taken / 2**20:,.0f} MiB taken, the plan has {planned / 2**20:,.0f}"
    return f"PagedAttention over {_BLOCKS * _BLOCK:,} columns: {sizes}", is_right


def _late_sum(late_s: float) -> tuple[str, bool]:
    size = runtime.world_size()
    communication.create_group(_GROUP, list(range(size)))
    if runtime.rank() == 0:
        time.sleep(late_s)
    found = ops.AllReduce(group=_GROUP)(Tensor(np.full(1024, runtime.rank() + 1, np.float32))).asnumpy()
    return f"AllReduce over {size} cards, rank 0 {late_s:g} s late", bool((found == size * (size + 1) // 2).all())


class _Join(nn.Cell):
    """construct(*scalars) -> all of them, [N]."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.runs = short_runs(_SCALARS)
        self.stack = aclnn_on_cards(ops.stack, mint.stack)

    def construct(self, *scalars: Tensor) -> Tensor:
        joined = ()
        for first, last in self.runs:
            joined += (self.stack(scalars[first:last]),)
        return ops.concat(joined)


class _Largest(nn.Cell):
    """construct(values) -> the largest of each row, and their places."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.top = aclnn_on_cards(ops.TopK(sorted=True), mint.topk)

    def construct(self, values: Tensor) -> tuple[Tensor, Tensor]:
        return self.top(values, _CHOSEN)


class _Attend(nn.Cell):
    """construct(query, keys, values, tables, batch_valid_length) -> attended values, [S, 1, heads x size]."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.attend = ops.auto_generate.PagedAttention(_HEADS, _SIZE**-0.5, _KV_HEADS)

    def construct(
        self, query: Tensor, keys: Tensor, values: Tensor, tables: Tensor, batch_valid_length: Tensor
    ) -> Tensor:
        return self.attend(query, keys, values, tables, batch_valid_length)
