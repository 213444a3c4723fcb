"""Operators that read and write elements by index.

A place that does not exist is an error here; on a card it is read or written all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ascend_emulator.contract import (
    ContractError,
    Relation,
    anything,
    axis_of,
    operator,
    same_shape,
    shape_is,
    tensor,
    value,
)
from ascend_emulator.operators.elementwise import converted
from ascend_emulator.operators.movement import along, part
from ascend_emulator.tensors import ANY, FLOATS, REAL, DeviceTensor

_INDEX = frozenset({"int32", "int64"})


def places(index: DeviceTensor, length: int, name: str, *, negative: bool = False) -> np.ndarray:
    """The values of an index as int64. negative: whether -1 is the last place.

    Raises ContractError at a place that is not there. name: of the operator.
    """
    found = index.values().astype(np.int64)
    outside = (found < (-length if negative else 0)) | (found >= length)
    if outside.any():
        raise ContractError(
            f"{name}: an index must be within {-length if negative else 0} and {length - 1}, not "
            f"{found[outside][0]}, the first of {outside.sum()}"
        )
    return np.where(found < 0, found + length, found)


# -------------------------------------------------------------------------------------------------- reading by index


def elements_fit(self: DeviceTensor, index: DeviceTensor, axis: int) -> str | None:
    """What is wrong with an index of one place per element: only along `axis` may it be longer than self."""
    shapes = zip(index.shape, self.shape, strict=False)
    others = [wanted <= have for at, (wanted, have) in enumerate(shapes) if at != axis % max(1, self.rank)]
    if index.rank == self.rank and all(others):
        return None
    return f"index {list(index.shape)} must fit into {list(self.shape)} but for axis {axis}"


def _within(arguments: dict[str, Any]) -> str | None:
    index, source = arguments["index"], arguments.get("src")
    if source is not None:
        covered = zip(index.shape, source.shape, strict=False)
        if index.rank != source.rank or any(wanted > have for wanted, have in covered):
            return f"index {list(index.shape)} must fit into src {list(source.shape)}"
    return elements_fit(arguments["self"], index, arguments["dim"])


def _renamed(relation: Relation, **names: str) -> Relation:
    """The relation, for an operator whose arguments have other names."""
    return lambda arguments: relation({**arguments, **{new: arguments[old] for new, old in names.items()}})


def linear_places(index: np.ndarray, axis: int, shape: Sequence[int]) -> np.ndarray:
    """Places in the flattened tensor of the elements that `index` means along an axis."""
    where = list(np.indices(index.shape, sparse=True))
    if where:
        where[axis] = index
    return np.ravel_multi_index(tuple(np.broadcast_arrays(*where)), shape) if where else index


@operator(
    "aclnnGather",
    takes=(tensor("self", ANY), axis_of("dim"), tensor("index", _INDEX), tensor("out", like="self")),
    relations=(same_shape("index", "out"), _within),
    source="ops-nn index/gather_elements_v2 aclnnGather",
)
def _gather(self: DeviceTensor, dim: int, index: DeviceTensor, out: DeviceTensor) -> None:
    gather_elements(self, dim, index, out, "aclnnGather")


def gather_elements(self: DeviceTensor, axis: int, index: DeviceTensor, out: DeviceTensor, name: str) -> None:
    if not self.rank:
        out.bits[...] = self.bits
        return
    where = places(index, self.shape[axis], name, negative=True)
    kept = tuple(slice(None) if at == axis % self.rank else slice(size) for at, size in enumerate(index.shape))
    out.bits[...] = np.take_along_axis(self.bits[kept], where, axis)


def _selected_shape(arguments: dict[str, Any]) -> Sequence[int]:
    shape = list(arguments["self"].shape) or [1]
    shape[arguments["dim"]] = arguments["index"].size
    return shape if arguments["self"].rank else []


@operator(
    "aclnnIndexSelect",
    takes=(tensor("self", ANY), axis_of("dim"), tensor("index", _INDEX, rank=(0, 1)), tensor("out", like="self")),
    relations=(shape_is("out", _selected_shape),),
    source="ops-nn index/gather_v2 aclnnIndexSelect",
)
def _index_select(self: DeviceTensor, dim: int, index: DeviceTensor, out: DeviceTensor) -> None:
    bits = self.bits.reshape(self.shape or (1,))
    where = places(index, bits.shape[dim], "aclnnIndexSelect").reshape(-1)
    out.bits[...] = np.take(bits, where, dim).reshape(out.shape)


@operator(
    "aclnnEmbedding",
    takes=(tensor("weight", REAL, rank=(2, 2)), tensor("indices", _INDEX), tensor("out", like="weight")),
    relations=(shape_is("out", lambda arguments: [*arguments["indices"].shape, arguments["weight"].shape[1]]),),
    source="ops-nn index/embedding aclnnEmbedding",
)
def _embedding(weight: DeviceTensor, indices: DeviceTensor, out: DeviceTensor) -> None:
    out.bits[...] = weight.bits[places(indices, weight.shape[0], "aclnnEmbedding")]


def nd_places(indices: DeviceTensor, shape: Sequence[int], name: str, *, negative: bool = False) -> tuple:
    """One array of places per axis, from the last axis of `indices`."""
    columns = [part(indices, (..., axis)) for axis in range(indices.shape[-1])]
    return tuple(places(column, shape[axis], name, negative=negative) for axis, column in enumerate(columns))


def gathered_nd_shape(self: DeviceTensor, indices: DeviceTensor) -> Sequence[int] | str:
    depth = indices.shape[-1] if indices.rank else 0
    if not 1 <= depth <= self.rank:
        return f"the last axis of indices must be 1 to {self.rank} long, not {depth}"
    return [*indices.shape[:-1], *self.shape[depth:]]


@operator(
    "aclnnGatherNd",
    takes=(
        tensor("self", FLOATS | {"int8", "int32", "int64", "uint8", "bool"}, rank=(1, 8)),
        tensor("indices", _INDEX, rank=(1, 8)),
        anything("negativeIndexSupport"),
        tensor("out", like="self"),
    ),
    relations=(shape_is("out", lambda arguments: gathered_nd_shape(arguments["self"], arguments["indices"])),),
    source="ops-nn index/gather_nd aclnnGatherNd",
)
def _gather_nd(self: DeviceTensor, indices: DeviceTensor, negative: bool, out: DeviceTensor) -> None:
    out.bits[...] = self.bits[nd_places(indices, self.shape, "aclnnGatherNd", negative=negative)]


def _indexed_by(self: DeviceTensor, indices: list[DeviceTensor | None], name: str) -> tuple:
    """numpy's index for a list of tensors, one per axis; none, or one without elements, takes the whole axis."""
    where: list[Any] = []
    for index in indices:
        at = sum(one.ndim if isinstance(one, np.ndarray) and one.dtype == bool else 1 for one in where)
        if index is None or not index.size:
            where.append(slice(None))
        elif index.dtype == "bool":
            where.append(index.bits)
        else:
            where.append(places(index, self.shape[at], name, negative=True))
    return tuple(where)


