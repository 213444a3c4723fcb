"""Rotary position embedding.

Legend: B batch, S sequence, N heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ascend_emulator.contract import Relation, anything, operator, same_shape, tensor, value
from ascend_emulator.tensors import FLOATS, DeviceTensor
from mindgspo_kernels import binding as kernels

Arguments = dict[str, Any]

_HALF, _INTERLEAVED = 0, 1
_MOST_SIZE = 894  # below 896, and even
# By the order of batch, sequence and heads in x: which of these axes cos and sin may have, and where B and N are.
_TABLES = {"BNSD": ("S", "BS", "BNS"), "BSND": ("S", "BS", "BSN"), "SBND": ("S", "SB", "SBN")}


def _tables_fit(x: str, *gradients: str) -> Relation:
    """Shapes and sizes of x and its tables in one of the layouts."""

    def check(given: Arguments) -> str | None:
        whole, table, mode = given[x].shape, given["cos"].shape, given["mode"]
        if table[3] != whole[3] or whole[3] % 2 or whole[3] > _MOST_SIZE:
            return f"the last axis of {x}, cos and sin must be one even number below 896, not {whole[3]} and {table[3]}"
        if any(_is_layout(layout, whole, table, mode, bool(gradients)) for layout in _TABLES):
            return None
        return f"cos {list(table)} and {x} {list(whole)} must fit in one of the layouts {', '.join(_TABLES)}"

    return check


def _is_layout(layout: str, whole: Sequence[int], table: Sequence[int], mode: int, is_backward: bool) -> bool:
    sizes = dict(zip(layout, whole, strict=True))
    shapes = [[sizes[axis] if axis in kept else 1 for axis in layout[:3]] for kept in _TABLES[layout]]
    if mode == _INTERLEAVED:
        return list(table[:3]) == shapes[0] and sizes["B"] * sizes["N"] < 1000
    return list(table[:3]) in shapes and sizes["B"] < 1000 and sizes["N"] < 1000


@operator(
    "aclnnRotaryPositionEmbedding",
    takes=(
        tensor("x", FLOATS, rank=(4, 4)),
        tensor("cos", rank=(4, 4), like="x"),
        tensor("sin", rank=(4, 4), like="x"),
        value("mode", among=(_HALF, _INTERLEAVED)),
        tensor("out", rank=(4, 4), like="x"),
    ),
    relations=(same_shape("x", "out"), same_shape("cos", "sin"), _tables_fit("x")),
    source="ops-transformer posembedding/rotary_position_embedding/docs/aclnnRotaryPositionEmbedding.md",
)
def _rotary(x: DeviceTensor, cos: DeviceTensor, sin: DeviceTensor, mode: int, y: DeviceTensor) -> None:
    kernels.rotary(x, cos, sin, y=y, interleaved=mode == _INTERLEAVED)


@operator(
    "aclnnRotaryPositionEmbeddingGrad",
    takes=(
        tensor("dy", FLOATS, rank=(4, 4)),
        tensor("cos", rank=(4, 4), like="dy"),
        tensor("sin", rank=(4, 4), like="dy"),
        tensor("xOptional", rank=(4, 4), like="dy", optional=True),
        value("mode", among=(_HALF, _INTERLEAVED)),
        tensor("dxOut", rank=(4, 4), like="dy"),
        anything("dcosOut"),
        anything("dsinOut"),
    ),
    relations=(same_shape("dy", "xOptional", "dxOut"), same_shape("cos", "sin"), _tables_fit("dy")),
    source="ops-transformer posembedding/rotary_position_embedding_grad/docs/aclnnRotaryPositionEmbeddingGrad.md",
)
def _rotary_grad(
    d_y: DeviceTensor,
    cos: DeviceTensor,
    sin: DeviceTensor,
    x: DeviceTensor | None,
    mode: int,
    d_x: DeviceTensor,
    d_cos: DeviceTensor | None,
    d_sin: DeviceTensor | None,
) -> None:
    kernels.rotary(d_y, cos, sin, y=d_x, interleaved=mode == _INTERLEAVED, backward=True)
    if any(one is None or one.bits is None for one in (x, d_cos, d_sin)):
        return
    values, gradient = x.values(), d_y.values()
    spread = tuple(axis for axis in range(4) if cos.shape[axis] == 1 and x.shape[axis] > 1)
    d_cos.store((gradient * values).sum(spread, keepdims=True))
    d_sin.store((gradient * _rotated(values, mode)).sum(spread, keepdims=True))


def _rotated(values: np.ndarray, mode: int) -> np.ndarray:
    """What sin is multiplied by."""
    half = values.shape[-1] // 2
    if mode == _HALF:
        return np.concatenate([-values[..., half:], values[..., :half]], axis=-1)
    return np.stack([-values[..., 1::2], values[..., ::2]], axis=-1).reshape(values.shape)


_FUSED_SIZE = 128


def _apply_fits(given: Arguments) -> str | None:
    query, key, cos = (given[name].shape for name in ("queryRef", "keyRef", "cos"))
    if {query[3], key[3], cos[3]} != {_FUSED_SIZE}:
        return f"the last axis must be {_FUSED_SIZE}, not {query[3]}, {key[3]} and {cos[3]}"
    if query[:2] != key[:2] or (*query[:2], 1) != cos[:3]:
        return f"batch and sequence must be one: queryRef {list(query)}, keyRef {list(key)}, cos {list(cos)}"
    return None


@operator(
    "aclnnApplyRotaryPosEmb",
    takes=(
        tensor("queryRef", FLOATS, rank=(4, 4)),
        tensor("keyRef", rank=(4, 4), like="queryRef"),
        tensor("cos", rank=(4, 4), like="queryRef"),
        tensor("sin", rank=(4, 4), like="queryRef"),
        value("layout", among=(1,)),  # B, S, N, D
    ),
    relations=(same_shape("cos", "sin"), _apply_fits),
    source="ops-transformer posembedding/apply_rotary_pos_emb/docs/aclnnApplyRotaryPosEmb.md",
)
def _apply_rotary(query: DeviceTensor, key: DeviceTensor, cos: DeviceTensor, sin: DeviceTensor, layout: int) -> None:
    for one in (query, key):
        kernels.rotary(one, cos, sin, y=one)


def _row_per_token(given: Arguments) -> str | None:
    cos = given["cos"].shape
    for name in ("query", "key"):
        shape = given[name].shape
        if shape[-1] % cos[-1] or given[name].size // shape[-1] != cos[0]:
            return f"cos {list(cos)} must have a row for each token of {name} {list(shape)}"
    return None


@operator(
    "internal:ApplyRotaryPosEmb",
    takes=(
        tensor("query", FLOATS, rank=(2, 3)),
        tensor("key", rank=(2, 3), like="query"),
        tensor("cos", FLOATS, rank=(2, 2)),
        tensor("sin", rank=(2, 2), like="cos"),
        anything("position_ids"),
        value("cos_format", among=(2,)),  # tables by token, not interleaved
    ),
    relations=(same_shape("cos", "sin"), _row_per_token),
    source="MindSpore's internal kernels, internal_kernel/include/op_param.h",
)
def _internal_apply_rotary(inputs: list, outputs: list, parameters: dict) -> None:
    tokens, size = inputs[2].shape
    cos, sin = (table.view(tokens, 1, size) for table in inputs[2:4])
    for x, y in zip(inputs[:2], outputs, strict=True):
        kernels.rotary(x.view(tokens, -1, size), cos, sin, y=y.view(tokens, -1, size))
