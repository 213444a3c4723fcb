"""Operators of CANN's graph engine, which MindSpore launches by name where there is no aclnn form, or where it prefers
these: aclop:GatherV2, aclop:ApplyAdamD, ...

Axes, begins and sizes come as tensors, so that shapes are checked only when the operator is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ascend_emulator.contract import (
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
from ascend_emulator.operators.creation import coded_shape, one_hot
from ascend_emulator.operators.elementwise import copy, operands
from ascend_emulator.operators.reduction import axes_tuple, cumulative, order_of, reduced_shape, top, total
from ascend_emulator.tensors import ANY, FLOATS, DeviceTensor

Tensors = list[DeviceTensor]
Attributes = dict[str, Any]
_ARITHMETIC = FLOATS | {"float64"}
# Dtypes that a card's cores take, by op_api of ops-math and ops-nn: with others an operator runs on its AI CPU.
_ON_CORES = FLOATS | {"int32"}
_NUMBERS = ANY - {"bool"}
_INDEX = frozenset({"int32", "int64"})


def graph_operator(
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
        source=document(name, source),
    )


def _mapping(
    name: str, dtypes: frozenset[str], folder: str, *, rank: tuple[int, int] = (0, 8), gives: Rule | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`graph_operator` of x, with a result of its shape, by default of its dtype."""
    results = (gives or tensor("y", like="x"),)
    relations = (same_shape("x", "y"),)
    return graph_operator(name, (tensor("x", dtypes, rank=rank),), results, relations=relations, source=folder)


def document(name: str, folder: str) -> str:
    return f"{'ops-math' if folder.startswith(('math', 'conversion')) else 'ops-nn'} {folder} REG_OP({name})"


def numbers(one: DeviceTensor) -> list[int]:
    """What a tensor of axes or sizes says."""
    return one.values().reshape(-1).tolist()


# -------------------------------------------------------------------------------------------------- element by element

# name: function, dtypes allowed, folder. Of gradients the first tensor is the function's value, the second the slope.
_BINARY = {
    "Add": (np.add, _ON_CORES | {"int8", "int64", "uint8", "bool"}, "math/add"),
    "FloorMod": (np.remainder, _ARITHMETIC | {"int32", "int64"}, "math/floor_mod"),
    "RealDiv": (np.true_divide, _ON_CORES, "math/real_div"),
    "RsqrtGrad": (lambda y, slope: -0.5 * slope * y**3, _ARITHMETIC, "math/rsqrt_grad"),
    "SqrtGrad": (lambda y, slope: 0.5 * slope / y, _ARITHMETIC, "math/sqrt_grad"),
}


