"""A rectangular block of a tensor: the unit in which layouts are compared and weights are moved.

What enters: bounds per axis. What leaves: intersections, shifts, cuts into bounded blocks, numpy indices. Called by the
layout and by the reshard plan; pure Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """The elements with starts[a] <= index[a] < stops[a] on every axis a; never empty. A scalar has no axes.

    Example: TensorSlice((4, 0), (8, 16)) is rows 4 to 7 of a tensor with 16 columns.
    """

    starts: tuple[int, ...]
    stops: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per axis."""
        return tuple(stop - start for start, stop in zip(self.starts, self.stops, strict=True))

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def index(self) -> tuple[slice, ...]:
        """What to write between the brackets of an array to get this block as a view."""
        return tuple(slice(start, stop) for start, stop in zip(self.starts, self.stops, strict=True))

    def intersection(self, other: TensorSlice) -> TensorSlice | None:
        """The common block, None where there is none."""
        starts = tuple(map(max, self.starts, other.starts))
        stops = tuple(map(min, self.stops, other.stops))
        if any(start >= stop for start, stop in zip(starts, stops, strict=True)):
            return None
        return TensorSlice(starts, stops)

    def relative_to(self, origin: tuple[int, ...]) -> TensorSlice:
        """The same block in the coordinates of a slice that starts at `origin`."""
        return TensorSlice(
            tuple(start - zero for start, zero in zip(self.starts, origin, strict=True)),
            tuple(stop - zero for stop, zero in zip(self.stops, origin, strict=True)),
        )

    def blocks(self, max_size: int) -> Iterator[TensorSlice]:
        """Disjoint blocks of at most `max_size` elements (>= 1) that cover this one, in row-major order.

        Cut along the first axis into runs of rows of nearly equal length; along later axes only where one row alone is
        too large.
        """
        assert max_size >= 1, max_size
        yield from self._blocks(0, max_size)

    def _blocks(self, axis: int, max_size: int) -> Iterator[TensorSlice]:
        """As `blocks`, for a block that has one element on every axis before `axis`."""
        if self.size <= max_size:
            yield self
            return
        rows = self.stops[axis] - self.starts[axis]
        row_size = self.size // rows
        # Where a row does not fit, every row is a block for now, and is cut along the next axis.
        num_blocks = rows if row_size > max_size else -(-rows // (max_size // row_size))
        for i in range(num_blocks):
            block = self._with_bounds(
                axis,
                self.starts[axis] + i * rows // num_blocks,
                self.starts[axis] + (i + 1) * rows // num_blocks,
            )
            yield from block._blocks(axis + 1, max_size)

    def _with_bounds(self, axis: int, start: int, stop: int) -> TensorSlice:
        return TensorSlice(
            (*self.starts[:axis], start, *self.starts[axis + 1 :]),
            (*self.stops[:axis], stop, *self.stops[axis + 1 :]),
        )