@operator(
    "aclnnIndex",
    takes=(tensor("self", REAL), anything("indices"), tensor("out", like="self")),
    source="ops-nn index/index aclnnIndex",
)
def _index(self: DeviceTensor, indices: list[DeviceTensor | None], out: DeviceTensor) -> None:
    out.bits[...] = self.bits[_indexed_by(self, indices, "aclnnIndex")]


# -------------------------------------------------------------------------------------------------- writing by index


def add_rows(into: np.ndarray, where: np.ndarray, rows: np.ndarray) -> None:
    """into[where[i]] += rows[i], equal places in order."""
    if not where.size:
        return
    order = np.argsort(where, kind="stable")
    found, starts = np.unique(where[order], return_index=True)
    into[found] += np.add.reduceat(rows[order], starts, axis=0, dtype=into.dtype)


def accumulator(self: DeviceTensor) -> np.ndarray:
    """A copy to add to."""
    return np.array(self.values())


_COMBINE = {0: None, 1: np.add, 2: np.multiply}


def scatter_elements(
    self: DeviceTensor, axis: int, index: DeviceTensor, source: np.ndarray, combine: np.ufunc | None, name: str
) -> np.ndarray:
    """self with the elements of `source` written, or combined, at their places along an axis."""
    result = np.ascontiguousarray(accumulator(self))
    shape = self.shape or (1,)
    where = linear_places(places(index, shape[axis], name, negative=True), axis, shape)
    chosen = source[tuple(slice(size) for size in index.shape)] if source.ndim else np.broadcast_to(source, index.shape)
    flat = result.reshape(-1)
    if combine is None:
        flat[where.reshape(-1)] = chosen.reshape(-1)
    else:
        combine.at(flat, where.reshape(-1), chosen.reshape(-1))
    return result


