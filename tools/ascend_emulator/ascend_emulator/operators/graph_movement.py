"""The graph engine's operators that move elements: joining, cutting, padding, reading and writing by index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ascend_emulator.contract import operator, same_shape, shape_is, tensor, tensors, value
from ascend_emulator.operators.elementwise import copy
from ascend_emulator.operators.graph_engine import (
    Attributes,
    Tensors,
    alike,
    change,
    document,
    few,
    graph_operator,
    numbers,
)
from ascend_emulator.operators.indexing import (
    add_rows,
    added_nd,
    elements_fit,
    gather_elements,
    gathered_nd_shape,
    nd_places,
    places,
    scatter_elements,
)
from ascend_emulator.operators.movement import along, pad_into, part, split
from ascend_emulator.tensors import ANY, FLOATS, DeviceTensor

_NUMBERS = ANY - {"bool"}
_ON_CORES = ANY - {"float64"}  # with which a card leaves these operators to its AI CPU
_INDEX = frozenset({"int32", "int64"})


# -------------------------------------------------------------------------------------------------- joining, cutting


def _packed_shape(arguments: dict[str, Any]) -> Sequence[int]:
    shape, axis = list(arguments["inputs"][0].shape), arguments.get("axis", 0)
    shape.insert(axis % (len(shape) + 1), len(arguments["inputs"]))
    return shape


@operator(
    "aclop:Pack",
    takes=(tensors("inputs", ANY),),
    outputs=(tensor("y", ANY),),
    relations=(few, alike, shape_is("y", _packed_shape)),
    source=document("Pack", "conversion/pack"),
)
def _pack(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    (out,) = outputs
    for at, one in enumerate(inputs):
        copy(one, part(out, along(attributes.get("axis", 0), out.rank, at)))


def _unpacked(arguments: dict[str, Any]) -> str | None:
    x, outputs, axis = arguments["x"], arguments["outputs"], arguments.get("axis", 0)
    piece = x.shape[: axis % x.rank] + x.shape[axis % x.rank + 1 :]
    if [(one.dtype, one.shape) for one in outputs] == [(x.dtype, piece)] * x.shape[axis]:
        return None
    return f"outputs must be {x.shape[axis]} of {x.dtype}{list(piece)}, not {outputs}"


@operator(
    "aclop:Unpack",
    takes=(tensor("x", ANY, rank=(1, 8)),),
    outputs=(tensors("outputs", ANY),),
    relations=(_unpacked,),
    source=document("Unpack", "conversion/unpack"),
)
def _unpack(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    (x,) = inputs
    for at, one in enumerate(outputs):
        copy(part(x, along(attributes.get("axis", 0), x.rank, at)), one)


def _split_evenly(arguments: dict[str, Any]) -> str | None:
    x, outputs, axis = arguments["x"], arguments["outputs"], numbers(arguments["split_dim"])[0]
    piece = list(x.shape)
    piece[axis] //= len(outputs)
    is_whole = piece[axis] * len(outputs) == x.shape[axis]
    if is_whole and {(one.dtype, one.shape) for one in outputs} == {(x.dtype, tuple(piece))}:
        return None
    return f"outputs must be equal parts of axis {axis} of x {x}, not {outputs}"


@operator(
    "aclop:Split",
    takes=(tensor("split_dim", frozenset({"int32"}), rank=(0, 1)), tensor("x", ANY, rank=(1, 8))),
    outputs=(tensors("outputs", ANY),),
    contents=(_split_evenly,),
    source=document("Split", "conversion/split"),
)
def _split(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    axis = numbers(inputs[0])[0]
    split(inputs[1], [one.shape[axis] for one in outputs], axis, outputs)


_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def strided(arguments: dict[str, Any]) -> tuple[Any, ...]:
    """numpy's index for begins, ends and strides: bit k of a mask says something about their k-th number."""
    masks = [int(arguments.get(name, 0)) for name in _MASKS]
    where: list[Any] = []
    bounds = zip(*(numbers(arguments[name]) for name in ("begin", "end", "strides")), strict=True)
    for at, (begin, end, stride) in enumerate(bounds):
        from_start, to_end, ellipsis, new, shrink = (bool(mask >> at & 1) for mask in masks)
        if ellipsis:
            where.append(...)
        elif new:
            where.append(None)
        elif shrink:
            where.append(begin)
        else:
            where.append(slice(None if from_start else begin, None if to_end else end, stride))
    return tuple(where)


