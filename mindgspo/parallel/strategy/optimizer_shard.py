"""The optimizer-shard fields of a strategy file as a device matrix and a tensor map, and back.

What enters: device matrix, tensor map, `opt_weight_shard_step` and `opt_weight_shard_size`, or a tensor map alone. What
leaves: the other spelling. Called by the strategy records; pure Python, axes as in `layout`.

MindSpore's rule: of the ranks that hold equal slices, every run of `size` consecutive ones (-1: all of them) splits
axis 0 of the slice once more, in the order of the ranks. So the free device axes, those that split nothing, are taken
from the right end until their product is `size`; the last one may be taken in part, its inner part first.
"""

from __future__ import annotations

from math import prod

TensorMap = tuple[int | tuple[int, ...], ...]
DeviceMatrix = tuple[int, ...]

NOT_SPLIT = -1
ALL_REPLICAS = -1


def device_axes(entry: int | tuple[int, ...]) -> tuple[int, ...]:
    """The device axes that split one tensor axis, outermost first; empty where it is not split."""
    if isinstance(entry, tuple):
        return tuple(axis for axis in entry if axis != NOT_SPLIT)
    return () if entry == NOT_SPLIT else (entry,)


def map_entry(axes: tuple[int, ...]) -> int | tuple[int, ...]:
    """The shortest entry of a tensor map for these device axes."""
    return NOT_SPLIT if not axes else axes[0] if len(axes) == 1 else axes


def without_fields(matrix: DeviceMatrix, tensor_map: TensorMap, step: int, size: int) -> tuple[DeviceMatrix, TensorMap]:
    """Device matrix and tensor map that say by themselves what the two fields add. Raises ValueError where they cannot.

    Example: matrix (4, 2), map (0, -1), step 2, size 2: (2, 2, 2) and ((0, 1), -1). The four replicas are split into
    two runs of two.
    """
    if step == 0 or size == 0:
        return matrix, tensor_map
    free = _free_axes(matrix, tensor_map)
    available = prod(_length(matrix, axis) for axis in free)
    wanted = available if size == ALL_REPLICAS else size
    if wanted == 1:
        return matrix, tensor_map
    if not tensor_map or wanted < 1 or available % wanted:
        raise ValueError(
            f"opt_weight_shard_size {size} does not fit device matrix {matrix} and tensor map {tensor_map}: equal "
            f"slices are held by {available} ranks; legal: {ALL_REPLICAS}, 0 or a divisor of {available}"
        )
    if len(free) == 1 and step != _stride(matrix, free[0]):
        raise ValueError(
            f"opt_weight_shard_step {step} contradicts device matrix {matrix} and tensor map {tensor_map}: replicas "
            f"are {_stride(matrix, free[0])} ranks apart"
        )
    return _take(matrix, tensor_map, free, wanted)


def with_fields(matrix: DeviceMatrix, tensor_map: TensorMap) -> tuple[TensorMap, int, int] | None:
    """(tensor map, step, size) of the same placement, with the outermost device axis moved from tensor axis 0 into the
    two fields; None where that axis is not the last to split axis 0, or where MindSpore would read another placement.
    """
    outermost = len(matrix) - 1
    axes = device_axes(tensor_map[0]) if tensor_map else ()
    if not axes or axes[-1] != outermost or matrix[0] == 1:
        return None
    base = (map_entry(axes[:-1]), *tensor_map[1:])
    used = [axis for entry in base for axis in device_axes(entry) if _length(matrix, axis) > 1]
    # MindSpore's Python readers take the tensor axes to be split in the order of the device axes here.
    in_order = used == sorted(used, reverse=True)
    if any(isinstance(entry, tuple) for entry in base) or not in_order:
        return None
    if _free_axes(matrix, base) != [outermost]:
        return None
    return base, prod(matrix[1:]), matrix[0]


def _take(matrix: DeviceMatrix, tensor_map: TensorMap, free: list[int], size: int) -> tuple[DeviceMatrix, TensorMap]:
    """Split axis 0 of the tensor by `size` ranks along the free axes, innermost first."""
    taken: list[int] = []
    rest = size
    for axis in free:
        length = _length(matrix, axis)
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


def _free_axes(matrix: DeviceMatrix, tensor_map: TensorMap) -> list[int]:
    """The device axes of more than one device that split nothing, innermost first."""
    used = {axis for entry in tensor_map for axis in device_axes(entry)}
    return [axis for axis in range(len(matrix)) if axis not in used and _length(matrix, axis) > 1]


def _length(matrix: DeviceMatrix, axis: int) -> int:
    return matrix[len(matrix) - 1 - axis]


def _stride(matrix: DeviceMatrix, axis: int) -> int:
    """How many ranks apart two neighbours on a device axis are."""
    return prod(matrix[len(matrix) - axis :])