_SCATTERED = (axis_of("dim"), tensor("index", _INDEX), tensor("src", REAL))


@operator(
    "aclnnScatter",
    takes=(tensor("self", REAL), *_SCATTERED, value("reduce", among=(0, 1, 2)), tensor("out", like="self")),
    relations=(same_shape("self", "out"), _within),
    source="ops-nn index/scatter_elements_v2 aclnnScatter",
)
def _scatter(
    self: DeviceTensor, dim: int, index: DeviceTensor, source: DeviceTensor, reduce: int, out: DeviceTensor
) -> None:
    out.store(scatter_elements(self, dim, index, source.values(), _COMBINE[reduce], "aclnnScatter"))


@operator(
    "aclnnInplaceScatter",
    takes=(
        tensor("selfRef", REAL),
        axis_of("dim", "selfRef"),
        *_SCATTERED[1:],
        value("reduce", among=(0, 1, 2)),
    ),
    relations=(_renamed(_within, self="selfRef"),),
    source="ops-nn index/scatter_elements_v2 aclnnScatter&aclnnInplaceScatter",
)
def _scatter_in_place(self: DeviceTensor, dim: int, index: DeviceTensor, source: DeviceTensor, reduce: int) -> None:
    self.store(scatter_elements(self, dim, index, source.values(), _COMBINE[reduce], "aclnnInplaceScatter"))


@operator(
    "aclnnScatterValue",
    takes=(
        tensor("self", REAL),
        *_SCATTERED[:2],
        anything("value"),
        value("reduce", among=(0, 1, 2)),
        tensor("out", like="self"),
    ),
    relations=(same_shape("self", "out"), _within),
    source="ops-nn index/scatter_elements_v2 aclnnScatterValue",
)
def _scatter_value(
    self: DeviceTensor, dim: int, index: DeviceTensor, filling: float, reduce: int, out: DeviceTensor
) -> None:
    source = converted(filling, self.dtype)
    out.store(scatter_elements(self, dim, index, source, _COMBINE[reduce], "aclnnScatterValue"))


@operator(
    "aclnnInplaceScatterValue",
    takes=(
        tensor("selfRef", REAL),
        axis_of("dim", "selfRef"),
        _SCATTERED[1],
        anything("value"),
        value("reduce", among=(0, 1, 2)),
    ),
    relations=(_renamed(_within, self="selfRef"),),
    source="ops-nn index/scatter_elements_v2 aclnnScatterValue&aclnnInplaceScatterValue",
)
def _scatter_value_in_place(self: DeviceTensor, dim: int, index: DeviceTensor, filling: float, reduce: int) -> None:
    source = converted(filling, self.dtype)
    self.store(scatter_elements(self, dim, index, source, _COMBINE[reduce], "aclnnInplaceScatterValue"))