def _viewed_shape(name: str) -> Callable[[dict[str, Any]], Sequence[int]]:
    """Of the part of a tensor; of a tensor that does not exist where `name` holds its shape."""

    def shape(arguments: dict[str, Any]) -> Sequence[int]:
        given = arguments[name]
        whole = numbers(given) if name == "shape" else given.shape
        return np.broadcast_to(np.int8(0), whole)[strided(arguments)].shape

    return shape


_BOUNDS = tuple(tensor(name, _INDEX, rank=(0, 1)) for name in ("begin", "end", "strides"))


@graph_operator(
    "StridedSlice",
    (tensor("x", _ON_CORES), *_BOUNDS),
    (tensor("y", like="x"),),
    contents=(shape_is("y", _viewed_shape("x")),),
    source="conversion/strided_slice",
)
def _strided_slice(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    where = strided({"begin": inputs[1], "end": inputs[2], "strides": inputs[3], **attributes})
    outputs[0].bits[...] = inputs[0].bits[where]


@graph_operator(
    "StridedSliceGrad",
    (tensor("shape", _INDEX, rank=(1, 1)), *_BOUNDS, tensor("dy", ANY)),
    (tensor("output", like="dy"),),
    contents=(
        shape_is("output", lambda arguments: numbers(arguments["shape"])),
        shape_is("dy", _viewed_shape("shape")),
    ),
    source="conversion/strided_slice_grad",
)
def _strided_slice_grad(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    where = strided({"begin": inputs[1], "end": inputs[2], "strides": inputs[3], **attributes})
    outputs[0].bits[...] = 0
    outputs[0].bits[where] = inputs[4].bits


def _sliced_shape(arguments: dict[str, Any]) -> Sequence[int] | str:
    x, offsets, sizes = arguments["x"], numbers(arguments["offsets"]), numbers(arguments["size"])
    lengths = [have - start if size == -1 else size for have, start, size in zip(x.shape, offsets, sizes, strict=True)]
    inside = all(
        0 <= start <= start + size <= have for start, size, have in zip(offsets, lengths, x.shape, strict=True)
    )
    return lengths if inside else f"offsets {offsets} and size {sizes} leave x {list(x.shape)}"


@graph_operator(
    "Slice",
    (tensor("x", _ON_CORES), tensor("offsets", _INDEX, rank=(1, 1)), tensor("size", _INDEX, rank=(1, 1))),
    (tensor("y", like="x"),),
    contents=(shape_is("y", _sliced_shape),),
    source="conversion/slice",
)
def _slice(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    (y,) = outputs
    where = tuple(slice(start, start + size) for start, size in zip(numbers(inputs[1]), y.shape, strict=True))
    y.bits[...] = inputs[0].bits[where]


def _widths(paddings: DeviceTensor) -> list[tuple[int, int]]:
    """(before, after) of each axis."""
    flat = numbers(paddings)
    return list(zip(flat[::2], flat[1::2], strict=True))


def _padded_shape(arguments: dict[str, Any]) -> Sequence[int] | str:
    x, widths = arguments["x"], _widths(arguments["paddings"])
    if len(widths) != x.rank:
        return f"paddings must be two numbers for each axis of x {list(x.shape)}, not {widths}"
    return [before + size + after for size, (before, after) in zip(x.shape, widths, strict=True)]


@graph_operator(
    "Pad",
    (tensor("x", FLOATS | {"int8", "int16", "int32", "int64", "uint16"}), tensor("paddings", _INDEX)),
    (tensor("y", like="x"),),
    contents=(shape_is("y", _padded_shape),),
    source="conversion/pad",
)
@graph_operator(
    "PadV3",
    (
        tensor("x", FLOATS | {"int8", "int32"}),
        tensor("paddings", _INDEX),
        tensor("constant_values", like="x", rank=(0, 1), optional=True),
    ),
    (tensor("y", like="x"),),
    attributes=(value("mode", among=("constant",)), value("paddings_contiguous", among=(True,))),
    contents=(shape_is("y", _padded_shape),),
    source="conversion/pad_v3",
)
def _pad(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    filling = inputs[2].values().reshape(-1)[0] if len(inputs) > 2 and inputs[2] is not None else 0
    pad_into(inputs[0], _widths(inputs[1]), filling, outputs[0])


# -------------------------------------------------------------------------------------------------- by index


def _gathered_shape(arguments: dict[str, Any]) -> Sequence[int] | str:
    x, indices, batch = arguments["x"], arguments["indices"], arguments.get("batch_dims", 0)
    (axis,) = numbers(arguments["axis"])
    if not -x.rank <= axis < x.rank or not 0 <= batch <= min(axis % x.rank, indices.rank):
        return f"axis {axis} of x {list(x.shape)} does not fit batch_dims {batch}"
    if x.shape[:batch] != indices.shape[:batch]:
        return f"x {list(x.shape)} and indices {list(indices.shape)} differ in the first {batch} axes"
    return [*x.shape[: axis % x.rank], *indices.shape[batch:], *x.shape[axis % x.rank + 1 :]]


@graph_operator(
    "GatherV2",
    (tensor("x", ANY, rank=(1, 8)), tensor("indices", _INDEX), tensor("axis", _INDEX, rank=(0, 1))),
    (tensor("y", like="x"),),
    contents=(shape_is("y", _gathered_shape),),
    source="index/gather_v2",
)
def _gather(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    x, indices, (axis,), y = inputs[0], inputs[1], numbers(inputs[2]), outputs[0]
    batch, axis = attributes.get("batch_dims", 0), axis % x.rank
    negative = attributes.get("negative_index_support", False)
    where = places(indices, x.shape[axis], "aclop:GatherV2", negative=negative)
    for row in np.ndindex(x.shape[:batch]):
        y.bits[row] = np.take(x.bits[row], where[row], axis - batch)


@graph_operator(
    "GatherNd",
    (tensor("x", ANY, rank=(1, 8)), tensor("indices", _INDEX, rank=(1, 8))),
    (tensor("y", like="x"),),
    relations=(shape_is("y", lambda arguments: gathered_nd_shape(arguments["x"], arguments["indices"])),),
    source="index/gather_nd",
)
def _gather_nd(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    x, indices = inputs
    negative = attributes.get("negative_index_support", False)
    outputs[0].bits[...] = x.bits[nd_places(indices, x.shape, "aclop:GatherNd", negative=negative)]


def _updates_shape(arguments: dict[str, Any]) -> Sequence[int] | str:
    return gathered_nd_shape(arguments["x"], arguments["indices"])


@graph_operator(
    "TensorScatterUpdate",
    (tensor("x", ANY, rank=(1, 8)), tensor("indices", _INDEX, rank=(1, 8)), tensor("updates", like="x")),
    (tensor("y", like="x"),),
    relations=(same_shape("x", "y"), shape_is("updates", _updates_shape)),
    source="index/tensor_scatter_update",
)
def _scatter_update_nd(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    x, indices, updates = inputs
    where = nd_places(indices, x.shape, "aclop:TensorScatterUpdate")
    copy(x, outputs[0])
    outputs[0].bits[where] = updates.bits


def _scattered(arguments: dict[str, Any]) -> str | None:
    whole = DeviceTensor("int8", tuple(numbers(arguments["shape"])), None)
    return shape_is("x", lambda given: gathered_nd_shape(whole, given["indices"]))(arguments) or shape_is(
        "y", lambda given: whole.shape
    )(arguments)


@graph_operator(
    "ScatterNd",
    (tensor("indices", _INDEX, rank=(1, 8)), tensor("x", _NUMBERS), tensor("shape", _INDEX, rank=(1, 1))),
    (tensor("y", like="x"),),
    contents=(_scattered,),
    source="index/scatter_nd",
)
def _scatter_nd(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    indices, x, _ = inputs
    where, values = nd_places(indices, outputs[0].shape, "aclop:ScatterNd"), x.values()
    outputs[0].store(added_nd(np.zeros(outputs[0].shape, values.dtype), where, values))


_COMBINE = {"none": None, "add": np.add, "mul": np.multiply}


@graph_operator(
    "ScatterElements",
    (tensor("data", FLOATS | {"int8", "int32", "uint8"}), tensor("indices", _INDEX), tensor("updates", like="data")),
    (tensor("y", like="data"),),
    attributes=(value("reduction", among=tuple(_COMBINE)),),
    relations=(
        same_shape("data", "y"),
        same_shape("indices", "updates"),
        lambda given: elements_fit(given["data"], given["indices"], given.get("axis", 0)),
    ),
    source="index/scatter_elements",
)
def _scatter_elements(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    data, indices, updates = inputs
    combine, axis = _COMBINE[attributes.get("reduction", "none")], attributes.get("axis", 0)
    outputs[0].store(scatter_elements(data, axis, indices, updates.values(), combine, "aclop:ScatterElements"))


@graph_operator(
    "GatherElements",
    (tensor("x", _ON_CORES), tensor("index", _INDEX)),
    (tensor("y", like="x"),),
    relations=(
        same_shape("index", "y"),
        lambda given: elements_fit(given["x"], given["index"], given.get("dim", 0)),
    ),
    source="index/gather_elements",
)
def _gather_elements(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    gather_elements(inputs[0], attributes.get("dim", 0), inputs[1], outputs[0], "aclop:GatherElements")


def _enter_scatter(name: str, write: Callable, dtypes: frozenset[str]) -> None:
    def updates_shape(arguments: dict[str, Any]) -> Sequence[int]:
        return [*arguments["indices"].shape, *arguments["var"].shape[1:]]

    @graph_operator(
        name,
        (tensor("var", dtypes, rank=(1, 8)), tensor("indices", _INDEX), tensor("updates", like="var")),
        (tensor("var_out", like="var"),),
        relations=(same_shape("var", "var_out"), shape_is("updates", updates_shape)),
        source=f"index/{'scatter_add' if name == 'ScatterAdd' else 'scatter_update'}",
    )
    def run(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
        var, indices, updates = inputs
        values = np.array(var.values())
        where = places(indices, var.shape[0], f"aclop:{name}").reshape(-1)
        write(values, where, updates.values().reshape((-1, *var.shape[1:])))
        change(var, values, outputs)


def _write_rows(into: np.ndarray, where: np.ndarray, rows: np.ndarray) -> None:
    into[where] = rows


_enter_scatter("ScatterAdd", add_rows, frozenset({"float16", "float32", "int32"}))
_enter_scatter("ScatterUpdate", _write_rows, FLOATS | {"int32", "int64"})


def _segments_shape(arguments: dict[str, Any]) -> Sequence[int] | str:
    x, ids = arguments["x"], arguments["segment_ids"]
    if x.shape[: ids.rank] != ids.shape:
        return f"segment_ids {list(ids.shape)} must have the first axes of x {list(x.shape)}"
    return [*numbers(arguments["num_segments"]), *x.shape[ids.rank :]]


@graph_operator(
    "UnsortedSegmentSum",
    (
        tensor("x", FLOATS | {"int32"}, rank=(1, 8)),
        tensor("segment_ids", _INDEX),
        tensor("num_segments", _INDEX, rank=(0, 1)),
    ),
    (tensor("y", like="x"),),
    contents=(shape_is("y", _segments_shape),),
    source="index/unsorted_segment_sum",
)
def _segment_sum(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    """What has a negative id belongs to no segment, as with TensorFlow, whose operator this is."""
    x, ids, (y,) = inputs[0], inputs[1].values().reshape(-1), outputs
    kept = ids >= 0
    where = places(DeviceTensor.of(ids[kept], "int64"), y.shape[0], "aclop:UnsortedSegmentSum")
    rows = x.values().reshape((ids.size, *y.shape[1:]))
    sums = np.zeros(y.shape, rows.dtype)
    add_rows(sums, where, rows[kept])
    y.store(sums)
