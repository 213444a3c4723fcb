"""Data-parallel work: every replica processes its share of a list, and every rank gets all results.

Results are numpy arrays; only the leader of a replica sends them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from mindgspo.parallel.collectives.host import exchange
from mindgspo.parallel.plans.placement import ALONE, Placement

OwnItem = TypeVar("OwnItem")
Arrays = tuple[np.ndarray, ...]
"""One result: a few arrays of any shape and of numeric or bool type."""


class Replicas:
    """The data-parallel replicas of one plan, as seen by one rank."""

    def __init__(self, place: Placement = ALONE) -> None:
        self._count, self._own = place.plan.data_parallel, place.at.data
        self._is_alone = place.plan.world_size == 1
        self._leaders = place.replica_leaders()
        self.is_leader = place.is_replica_leader
        """Whether this rank's results are sent to the others."""

    def own(self, items: Sequence[OwnItem]) -> list[OwnItem]:
        """Return this replica's items, dealt in turn so that a list sorted by cost is shared evenly."""
        return list(items[self._own :: self._count])

    def collect(self, results: Sequence[Arrays], *, num_items: int) -> list[Arrays]:
        """Return the results of all items. results: those of `own`, in order; read on replica leaders only."""
        if self._is_alone:
            return list(results)
        if self.is_leader:
            expected = len(range(self._own, num_items, self._count))
            assert len(results) == expected, f"{len(results)} results for {expected} items"
        messages = exchange(pack_arrays(results) if self.is_leader else b"", senders=self._leaders)
        by_replica = [list(unpack_arrays(message)) for message in messages]
        return [by_replica[number % self._count][number // self._count] for number in range(num_items)]

    def collect_objects(
        self,
        results: Sequence[OwnItem],
        *,
        num_items: int,
        encode: Callable[[OwnItem], str],
        decode: Callable[[str], OwnItem],
    ) -> list[OwnItem]:
        """Like `collect`, for results encoded as text."""
        if self._is_alone:
            return list(results)
        texts = [(np.frombuffer(encode(result).encode(), np.uint8),) for result in results]
        return [decode(text.tobytes().decode()) for (text,) in self.collect(texts, num_items=num_items)]

    def collect_each(self, result: Arrays) -> list[Arrays]:
        """Return one result of every replica, in order, on every rank."""
        return self.collect([result], num_items=self._count)


def pack_arrays(results: Sequence[Arrays]) -> bytes:
    """Return a line of JSON with types and shapes, followed by the arrays' bytes."""
    header = [[[array.dtype.str, list(array.shape)] for array in arrays] for arrays in results]
    bodies = [np.ascontiguousarray(array).tobytes() for arrays in results for array in arrays]
    return b"".join([json.dumps(header).encode(), b"\n", *bodies])


def unpack_arrays(message: bytes) -> Iterator[Arrays]:
    """Yield the results that `pack_arrays` packed, as arrays of their own."""
    header, _, body = message.partition(b"\n")
    start = 0
    for described in json.loads(header):
        arrays = []
        for dtype, shape in described:
            size = int(np.prod(shape))
            array = np.frombuffer(body, np.dtype(dtype), count=size, offset=start).reshape(shape).copy()
            start += array.nbytes
            arrays.append(array)
        yield tuple(arrays)