@operator(
    "aclnnScatterAdd",
    takes=(tensor("self", REAL), *_SCATTERED, tensor("out", like="self")),
    relations=(same_shape("self", "out"), _within),
    source="ops-nn index/scatter_add aclnnScatterAdd",
)
def _scatter_add(self: DeviceTensor, dim: int, index: DeviceTensor, source: DeviceTensor, out: DeviceTensor) -> None:
    out.store(scatter_elements(self, dim, index, source.values(), np.add, "aclnnScatterAdd"))


def _added_shape(arguments: dict[str, Any]) -> Sequence[int]:
    shape = list(arguments["self"].shape) or [1]
    shape[arguments["dim"]] = arguments["index"].size
    return shape if arguments["self"].rank else []


@operator(
    "aclnnIndexAdd",
    takes=(
        tensor("self", REAL),
        axis_of("dim"),
        tensor("index", _INDEX, rank=(0, 1)),
        tensor("source", like="self"),
        anything("alpha"),
        tensor("out", like="self"),
    ),
    relations=(shape_is("source", _added_shape), same_shape("self", "out")),
    source="ops-nn index/inplace_scatter_add aclnnIndexAdd",
)
def _index_add(
    self: DeviceTensor, dim: int, index: DeviceTensor, source: DeviceTensor, alpha: float, out: DeviceTensor
) -> None:
    result = accumulator(self).reshape(self.shape or (1,))
    rows = source.values().reshape(source.shape or (1,))
    if alpha != 1:
        rows = rows * np.asarray(alpha).astype(rows.dtype)
    where = places(index, result.shape[dim], "aclnnIndexAdd").reshape(-1)
    add_rows(np.moveaxis(result, dim, 0), where, np.moveaxis(rows, dim, 0))
    out.store(result)


def _update_shape(arguments: dict[str, Any]) -> str | None:
    var, indices, updates = arguments["varRef"], arguments["indices"], arguments["updates"]
    nd_shape = gathered_nd_shape(var, indices)
    allowed = [[*indices.shape, *var.shape[1:]]] + ([] if isinstance(nd_shape, str) else [list(nd_shape)])
    if list(updates.shape) in allowed:
        return None
    return f"updates must be of shape {' or '.join(map(str, allowed))}, not {updates}"


@operator(
    "aclnnTfScatterAdd",
    takes=(
        tensor("varRef", FLOATS | {"int32", "int8", "uint8"}, rank=(1, 8)),
        tensor("indices", _INDEX, rank=(1, 8)),
        tensor("updates", like="varRef", rank=(1, 8)),
    ),
    relations=(_update_shape,),
    source="ops-nn index/tf_scatter_add aclnnTfScatterAdd",
)
def _scatter_add_rows(var: DeviceTensor, indices: DeviceTensor, updates: DeviceTensor) -> None:
    by_row = list(updates.shape) == [*indices.shape, *var.shape[1:]]
    if by_row:
        where: tuple[np.ndarray, ...] = (places(indices, var.shape[0], "aclnnTfScatterAdd"),)
    else:
        where = nd_places(indices, var.shape, "aclnnTfScatterAdd")
    var.store(added_nd(accumulator(var), where, updates.values()))


def added_nd(into: np.ndarray, where: tuple[np.ndarray, ...], updates: np.ndarray) -> np.ndarray:
    """`into` with slices added, where `where` has places of its first axes."""
    depth = len(where)
    rows = np.ravel_multi_index(where, into.shape[:depth]).reshape(-1)
    flat = into.reshape((-1, *into.shape[depth:]))
    add_rows(flat, rows, updates.reshape((-1, *into.shape[depth:])))
    return into


