"""The fused branches, with the documented ops in numpy in the place of the fused ones: they compute what the composed
branches do."""

from __future__ import annotations

import numpy as np
import pytest
from fused_ops import flash_attention, rms_norm, rotate_half, swiglu
from mindspore import Tensor

from mindgspo.parallel.ops import device as device_ops
from mindgspo.parallel.ops.device import CausalAttentionOp, RMSNormOp, RotaryOp, SegmentMask, SwiGLUOp, segment_ends

pytestmark = pytest.mark.usefixtures("cpu_runtime")

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 8, 2, 6
# Eight tokens per row.
SEGMENTS_RT = np.array(
    [[1, 1, 1, 2, 2, 0, 0, 0], [1] * 8, [1, 2, 2, 3, 3, 3, 4, 4], [1, 1, 0, 0, 0, 0, 0, 0]], np.int32
)
NUM_TOKENS = SEGMENTS_RT.size


def documented_attention(scale: float):
    def attend(query, key, value, discarded, ends):
        assert discarded.shape == (2048, 2048), "the mask has this size whatever the lengths"
        assert (discarded.asnumpy() == ~np.tri(2048, dtype=bool)).all(), "1 is discarded: a later key"
        return flash_attention(query, key, value, ends, scale=scale)

    return attend


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch):
    """fused(build, arrays, op=stand-in): what a cell that was built for Ascend makes of the arrays."""

    def run_fused(build, *arrays: np.ndarray, **stand_ins) -> np.ndarray:
        with monkeypatch.context() as patch:
            patch.setattr(device_ops, "is_fused", lambda: True)
            cell = build()
        for name, op in stand_ins.items():
            assert hasattr(cell, name)
            object.__setattr__(cell, name, op)
        return cell.construct(*arrays)

    return run_fused


def composed(build, *arrays: np.ndarray) -> np.ndarray:
    with device_ops.composed_ops():
        cell = build()
    return cell(*map(Tensor, arrays)).asnumpy()


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(16, 10), (16, NUM_HEADS, HEAD_DIM)], ids=["hidden states", "heads"])
def test_rms_norm(fused, shape: tuple[int, ...]) -> None:
    def documented(x, gamma):
        return rms_norm(x, gamma, epsilon=1e-2), None

    arrays = normal(*shape), normal(shape[-1]), np.array([16], np.int32)
    found = fused(lambda: RMSNormOp(1e-2), *arrays, rms_norm=documented)
    np.testing.assert_allclose(composed(lambda: RMSNormOp(1e-2), *arrays), found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_heads", [NUM_HEADS, NUM_KV_HEADS])
def test_rotary(fused, num_heads: int) -> None:
    def documented(x, cos, sin, mode):
        assert mode == 0
        return rotate_half(x, cos, sin)

    x, cos, sin = normal(16, num_heads, HEAD_DIM), normal(16, 1, HEAD_DIM), normal(16, 1, HEAD_DIM) * 2
    stand_ins = {"rotate": documented, "cast": lambda x, dtype: x}
    found = fused(lambda: RotaryOp(HEAD_DIM), x, cos, sin, **stand_ins)
    np.testing.assert_allclose(composed(lambda: RotaryOp(HEAD_DIM), x, cos, sin), found, rtol=1e-5, atol=1e-6)
    # Of a part of each head, the composed form has tables with 1 and 0 for the others.
    part = HEAD_DIM - 2
    found = fused(
        lambda: RotaryOp(HEAD_DIM, rotary_dim=part), x, cos[..., :part], sin[..., :part],
        split=lambda x, sizes, axis: np.split(x, sizes[:1], axis), join=lambda x: np.concatenate(x, -1), **stand_ins,
    )  # fmt: skip
    cos[..., part:], sin[..., part:] = 1, 0
    expected = composed(lambda: RotaryOp(HEAD_DIM, rotary_dim=part), x, cos, sin)
    np.testing.assert_allclose(expected, found, rtol=1e-5, atol=1e-6)


def test_rotary_of_neighbours(fused) -> None:
    def documented(x, cos, sin, mode):
        assert mode == 1
        return x * cos + np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape) * sin

    arrays = normal(16, 3, HEAD_DIM), normal(16, 1, HEAD_DIM), normal(16, 1, HEAD_DIM) * 2
    found = fused(lambda: RotaryOp(HEAD_DIM, is_interleaved=True), *arrays, rotate=documented, cast=lambda x, dtype: x)
    expected = composed(lambda: RotaryOp(HEAD_DIM, is_interleaved=True), *arrays)
    np.testing.assert_allclose(expected, found, rtol=1e-5, atol=1e-6)


def test_swiglu(fused) -> None:
    arrays = normal(16, 24), normal(16, 24) * 3 + 1, np.array([16], np.int32)
    found = fused(SwiGLUOp, *arrays, swiglu=lambda x, dim: swiglu(x, dim=dim), join=lambda x: np.concatenate(x, 1))
    np.testing.assert_allclose(composed(SwiGLUOp, *arrays), found, rtol=1e-5, atol=1e-6)


def test_attention(fused) -> None:
    def build():
        return CausalAttentionOp(NUM_HEADS, NUM_KV_HEADS, HEAD_DIM)

    query, key = normal(NUM_TOKENS, NUM_HEADS, HEAD_DIM), normal(NUM_TOKENS, NUM_KV_HEADS, HEAD_DIM)
    value = key[::-1].copy()
    mask = composed(SegmentMask, SEGMENTS_RT)
    ends = fused(SegmentMask, segment_ends(SEGMENTS_RT))
    expected = composed(build, query, key, value, mask)
    found = fused(build, query, key, value, ends, flash=documented_attention(HEAD_DIM**-0.5))
    assert found.shape == expected.shape == (NUM_TOKENS, NUM_HEADS * HEAD_DIM)
    is_real = SEGMENTS_RT.reshape(-1) > 0
    np.testing.assert_allclose(expected[is_real], found[is_real], rtol=1e-5, atol=1e-5)


def test_attention_is_asked_for_packed_heads_aligned_at_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def fused_op(**settings):
        asked.update(settings)
        return lambda *inputs: (None, None, None, inputs)

    monkeypatch.setattr(device_ops.ops.operations.nn_ops, "FlashAttentionScore", fused_op)
    attention = device_ops.flash_attention(4, 0.25)
    assert asked == {"head_num": 4, "scale_value": 0.25, "input_layout": "TND", "sparse_mode": 3}
    inputs = attention("query", "key", "value", "causal", "ends")
    assert inputs == ("query", "key", "value", None, None, None, "causal", None, "ends", "ends")
