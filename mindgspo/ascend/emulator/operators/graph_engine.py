"""Operators of CANN's graph engine, which MindSpore launches by name where there is no aclnn form, or where it prefers
these: aclop:GatherV2, aclop:ApplyAdamD, ...

What enters: (inputs, outputs, attributes), an attribute that is not set having its registered default. What leaves:
results in the outputs; operators on a reference also change it. Axes, begins and sizes come as tensors, so that shapes
are checked only when the operator is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mindgspo.ascend.emulator.contract import (
    Relation,
    Rule,
    broadcasts,
    operator,
    same_shape,
    shape_is,
    tensor,
    tensors,
    value,
)
from mindgspo.ascend.emulator.operators.creation import coded_shape, one_hot
from mindgspo.ascend.emulator.operators.elementwise import copy, operands
from mindgspo.ascend.emulator.operators.indexing import (
    add_rows,
    added_nd,
    along,
    elements_fit,
    gather_elements,
    gathered_nd_shape,
    nd_places,
    pad_into,
    part,
    places,
    scatter_elements,
    split,
)
from mindgspo.ascend.emulator.operators.reduction import axes_tuple, cumulative, order_of, reduced_shape, top, total
from mindgspo.ascend.emulator.tensors import ANY, FLOATS, DeviceTensor

Tensors = list[DeviceTensor]
Attributes = dict[str, Any]
_ARITHMETIC = FLOATS | {"float64"}
_NUMBERS = ANY - {"bool"}
_INDEX = frozenset({"int32", "int64"})


def _graph(
    name: str,
    takes: Sequence[Rule],
    gives: Sequence[Rule],
    *,
    attributes: Sequence[Rule] = (),
    relations: Sequence[Relation] = (),
    contents: Sequence[Relation] = (),
    source: str,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`operator` with one rule per input and output. source: the folder of the registration."""

    def as_many(arguments: dict[str, Any]) -> str | None:
        given = len(arguments["inputs"]), len(arguments["outputs"])
        expected = len(takes), len(gives)
        if given == expected:
            return None
        return f"takes {expected[0]} tensors and gives {expected[1]}, not {given[0]} and {given[1]}"

    return operator(
        f"aclop:{name}",
        takes=(*takes, *attributes),
        outputs=gives,
        relations=(as_many, *relations),
        contents=contents,
        source=_document(name, source),
    )


def _document(name: str, folder: str) -> str:
    return f"{'ops-math' if folder.startswith(('math', 'conversion')) else 'ops-nn'} {folder} REG_OP({name})"


def numbers(one: DeviceTensor) -> list[int]:
    """What a tensor of axes or sizes says."""
    return one.values().reshape(-1).tolist()


# -------------------------------------------------------------------------------------------------- element by element

# name: function, dtypes allowed, folder. Of gradients the first tensor is the function's value, the second the slope.
_BINARY = {
    "FloorMod": (np.remainder, _ARITHMETIC | {"int32", "int64"}, "math/floor_mod"),
    "RealDiv": (np.true_divide, _NUMBERS - {"uint32", "uint64"}, "math/real_div"),
    "RsqrtGrad": (lambda y, slope: -0.5 * slope * y**3, _ARITHMETIC, "math/rsqrt_grad"),
    "SqrtGrad": (lambda y, slope: 0.5 * slope / y, _ARITHMETIC, "math/sqrt_grad"),
}


