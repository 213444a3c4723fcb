"""Operators along axes: sums, means, extremes, norms, cumulative sums, counting, sorting.

Of equal elements the first one is an extreme's place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ascend_emulator.contract import (
    Relation,
    Rule,
    anything,
    axes_of,
    axis_of,
    deduces,
    dtype_number,
    operator,
    same_shape,
    shape_is,
    tensor,
    value,
)
from ascend_emulator.operators.elementwise import converted, floating
from ascend_emulator.tensors import FLOATS, INTEGERS, REAL, DeviceTensor

_NUMBERS = FLOATS | INTEGERS | {"float64"}
_PLACES = frozenset({"int32", "int64"})
_ON_A2 = FLOATS | {"int64", "bool"}  # what MaxDim and MinDim take on the cards that are emulated


def axes_tuple(axes: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Non-negative axes; none given are all."""
    if isinstance(axes, int):
        axes = [axes]
    return tuple(axis % rank for axis in axes) if axes and rank else tuple(range(rank))


def reduced_shape(shape: Sequence[int], axes: int | Sequence[int] | None, keep: bool) -> list[int]:
    gone = axes_tuple(axes, len(shape))
    return [1 if axis in gone else size for axis, size in enumerate(shape) if keep or axis not in gone]


def _reduces(out: str, axes: str, keep: str) -> Relation:
    """A relation: the shape of `out` is that of self without its `axes`, or with each of them 1."""
    return shape_is(
        out, lambda arguments: reduced_shape(arguments["self"].shape, arguments[axes], arguments.get(keep, False))
    )


def _one_element(name: str, *arguments: Any, **options: Any) -> Rule:
    """A tensor of one element, with an axis or without."""
    rule = tensor(name, *arguments, rank=(0, 1), **options)

    def check(given: Any, others: dict[str, Any]) -> str | None:
        problem = rule.check(given, others)
        return problem or (None if given.size == 1 else f"must have one element, not {given}")

    return Rule(name=name, check=check)


# -------------------------------------------------------------------------------------------------- sums and means


def total(values: np.ndarray, axes: int | Sequence[int] | None) -> np.ndarray:
    """The sum along axes, which stay with length 1; integers wrap when it is stored."""
    kind = values.dtype if values.dtype.kind == "f" else np.dtype("int64")
    return np.sum(values, axes_tuple(axes, values.ndim), dtype=kind, keepdims=True)


@operator(
    "aclnnReduceSum",
    takes=(tensor("self", REAL), axes_of("dims"), anything("keepDims"), anything("dtype"), tensor("out", REAL)),
    relations=(_reduces("out", "dims", "keepDims"), dtype_number("dtype")),
    source="ops-math math/reduce_sum aclnnReduceSum",
)
def _sum(self: DeviceTensor, dims: list[int] | None, keep: bool, dtype: int, out: DeviceTensor) -> None:
    out.store(total(converted(self, out.dtype), dims))


@operator(
    "aclnnMean",
    takes=(tensor("self", _NUMBERS), axes_of("dim"), anything("keepDim"), anything("dtype"), tensor("out", _NUMBERS)),
    relations=(_reduces("out", "dim", "keepDim"), dtype_number("dtype")),
    source="ops-math math/reduce_mean aclnnMean",
)
def _mean(self: DeviceTensor, dims: list[int] | None, keep: bool, dtype: int, out: DeviceTensor) -> None:
    values = converted(self, out.dtype)
    out.store(np.mean(floating(values), axes_tuple(dims, values.ndim), keepdims=True))


@operator(
    "aclnnProd",
    takes=(tensor("self", REAL), anything("dtype"), _one_element("out", REAL)),
    relations=(dtype_number("dtype"),),
    source="ops-math math/reduce_prod aclnnProd",
)
def _product(self: DeviceTensor, dtype: int, out: DeviceTensor) -> None:
    out.store(np.prod(converted(self, out.dtype)))


