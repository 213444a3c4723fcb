"""Ops that exist fused on Ascend and are composed of small ops elsewhere: the one place where the device chooses.

Each is a cell whose `__init__` fixes the branch, so a compiled graph holds only one of them. The composed forms
are what CPU tests judge; the fused forms are compiled by the dry run.

Legend: R rows, S sequences, T token slots, H hidden units, A query heads, B key/value heads, g = A / B, D head size.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindgspo.parallel.runtime import current_device

# Added to scores that must not be attended. Finite, so that a fully masked row stays free of NaN, and small
# enough for bfloat16 and float16 after the scores were widened to float32.
MASKED_SCORE = -1.0e9


class RMSNormOp(nn.Cell):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis of x [M, H], in float32 (arXiv 1910.07467)."""

    def __init__(self, eps: float) -> None:
        super().__init__(auto_prefix=False)
        self.eps = eps
        self.fused = current_device() == "Ascend"
        if self.fused:
            self.rms_norm = ops.auto_generate.RmsNorm(eps)
        self.sum = ops.ReduceSum(keep_dims=True)
        self.outer = ops.MatMul()

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.fused:
            return self.rms_norm(x, weight)[0]
        # On CPU a product of equal shapes costs half of one that broadcasts, and an outer product by matmul costs
        # less than either; its gradients are matmuls too, where a broadcast's are slow reductions.
        x_MH = ops.cast(x, ms.float32)
        scale_M1 = ops.rsqrt(self.sum(x_MH * x_MH, -1) * (1.0 / x.shape[-1]) + self.eps)
        scale_MH = self.outer(scale_M1, ops.cast(weight, ms.float32).reshape(1, -1))
        return ops.cast(x_MH * scale_MH, x.dtype)


class RotaryOp(nn.Cell):
    """Rotary position embedding in the rotate-half form: x * cos + rotate_half(x) * sin (arXiv 2104.09864).

    x: [M, heads, D]; cos, sin: float32 [M, 1, D] tables with the two halves of D repeated.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__(auto_prefix=False)
        self.fused = current_device() == "Ascend"
        if self.fused:
            self.rotate = ops.auto_generate.RotaryPositionEmbedding()
        else:
            self.head_dim = head_dim
            self.rotate_half = Tensor(rotate_half_matrix(head_dim))
            self.matmul = ops.MatMul()

    def construct(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.fused:
            return self.rotate(x, ops.cast(cos, x.dtype), ops.cast(sin, x.dtype), 0)
        # On CPU a small product beats slicing and joining, and equal shapes beat broadcasting; the tables spread
        # over the heads are the same in every layer, so the compiler keeps one copy of each.
        spread = (1, x.shape[1], 1)
        rotated = self.matmul(x.reshape(-1, self.head_dim), ops.cast(self.rotate_half, x.dtype)).reshape(x.shape)
        return ops.cast(x * ops.tile(cos, spread) + rotated * ops.tile(sin, spread), x.dtype)


def rotate_half_matrix(head_dim: int) -> np.ndarray:
    """float32 [D, D]: x @ it = (-second half of x, first half of x)."""
    half = head_dim // 2
    matrix = np.zeros((head_dim, head_dim), dtype=np.float32)
    matrix[np.arange(half) + half, np.arange(half)] = -1.0
    matrix[np.arange(half), np.arange(half) + half] = 1.0
    return matrix


class SwiGLUOp(nn.Cell):
    """silu(gate) * up (arXiv 2002.05202)."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.fused = current_device() == "Ascend"
        if self.fused:
            self.swiglu = ops.auto_generate.Swiglu()

    def construct(self, gate: Tensor, up: Tensor) -> Tensor:
        if self.fused:
            return self.swiglu(ops.concat((gate, up), -1), -1)
        return ops.silu(gate) * up


class CausalAttentionOp(nn.Cell):
    """softmax(q k^T / sqrt(D) + mask) v with grouped key/value heads, causal and within segments.

    query: [R, T, A, D]; key, value: [R, T, B, D]; segments_RT: int32, tokens attend only to earlier tokens of the
    same segment. Returns [R, T, A * D]. Scores and softmax in float32.
    """

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__(auto_prefix=False)
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.group = num_heads // num_kv_heads
        self.scale = head_dim**-0.5
        self.fused = current_device() == "Ascend"
        if self.fused:
            self.flash = ops.operations.nn_ops.FlashAttentionScore(
                head_num=num_heads, scale_value=self.scale, input_layout="BSND"
            )
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.weigh = ops.BatchMatMul()

    def construct(self, query: Tensor, key: Tensor, value: Tensor, forbidden_RTT: Tensor) -> Tensor:
        num_rows, num_slots = query.shape[0], query.shape[1]
        if self.fused:
            mask = forbidden_RTT.expand_dims(1)
            _, _, _, out = self.flash(query, key, value, None, None, None, mask)
            return out.reshape(num_rows, num_slots, self.num_heads * self.head_dim)
        heads = (num_rows, num_slots, self.num_kv_heads, self.group, self.head_dim)
        queries = (query * self.scale).reshape(heads).transpose(0, 2, 3, 1, 4)
        queries = queries.reshape(num_rows, self.num_kv_heads, self.group * num_slots, self.head_dim)
        scores = self.scores(queries, key.transpose(0, 2, 1, 3))
        scores = scores.reshape(num_rows, self.num_kv_heads, self.group, num_slots, num_slots)
        # Spread to the scores' own shape (once for all layers): adding equal shapes is twice as fast on CPU.
        bias = (ops.cast(forbidden_RTT, ms.float32) * MASKED_SCORE).reshape(num_rows, 1, 1, num_slots, num_slots)
        scores = ops.cast(scores, ms.float32) + ops.tile(bias, (1, self.num_kv_heads, self.group, 1, 1))
        weights = ops.cast(ops.softmax(scores, -1), value.dtype)
        weights = weights.reshape(num_rows, self.num_kv_heads, self.group * num_slots, num_slots)
        out = self.weigh(weights, value.transpose(0, 2, 1, 3))
        out = out.reshape(num_rows, self.num_kv_heads, self.group, num_slots, self.head_dim)
        return out.transpose(0, 3, 1, 2, 4).reshape(num_rows, num_slots, self.num_heads * self.head_dim)


def forbidden_pairs(segments_RT: Tensor) -> Tensor:
    """uint8 [R, T, T]: 1 where query slot i must not see key slot j: j later than i, or in another segment.

    Padded slots (segment 0) see earlier padded slots, so that no softmax row is empty.
    """
    num_slots = segments_RT.shape[1]
    slots = ops.arange(num_slots)
    later = slots.reshape(1, 1, num_slots) > slots.reshape(1, num_slots, 1)
    other = ops.not_equal(segments_RT.expand_dims(1), segments_RT.expand_dims(2))
    return ops.cast(ops.logical_or(later, other), ms.uint8)
