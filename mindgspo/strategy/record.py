"""The content of a strategy file: per pipeline stage and parameter a stored layout. Pure Python.

MindSpore's rule for the optimizer-shard fields: of the ranks that hold equal slices, every run of `size` consecutive
ones (-1: all of them) splits axis 0 of the slice once more, in the order of the ranks. So the free device axes, those
that split nothing, are taken from the right end until their product is `size`; the last one may be taken in part, its
inner part first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from mindgspo.parallel.plans.layout import Shape

TensorMap = tuple[int | tuple[int, ...], ...]
DeviceMatrix = tuple[int, ...]

NOT_SPLIT = -1
ALL_REPLICAS = -1
MOST_DEVICES = 1 << 20
"""Devices of one stage beyond which a file is taken for damaged: what it says is worked out rank by rank."""


def device_axes(entry: int | tuple[int, ...]) -> tuple[int, ...]:
    """The device axes that split one tensor axis, outermost first; empty if it is not split."""
    if isinstance(entry, tuple):
        return tuple(axis for axis in entry if axis != NOT_SPLIT)
    return () if entry == NOT_SPLIT else (entry,)


def splits_of(matrix: DeviceMatrix, tensor_map: TensorMap) -> tuple[int, ...]:
    """Slices per tensor axis."""
    return tuple(prod(axis_length(matrix, axis) for axis in device_axes(entry)) for entry in tensor_map)


def without_prefixes(name: str) -> Iterator[str]:
    """`a.b.c` gives `b.c` and `c`: the parameters whose optimizer state this may be."""
    while "." in name:
        name = name.split(".", 1)[1]
        yield name


def map_entry(axes: tuple[int, ...]) -> int | tuple[int, ...]:
    """The shortest entry of a tensor map for these device axes."""
    return NOT_SPLIT if not axes else axes[0] if len(axes) == 1 else axes


def without_fields(matrix: DeviceMatrix, tensor_map: TensorMap, step: int, size: int) -> tuple[DeviceMatrix, TensorMap]:
    """Device matrix and tensor map that say by themselves what the two fields add. Raises ValueError if they cannot.

    Example: matrix (4, 2), map (0, -1), step 2, size 2: (2, 2, 2) and ((0, 1), -1). The four replicas are split into
    two runs of two.
    """
    if step == 0 or size == 0:
        return matrix, tensor_map
    free = free_axes(matrix, tensor_map)
    available = prod(axis_length(matrix, axis) for axis in free)
    wanted = available if size == ALL_REPLICAS else size
    if wanted == 1:
        return matrix, tensor_map
    if not tensor_map or wanted < 1 or available % wanted:
        raise ValueError(
            f"opt_weight_shard_size {size} does not fit device matrix {matrix} and tensor map {tensor_map}: equal "
            f"slices are held by {available} ranks; legal: {ALL_REPLICAS}, 0 or a divisor of {available}"
        )
    if len(free) == 1 and step != stride(matrix, free[0]):
        raise ValueError(
            f"opt_weight_shard_step {step} contradicts device matrix {matrix} and tensor map {tensor_map}: replicas "
            f"are {stride(matrix, free[0])} ranks apart"
        )
    return _take(matrix, tensor_map, free, wanted)


def _take(matrix: DeviceMatrix, tensor_map: TensorMap, free: list[int], size: int) -> tuple[DeviceMatrix, TensorMap]:
    """Split axis 0 of the tensor by `size` ranks along the free axes, innermost first."""
    taken: list[int] = []
    rest = size
    for axis in free:
        length = axis_length(matrix, axis)
        if rest % length and length % rest:
            raise ValueError(f"opt_weight_shard_size {size} cuts across the axes of device matrix {matrix}")
        if rest % length:
            matrix, tensor_map = _cut_axis(matrix, tensor_map, axis, rest)
            length = rest
        taken.append(axis)
        rest //= length
        if rest == 1:
            break
    first = (*device_axes(tensor_map[0]), *reversed(taken))
    return matrix, (map_entry(first), *tensor_map[1:])


def _cut_axis(matrix: DeviceMatrix, tensor_map: TensorMap, axis: int, inner: int) -> tuple[DeviceMatrix, TensorMap]:
    """Write a device axis that splits nothing as two; the inner one has `inner` devices and keeps the number."""
    position = len(matrix) - 1 - axis
    longer = (*matrix[:position], matrix[position] // inner, inner, *matrix[position + 1 :])
    renumbered = tuple(
        map_entry(tuple(other + 1 if other > axis else other for other in device_axes(entry))) for entry in tensor_map
    )
    return longer, renumbered


def free_axes(matrix: DeviceMatrix, tensor_map: TensorMap) -> list[int]:
    """The device axes of more than one device that split nothing, innermost first."""
    used = {axis for entry in tensor_map for axis in device_axes(entry)}
    return [axis for axis in range(len(matrix)) if axis not in used and axis_length(matrix, axis) > 1]


def axis_length(matrix: DeviceMatrix, axis: int) -> int:
    """Devices along a device axis, which is counted from the right."""
    return matrix[len(matrix) - 1 - axis]


def stride(matrix: DeviceMatrix, axis: int) -> int:
    """Ranks between two neighbours on a device axis."""
    return prod(matrix[len(matrix) - axis :])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLayout:
    """One entry of a strategy file. Raises ValueError, without the parameter's name, for what no layout can be.

    Example: a column-parallel weight of 2 x 4 x 1 whose moment is split over the two replicas:
        StoredLayout(device_matrix=(2, 4), tensor_map=(0, -1), opt_weight_shard_step=4, opt_weight_shard_size=2)
    """

    device_matrix: DeviceMatrix
    """Arrangement of the stage's ranks; empty if the stage is one rank."""
    tensor_map: TensorMap
    """Per tensor axis the device axis or axes that split it, counted from the right; -1: not split."""
    shape: Shape | None = None
    """Shape of the full tensor; None if the file does not say (protobuf has no field for it)."""
    field: int = 0
    """Rows per field of a table that is split by fields, 0 for all others."""
    opt_weight_shard_step: int = 0
    """Ranks between two neighbours of the group that splits axis 0 of the slice once more; 0: not split."""
    opt_weight_shard_size: int = 0
    """Size of that group; -1: all ranks that hold equal slices; 0: not split."""
    param_split_shape: tuple[int, ...] = ()
    """Rows per slice of a table that is split unevenly."""
    indices_offset: tuple[int, ...] = ()
    """First row of each of these slices."""

    def __post_init__(self) -> None:
        plain = tuple(map_entry(device_axes(entry)) for entry in self.tensor_map)
        object.__setattr__(self, "tensor_map", plain)
        for problem in _problems(self):
            raise ValueError(problem)

    @property
    def num_devices(self) -> int:
        """Ranks of the stage."""
        return prod(self.device_matrix)

    @property
    def placement(self) -> tuple[DeviceMatrix, TensorMap]:
        """Device matrix and tensor map with the optimizer-shard fields worked in."""
        return without_fields(
            self.device_matrix, self.tensor_map, self.opt_weight_shard_step, self.opt_weight_shard_size
        )

    @property
    def splits(self) -> Shape:
        """Slices per tensor axis, the optimizer-shard fields worked in."""
        matrix, tensor_map = self.placement
        return splits_of(matrix, tensor_map)

    @property
    def uneven(self) -> bool:
        """Whether slices differ in size, which no Layout can say."""
        return self.field != 0 or bool(self.indices_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One strategy file: of one pipeline stage, or of several that were merged."""

    stages: Mapping[int, Mapping[str, StoredLayout]]
    """{stage: {parameter: stored layout}}, at least one of each, all stages and all entries of as many ranks."""
    source: str = field(default="strategy", compare=False)
    """Source, for messages."""

    @property
    def stage_size(self) -> int:
        """Ranks per stage."""
        entries = next(iter(self.stages.values()))
        return next(iter(entries.values())).num_devices

    @property
    def parameters(self) -> dict[str, dict[int, StoredLayout]]:
        """{parameter: {stage: stored layout}}; a shared table is on more than one stage."""
        by_name: dict[str, dict[int, StoredLayout]] = {}
        for stage, entries in self.stages.items():
            for name, stored in entries.items():
                by_name.setdefault(name, {})[stage] = stored
        return by_name


def check_sizes(strategy: Strategy) -> None:
    """Raise ValueError unless there is something in it, for one number of ranks per stage."""
    if not strategy.stages or not all(strategy.stages.values()):
        raise ValueError("it names no parameter")
    size = strategy.stage_size
    for stage, entries in strategy.stages.items():
        for name, stored in entries.items():
            if stored.num_devices != size:
                raise ValueError(
                    f"{name} (stage {stage}): device matrix {stored.device_matrix} arranges {stored.num_devices} "
                    f"ranks, other entries {size}"
                )


def _problems(stored: StoredLayout) -> Iterator[str]:
    matrix, axes = stored.device_matrix, [axis for entry in stored.tensor_map for axis in device_axes(entry)]
    if any(size < 1 for size in matrix) or prod(matrix) > MOST_DEVICES:
        yield f"device matrix {matrix} must have sizes of at least 1 and arrange at most {MOST_DEVICES} devices"
    if any(not 0 <= axis < len(matrix) for axis in axes) or len(set(axes)) != len(axes):
        yield (
            f"tensor map {stored.tensor_map} may name each device axis of {matrix}, 0 to {len(matrix) - 1} from the "
            "right, once, or -1"
        )
        return
    if stored.shape is not None and len(stored.shape) != len(stored.tensor_map):
        yield f"tensor map {stored.tensor_map} has {len(stored.tensor_map)} entries for the shape {stored.shape}"
    try:
        stored.placement  # noqa: B018 (its rules are those of the two fields)
    except ValueError as error:
        yield str(error)
