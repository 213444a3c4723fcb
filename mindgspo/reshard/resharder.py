"""Carry out a reshard over real ranks: the same steps on all of them, each taking part in the buckets that name it.

One buffer of at most a bucket's bytes exists at a time; where ranks share memory it is a part of that. Numbers are sent
in the type in which the destination holds them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from mindgspo.errors import WeightsError
from mindgspo.parallel.collectives.host import broadcast_buffer, exchange, make_broadcast_groups, max_buffer_bytes
from mindgspo.parallel.plans.layout import Layout
from mindgspo.parallel.platform import runtime
from mindgspo.reshard.plan import BlockTransfer, Bucket, ReshardPlan
from mindgspo.reshard.planner import plan_reshard, whole_layout

_FLOAT = np.dtype(np.float32)
Types = Mapping[str, np.dtype]
"""Element types by parameter name."""
Residency = Callable[[tuple[str, ...]], AbstractContextManager[None]]
"""Called around every step with its parameters' names: makes them resident on both sides, and lets them go."""


def pack(bucket: Bucket, old: Mapping[str, np.ndarray], buffer: np.ndarray, types: Types | None = None) -> None:
    """Fill the sender's buffer, int32 [ceil(bytes / 4)], from its old slices by parameter name. types: those that are
    sent; None: the slices' own."""
    buffer[-1:] = 0  # bytes after the last piece
    for piece, raw in _views(bucket, buffer):
        block = old[piece.parameter][piece.source.index]
        raw.view(block.dtype if types is None else types[piece.parameter]).reshape(block.shape)[...] = block


def unpack(bucket: Bucket, buffer: np.ndarray, new: Mapping[str, np.ndarray]) -> None:
    """Write a received buffer into the receiver's new slices."""
    for piece, raw in _views(bucket, buffer):
        slice_ = new[piece.parameter]
        slice_[piece.destination.index] = raw.view(slice_.dtype).reshape(piece.destination.shape)


def copy_local(plan: ReshardPlan, parameter: str, rank: int, old: np.ndarray, new: np.ndarray) -> int:
    """Copy what the rank holds already from its old to its new slice; returns the bytes copied."""
    copy = plan.local_copy(parameter, rank)
    if copy is None:
        return 0
    source, destination = copy
    new[destination.index] = old[source.index]
    return source.size * new.itemsize


def _views(bucket: Bucket, buffer: np.ndarray) -> Iterator[tuple[BlockTransfer, np.ndarray]]:
    """Each piece with its bytes of the buffer, as uint8 views."""
    raw, first = buffer.view(np.uint8), 0
    for piece in bucket.pieces:
        yield piece, raw[first : first + piece.num_bytes]
        first += piece.num_bytes


def everything_stays(names: tuple[str, ...]) -> AbstractContextManager[None]:
    """The `Residency` of a process that swaps nothing."""
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardReport:
    """Bytes moved by one rank."""

    received: int
    """Bytes over collectives."""
    sent: int
    """Bytes, a broadcast counted once."""
    copied: int
    """Bytes, locally."""
    peak_buffer: int
    """Bytes of the largest buffer."""
    seconds: float
    """From the first to the last step, waiting included."""


class Resharder:
    """Reshard between two sets of layouts, planned once and run whenever the weights have changed.

    types: of the destination, for every name; None: float32. The source's numbers are rounded or widened to it.

    Raises WeightsError where names or shapes of the two sides differ, ConfigError for an impossible bucket size, and
    WeightsError where ranks have planned differently (they run other versions or other configurations).
    """

    def __init__(
        self,
        source: Mapping[str, Layout],
        destination: Mapping[str, Layout],
        *,
        bucket_bytes: int,
        types: Types | None = None,
        residency: Residency = everything_stays,
    ) -> None:
        self._types = dict.fromkeys(destination, _FLOAT) if types is None else types
        item_bytes = {name: each.itemsize for name, each in self._types.items()}
        self.plan = plan_reshard(source, destination, bucket_bytes=bucket_bytes, item_bytes=item_bytes)
        self._residency = residency
        self._rank = runtime.rank()
        _compare_digests(self.plan)
        make_broadcast_groups(self.plan.groups())

    def run(self, old: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray]) -> ReshardReport:
        """Fill this rank's slices `new` (contiguous) from all ranks' `old`.

        A slice that both sides hold in one array is left alone; equal slices in two arrays are copied.
        """
        self._check_slices("source", self.plan.source, old)
        self._check_slices("destination", self.plan.destination, new, self._types)
        started = time.perf_counter()
        received = sent = copied = peak = 0
        for step in self.plan.steps:
            with self._residency(step.parameters):
                copied += sum(self._copy(name, old, new) for name in step.parameters)
                for bucket in step.buckets:
                    if self._rank == bucket.sender:
                        sent += bucket.num_bytes
                    elif self._rank in bucket.receivers:
                        received += bucket.num_bytes
                    else:
                        continue
                    peak = max(peak, self._pass_on(bucket, old, new))
        seconds = time.perf_counter() - started
        return ReshardReport(received=received, sent=sent, copied=copied, peak_buffer=peak, seconds=seconds)

    def _copy(self, name: str, old: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray]) -> int:
        if name not in old or name not in new or np.may_share_memory(old[name], new[name]):
            return 0
        if self.plan.is_kept(name, self._rank):
            new[name][...] = old[name]
            return new[name].nbytes
        return copy_local(self.plan, name, self._rank, old[name], new[name])

    def _pass_on(self, bucket: Bucket, old: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray]) -> int:
        """Take part in the broadcasts of one bucket; returns the bytes of the largest buffer."""
        largest = 0
        for part in bucket.parts(max_buffer_bytes()):
            with broadcast_buffer(part.num_bytes, sender=part.sender, ranks=part.group) as buffer:
                if self._rank == part.sender:
                    pack(part, old, buffer, self._types)
                else:
                    unpack(part, buffer, new)
                largest = max(largest, buffer.nbytes)
        return largest

    def _check_slices(
        self, side: str, layouts: Mapping[str, Layout], slices: Mapping[str, np.ndarray], types: Types | None = None
    ) -> None:
        expected = {
            name: layout.slice_shape for name, layout in layouts.items() if layout.slice_of(self._rank) is not None
        }
        given = {name: array.shape for name, array in slices.items()}
        for name in sorted(expected.keys() | given.keys()):
            if expected.get(name) != given.get(name):
                raise WeightsError(
                    f"{side} of a reshard, rank {self._rank}: {name} has shape {given.get(name, 'none (missing)')}, "
                    f"the plan says {expected.get(name, 'none (not on this rank)')}"
                )
            if types is not None and slices[name].dtype != types[name]:  # a buffer's bytes would be misread
                raise WeightsError(
                    f"{side} of a reshard, rank {self._rank}: {name} is {slices[name].dtype}; it must be {types[name]}"
                )


def gather_to_first_rank(layouts: Mapping[str, Layout], slices: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return whole tensors on rank 0 and nothing on the others, e.g. for a checkpoint that any plan can read."""
    whole = {name: whole_layout(name, layout.shape, (0,)) for name, layout in layouts.items()}
    new = {name: np.empty(layout.shape, np.float32) for name, layout in whole.items()} if runtime.rank() == 0 else {}
    Resharder(layouts, whole, bucket_bytes=64 << 20).run(slices, new)
    return new


def _compare_digests(plan: ReshardPlan) -> None:
    digests = [digest.decode() for digest in exchange(plan.digest().encode())]
    others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise WeightsError(
            f"ranks {others} have planned another reshard than rank 0; start all ranks with one configuration and one "
            "version of mindgspo"
        )
