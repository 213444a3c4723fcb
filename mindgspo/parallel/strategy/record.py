"""What a strategy file says: per pipeline stage and parameter a stored layout.

What leaves: frozen records, equal where the files say the same. Made and read by `strategy.protobuf_format`,
`strategy.json_format` and `strategy.layouts`; pure Python. The fields carry MindSpore's names; `strategy.file` says
what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from mindgspo.parallel.layout import Shape
from mindgspo.parallel.strategy.optimizer_shard import (
    DeviceMatrix,
    TensorMap,
    device_axes,
    map_entry,
    without_fields,
)

MOST_DEVICES = 1 << 20
"""Devices of one stage beyond which a file is taken for damaged: what it says is worked out rank by rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLayout:
    """One entry of a strategy file. Raises ValueError, without the parameter's name, for what no layout can be.

    Example: a column-parallel weight of 2 x 4 x 1 whose moment is split over the two replicas:
        StoredLayout(device_matrix=(2, 4), tensor_map=(0, -1), opt_weight_shard_step=4, opt_weight_shard_size=2)
    """

    device_matrix: DeviceMatrix
    """Arrangement of the stage's ranks; empty where the stage is one rank."""
    tensor_map: TensorMap
    """Per tensor axis the device axis or axes that split it, counted from the right; -1: not split."""
    shape: Shape | None = None
    """Shape of the full tensor; None where the file does not say (protobuf has no field for it)."""
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
        return tuple(prod(matrix[len(matrix) - 1 - axis] for axis in device_axes(entry)) for entry in tensor_map)

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
    """Where it comes from, for messages."""

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
