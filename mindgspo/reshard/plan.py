"""Plan of a reshard: the ordered broadcasts of blocks of parameters, with senders and receivers. Pure Python.

All ranks go through the steps and their buckets in the same order, each taking part in those that name it, so blocking
broadcasts cannot deadlock.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mindgspo.parallel.plans.layout import Layout, TensorSlice
from mindgspo.parallel.plans.placement import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTransfer:
    """One block of one parameter to be sent."""

    parameter: str
    source: TensorSlice
    """The block within the sender's slice."""
    destination: TensorSlice
    """The block within each receiver's slice."""
    num_bytes: int

    def parts(self, max_bytes: int) -> Iterator[BlockTransfer]:
        """Cut it into pieces of at most `max_bytes`."""
        item_bytes = self.num_bytes // self.source.size
        blocks = (side.blocks(max_bytes // item_bytes) for side in (self.source, self.destination))
        for source, destination in zip(*blocks, strict=True):
            num_bytes = source.size * item_bytes
            yield BlockTransfer(parameter=self.parameter, source=source, destination=destination, num_bytes=num_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One broadcast: its pieces, end to end in row-major order, are one buffer."""

    sender: int
    receivers: Ranks
    """Ascending, without the sender. All of them copy the buffer to the same blocks."""
    pieces: tuple[BlockTransfer, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the pieces: what each receiver gets."""
        return sum(piece.num_bytes for piece in self.pieces)

    @property
    def group(self) -> Ranks:
        """Sender and receivers, ascending: the group of the broadcast."""
        return broadcast_group(self.sender, self.receivers)

    def parts(self, max_bytes: int) -> Iterator[Bucket]:
        """Cut it into buckets of at most `max_bytes`, with the same bytes in the same order."""
        if self.num_bytes <= max_bytes:
            yield self
            return
        pieces = (part for piece in self.pieces for part in piece.parts(max_bytes))
        for run in runs_within(pieces, max_bytes):
            yield Bucket(sender=self.sender, receivers=self.receivers, pieces=run)


def broadcast_group(sender: int, receivers: Ranks) -> Ranks:
    """Sender and receivers, ascending."""
    return tuple(sorted((sender, *receivers)))


def runs_within(pieces: Iterable[BlockTransfer], max_bytes: int) -> Iterator[tuple[BlockTransfer, ...]]:
    """Runs of consecutive pieces of at most `max_bytes` together; no piece may be larger."""
    run: list[BlockTransfer] = []
    filled = 0
    for piece in pieces:
        if run and filled + piece.num_bytes > max_bytes:
            yield tuple(run)
            run, filled = [], 0
        run.append(piece)
        filled += piece.num_bytes
    if run:
        yield tuple(run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Parameters that are resharded together. Afterwards their source slices are no longer read.

    A rank's new slices of one step are at most one bucket's bytes, except where a single parameter is larger.
    """

    parameters: tuple[str, ...]
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardPlan:
    """All of a reshard, equal on every rank."""

    source: Mapping[str, Layout]
    destination: Mapping[str, Layout]
    item_bytes: Mapping[str, int]
    """Bytes per element, by parameter."""
    bucket_bytes: int
    """Upper bound of a bucket's bytes."""
    steps: tuple[Step, ...]

    def buckets(self) -> Iterator[Bucket]:
        """Every bucket in the order of execution."""
        return (bucket for step in self.steps for bucket in step.buckets)

    def groups(self) -> tuple[Ranks, ...]:
        """Every distinct group of a broadcast, in one order for all ranks, to be created before the first step."""
        return tuple(sorted({bucket.group for bucket in self.buckets()}))

    def is_kept(self, parameter: str, rank: int) -> bool:
        """Whether the rank's new slice equals its old one, so that nothing is sent or copied."""
        needed = self.destination[parameter].slice_of(rank)
        return needed is not None and needed == self.source[parameter].slice_of(rank)

    def local_copy(self, parameter: str, rank: int) -> tuple[TensorSlice, TensorSlice] | None:
        """Return the block that a rank needs and already holds, within its old and within its new slice.

        None if there is none or the slice is kept.
        """
        held, needed = self.source[parameter].slice_of(rank), self.destination[parameter].slice_of(rank)
        common = held.intersection(needed) if held and needed and held != needed else None
        if held is None or needed is None or common is None:
            return None
        return common.relative_to(held.starts), common.relative_to(needed.starts)

    def lacking_bytes(self) -> Counter[int]:
        """Return {rank: bytes of its new slices that its old slices do not hold}, the least that it must receive.

        Computed from the layouts alone.
        """
        lacking: Counter[int] = Counter()
        for name, layout in self.destination.items():
            for rank in layout.rank_list:
                needed, held = layout.slice_of(rank), self.source[name].slice_of(rank)
                assert needed is not None
                common = held.intersection(needed) if held else None
                lacking[rank] += (needed.size - (common.size if common else 0)) * self.item_bytes[name]
        return +lacking

    def digest(self) -> str:
        """Return the SHA-256 of all steps, which the ranks compare before they start."""
        lines = [f"{self.bucket_bytes}"]
        for step in self.steps:
            lines.append(f"step {step.parameters}")
            for bucket in step.buckets:
                lines.append(f"bucket {bucket.sender} {bucket.receivers}")
                lines += [f"{piece.parameter} {piece.source} {piece.destination}" for piece in bucket.pieces]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()
