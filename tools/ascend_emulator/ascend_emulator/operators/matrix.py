"""Products of matrices, and the gathering of rows.

Integers, which the documentation of some products allows, are not emulated but in Dot.

Legend: M rows, K summed, N columns, B batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ascend_emulator.contract import (
    Relation,
    Rule,
    anything,
    deduced_dtype,
    operator,
    same_shape,
    shape_is,
    tensor,
    value,
)
from ascend_emulator.tensors import FLOATS, DeviceTensor
from mindgspo_kernels import binding as kernels

_KEEP_DTYPE, _USE_FP16, _USE_HF32 = 0, 2, 3
_INTERNAL = "MindSpore's internal kernels, internal_kernel/include/op_param.h"
_INDICES = frozenset({"int32", "int64"})


def _cube_math_type(highest: int) -> Rule:
    return value("cubeMathType", among=range(highest + 1))


def _one_precision(*names: str) -> Relation:
    """bfloat16 with another dtype, and float16 or HFLOAT32 in place of a dtype that cannot be shortened to it."""

    def check(arguments: dict[str, Any]) -> str | None:
        dtypes = {arguments[name].dtype for name in names}
        if len(dtypes) > 1 and "bfloat16" in dtypes:
            return f"{' and '.join(names)} must have one dtype where one is bfloat16, not {sorted(dtypes)}"
        given = arguments.get("cubeMathType", _KEEP_DTYPE)
        if given == _USE_FP16 and "bfloat16" in dtypes:
            return f"cubeMathType {given} must not be given with bfloat16"
        if given == _USE_HF32 and dtypes != {"float32"}:
            return f"cubeMathType {given} must be given with float32 only, not {sorted(dtypes)}"
        return None

    return check


def _result_dtype(*names: str) -> Relation:
    """The output has the dtype that is deduced from these."""

    def check(arguments: dict[str, Any]) -> str | None:
        deduced = deduced_dtype(*(arguments[name] for name in names))
        given = arguments["out"].dtype
        return None if given == deduced else f"out must be {deduced}, which {' and '.join(names)} give, not {given}"

    return check


def _product_shape(a: str, b: str, out: str = "out") -> Relation:
    """The output has the shape of a @ b, where vectors are a row before and a column behind the sign."""

    def shape(arguments: dict[str, Any]) -> Sequence[int] | str:
        left, right = arguments[a].shape, arguments[b].shape
        if left[-1] != right[-1 if len(right) == 1 else -2]:
            return f"{a} {list(left)} and {b} {list(right)} must agree in the axis that is summed"
        try:
            batch = np.broadcast_shapes(left[:-2], right[:-2])
        except ValueError:
            return f"the batch axes of {a} {list(left)} and {b} {list(right)} must broadcast"
        return [*batch, *left[-2:-1], *(right[-1:] if len(right) > 1 else ())]

    return shape_is(out, shape)


def _spread_to_out(name: str) -> Relation:
    def check(arguments: dict[str, Any]) -> str | None:
        given, out = list(arguments[name].shape), list(arguments["out"].shape)
        fits = len(given) <= len(out) and all(
            size in (1, whole) for size, whole in zip(reversed(given), reversed(out), strict=False)
        )
        return None if fits else f"{name} {given} must broadcast to {out}"

    return check


def _matrix(x: DeviceTensor, *, is_column: bool = False) -> DeviceTensor:
    """A vector as one row, or one column."""
    if x.rank > 1:
        return x
    return x.view(-1, 1) if is_column else x.view(1, -1)


def _transposed(x: DeviceTensor) -> DeviceTensor:
    return x.seen(x.bits.swapaxes(-1, -2))


def _multiply(a: DeviceTensor, b: DeviceTensor, out: DeviceTensor, cube_math_type: int = _KEEP_DTYPE) -> None:
    left, right = _matrix(a), _matrix(b, is_column=True)
    batch = out.shape[: max(left.rank, right.rank) - 2]
    kernels.matmul(left, right, out.view(*batch, left.shape[-2], right.shape[-1]))


def _enter_product(
    name: str, folder: str, ranks: Sequence[tuple[int, int]], cube: int, *relations: Relation, b: str = "mat2"
) -> None:
    """ranks: of self, b and out. A vector has the dtype of the matrix."""
    likes = {"self": None, b: "self" if b == "vec" else None, "out": None}
    tensors = (
        tensor(one, FLOATS, rank=rank, like=like) for (one, like), rank in zip(likes.items(), ranks, strict=True)
    )

    @operator(
        f"aclnn{name}",
        takes=(*tensors, _cube_math_type(cube)),
        relations=(*relations, _product_shape("self", b)),
        source=f"ops-nn matmul/{folder}/docs/aclnn{name}.md",
    )
    def run(a: DeviceTensor, b: DeviceTensor, out: DeviceTensor, cube_math_type: int) -> None:
        _multiply(a, b, out)


_ONE = _one_precision("self", "mat2")
_enter_product("Mm", "mat_mul_v3", [(2, 2)] * 3, 4, _ONE, _result_dtype("self", "mat2"))
_enter_product("Matmul", "mat_mul_v3", [(1, 6), (1, 6), (0, 6)], 4, _ONE)
_enter_product("BatchMatMul", "batch_mat_mul_v3", [(3, 3)] * 3, 3)
_enter_product("Mv", "mv", [(2, 2), (1, 1), (1, 1)], 3, b="vec")


@operator(
    "aclnnDot",
    takes=(
        tensor("self", FLOATS | {"int8", "int32", "uint8"}, rank=(1, 1)),
        tensor("tensor", rank=(1, 1), like="self"),
        tensor("out", rank=(0, 0), like="self"),
    ),
    relations=(same_shape("self", "tensor"),),
    source="ops-math math/dot/docs/aclnnDot.md",
)
def _dot(a: DeviceTensor, b: DeviceTensor, out: DeviceTensor) -> None:
    if a.dtype in FLOATS:
        _multiply(a, b, out)
    else:
        out.store(np.dot(a.values(), b.values()))


def _enter_sum(name: str, a: str, b: str, *, rank: int, added_rank: tuple[int, int], folder: str) -> None:
    """beta * self + alpha * a @ b."""

    @operator(
        f"aclnn{name}",
        takes=(
            tensor("self", FLOATS, rank=added_rank),
            tensor(a, FLOATS, rank=(rank, rank)),
            tensor(b, FLOATS, rank=(rank, rank)),
            anything("beta"),
            anything("alpha"),
            tensor("out", FLOATS, rank=(rank, rank)),
            _cube_math_type(4),
        ),
        relations=(_one_precision(a, b), _product_shape(a, b), _spread_to_out("self")),
        source=f"ops-nn matmul/{folder}/docs/aclnn{name}&aclnnInplace{name}.md",
    )
    def run(
        added: DeviceTensor,
        left: DeviceTensor,
        right: DeviceTensor,
        beta: float,
        alpha: float,
        out: DeviceTensor,
        cube_math_type: int,
    ) -> None:
        _sum_of(added, beta, left, right, alpha, out)


def _sum_of(
    added: DeviceTensor, beta: float, a: DeviceTensor, b: DeviceTensor, alpha: float, out: DeviceTensor
) -> None:
    """With beta 0, `added` may hold anything."""
    kernels.matmul(a, b, out, bias=added if beta else None, alpha=float(alpha), beta=float(beta))


_enter_sum("Addmm", "mat1", "mat2", rank=2, added_rank=(1, 2), folder="mat_mul_v3")
_enter_sum("Baddbmm", "batch1", "batch2", rank=3, added_rank=(1, 3), folder="batch_mat_mul_v3")


@operator(
    "aclnnInplaceAddmm",
    takes=(
        tensor("selfRef", FLOATS, rank=(2, 2)),
        tensor("mat1", FLOATS, rank=(2, 2)),
        tensor("mat2", FLOATS, rank=(2, 2)),
        anything("beta"),
        anything("alpha"),
        _cube_math_type(4),
    ),
    relations=(_one_precision("mat1", "mat2"), _product_shape("mat1", "mat2", "selfRef")),
    source="ops-nn matmul/mat_mul_v3/docs/aclnnAddmm&aclnnInplaceAddmm.md",
)
def _addmm_in_place(
    out: DeviceTensor, a: DeviceTensor, b: DeviceTensor, beta: float, alpha: float, cube_math_type: int
) -> None:
    _sum_of(out, beta, a, b, alpha, out)


def _sum_of_batches_shape(given: dict[str, Any]) -> Sequence[int] | str:
    left, right = given["batch1"].shape, given["batch2"].shape
    if left[0] != right[0] or left[2] != right[1]:
        return f"batch1 {list(left)} and batch2 {list(right)} must agree in batch and in the axis that is summed"
    return left[1], right[2]


@operator(
    "aclnnAddbmm",
    takes=(
        tensor("self", FLOATS, rank=(1, 2)),
        tensor("batch1", FLOATS, rank=(3, 3)),
        tensor("batch2", FLOATS, rank=(3, 3)),
        anything("beta"),
        anything("alpha"),
        tensor("out", FLOATS, rank=(2, 2)),
        _cube_math_type(4),
    ),
    relations=(
        _one_precision("batch1", "batch2"),
        shape_is("out", _sum_of_batches_shape),
        _spread_to_out("self"),
    ),
    source="ops-nn matmul/batch_mat_mul_v3/docs/aclnnAddbmm&aclnnInplaceAddbmm.md",
)
def _addbmm(
    added: DeviceTensor,
    a: DeviceTensor,
    b: DeviceTensor,
    beta: float,
    alpha: float,
    out: DeviceTensor,
    cube_math_type: int,
) -> None:
    """The sum over batches is the product of the matrices laid side by side, and of those below each other."""
    beside = a.bits.swapaxes(0, 1).reshape(a.shape[1], -1)
    below = b.bits.reshape(-1, b.shape[2])
    left, right = (DeviceTensor(of.dtype, bits.shape, bits) for of, bits in ((a, beside), (b, below)))
    _sum_of(added, beta, left, right, alpha, out)


@operator(
    "aclnnAddmv",
    takes=(
        tensor("self", FLOATS, rank=(1, 1)),
        tensor("mat", FLOATS, rank=(2, 2)),
        tensor("vec", FLOATS, rank=(1, 1)),
        anything("alpha"),
        anything("beta"),
        tensor("out", FLOATS, rank=(1, 1)),
        _cube_math_type(3),
    ),
    relations=(_one_precision("mat", "vec"), _product_shape("mat", "vec"), _spread_to_out("self")),
    source="ops-nn matmul/addmv/docs/aclnnAddmv.md",
)
def _addmv(
    added: DeviceTensor,
    a: DeviceTensor,
    b: DeviceTensor,
    alpha: float,
    beta: float,
    out: DeviceTensor,
    cube_math_type: int,
) -> None:
    """alpha before beta: the one prototype that has them so."""
    column = _matrix(added, is_column=True)
    _sum_of(column, beta, a, _matrix(b, is_column=True), alpha, _matrix(out, is_column=True))


@operator(
    "internal:MatMul",
    takes=(
        tensor("a", FLOATS, rank=(2, 3)),
        tensor("b", FLOATS, rank=(2, 3), like="a"),
        tensor("bias", optional=True),
        anything("transpose_a"),
        anything("transpose_b"),
    ),
    outputs=(tensor("out", FLOATS, rank=(2, 3)),),
    source=_INTERNAL,
)
def _internal_matmul(inputs: list, outputs: list, parameters: dict) -> None:
    a, b, *rest = inputs
    a = _transposed(a) if parameters["transpose_a"] else a
    b = _transposed(b) if parameters["transpose_b"] else b
    kernels.matmul(a, b, outputs[0], bias=rest[0] if rest and parameters.get("with_bias") else None)


def _rows_are_there(arguments: dict[str, Any]) -> str | None:
    size = arguments["params"].shape[arguments["axes"][0]]
    indices = arguments["indices"].values()
    if not indices.size or (indices.min() >= 0 and indices.max() < size):
        return None
    return f"indices must be in 0 to {size - 1}, not {indices.min()} to {indices.max()}"


@operator(
    "internal:Gather",
    takes=(tensor("params", rank=(1, 8)), tensor("indices", _INDICES)),
    outputs=(tensor("out", like="params"),),
    contents=(_rows_are_there,),
    source=_INTERNAL,
)
def _internal_gather(inputs: list, outputs: list, parameters: dict) -> None:
    params, indices = inputs[0].bits, inputs[1].values()
    axis, batch = parameters["axes"][0] % params.ndim, parameters["batch_dims"]
    out = outputs[0].bits
    for at in np.ndindex(*params.shape[:batch]):
        out[at] = np.take(params[at], indices[at], axis - batch).reshape(out[at].shape)