def _enter_binary(name: str, function: Callable, dtypes: frozenset[str], folder: str) -> None:
    @_graph(
        name,
        (tensor("x1", dtypes), tensor("x2", like="x1")),
        (tensor("y", like="x1"),),
        relations=(broadcasts("x1", "x2", to="y"),),
        source=folder,
    )
    def run(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
        outputs[0].store(function(*operands(*inputs)))


for _name, _row in _BINARY.items():
    _enter_binary(_name, *_row)


@_graph(
    "IsNan",
    (tensor("x", _ARITHMETIC),),
    (tensor("y", frozenset({"bool"})),),
    relations=(same_shape("x", "y"),),
    source="math/is_nan",
)
def _is_nan(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    outputs[0].store(np.isnan(inputs[0].values()))


@_graph(
    "Identity",
    (tensor("x", ANY),),
    (tensor("y", like="x"),),
    relations=(same_shape("x", "y"),),
    source="conversion/identity",
)
def _identity(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    copy(inputs[0], outputs[0])


def _alike(arguments: dict[str, Any]) -> str | None:
    """The inputs have one shape and dtype."""
    given = arguments["inputs"]
    return None if len({(one.dtype, one.shape) for one in given}) == 1 else f"inputs must be alike, not {given}"


@operator(
    "aclop:AddN",
    takes=(tensors("inputs", _NUMBERS),),
    outputs=(tensor("y", _NUMBERS),),
    relations=(_alike, shape_is("y", lambda arguments: arguments["inputs"][0].shape)),
    source=_document("AddN", "math/add_n"),
)
def _add_all(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    outputs[0].store(sum((one.values() for one in inputs[1:]), inputs[0].values()))


# -------------------------------------------------------------------------------------------------- references


def change(reference: DeviceTensor, values: np.ndarray, outputs: Tensors, at: int = 0) -> None:
    """Writes into a reference, and into the output that stands for it."""
    reference.store(values)
    if outputs[at].bits is not None:
        copy(reference, outputs[at])


def _enter_assign(name: str, function: Callable, dtypes: frozenset[str], folder: str) -> None:
    @_graph(
        name,
        (tensor("ref", dtypes), tensor("value", like="ref")),
        (tensor("ref_out", like="ref"),),
        relations=(same_shape("ref", "value", "ref_out"),),
        source=folder,
    )
    def run(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
        reference, given = inputs
        change(reference, function(reference.values(), given.values()), outputs)


_enter_assign("Assign", lambda old, new: new, ANY, "conversion/assign")
_enter_assign("AssignAdd", np.add, _NUMBERS, "math/assign_add")
_enter_assign("AssignSub", np.subtract, _NUMBERS, "math/assign_sub")

_RATES = ("beta1_power", "beta2_power", "lr", "beta1", "beta2", "epsilon")


@_graph(
    "ApplyAdamD",
    (
        tensor("var", FLOATS),
        *(tensor(name, like="var") for name in ("m", "v")),
        *(tensor(name, FLOATS, rank=(0, 1)) for name in _RATES),
        tensor("grad", FLOATS),
    ),
    tuple(tensor(f"{name}_out", like="var") for name in ("var", "m", "v")),
    attributes=(value("use_nesterov", among=(True, False)),),
    relations=(same_shape("var", "m", "v", "grad", "var_out", "m_out", "v_out"),),
    source="optim/apply_adam_d",
)
def _adam(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    var, m, v, beta1_power, beta2_power, rate, beta1, beta2, epsilon, slope = (one.values() for one in inputs)
    step = rate * np.sqrt(1 - beta2_power) / (1 - beta1_power)
    first = beta1 * m + (1 - beta1) * slope
    second = beta2 * v + (1 - beta2) * slope * slope
    direction = beta1 * first + (1 - beta1) * slope if attributes.get("use_nesterov") else first
    for at, values in enumerate((var - step * direction / (np.sqrt(second) + epsilon), first, second)):
        change(inputs[at], values, outputs, at)


# -------------------------------------------------------------------------------------------------- along axes


def _enter_reduction(name: str, function: Callable) -> None:
    def shape(arguments: dict[str, Any]) -> Sequence[int]:
        axes, x = numbers(arguments["axes"]), arguments["x"]
        if not axes and arguments.get("noop_with_empty_axes", True):
            return x.shape
        return reduced_shape(x.shape, axes, arguments.get("keep_dims", False))

    @_graph(
        name,
        (tensor("x", _NUMBERS), tensor("axes", _INDEX)),
        (tensor("y", like="x"),),
        contents=(shape_is("y", shape),),
        source=f"math/reduce_{name[6:].lower()}",
    )
    def run(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
        x, axes = inputs[0], numbers(inputs[1])
        if not axes and attributes.get("noop_with_empty_axes", True):
            copy(x, outputs[0])
        else:
            outputs[0].store(function(x.values(), axes_tuple(axes, x.rank)))


_enter_reduction("ReduceSum", lambda values, axes: total(values, axes, ""))
_enter_reduction("ReduceMean", np.mean)
_enter_reduction("ReduceProd", np.prod)


def _place_shape(arguments: dict[str, Any]) -> Sequence[int]:
    return reduced_shape(arguments["x"].shape, numbers(arguments["dimension"]), False)


def _enter_place(name: str, function: Callable, folder: str) -> None:
    @_graph(
        name,
        (tensor("x", _NUMBERS), tensor("dimension", _INDEX, rank=(0, 1))),
        (tensor("y", _INDEX),),
        contents=(
            shape_is(
                "y", lambda arguments: reduced_shape(arguments["x"].shape, numbers(arguments["dimension"]), False)
            ),
        ),
        source=folder,
    )
    def run(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
        outputs[0].store(function(inputs[0].values(), numbers(inputs[1])[0]))


_enter_place("ArgMaxV2", np.argmax, "math/arg_max_v2")
_enter_place("ArgMin", np.argmin, "math/arg_min")


@_graph(
    "Cumsum",
    (tensor("x", _NUMBERS), tensor("axis", _INDEX, rank=(0, 1))),
    (tensor("y", like="x"),),
    relations=(same_shape("x", "y"),),
    source="math/cumsum",
)
def _cumsum(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    exclusive, reverse = attributes.get("exclusive", False), attributes.get("reverse", False)
    outputs[0].store(cumulative(inputs[0].values(), numbers(inputs[1])[0], exclusive=exclusive, reverse=reverse))


@_graph(
    "Sort",
    (tensor("x", _NUMBERS - {"float64"}, rank=(1, 8)),),
    (tensor("y1", like="x"), tensor("y2", _INDEX)),
    relations=(same_shape("x", "y1", "y2"),),
    source="math/sort",
)
def _sort(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    x, axis = inputs[0], attributes.get("axis", -1)
    order = order_of(x.values(), axis, descending=attributes.get("descending", False))
    outputs[0].store(np.take_along_axis(x.values(), order, axis))
    outputs[1].store(order)


def _top_shape(arguments: dict[str, Any]) -> Sequence[int]:
    shape = list(arguments["x"].shape)
    shape[arguments.get("dim", -1)] = numbers(arguments["k"])[0]
    return shape


@_graph(
    "TopK",
    (tensor("x", _NUMBERS, rank=(1, 8)), tensor("k", frozenset({"int32"}), rank=(0, 1))),
    (tensor("values", like="x"), tensor("indices", frozenset({"int32"}))),
    relations=(same_shape("values", "indices"),),
    contents=(shape_is("values", _top_shape),),
    source="math/topk",
)
def _topk(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    largest = attributes.get("largest", True)
    top(inputs[0], numbers(inputs[1])[0], attributes.get("dim", -1), largest, *outputs)


# -------------------------------------------------------------------------------------------------- joining, cutting


def _packed_shape(arguments: dict[str, Any]) -> Sequence[int]:
    shape, axis = list(arguments["inputs"][0].shape), arguments.get("axis", 0)
    shape.insert(axis % (len(shape) + 1), len(arguments["inputs"]))
    return shape


@operator(
    "aclop:Pack",
    takes=(tensors("inputs", ANY),),
    outputs=(tensor("y", ANY),),
    relations=(_alike, shape_is("y", _packed_shape)),
    source=_document("Pack", "conversion/pack"),
)
def _pack(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    (out,) = outputs
    for at, one in enumerate(inputs):
        copy(one, part(out, along(attributes.get("axis", 0), out.rank, at)))


def _unpacked(arguments: dict[str, Any]) -> str | None:
    x, outputs, axis = arguments["x"], arguments["outputs"], arguments.get("axis", 0)
    expected = [(x.shape[: axis % x.rank] + x.shape[axis % x.rank + 1 :])] * x.shape[axis]
    given = [one.shape for one in outputs]
    return None if given == expected else f"outputs must be of shapes {expected}, not {given}"


@operator(
    "aclop:Unpack",
    takes=(tensor("x", ANY, rank=(1, 8)),),
    outputs=(tensors("outputs", ANY),),
    relations=(_unpacked,),
    source=_document("Unpack", "conversion/unpack"),
)
def _unpack(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    (x,) = inputs
    for at, one in enumerate(outputs):
        copy(part(x, along(attributes.get("axis", 0), x.rank, at)), one)


def _split_evenly(arguments: dict[str, Any]) -> str | None:
    x, outputs, axis = arguments["x"], arguments["outputs"], numbers(arguments["split_dim"])[0]
    expected = list(x.shape)
    expected[axis] //= len(outputs)
    if expected[axis] * len(outputs) == x.shape[axis] and all(list(one.shape) == expected for one in outputs):
        return None
    return f"outputs must be equal parts of axis {axis} of x {list(x.shape)}, not {outputs}"


@operator(
    "aclop:Split",
    takes=(tensor("split_dim", frozenset({"int32"}), rank=(0, 1)), tensor("x", ANY, rank=(1, 8))),
    outputs=(tensors("outputs", ANY),),
    contents=(_split_evenly,),
    source=_document("Split", "conversion/split"),
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


@_graph(
    "StridedSlice",
    (tensor("x", ANY), *_BOUNDS),
    (tensor("y", like="x"),),
    contents=(shape_is("y", _viewed_shape("x")),),
    source="conversion/strided_slice",
)
def _strided_slice(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    where = strided({"begin": inputs[1], "end": inputs[2], "strides": inputs[3], **attributes})
    outputs[0].bits[...] = inputs[0].bits[where]


@_graph(
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


@_graph(
    "Slice",
    (tensor("x", ANY), tensor("offsets", _INDEX, rank=(1, 1)), tensor("size", _INDEX, rank=(1, 1))),
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


@_graph(
    "Pad",
    (tensor("x", ANY), tensor("paddings", _INDEX)),
    (tensor("y", like="x"),),
    contents=(shape_is("y", _padded_shape),),
    source="conversion/pad",
)
@_graph(
    "PadV3",
    (tensor("x", ANY), tensor("paddings", _INDEX), tensor("constant_values", like="x", rank=(0, 1), optional=True)),
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


@_graph(
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


@_graph(
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


@_graph(
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


@_graph(
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


@_graph(
    "ScatterElements",
    (tensor("data", _NUMBERS), tensor("indices", _INDEX), tensor("updates", like="data")),
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


@_graph(
    "GatherElements",
    (tensor("x", ANY), tensor("index", _INDEX)),
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

    @_graph(
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


_enter_scatter("ScatterAdd", add_rows, FLOATS | {"int32", "int8", "uint8"})
_enter_scatter("ScatterUpdate", _write_rows, FLOATS | {"int32", "int8", "uint8", "int64", "uint32", "uint64"})


def _segments_shape(arguments: dict[str, Any]) -> Sequence[int] | str:
    x, ids = arguments["x"], arguments["segment_ids"]
    if x.shape[: ids.rank] != ids.shape:
        return f"segment_ids {list(ids.shape)} must have the first axes of x {list(x.shape)}"
    return [*numbers(arguments["num_segments"]), *x.shape[ids.rank :]]


@_graph(
    "UnsortedSegmentSum",
    (
        tensor("x", FLOATS | {"int32", "int64", "uint32", "uint64"}, rank=(1, 8)),
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


# -------------------------------------------------------------------------------------------------- making values


def _hot_shape(arguments: dict[str, Any]) -> Sequence[int]:
    return coded_shape(arguments["x"], numbers(arguments["depth"])[0], arguments.get("axis", -1))


@_graph(
    "OneHot",
    (
        tensor("x", frozenset({"uint8", "int32", "int64"})),
        tensor("depth", _INDEX, rank=(0, 1)),
        tensor("on_value", _NUMBERS),
        tensor("off_value", like="on_value"),
    ),
    (tensor("y", like="on_value"),),
    contents=(shape_is("y", _hot_shape),),
    source="math/one_hot",
)
def _one_hot(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    x, depth, on, off = inputs
    one_hot(x, numbers(depth)[0], on, off, attributes.get("axis", -1), outputs[0])


_RANGES = _ARITHMETIC | {"int32", "int64"}


@_graph(
    "Range",
    tuple(tensor(name, _RANGES, rank=(0, 1)) for name in ("start", "limit", "delta")),
    (tensor("y", _RANGES, rank=(1, 1)),),
    source="math/range",
)
def _range(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    start, _, delta = (one.values().reshape(-1)[0] for one in inputs)
    outputs[0].store(start + delta * np.arange(outputs[0].size))


@_graph(
    "Fill",
    (tensor("dims", _INDEX, rank=(0, 1)), tensor("value", ANY, rank=(0, 1))),
    (tensor("y", like="value"),),
    contents=(shape_is("y", lambda arguments: numbers(arguments["dims"])),),
    source="conversion/fill",
)
def _fill(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    outputs[0].bits[...] = inputs[1].bits.reshape(-1)[:1]


@_graph(
    "Tril",
    (tensor("x", ANY, rank=(2, 8)),),
    (tensor("y", like="x"),),
    relations=(same_shape("x", "y"),),
    source="conversion/tril",
)
def _tril(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    outputs[0].bits[...] = np.tril(inputs[0].bits, attributes.get("diagonal", 0))