@operator(
    "aclnnProdDim",
    takes=(tensor("self", REAL), axis_of("dim"), anything("keepDim"), anything("dtype"), tensor("out", REAL)),
    relations=(_reduces("out", "dim", "keepDim"), dtype_number("dtype")),
    source="ops-math math/reduce_prod aclnnProdDim",
)
def _product_along(self: DeviceTensor, dim: int, keep: bool, dtype: int, out: DeviceTensor) -> None:
    out.store(np.prod(converted(self, out.dtype), dim))


@operator(
    "aclnnCumsum",
    takes=(tensor("self", _NUMBERS), axis_of("dim"), anything("dtype"), tensor("out", _NUMBERS)),
    relations=(same_shape("self", "out"), dtype_number("dtype")),
    source="ops-math math/cumsum aclnnCumsum",
)
def _cumsum(self: DeviceTensor, dim: int, dtype: int, out: DeviceTensor) -> None:
    out.store(cumulative(converted(self, out.dtype), dim))


def cumulative(values: np.ndarray, axis: int, *, exclusive: bool = False, reverse: bool = False) -> np.ndarray:
    """Sums up to each element, or up to the one before; from the end if `reverse`."""
    if not values.ndim:
        return np.zeros_like(values) if exclusive else values
    ordered = np.flip(values, axis) if reverse else values
    # numpy would take narrow integers to int64, which is the same after wrapping.
    sums = np.cumsum(ordered, axis)
    if exclusive:
        sums = np.roll(sums, 1, axis)
        sums[(slice(None),) * (axis % values.ndim) + (slice(0, 1),)] = 0
    return np.flip(sums, axis) if reverse else sums


@operator(
    "aclnnLogSumExp",
    takes=(tensor("self", FLOATS | INTEGERS | {"bool"}), axes_of("dim"), anything("keepDim"), tensor("out", FLOATS)),
    relations=(_reduces("out", "dim", "keepDim"),),
    source="ops-math math/reduce_log_sum_exp aclnnLogSumExp",
)
def _log_sum_exp(self: DeviceTensor, dims: list[int], keep: bool, out: DeviceTensor) -> None:
    values, axes = floating(self.values()), axes_tuple(dims, self.rank)
    highest = np.max(values, axes, keepdims=True)
    highest = np.where(np.isfinite(highest), highest, 0)
    out.store(highest + np.log(np.sum(np.exp(values - highest), axes, keepdims=True)))


def p_norm(values: np.ndarray, p: float, axes: tuple[int, ...]) -> np.ndarray:
    sizes = np.abs(values)
    if p == 0:
        return np.sum(sizes != 0, axes)
    if np.isinf(p):
        return (np.max if p > 0 else np.min)(sizes, axes)
    if p == 2:
        return np.sqrt(np.sum(sizes * sizes, axes))
    return np.sum(sizes**p, axes) ** (1 / p)


@operator(
    "aclnnNorm",
    takes=(tensor("self", FLOATS), anything("pScalar"), axes_of("dim"), anything("keepdim"), tensor("out", FLOATS)),
    relations=(_reduces("out", "dim", "keepdim"),),
    source="ops-nn norm/lp_norm_v2 aclnnNorm",
)
def _norm(self: DeviceTensor, p: float, dims: list[int], keep: bool, out: DeviceTensor) -> None:
    out.store(p_norm(self.values(), p, axes_tuple(dims, self.rank)))


@operator(
    "aclnnLinalgVectorNorm",
    takes=(
        tensor("self", FLOATS),
        anything("ord"),
        axes_of("dims"),
        anything("keepDims"),
        anything("dtype"),
        tensor("out", FLOATS),
    ),
    relations=(_reduces("out", "dims", "keepDims"), dtype_number("dtype")),
    source="ops-nn norm/lp_norm_v2 aclnnLinalgVectorNorm",
)
def _vector_norm(self: DeviceTensor, p: float, dims: list[int], keep: bool, dtype: int, out: DeviceTensor) -> None:
    out.store(p_norm(converted(self, out.dtype), p, axes_tuple(dims, self.rank)))


