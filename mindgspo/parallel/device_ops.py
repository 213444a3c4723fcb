"""Ops that exist fused on Ascend and are composed of small ops elsewhere: the one place where the device chooses.

Each is a cell whose `__init__` fixes the branch, so a compiled graph holds only one of them. The composed forms
are what CPU tests judge; the fused forms are compiled by the dry run.

Legend: R rows, S sequences, T token slots, H hidden units, A query heads, B key/value heads, g = A / B, D head size.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops

from mindgspo.parallel.runtime import current_device

# Added to scores that must not be attended. Finite, so that a fully masked row stays free of NaN, and small
# enough for bfloat16 and float16 after the scores were widened to float32.
MASKED_SCORE = -1.0e9


class RMSNormOp(nn.Cell):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, the mean in float32 (arXiv 1910.07467)."""

    def __init__(self, eps: float) -> None:
        super().__init__(auto_prefix=False)
        self.eps = eps
        self.fused = current_device() == "Ascend"
        if self.fused:
            self.rms_norm = ops.auto_generate.RmsNorm(eps)

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.fused:
            return self.rms_norm(x, weight)[0]
        x_float = ops.cast(x, ms.float32)
        scale = ops.rsqrt(ops.mean(ops.square(x_float), -1, True) + self.eps)
        return ops.cast(x_float * scale, x.dtype) * weight


class RotaryOp(nn.Cell):
    """Rotary position embedding in the rotate-half form: x * cos + rotate_half(x) * sin (arXiv 2104.09864).

    x: [..., D]; cos, sin: broadcastable to x, float32 tables with the two halves of D repeated.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__(auto_prefix=False)
        self.half = head_dim // 2
        self.fused = current_device() == "Ascend"
        if self.fused:
            self.rotate = ops.auto_generate.RotaryPositionEmbedding()

    def construct(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.fused:
            return self.rotate(x, ops.cast(cos, x.dtype), ops.cast(sin, x.dtype), 0)
        rotated = ops.concat((-x[..., self.half :], x[..., : self.half]), -1)
        return ops.cast(x * cos + rotated * sin, x.dtype)


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
        bias = ops.cast(forbidden_RTT, ms.float32) * MASKED_SCORE
        scores = ops.cast(scores, ms.float32) + bias.reshape(num_rows, 1, 1, num_slots, num_slots)
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
