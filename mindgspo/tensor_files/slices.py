"""A part of a stored tensor, from as few bytes as is sensible.

What enters: what the tensor is, the slices, and a function that reads its bytes. What leaves: the part as an array.
Called by `tensor_file`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from mindgspo.tensor_files.tensor_info import TensorInfo

# Fill an array with the tensor's bytes from this byte on.
ReadInto = Callable[[int, np.ndarray], None]

# Shorter runs are not read one by one: whole rows are, and the run is cut out of them.
_SHORT_RUN_BYTES = 4096
# What a processor's cache holds, so that cutting costs no second way to memory.
_BLOCK_BYTES = 256 << 10


def read_runs(
    info: TensorInfo, index: tuple[slice, ...], read_into: ReadInto, out: np.ndarray | None = None
) -> np.ndarray:
    """The part of a tensor that `index` names, its bits as stored. out: a contiguous array to read it into."""
    ranges = _ranges(info.shape, index)
    shape = tuple(stop - start for start, stop in ranges)
    part = np.empty(shape, dtype=info.bits) if out is None else out
    assert part.shape == shape and part.dtype == info.bits and part.flags.c_contiguous, (part.shape, part.dtype, shape)
    if part.size == 0:
        return part
    # Behind the last axis that is cut, elements lie side by side.
    cut = [axis for axis, bounds in enumerate(ranges) if bounds != (0, info.shape[axis])]
    last = cut[-1] if cut else 0
    if part.ndim == 0 or last == 0 or part[(0,) * last].nbytes >= _SHORT_RUN_BYTES:
        _read_each(info, ranges, last, part, read_into)
    else:
        _read_blocks(info, ranges, part, read_into)
    return part


def _ranges(shape: tuple[int, ...], index: tuple[slice, ...]) -> list[tuple[int, int]]:
    """First and last element per axis."""
    assert len(index) <= len(shape), f"{len(index)} slices of {len(shape)} axes"
    assert all(one.step in (None, 1) for one in index), f"only steps of 1: {index}"
    cut = [one.indices(size)[:2] for one, size in zip(index, shape, strict=False)]
    return [(start, max(start, stop)) for start, stop in cut] + [(0, size) for size in shape[len(index) :]]


def _read_each(
    info: TensorInfo, ranges: list[tuple[int, int]], last: int, part: np.ndarray, read_into: ReadInto
) -> None:
    """Read run by run: one for every choice of elements on the axes before `last`."""
    strides = [math.prod(info.shape[axis + 1 :]) for axis in range(len(info.shape))]
    for outer in itertools.product(*(range(start, stop) for start, stop in ranges[:last])):
        position = sum(one * stride for one, stride in zip(outer, strides, strict=False))
        position += ranges[last][0] * strides[last] if ranges else 0
        inside = tuple(one - start for one, (start, _) in zip(outer, ranges, strict=False))
        read_into(position * info.bits.itemsize, part[inside] if inside else part)


def _read_blocks(info: TensorInfo, ranges: list[tuple[int, int]], part: np.ndarray, read_into: ReadInto) -> None:
    """Read whole rows of the first axis, some MB at a time, and keep what is wanted of them."""
    row_elements = math.prod(info.shape[1:])
    step = max(_BLOCK_BYTES // (row_elements * info.bits.itemsize), 1)
    first, stop = ranges[0]
    wanted = tuple(slice(*bounds) for bounds in ranges[1:])
    buffer = np.empty((min(step, stop - first), *info.shape[1:]), dtype=info.bits)
    for row in range(first, stop, step):
        block = buffer[: stop - row]
        read_into(row * row_elements * info.bits.itemsize, block)
        part[row - first : row - first + len(block)] = block[(slice(None), *wanted)]