# -------------------------------------------------------------------------------------------------- extremes and truth


def _enter_extremes(name: str, function: Callable, place: Callable, folder: str) -> None:
    @operator(
        f"aclnn{name}",
        takes=(tensor("self", REAL), _one_element("out", like="self")),
        source=f"ops-math math/reduce_{name.lower()} aclnn{name}",
    )
    def of_all(self: DeviceTensor, out: DeviceTensor) -> None:
        out.store(function(self.values()))

    @operator(
        f"aclnnA{name.lower()}",
        takes=(tensor("self", REAL), axes_of("dim"), anything("keepDim"), tensor("out", like="self")),
        relations=(_reduces("out", "dim", "keepDim"),),
        source=f"ops-math math/reduce_{name.lower()} aclnnA{name.lower()}",
    )
    def along(self: DeviceTensor, dims: list[int], keep: bool, out: DeviceTensor) -> None:
        out.store(function(self.values(), axes_tuple(dims, self.rank)))

    @operator(
        f"aclnn{name}Dim",
        takes=(
            tensor("self", _ON_A2, rank=(1, 8)),
            axis_of("dim"),
            anything("keepdim"),
            tensor("out", like="self"),
            tensor("indices", _PLACES),
        ),
        relations=(_reduces("out", "dim", "keepdim"), same_shape("out", "indices")),
        source=f"ops-math math/arg_{name.lower()}_with_value aclnn{name}Dim",
    )
    def with_place(self: DeviceTensor, dim: int, keep: bool, out: DeviceTensor, indices: DeviceTensor) -> None:
        values = self.values()
        out.store(function(values, dim))
        indices.store(place(values, dim))

    @operator(
        f"aclnnArg{name}",
        takes=(tensor("self", _NUMBERS), axis_of("dim"), anything("keepdim"), tensor("out", _PLACES)),
        relations=(_reduces("out", "dim", "keepdim"),),
        source=f"ops-math {folder} aclnnArg{name}",
    )
    def place_of(self: DeviceTensor, dim: int, keep: bool, out: DeviceTensor) -> None:
        out.store(place(self.values(), dim if self.rank else None))


_enter_extremes("Max", np.max, np.argmax, "math/arg_max_v2")
_enter_extremes("Min", np.min, np.argmin, "math/arg_min")


def _enter_truth(name: str, function: Callable, results: frozenset[str]) -> None:
    @operator(
        f"aclnn{name}",
        takes=(tensor("self", REAL), axes_of("dim"), anything("keepdim"), tensor("out", results)),
        relations=(_reduces("out", "dim", "keepdim"),),
        source=f"ops-math math/reduce_{name.lower()} aclnn{name}",
    )
    def run(self: DeviceTensor, dims: list[int], keep: bool, out: DeviceTensor) -> None:
        out.store(function(self.values(), axes_tuple(dims, self.rank)))


_enter_truth("All", np.all, frozenset({"bool", "uint8"}))
_enter_truth("Any", np.any, frozenset({"bool"}))


# -------------------------------------------------------------------------------------------------- order and counts


def order_of(values: np.ndarray, axis: int, *, descending: bool) -> np.ndarray:
    """Places in sorted order, equal elements in the order they came; NaN is greater than every number."""
    if not descending:
        return np.argsort(values, axis, kind="stable")
    backwards = np.argsort(np.flip(values, axis), axis, kind="stable")
    return values.shape[axis] - 1 - np.flip(backwards, axis)


def _sortable(arguments: dict[str, Any]) -> str | None:
    self, dim = arguments["self"], arguments["dim"]
    if self.dtype == "bfloat16" and self.shape[dim] == 1:
        return f"an axis of length 1 cannot be sorted in bfloat16: axis {dim} of self {list(self.shape)}"
    return None


