"""Blocks of a tensor whose slices lie in the files of several ranks.

What enters: a layout, the open files by rank, and a block in coordinates of the whole tensor. What leaves: the filled
array. Called by `logical_checkpoint`. Where bytes lie side by side on both sides, they are read into place.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from mindgspo.parallel.layout import Layout, Shape, SliceIndex
from mindgspo.parallel.reshard.overlaps import touching_slices
from mindgspo.parallel.tensor_slice import TensorSlice
from mindgspo.tensor_files.reader import TensorFile


class TensorBlocks:
    """Reads blocks of one tensor. near: of ranks with equal slices this one is read, or, for other neighbours, another
    one."""

    def __init__(self, name: str, layout: Layout, files: Mapping[int, Mapping[str, TensorFile]], near: int) -> None:
        self._name = name
        self._layout = layout
        self._slice_shape = layout.slice_shape
        self._files = files
        self._near = near
        self._scratch = np.empty(0, dtype=np.uint8)
        self._held: dict[SliceIndex, tuple[TensorSlice, TensorFile]] = {}

    def fill(self, block: TensorSlice, out: np.ndarray) -> None:
        """Put a block into a contiguous array of its shape and dtype."""
        for index in touching_slices(self._slice_shape, block):
            held, file = self._held.get(index) or self._look_up(index)
            part = block.intersection(held)
            assert part is not None, (self._name, index, block)
            target = out[(*part.relative_to(block.starts).index, ...)]  # the dots keep a scalar an array
            self._read(file, part.relative_to(held.starts), target)

    def _read(self, file: TensorFile, block: TensorSlice, target: np.ndarray) -> None:
        """A block of one rank's slice, by way of a scratch array where it does not lie in one piece in the target."""
        if target.flags.c_contiguous:
            read_block(file, self._name, block, target)
            return
        if self._scratch.nbytes < target.nbytes:
            self._scratch = np.empty(target.nbytes, dtype=np.uint8)
        piece = self._scratch[: target.nbytes].view(target.dtype).reshape(target.shape)
        read_block(file, self._name, block, piece)
        target[...] = piece

    def _look_up(self, index: SliceIndex) -> tuple[TensorSlice, TensorFile]:
        holders = self._layout.holders(index)
        rank = self._near if self._near in holders else holders[self._near % len(holders)]
        self._held[index] = self._layout.slice_at(index), self._files[rank][self._name]
        return self._held[index]


def read_block(file: TensorFile, name: str, block: TensorSlice, out: np.ndarray) -> None:
    """Fill a contiguous array with a block of a tensor, in the tensor's own coordinates."""
    info = file.tensors[name]
    start = first_element(block, info.shape)
    if start is None:
        file.read_slice(name, block.index, out)
    else:
        file.read_into(name, start * info.bits.itemsize, memoryview(out.reshape(-1).view(np.uint8)))


def first_element(block: TensorSlice, shape: Shape) -> int | None:
    """Number of a block's first element, row by row, where its elements follow each other in a tensor of this shape;
    None where they do not.

    Example: rows 2 to 4 of (8, 3) begin at 6; columns 0 to 1 of it do not follow each other.
    """
    lengths = block.shape
    cut = [axis for axis, length in enumerate(lengths) if length != shape[axis]]
    if cut and any(length != 1 for length in lengths[: cut[-1]]):
        return None
    return sum(start * prod(shape[axis + 1 :]) for axis, start in enumerate(block.starts))