def _enter_binary(name: str, function: Callable, dtypes: frozenset[str], folder: str) -> None:
    @graph_operator(
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


@_mapping("IsNan", _ARITHMETIC, "math/is_nan", gives=tensor("y", frozenset({"bool"})))
def _is_nan(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    outputs[0].store(np.isnan(inputs[0].values()))


for _name, _folder in {"Identity": "conversion/identity", "TensorMove": "conversion/tensor_move"}.items():

    @_mapping(_name, ANY, _folder)
    def _copied(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
        copy(inputs[0], outputs[0])


def alike(arguments: dict[str, Any]) -> str | None:
    """The inputs have one shape and dtype."""
    given = arguments["inputs"]
    return None if len({(one.dtype, one.shape) for one in given}) == 1 else f"inputs must be alike, not {given}"


_MOST_INPUTS = 32


def few(arguments: dict[str, Any]) -> str | None:
    """CANN's own callers give these operators no more inputs at once, and their binaries end there."""
    given = len(arguments["inputs"])
    return None if given <= _MOST_INPUTS else f"takes {_MOST_INPUTS} inputs at most, not {given}"


@operator(
    "aclop:AddN",
    takes=(tensors("inputs", _ON_CORES | {"int64"}),),
    outputs=(tensor("y"),),
    relations=(few, alike, shape_is("y", lambda arguments: arguments["inputs"][0].shape)),
    source=document("AddN", "math/add_n"),
)
def _add_all(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    outputs[0].store(sum((one.values() for one in inputs[1:]), inputs[0].values()))


# -------------------------------------------------------------------------------------------------- references


def change(reference: DeviceTensor, values: np.ndarray, outputs: Tensors, at: int = 0) -> None:
    """Writes into a reference, and into the output that stands for it."""
    reference.store(values)
    if outputs[at].bits is not None:
        copy(reference, outputs[at])


def _enter_assign(name: str, function: Callable, dtypes: frozenset[str], folder: str, *, widens: bool = False) -> None:
    @graph_operator(
        name,
        (tensor("ref", dtypes), tensor("value", FLOATS | dtypes) if widens else tensor("value", like="ref")),
        (tensor("ref_out", like="ref"),),
        relations=(same_shape("ref", "value", "ref_out"),),
        source=folder,
    )
    def run(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
        reference, given = inputs
        change(reference, function(reference.values(), given.values()), outputs)


_enter_assign("Assign", lambda old, new: new, ANY, "conversion/assign")
# The prototype names one dtype for both. MindSpore's pipelines add bfloat16 gradients to float32 accumulators with it.
_enter_assign("AssignAdd", np.add, _NUMBERS, "math/assign_add", widens=True)
_enter_assign("AssignSub", np.subtract, _NUMBERS, "math/assign_sub")

_RATES = ("beta1_power", "beta2_power", "lr", "beta1", "beta2", "epsilon")


@graph_operator(
    "ApplyAdamD",
    (
        tensor("var", FLOATS),
        *(tensor(name, like="var") for name in ("m", "v")),
        *(tensor(name, like="var", rank=(0, 1)) for name in _RATES),
        tensor("grad", like="var"),
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


def _enter_reduction(name: str, function: Callable, dtypes: frozenset[str]) -> None:
    def shape(arguments: dict[str, Any]) -> Sequence[int]:
        axes, x = numbers(arguments["axes"]), arguments["x"]
        if not axes and arguments.get("noop_with_empty_axes", True):
            return x.shape
        return reduced_shape(x.shape, axes, arguments.get("keep_dims", False))

    @graph_operator(
        name,
        (tensor("x", dtypes), tensor("axes", _INDEX)),
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


_enter_reduction("ReduceSum", total, _ON_CORES | {"int64"})
_enter_reduction("ReduceMean", np.mean, FLOATS)
_enter_reduction("ReduceProd", np.prod, _ON_CORES | {"int8", "int64", "uint8"})


def _place_shape(arguments: dict[str, Any]) -> Sequence[int]:
    return reduced_shape(arguments["x"].shape, numbers(arguments["dimension"]), False)


def _enter_place(name: str, function: Callable, dtypes: frozenset[str], folder: str) -> None:
    @graph_operator(
        name,
        (tensor("x", dtypes), tensor("dimension", _INDEX, rank=(0, 1))),
        (tensor("y", _INDEX),),
        contents=(shape_is("y", _place_shape),),
        source=folder,
    )
    def run(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
        outputs[0].store(function(inputs[0].values(), numbers(inputs[1])[0]))


_enter_place("ArgMaxV2", np.argmax, _ON_CORES | {"int64"}, "math/arg_max_v2")
_enter_place("ArgMin", np.argmin, FLOATS | {"int64"}, "math/arg_min")


@graph_operator(
    "Cumsum",
    (tensor("x", _ON_CORES), tensor("axis", _INDEX, rank=(0, 1))),
    (tensor("y", like="x"),),
    relations=(same_shape("x", "y"),),
    source="math/cumsum",
)
def _cumsum(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    exclusive, reverse = attributes.get("exclusive", False), attributes.get("reverse", False)
    outputs[0].store(cumulative(inputs[0].values(), numbers(inputs[1])[0], exclusive=exclusive, reverse=reverse))


@graph_operator(
    "Sort",
    (tensor("x", FLOATS, rank=(1, 8)),),
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


@graph_operator(
    "TopK",
    (tensor("x", _NUMBERS - {"float64"}, rank=(1, 8)), tensor("k", frozenset({"int32"}), rank=(0, 1))),
    (tensor("values", like="x"), tensor("indices", frozenset({"int32"}))),
    relations=(same_shape("values", "indices"),),
    contents=(shape_is("values", _top_shape),),
    source="math/topk",
)
def _topk(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    largest = attributes.get("largest", True)
    top(inputs[0], numbers(inputs[1])[0], attributes.get("dim", -1), largest, *outputs)


# -------------------------------------------------------------------------------------------------- making values


def _hot_shape(arguments: dict[str, Any]) -> Sequence[int]:
    return coded_shape(arguments["x"], numbers(arguments["depth"])[0], arguments.get("axis", -1))


@graph_operator(
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


_RANGES = _ON_CORES | {"int64"}


@graph_operator(
    "Range",
    tuple(tensor(name, _RANGES, rank=(0, 1)) for name in ("start", "limit", "delta")),
    (tensor("y", _RANGES, rank=(1, 1)),),
    source="math/range",
)
def _range(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    start, _, delta = (one.values().reshape(-1)[0] for one in inputs)
    outputs[0].store(start + delta * np.arange(outputs[0].size))


@graph_operator(
    "Fill",
    (tensor("dims", _INDEX, rank=(0, 1)), tensor("value", ANY - {"float64", "int16", "uint8"}, rank=(0, 1))),
    (tensor("y", like="value"),),
    contents=(shape_is("y", lambda arguments: numbers(arguments["dims"])),),
    source="conversion/fill",
)
def _fill(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    outputs[0].bits[...] = inputs[1].bits.reshape(-1)[:1]


def _enter_constant(name: str, constant: int, dtypes: frozenset[str], folder: str) -> None:
    @_mapping(name, dtypes, folder)
    def run(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
        outputs[0].store(constant)


_enter_constant("OnesLike", 1, _ON_CORES | {"int8", "uint8", "bool"}, "math/ones_like")
_enter_constant("ZerosLike", 0, _ON_CORES | {"int8", "int64", "uint8", "bool"}, "math/zero_op")


@_mapping("Tril", ANY, "conversion/tril", rank=(2, 8))
def _tril(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    outputs[0].bits[...] = np.tril(inputs[0].bits, attributes.get("diagonal", 0))
