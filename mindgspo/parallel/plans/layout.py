"""How one parameter is spread over ranks, in MindSpore's terms, and the rectangular slice that each rank holds. Pure
Python.

The devices of `rank_list` are arranged as `device_matrix` in row-major order. `tensor_map` says for every tensor axis
by which device axis it is split: device axes are counted from the right end of the matrix, -1 is not split. A tuple
splits one tensor axis by several device axes, the first one outermost. Ranks that differ only on device axes that the
map does not name hold equal slices (replicas).
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


Shape = tuple[int, ...]
SliceIndex = tuple[int, ...]
"""Number of a slice on every axis, from 0."""

NOT_SPLIT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Placement of one parameter. Raises ConfigError where an axis does not divide, naming the nearest legal number.

    Example: q_proj.weight of 1 x 4 x 2 on stage 1, split by rows over the four model-parallel ranks:
        Layout(parameter="...q_proj.weight", shape=(3584, 3584), device_matrix=(1, 4), tensor_map=(0, -1),
               rank_list=(4, 5, 6, 7))
    """

    parameter: str = field(compare=False)
    """Name, for messages; two parameters laid out alike have equal layouts."""
    shape: Shape
    """Shape of the full tensor."""
    device_matrix: tuple[int, ...]
    """Arrangement of the ranks."""
    tensor_map: tuple[int | tuple[int, ...], ...]
    """Per tensor axis the device axis or axes that split it, counted from the right; -1: not split."""
    rank_list: Ranks
    """The ranks that hold the parameter, in the device matrix' row-major order."""
    remark: str = field(default="", compare=False)
    """What a reader should know, e.g. why an optimizer moment is kept whole."""

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise ConfigError(f"{self.parameter}{problem}")

    @property
    def splits(self) -> tuple[int, ...]:
        """Slices per tensor axis (a strategy, in MindSpore's words)."""
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
        """What a rank holds of the full tensor; None if the parameter does not live there."""
        return _placement(self).slices.get(rank)

    def slice_at(self, index: SliceIndex) -> TensorSlice:
        """The slice with this number on every axis."""
        starts = tuple(number * length for number, length in zip(index, self.slice_shape, strict=True))
        stops = tuple(start + length for start, length in zip(starts, self.slice_shape, strict=True))
        return TensorSlice(starts, stops)

    def holders(self, index: SliceIndex) -> Ranks:
        """The ranks that hold the slice with this number on every axis, ascending."""
        return _placement(self).holders[index]

    def ranks_with_slice_of(self, rank: int) -> Ranks:
        """The ranks that hold the same slice as `rank`, itself among them, ascending; empty if it holds none."""
        for ranks in _placement(self).holders.values():
            if rank in ranks:
                return ranks
        return ()

    def slice_indices(self) -> tuple[SliceIndex, ...]:
        """The numbers of all slices, in row-major order."""
        return tuple(_placement(self).holders)

    def same_placement(self, other: Layout) -> bool:
        """Whether every rank holds the same slice under both, however the device matrices are written."""
        return self.shape == other.shape and _placement(self).slices == _placement(other).slices

    def _index_at(self, position: int) -> SliceIndex:
        """Number of the slice held by the device at `position` of the rank list."""
        index = []
        for axes in self._axes():
            number = 0
            for axis in axes:
                number = number * self._device_size(axis) + device_coordinate(position, self.device_matrix, axis)
            index.append(number)
        return tuple(index)

    def _axes(self) -> tuple[tuple[int, ...], ...]:
        """Per tensor axis its device axes, outermost first; empty where it is not split."""
        return tuple(
            entry if isinstance(entry, tuple) else () if entry == NOT_SPLIT else (entry,) for entry in self.tensor_map
        )

    def _device_size(self, axis: int) -> int:
        return self.device_matrix[len(self.device_matrix) - 1 - axis]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placement:
    """A layout worked out for all ranks."""

    slices: dict[int, TensorSlice]
    """By rank."""
    holders: dict[SliceIndex, Ranks]
    """By number of the slice, in row-major order."""


@lru_cache(maxsize=1024)
def _placement(layout: Layout) -> _Placement:
    """Once per distinct layout: the layers of a stage share theirs."""
    by_index: dict[SliceIndex, list[int]] = {}
    for position, rank in enumerate(layout.rank_list):
        by_index.setdefault(layout._index_at(position), []).append(rank)
    holders = {index: tuple(sorted(by_index[index])) for index in sorted(by_index)}
    slices = {rank: layout.slice_at(index) for index, ranks in holders.items() for rank in ranks}
    return _Placement(slices=slices, holders=holders)


def _problems(layout: Layout) -> Iterator[str]:
    """What is wrong, to be read after the parameter's name; rules of the record first, then divisibility."""
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
