"""What has to move of one parameter between two layouts: the blocks that some rank needs and does not hold.

What enters: a source and a destination layout of the same full shape. What leaves: disjoint blocks, each with the ranks
that hold it and those that lack it. Called by the reshard planner; pure Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from mindgspo.parallel.layout import Layout, Shape, SliceIndex
from mindgspo.parallel.ranks import Ranks
from mindgspo.parallel.tensor_slice import TensorSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The common block of one source slice and one destination slice, where a holder of the latter lacks it."""

    block: TensorSlice
    """In coordinates of the full tensor."""
    holders: Ranks
    """The ranks whose source slice contains the block, ascending; any of them can send it."""
    receivers: Ranks
    """The ranks whose destination slice contains the block and whose source slice does not, ascending."""
    source_origin: tuple[int, ...]
    """Where the holders' source slice begins in the full tensor."""
    destination_origin: tuple[int, ...]
    """Where the receivers' destination slice begins."""


@lru_cache(maxsize=1024)
def missing_overlaps(source: Layout, destination: Layout) -> tuple[Overlap, ...]:
    """Every block that must travel; together, each rank's blocks are exactly what it lacks of its destination slice.

    Slices of one layout do not overlap and cover the tensor, so that a block has one source slice, and a rank holds the
    block if and only if it holds that slice. The work is linear in the answer and in the number of ranks, not in
    source slices times destination slices.
    """
    assert source.shape == destination.shape, (source, destination)
    if source.same_placement(destination):
        return ()
    return tuple(
        overlap
        for index in destination.slice_indices()
        for overlap in _of_destination_slice(source, destination, index)
    )


def _of_destination_slice(source: Layout, destination: Layout, index: SliceIndex) -> Iterator[Overlap]:
    needed = destination.slice_at(index)
    for source_index in touching_slices(source.slice_shape, needed):
        holders = source.holders(source_index)
        held = set(holders)
        receivers = tuple(rank for rank in destination.holders(index) if rank not in held)
        if not receivers:
            continue
        sent = source.slice_at(source_index)
        block = needed.intersection(sent)
        assert block is not None, (needed, sent)
        yield Overlap(
            block=block,
            holders=holders,
            receivers=receivers,
            source_origin=sent.starts,
            destination_origin=needed.starts,
        )


def touching_slices(slice_shape: Shape, block: TensorSlice) -> Iterator[SliceIndex]:
    """The numbers of the slices of this shape that have elements of `block`."""
    return product(
        *(
            range(start // length, (stop - 1) // length + 1)
            for start, stop, length in zip(block.starts, block.stops, slice_shape, strict=True)
        )
    )