@operator(
    "aclnnSort",
    takes=(
        tensor("self", REAL - {"float64"}, rank=(1, 8)),
        anything("stable"),
        axis_of("dim"),
        anything("descending"),
        tensor("valuesOut", like="self"),
        tensor("indicesOut", frozenset({"int64"})),
    ),
    relations=(same_shape("self", "valuesOut", "indicesOut"), _sortable),
    source="ops-math math/sort aclnnSort",
)
def _sort(
    self: DeviceTensor, stable: bool, dim: int, descending: bool, out: DeviceTensor, indices: DeviceTensor
) -> None:
    values = self.values()
    order = order_of(values, dim, descending=descending)
    out.store(np.take_along_axis(values, order, dim))
    indices.store(order)


def _top_shape(arguments: dict[str, Any]) -> Sequence[int] | str:
    shape, k, dim = list(arguments["self"].shape), arguments["k"], arguments["dim"]
    if not 0 <= k <= shape[dim]:
        return f"k must be within 0 and the length of axis {dim} of self {shape}, not {k}"
    shape[dim] = k
    return shape


@operator(
    "aclnnTopk",
    takes=(
        tensor("self", _NUMBERS, rank=(1, 8)),
        anything("k"),
        axis_of("dim"),
        anything("largest"),
        value("sorted", among=(True,)),
        tensor("valuesOut", like="self"),
        tensor("indicesOut", frozenset({"int64"})),
    ),
    relations=(shape_is("valuesOut", _top_shape), same_shape("valuesOut", "indicesOut")),
    source="ops-math math/topk aclnnTopk",
)
def _topk(
    self: DeviceTensor, k: int, dim: int, largest: bool, is_sorted: bool, out: DeviceTensor, indices: DeviceTensor
) -> None:
    top(self, k, dim, largest, out, indices)


def top(self: DeviceTensor, k: int, axis: int, largest: bool, out: DeviceTensor, indices: DeviceTensor) -> None:
    values = self.values()
    order = np.take(order_of(values, axis, descending=largest), range(k), axis)
    out.store(np.take_along_axis(values, order, axis))
    indices.store(order)


def _counted_length(arguments: dict[str, Any]) -> Sequence[int] | str:
    values, least = arguments["self"].values(), arguments["minlength"]
    if values.size and values.min() < 0:
        return f"self must not be negative, not {values.min()}"
    return [max(least, int(values.max()) + 1 if values.size else 0)]


@operator(
    "aclnnBincount",
    takes=(
        tensor("self", INTEGERS, rank=(1, 1)),
        tensor("weights", REAL - {"bfloat16"}, rank=(1, 1), optional=True),
        value("minlength", low=0),
        tensor("out", frozenset({"int32", "int64", "float32", "float64"}), rank=(1, 1)),
    ),
    relations=(same_shape("self", "weights"),),
    contents=(shape_is("out", _counted_length),),
    source="ops-math math/bincount aclnnBincount",
)
def _bincount(self: DeviceTensor, weights: DeviceTensor | None, minlength: int, out: DeviceTensor) -> None:
    out.store(np.bincount(self.values(), weights and weights.values(), out.size))


@operator(
    "aclnnHistc",
    takes=(
        tensor("self", (FLOATS | INTEGERS) - {"bfloat16"}),
        value("bins", low=1),
        anything("min"),
        anything("max"),
        tensor("out", (FLOATS | INTEGERS) - {"bfloat16"}, rank=(1, 1)),
    ),
    relations=(shape_is("out", lambda arguments: [arguments["bins"]]), deduces("self")),
    source="ops-math math/histogram_v2 aclnnHistc",
)
def _histogram(self: DeviceTensor, bins: int, low: float, high: float, out: DeviceTensor) -> None:
    values = floating(self.values())
    if low == high == 0 and values.size:
        low, high = values.min(), values.max()
    out.store(np.histogram(values, bins, (low, high))[0])
