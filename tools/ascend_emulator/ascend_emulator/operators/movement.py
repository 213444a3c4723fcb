"""Operators that move elements by shape and axis: joining, cutting, rearranging, padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ascend_emulator.contract import (
    Relation,
    anything,
    axes_of,
    axis_of,
    deduces,
    operator,
    same_shape,
    shape_is,
    tensor,
    tensors,
    value,
)
from ascend_emulator.operators.elementwise import converted, copy
from ascend_emulator.tensors import ANY, REAL, DeviceTensor

_REPEATED = REAL - {"float64"}


def along(axis: int, rank: int, chosen: Any) -> tuple[Any, ...]:
    """An index that takes `chosen` of one axis and everything of the others; always a view, also of one element."""
    return (slice(None),) * (axis % rank) + (chosen, ...)


def part(of: DeviceTensor, where: tuple[Any, ...]) -> DeviceTensor:
    """A view."""
    return of.seen(of.bits[where])


# -------------------------------------------------------------------------------------------------- joining, cutting


def _joined_shape(arguments: dict[str, Any]) -> Sequence[int] | str:
    shapes = [list(one.shape) for one in arguments["tensors"]]
    axis = arguments["dim"]
    if not -len(shapes[0]) <= axis < len(shapes[0]):
        return f"dim must be an axis of tensors {shapes[0]}, not {axis}"
    joined = list(shapes[0])
    joined[axis] = sum(shape[axis] if len(shape) == len(joined) else 0 for shape in shapes)
    for shape in shapes:
        if len(shape) != len(joined) or [*shape[:axis], *shape[axis:][1:]] != [*joined[:axis], *joined[axis:][1:]]:
            return f"tensors must differ in axis {axis} alone: {shapes}"
    return joined


@operator(
    "aclnnCat",
    takes=(tensors("tensors", REAL, rank=(1, 8)), anything("dim"), tensor("out", REAL)),
    relations=(shape_is("out", _joined_shape), deduces("tensors")),
    source="ops-math conversion/concat_d aclnnCat",
)
def _concatenate(given: list[DeviceTensor], dim: int, out: DeviceTensor) -> None:
    split(out, [one.shape[dim] for one in given], dim, given, gather=True)


def _stacked_shape(arguments: dict[str, Any]) -> Sequence[int] | str:
    shapes, axis = [list(one.shape) for one in arguments["tensors"]], arguments["dim"]
    rank = len(shapes[0]) + 1
    if any(shape != shapes[0] for shape in shapes):
        return f"tensors must have one shape: {shapes}"
    if not -rank <= axis < rank:
        return f"dim must be within {-rank} and {rank - 1}, not {axis}"
    stacked = shapes[0]
    stacked.insert(axis % rank, len(shapes))
    return stacked


@operator(
    "aclnnStack",
    takes=(tensors("tensors", ANY, rank=(0, 7)), anything("dim"), tensor("out", ANY)),
    relations=(shape_is("out", _stacked_shape), deduces("tensors")),
    source="ops-math conversion/pack aclnnStack",
)
def _stack(given: list[DeviceTensor], dim: int, out: DeviceTensor) -> None:
    for place, one in enumerate(given):
        copy(one, part(out, along(dim, out.rank, place)))


def split(
    whole: DeviceTensor, sizes: Sequence[int], axis: int, parts: Sequence[DeviceTensor], *, gather: bool = False
) -> None:
    """Copies pieces of an axis into `parts`; gather: the other way."""
    start = 0
    for size, one in zip(sizes, parts, strict=True):
        piece = part(whole, along(axis, whole.rank, slice(start, start + size)))
        copy(*((one, piece) if gather else (piece, one)))
        start += size


def _pieces(sizes: Callable[[dict[str, Any]], Sequence[int] | str]) -> Relation:
    """A relation: the tensors of `out` are self cut along `dim`."""

    def check(arguments: dict[str, Any]) -> str | None:
        lengths, shape, axis = sizes(arguments), list(arguments["self"].shape), arguments["dim"]
        if isinstance(lengths, str):
            return lengths
        expected = [[*shape[: axis % len(shape)], length, *shape[axis % len(shape) + 1 :]] for length in lengths]
        given = [list(one.shape) for one in arguments["out"]]
        return None if given == expected else f"out must be of shapes {expected}, not {given}"

    return check


def _equal_lengths(arguments: dict[str, Any]) -> Sequence[int] | str:
    length, section = arguments["self"].shape[arguments["dim"]], arguments["splitSections"]
    if (section == 0) != (length == 0):
        return f"splitSections is {section} where the axis has {length} elements"
    return [min(section, length - start) for start in range(0, length, section or 1)]


def _given_lengths(arguments: dict[str, Any]) -> Sequence[int] | str:
    length, sizes = arguments["self"].shape[arguments["dim"]], arguments["splitSize"]
    return sizes if sum(sizes) == length else f"splitSize must sum up to {length}, not {sizes}"


@operator(
    "aclnnSplitTensor",
    takes=(tensor("self", REAL, rank=(1, 8)), anything("splitSections"), axis_of("dim"), tensors("out", REAL)),
    relations=(_pieces(_equal_lengths),),
    source="ops-math conversion/split_v aclnnSplitTensor",
)
@operator(
    "aclnnSplitWithSize",
    takes=(tensor("self", REAL, rank=(1, 8)), anything("splitSize"), axis_of("dim"), tensors("out", REAL)),
    relations=(_pieces(_given_lengths),),
    source="ops-math conversion/split_v aclnnSplitWithSize",
)
def _split(self: DeviceTensor, sizes: int | list[int], dim: int, out: list[DeviceTensor]) -> None:
    split(self, [one.shape[dim] for one in out], dim, out)


# -------------------------------------------------------------------------------------------------- rearranging


def _permuted_shape(arguments: dict[str, Any]) -> Sequence[int] | str:
    shape, axes = arguments["self"].shape, arguments["dims"]
    return [shape[axis] for axis in axes] if len(axes) == len(shape) else f"dims must name every axis, not {axes}"


@operator(
    "aclnnPermute",
    takes=(tensor("self", ANY), axes_of("dims"), tensor("out", like="self")),
    relations=(shape_is("out", _permuted_shape),),
    source="ops-math conversion/transpose aclnnPermute",
)
def _permute(self: DeviceTensor, dims: list[int], out: DeviceTensor) -> None:
    out.bits[...] = self.bits.transpose(dims)


def _expanded_shape(arguments: dict[str, Any]) -> Sequence[int] | str:
    shape, size = arguments["self"].shape, arguments["size"]
    matches = len(shape) <= len(size) and all(
        wanted == -1 or have in (1, wanted) for have, wanted in zip(reversed(shape), reversed(size), strict=False)
    )
    if not matches:
        return f"self {list(shape)} does not expand to size {size}"
    padded = [1] * (len(size) - len(shape)) + list(shape)
    return [have if wanted == -1 else wanted for have, wanted in zip(padded, size, strict=True)]


@operator(
    "aclnnExpand",
    takes=(tensor("self", _REPEATED - {"int16"}), anything("size"), tensor("out", like="self")),
    relations=(shape_is("out", _expanded_shape),),
    source="ops-math math/expand aclnnExpand",
)
def _expand(self: DeviceTensor, size: list[int], out: DeviceTensor) -> None:
    out.bits[...] = self.bits


def _repeated_shape(arguments: dict[str, Any]) -> Sequence[int] | str:
    shape, repeats = arguments["self"].shape, arguments["repeats"]
    if not len(shape) <= len(repeats) <= 8 or min(repeats, default=0) < 0:
        return f"repeats must be {len(shape)} to 8 numbers, none negative, not {repeats}"
    allowed = 4 if repeats[:1] != [1] else 3
    if sum(times != 1 for times in repeats) > allowed:
        return f"at most {allowed} axes can be repeated at once, not {repeats}"
    padded = [1] * (len(repeats) - len(shape)) + list(shape)
    return [size * times for size, times in zip(padded, repeats, strict=True)]


@operator(
    "aclnnRepeat",
    takes=(tensor("self", ANY), anything("repeats"), tensor("out", like="self")),
    relations=(shape_is("out", _repeated_shape),),
    source="ops-math math/tile aclnnRepeat",
)
def _repeat(self: DeviceTensor, repeats: list[int], out: DeviceTensor) -> None:
    out.bits[...] = np.tile(self.bits, repeats)


def _interleaved_shape(arguments: dict[str, Any]) -> Sequence[int] | str:
    shape, axis = list(arguments["self"].shape), arguments.get("dim", 0)
    if "dim" not in arguments:
        shape = [arguments["self"].size]
    shape[axis] *= arguments["repeats"]
    if shape[axis] != arguments["outputSize"]:
        return f"outputSize must be {shape[axis]}, not {arguments['outputSize']}"
    return shape


@operator(
    "aclnnRepeatInterleaveInt",
    takes=(tensor("self", _REPEATED), value("repeats", low=0), anything("outputSize"), tensor("out", like="self")),
    relations=(shape_is("out", _interleaved_shape),),
    source="ops-nn index/repeat_interleave aclnnRepeatInterleaveInt",
)
def _interleave(self: DeviceTensor, repeats: int, length: int, out: DeviceTensor) -> None:
    out.bits[...] = np.repeat(self.bits, repeats)


@operator(
    "aclnnRepeatInterleaveIntWithDim",
    takes=(
        tensor("self", _REPEATED, rank=(1, 8)),
        value("repeats", low=0),
        axis_of("dim"),
        anything("outputSize"),
        tensor("out", like="self"),
    ),
    relations=(shape_is("out", _interleaved_shape),),
    source="ops-nn index/repeat_interleave aclnnRepeatInterleaveIntWithDim",
)
def _interleave_axis(self: DeviceTensor, repeats: int, dim: int, length: int, out: DeviceTensor) -> None:
    out.bits[...] = np.repeat(self.bits, repeats, dim)


def _sliced_shape(arguments: dict[str, Any]) -> Sequence[int]:
    shape, axis = list(arguments["self"].shape), arguments["dim"]
    chosen = slice(arguments["start"], arguments["end"], arguments["step"])
    shape[axis] = len(range(*chosen.indices(shape[axis])))
    return shape


@operator(
    "aclnnSlice",
    takes=(
        tensor("self", _REPEATED - {"int16"}, rank=(1, 8)),
        axis_of("dim"),
        anything("start"),
        anything("end"),
        value("step", low=1),
        tensor("out", like="self"),
    ),
    relations=(shape_is("out", _sliced_shape),),
    source="ops-math conversion/slice aclnnSlice",
)
def _slice(self: DeviceTensor, dim: int, start: int, end: int, step: int, out: DeviceTensor) -> None:
    out.bits[...] = self.bits[along(dim, self.rank, slice(start, end, step))]


@operator(
    "aclnnFlip",
    takes=(tensor("self", REAL, rank=(1, 8)), axes_of("dims"), tensor("out", like="self")),
    relations=(same_shape("self", "out"),),
    source="ops-nn index/reverse_v2 aclnnFlip",
)
def _flip(self: DeviceTensor, dims: list[int], out: DeviceTensor) -> None:
    out.bits[...] = np.flip(self.bits, dims)


def _as_many_shifts(arguments: dict[str, Any]) -> str | None:
    shifts, dims = arguments["shifts"], arguments["dims"]
    if len(shifts) == len(dims) or (not dims and len(shifts) == 1):
        return None
    return f"shifts and dims must be as many, not {shifts} and {dims}"


@operator(
    "aclnnRoll",
    takes=(
        tensor("x", REAL - {"float64"} | {"uint32"}),
        anything("shifts"),
        axes_of("dims", "x"),
        tensor("out", like="x"),
    ),
    relations=(same_shape("x", "out"), _as_many_shifts),
    source="ops-math conversion/roll aclnnRoll",
)
def _roll(self: DeviceTensor, shifts: list[int], dims: list[int], out: DeviceTensor) -> None:
    out.bits[...] = np.roll(self.bits, shifts, dims) if dims else np.roll(self.bits, shifts[0])


def _enter_triangle(name: str, keep: Callable) -> None:
    @operator(
        f"aclnn{name}",
        takes=(tensor("self", ANY, rank=(2, 8)), anything("diagonal"), tensor("out", like="self")),
        relations=(same_shape("self", "out"),),
        source=f"ops-math conversion/{name.lower()} aclnn{name}",
    )
    def run(self: DeviceTensor, diagonal: int, out: DeviceTensor) -> None:
        out.bits[...] = keep(self.bits, diagonal)


_enter_triangle("Tril", np.tril)
_enter_triangle("Triu", np.triu)


def _padded_shape(arguments: dict[str, Any]) -> Sequence[int] | str:
    shape, pad = arguments["self"].shape, arguments["pad"]
    if len(pad) % 2 or len(pad) > 2 * len(shape):
        return f"pad must be two numbers for each of at most {len(shape)} axes, not {pad}"
    padded = [size + before + after for size, (before, after) in zip(shape, _per_axis(pad, len(shape)), strict=True)]
    return padded if min(padded, default=0) >= 0 else f"pad {pad} takes more than there is of {list(shape)}"


def _per_axis(pad: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """(before, after) of each axis; the pairs that are given begin with the last one."""
    pairs = [(pad[at], pad[at + 1]) for at in range(0, len(pad), 2)]
    return [(0, 0)] * (rank - len(pairs)) + pairs[::-1]


@operator(
    "aclnnConstantPadNd",
    takes=(tensor("self", ANY), anything("pad"), anything("value"), tensor("out", like="self")),
    relations=(shape_is("out", _padded_shape),),
    source="ops-math conversion/pad_v3 aclnnConstantPadNd",
)
def _pad(self: DeviceTensor, pad: list[int], filling: float, out: DeviceTensor) -> None:
    pad_into(self, _per_axis(pad, self.rank), filling, out)


def pad_into(self: DeviceTensor, widths: Sequence[tuple[int, int]], filling: float, out: DeviceTensor) -> None:
    """Elements around each axis; a negative width takes away."""
    out.store(converted(filling, out.dtype))
    inner = tuple(
        slice(max(before, 0), size - max(after, 0)) for (before, after), size in zip(widths, out.shape, strict=True)
    )
    kept = tuple(
        slice(max(-before, 0), size - max(-after, 0)) for (before, after), size in zip(widths, self.shape, strict=True)
    )
    out.bits[inner] = self.bits[kept]
