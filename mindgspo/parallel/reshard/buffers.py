"""What one rank does for a reshard besides communicating: fill a bucket's buffer, empty it, copy what is local.

What enters: a plan's buckets and one rank's slices as numpy arrays. What leaves: flat buffers of 32-bit words, changed
slices. Shared by every executor. Bytes are moved as they are, whatever the type of the elements; nothing but the buffer
is allocated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from mindgspo.parallel.reshard.plan import Bucket, Piece, ReshardPlan

WORD = np.dtype(np.int32)
"""Type of the buffers: CPU collectives move float32 and int32, and only an integer keeps every bit pattern."""


def empty_buffer(bucket: Bucket) -> np.ndarray:
    """int32 [ceil(bytes / 4)], what a receiver hands to the broadcast."""
    return np.empty(-(-bucket.num_bytes // WORD.itemsize), WORD)


def pack(bucket: Bucket, old: Mapping[str, np.ndarray]) -> np.ndarray:
    """The sender's buffer, from its old slices by parameter name."""
    buffer = empty_buffer(bucket)
    buffer[-1:] = 0  # bytes behind the last piece
    for piece, raw in _views(bucket, buffer):
        block = old[piece.parameter][piece.source.index]
        raw.view(block.dtype).reshape(block.shape)[...] = block
    return buffer


def unpack(bucket: Bucket, buffer: np.ndarray, new: Mapping[str, np.ndarray]) -> None:
    """Write a received buffer into the receiver's new slices."""
    assert buffer.dtype == WORD, buffer.dtype
    for piece, raw in _views(bucket, buffer):
        slice_ = new[piece.parameter]
        slice_[piece.destination.index] = raw.view(slice_.dtype).reshape(piece.destination.shape)


def copy_local(plan: ReshardPlan, parameter: str, rank: int, old: np.ndarray, new: np.ndarray) -> int:
    """Copy what the rank holds already from its old to its new slice; returns the bytes copied."""
    copy = plan.local_copy(parameter, rank)
    if copy is None:
        return 0
    new[copy.destination.index] = old[copy.source.index]
    return copy.source.size * old.itemsize


def _views(bucket: Bucket, buffer: np.ndarray) -> Iterator[tuple[Piece, np.ndarray]]:
    """Each piece with its bytes of the buffer, as uint8 views."""
    raw, first = buffer.view(np.uint8), 0
    for piece in bucket.pieces:
        yield piece, raw[first : first + piece.num_bytes]
        first += piece.num_bytes
