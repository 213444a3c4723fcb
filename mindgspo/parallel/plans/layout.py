"""Layout of a parameter over ranks, in MindSpore's terms, and the rectangular slice that each rank holds.

The devices of `rank_list` are arranged as `device_matrix` in row-major order. `tensor_map` gives the device axis that
splits each tensor axis, counted from the right end of the matrix; -1 is not split. A tuple splits one tensor axis by
several device axes, the first one outermost. Ranks that differ only on device axes that the map does not name hold
equal slices (replicas). Pure Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

from mindgspo.errors import ConfigError
from mindgspo.parallel.plans.placement import Ranks, device_coordinate
from mindgspo.text import divisors, either, nearest


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """The block of elements with starts[a] <= index[a] < stops[a] on every axis a; never empty. A scalar has no axes.

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
        """Slices that index an array to get this block as a view."""
        return tuple(slice(start, stop) for start, stop in zip(self.starts, self.stops, strict=True))

    def intersection(self, other: TensorSlice) -> TensorSlice | None:
        """Return the common block; None if there is none."""
        starts = tuple(map(max, self.starts, other.starts))
        stops = tuple(map(min, self.stops, other.stops))
        if any(start >= stop for start, stop in zip(starts, stops, strict=True)):
            return None
        return TensorSlice(starts, stops)

    def relative_to(self, origin: tuple[int, ...]) -> TensorSlice:
        """Return the same block in the coordinates of a slice that starts at `origin`."""
        return TensorSlice(
            tuple(start - zero for start, zero in zip(self.starts, origin, strict=True)),
            tuple(stop - zero for stop, zero in zip(self.stops, origin, strict=True)),
        )

    def blocks(self, max_size: int) -> Iterator[TensorSlice]:
        """Yield disjoint blocks of at most `max_size` elements (>= 1) that cover this one, in row-major order.

        They are runs of rows of nearly equal length; later axes are cut only if a single row is too large.
        """
        assert max_size >= 1, max_size
        yield from self._blocks(0, max_size)

    def _blocks(self, axis: int, max_size: int) -> Iterator[TensorSlice]:
        """Like `blocks`, for a block with one element on every axis before `axis`."""
        if self.size <= max_size:
            yield self
            return
        rows = self.stops[axis] - self.starts[axis]
        row_size = self.size // rows
        # If a single row is too large, every row is a block of its own and is cut along the next axis.
        num_blocks = rows if row_size > max_size else -(-rows // (max_size // row_size))
        for i in range(num_blocks):
            starts, stops = list(self.starts), list(self.stops)
            starts[axis] = self.starts[axis] + i * rows // num_blocks
            stops[axis] = self.starts[axis] + (i + 1) * rows // num_blocks
            yield from TensorSlice(tuple(starts), tuple(stops))._blocks(axis + 1, max_size)


Shape = tuple[int, ...]
SliceIndex = tuple[int, ...]
"""Number of a slice on every axis, from 0."""

NOT_SPLIT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Layout of one parameter. Raises ConfigError if an axis does not divide, with the nearest legal number.

    Example: q_proj.weight of 1 x 4 x 2 on stage 1, split by rows over the four model-parallel ranks:
        Layout(parameter="...q_proj.weight", shape=(3584, 3584), device_matrix=(1, 4), tensor_map=(0, -1),
               rank_list=(4, 5, 6, 7))
    """

    parameter: str = field(compare=False)
    """Name, for messages; it does not count in comparisons."""
    shape: Shape
    """Shape of the full tensor."""
    device_matrix: tuple[int, ...]
    """Arrangement of the ranks."""
    tensor_map: tuple[int | tuple[int, ...], ...]
    """Device axis or axes that split each tensor axis, counted from the right; -1: not split."""
    rank_list: Ranks
    """The ranks that hold the parameter, in the device matrix' row-major order."""
    remark: str = field(default="", compare=False)
    """Note for the reader, e.g. why an optimizer moment is kept whole."""

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise ConfigError(f"{self.parameter}{problem}")

    @property
    def splits(self) -> tuple[int, ...]:
        """Slices per tensor axis (MindSpore's strategy)."""
        return tuple(prod(self._device_size(axis) for axis in axes) for axes in self._axes())

    @property
    def slice_shape(self) -> Shape:
        """Shape of every rank's slice."""
        return tuple(length // split for length, split in zip(self.shape, self.splits, strict=True))

    @property
    def replicas(self) -> int:
        """Ranks that hold the same slice."""
        return len(self.rank_list) // prod(self.splits)

    def slice_of(self, rank: int) -> TensorSlice | None:
        """Return a rank's slice of the full tensor; None if it holds none."""
        return _slices_of(self).by_rank.get(rank)

    def held_by(self, rank: int) -> TensorSlice:
        """`slice_of` a rank that holds one."""
        held = self.slice_of(rank)
        assert held is not None, f"rank {rank} holds nothing"
        return held

    def slice_at(self, index: SliceIndex) -> TensorSlice:
        """Return the slice with this number on every axis."""
        starts = tuple(number * length for number, length in zip(index, self.slice_shape, strict=True))
        stops = tuple(start + length for start, length in zip(starts, self.slice_shape, strict=True))
        return TensorSlice(starts, stops)

    def holders(self, index: SliceIndex) -> Ranks:
        """Return the ranks that hold the slice with this number on every axis, ascending."""
        return _slices_of(self).holders[index]

    def ranks_with_slice_of(self, rank: int) -> Ranks:
        """Return the ranks with the same slice as `rank`, including itself, ascending; empty if it holds none."""
        for ranks in _slices_of(self).holders.values():
            if rank in ranks:
                return ranks
        return ()

    def slice_indices(self) -> tuple[SliceIndex, ...]:
        """Return the numbers of all slices, in row-major order."""
        return tuple(_slices_of(self).holders)

    def same_placement(self, other: Layout) -> bool:
        """Whether every rank holds the same slice in both layouts, however their device matrices are written."""
        return self.shape == other.shape and _slices_of(self).by_rank == _slices_of(other).by_rank

    def _index_at(self, position: int) -> SliceIndex:
        """Return the number of the slice held by the device at `position` of the rank list."""
        index = []
        for axes in self._axes():
            number = 0
            for axis in axes:
                number = number * self._device_size(axis) + device_coordinate(position, self.device_matrix, axis)
            index.append(number)
        return tuple(index)

    def _axes(self) -> tuple[tuple[int, ...], ...]:
        """Return each tensor axis' device axes, outermost first; empty if it is not split."""
        return tuple(
            entry if isinstance(entry, tuple) else () if entry == NOT_SPLIT else (entry,) for entry in self.tensor_map
        )

    def _device_size(self, axis: int) -> int:
        return self.device_matrix[len(self.device_matrix) - 1 - axis]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slices:
    """The slices of a layout."""

    by_rank: dict[int, TensorSlice]
    holders: dict[SliceIndex, Ranks]
    """Ranks that hold a slice, by its number in row-major order."""


@lru_cache(maxsize=1024)
def _slices_of(layout: Layout) -> _Slices:
    """Return a layout's slices; cached, because the layers of a stage have equal layouts."""
    by_index: dict[SliceIndex, list[int]] = {}
    for position, rank in enumerate(layout.rank_list):
        by_index.setdefault(layout._index_at(position), []).append(rank)
    holders = {index: tuple(sorted(by_index[index])) for index in sorted(by_index)}
    slices = {rank: layout.slice_at(index) for index, ranks in holders.items() for rank in ranks}
    return _Slices(by_rank=slices, holders=holders)


def _problems(layout: Layout) -> Iterator[str]:
    """Yield errors, to be read after the parameter's name: first of the fields, then of divisibility."""
    matrix, ranks = layout.device_matrix, layout.rank_list
    if len(layout.tensor_map) != len(layout.shape):
        yield f": tensor map {layout.tensor_map} has {len(layout.tensor_map)} entries for {len(layout.shape)} axes"
        return
    if any(size < 1 for size in (*layout.shape, *matrix)):
        yield f": shape {layout.shape} and device matrix {matrix} must have sizes of at least 1"
        return
    if prod(matrix) != len(ranks):
        yield f": device matrix {matrix} arranges {prod(matrix)} ranks, the rank list has {len(ranks)}"
    if len(set(ranks)) != len(ranks) or min(ranks, default=0) < 0:
        yield f": rank list {ranks} must name every rank once, from 0 up"
    used = [axis for axes in layout._axes() for axis in axes]
    if any(not 0 <= axis < len(matrix) for axis in used):
        yield f": tensor map {layout.tensor_map} may name the device axes 0 to {len(matrix) - 1} of {matrix}, or -1"
        return
    if len(set(used)) != len(used):
        yield f": tensor map {layout.tensor_map} splits by one device axis twice"
    for axis, (length, split) in enumerate(zip(layout.shape, layout.splits, strict=True)):
        if length % split:
            yield (
                f" axis {axis}: {length} elements do not divide into {split} equal slices (device matrix {matrix}, "
                f"tensor map {layout.tensor_map}); nearest legal: {either(nearest(divisors(length), split))}"
            )