def _updated_part(arguments: dict[str, Any]) -> str | None:
    data, indices, updates = arguments["data"], arguments["indices"], arguments["updates"]
    axis = arguments["axis"]
    if not -data.rank < axis < data.rank or axis == 0:
        return f"axis must be another than 0 of data {list(data.shape)}, not {axis}"
    others = [at for at in range(1, data.rank) if at != axis % data.rank]
    rows = indices.shape[0] if indices.rank else 1
    fits = (
        updates.rank == data.rank
        and updates.shape[0] == rows <= data.shape[0]
        and all(updates.shape[at] == data.shape[at] for at in others)
        and (indices.rank < 2 or indices.shape[1] == 2)
    )
    texts = f"data {list(data.shape)}, indices {list(indices.shape)}, updates {list(updates.shape)}"
    return None if fits else f"updates must have a row per index and data's other axes: {texts}, axis {axis}"


@operator(
    "aclnnInplaceScatterUpdate",
    takes=(
        tensor("data", FLOATS | {"int8", "int32"}, rank=(2, 8)),
        tensor("indices", _INDEX, rank=(0, 2)),
        tensor("updates", like="data", rank=(2, 8)),
        anything("axis"),
    ),
    relations=(_updated_part,),
    source="ops-nn index/scatter aclnnInplaceScatterUpdate",
)
def _scatter_update(data: DeviceTensor, indices: DeviceTensor, updates: DeviceTensor, axis: int) -> None:
    """Row i of the updates goes to row i of data, or to the one that the index names, from a place on along `axis`."""
    length, name = updates.shape[axis], "aclnnInplaceScatterUpdate"
    given = indices.values().reshape(updates.shape[0], -1)
    starts = places(DeviceTensor.of(given[:, -1], "int64"), data.shape[axis] - length + 1, name)
    rows = (
        range(len(given)) if given.shape[1] == 1 else places(DeviceTensor.of(given[:, 0], "int64"), data.shape[0], name)
    )
    for at, (row, start) in enumerate(zip(rows, starts, strict=True)):
        data.bits[row][along(axis % data.rank - 1, data.rank - 1, slice(start, start + length))] = updates.bits[at]


@operator(
    "aclnnIndexPutImpl",
    takes=(
        tensor("selfRef", REAL, rank=(1, 8)),
        anything("indices"),
        tensor("values", like="selfRef"),
        anything("accumulate"),
        anything("unsafe"),
    ),
    source="ops-nn index/index_put_v2 aclnnIndexPutImpl",
)
def _index_put(
    self: DeviceTensor, indices: list[DeviceTensor | None], values: DeviceTensor, accumulate: bool, unsafe: bool
) -> None:
    where = _indexed_by(self, indices, "aclnnIndexPutImpl")
    if not accumulate:
        self.bits[where] = values.bits
        return
    result = accumulator(self)
    np.add.at(result, where, values.values())
    self.store(result)


@operator(
    "aclnnEmbeddingDenseBackward",
    takes=(
        tensor("grad", FLOATS, rank=(2, 8)),
        tensor("indices", REAL - {"bfloat16"}, rank=(1, 8)),
        anything("numWeights"),
        anything("paddingIdx"),
        anything("scaleGradByFreq"),
        tensor("out", like="grad", rank=(2, 2)),
    ),
    relations=(
        shape_is("out", lambda arguments: [arguments["numWeights"], arguments["grad"].shape[-1]]),
        shape_is("grad", lambda arguments: [*arguments["indices"].shape, arguments["grad"].shape[-1]]),
    ),
    source="ops-nn index/embedding_dense_grad aclnnEmbeddingDenseBackward",
)
def _embedding_backward(
    gradient: DeviceTensor, indices: DeviceTensor, rows: int, padding: int, by_frequency: bool, out: DeviceTensor
) -> None:
    where = places(indices, rows, "aclnnEmbeddingDenseBackward").reshape(-1)
    slopes = gradient.values().reshape(-1, gradient.shape[-1])
    if by_frequency:
        slopes = slopes / np.bincount(where, minlength=rows)[where, None].astype(np.float32)
    result = np.zeros(out.shape, np.float32)
    add_rows(result, where, slopes)
    if 0 <= padding < rows:
        result[padding] = 0
    out.store(result)
