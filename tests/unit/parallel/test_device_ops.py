"""Our kernels and the composed forms of the fused ops, against what the documentation of the fused ops says
(`fused_ops`).

Legend: M flattened tokens, A query heads, D head size.
"""

from __future__ import annotations

import numpy as np
import pytest
from fused_ops import flash_attention, rms_norm, rotate_half, swiglu
from mindspore import Tensor, nn

from mindgspo.parallel.ops.device import (
    CausalAttentionOp,
    RMSNormOp,
    RotaryOp,
    RotaryPairOp,
    RotationOp,
    SegmentMask,
    SwiGLUOp,
    attention_segments,
    has_kernels,
    segment_ends,
)
from mindgspo.parallel.platform.runtime import current_device, set_up_runtime

pytestmark = pytest.mark.usefixtures("form")


def all_of(x: np.ndarray) -> np.ndarray:
    """Every row is in use."""
    return np.array([len(x)], np.int32)


def run(cell, *arrays: np.ndarray) -> np.ndarray:
    return cell(*map(Tensor, arrays)).asnumpy()


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_rms_norm_divides_by_the_root_mean_square() -> None:
    # mean square (9 + 16 + 0 + 0) / 4 = 6.25, root 2.5; the epsilon 2.75 makes it 3
    x, weight = np.array([[3, 4, 0, 0]], np.float32), np.array([1, 2, 3, 4], np.float32)
    np.testing.assert_allclose(run(RMSNormOp(0.0), x, weight, all_of(x)), [[1.2, 3.2, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(run(RMSNormOp(2.75), x, weight, all_of(x)), [[1, 8 / 3, 0, 0]], rtol=1e-6)


@pytest.mark.parametrize("shape", [(7, 10), (5, 3, 8)], ids=["hidden states", "heads"])
def test_rms_norm_is_that_of_the_fused_op(shape: tuple[int, ...]) -> None:
    x, gamma = normal(0, *shape), normal(1, shape[-1])
    found = run(RMSNormOp(1e-2), x, gamma, all_of(x))
    np.testing.assert_allclose(found, rms_norm(x, gamma, epsilon=1e-2), rtol=1e-5, atol=1e-6)


def test_rotary_turns_pairs_half_a_head_apart() -> None:
    # One token, two heads: a quarter turn of the pair (x0, x2) and none of (x1, x3).
    cos, sin = np.array([[[0, 1, 0, 1]]], np.float32), np.array([[[1, 0, 1, 0]]], np.float32)
    turned = run(RotaryOp(4), np.array([[[1, 2, 3, 4], [5, 6, 7, 8]]], np.float32), cos, sin)
    np.testing.assert_array_equal(turned, [[[-3, 2, 1, 4], [-7, 6, 5, 8]]])


@pytest.mark.parametrize("num_heads", [1, 3])
def test_rotary_is_that_of_the_fused_op(num_heads: int) -> None:
    # Tables whose halves differ would be told apart too.
    x, cos, sin = normal(0, 9, num_heads, 6), normal(1, 9, 1, 6), normal(2, 9, 1, 6)
    found = run(RotaryOp(6), x, cos, sin)
    np.testing.assert_allclose(found, rotate_half(x[None], cos[None], sin[None])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rotary_dim", "is_interleaved"), [(4, False), (6, True), (2, True)])
def test_pairs_of_the_first_features_turn_and_the_others_pass(rotary_dim: int, is_interleaved: bool) -> None:
    class Rotated(nn.Cell):
        def __init__(self):
            super().__init__()
            self.rotation = RotationOp(cos, sin, 6, is_interleaved=is_interleaved)
            self.rotate = RotaryPairOp(6, rotary_dim=rotary_dim, is_interleaved=is_interleaved)

        def construct(self, query, key, positions, tokens):
            return self.rotate(query, key, self.rotation(positions), tokens)

    query, key, positions = normal(0, 9, 4, 6), normal(1, 9, 1, 6), np.array([0, 1, 2, 7, 3, 3, 0, 1, 6], np.int32)
    pairs = np.arange(rotary_dim).reshape((-1, 2) if is_interleaved else (2, -1))
    first, second = pairs.T if is_interleaved else pairs
    angles = np.outer(np.arange(8), 1.5 ** -np.arange(first.size))
    cos, sin = np.zeros((2, 8, rotary_dim), np.float32)
    for which in (first, second):
        cos[:, which], sin[:, which] = np.cos(angles), np.sin(angles)
    for x, found in zip((query, key), Rotated()(*map(Tensor, (query, key, positions, all_of(query)))), strict=True):
        # A pair is a complex number, and turns by its angle.
        turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles[positions])[:, None]
        np.testing.assert_allclose(found.asnumpy()[..., first], turned.real, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.asnumpy()[..., second], turned.imag, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found.asnumpy()[..., rotary_dim:], x[..., rotary_dim:])


def test_queries_and_keys_are_rotated_by_their_positions() -> None:
    class Rotated(nn.Cell):
        def __init__(self):
            super().__init__()
            self.rotation, self.rotate = RotationOp(cos, sin, 6), RotaryPairOp(6)

        def construct(self, query, key, positions, tokens):
            return self.rotate(query, key, self.rotation(positions), tokens)

    query, key, cos, sin = normal(0, 9, 4, 6), normal(1, 9, 2, 6), normal(2, 20, 6), normal(3, 20, 6)
    positions = np.array([0, 1, 2, 19, 3, 3, 0, 1, 18], np.int32)
    for x, found in zip((query, key), Rotated()(*map(Tensor, (query, key, positions, all_of(query)))), strict=True):
        expected = rotate_half(x[None], cos[positions][None, :, None], sin[positions][None, :, None])[0]
        np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_swiglu_gates_with_silu() -> None:
    gate, up = np.array([[-30, -1, 0, 2]], np.float32), np.array([[1, 2, 3, 4]], np.float32)
    expected = swiglu(np.stack([gate, up], axis=1), 1).reshape(gate.shape)
    np.testing.assert_allclose(run(SwiGLUOp(), gate, up, all_of(gate)), expected, rtol=1e-5)
    assert expected[0, 3] == pytest.approx(2 / (1 + np.exp(-2)) * 4), "the gate, and not the other, is silu's"


def test_pairs_are_masked_later_and_across_segments(form: str) -> None:
    if form == "kernels":
        pytest.skip("kernels take ends")
    assert run(SegmentMask(), np.array([[1, 1, 2, 0, 0]], np.int32)).tolist() == [
        [[0, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 0, 1, 1], [1, 1, 1, 0, 1], [1, 1, 1, 0, 0]]
    ]


def test_segments_end_where_their_number_changes_and_with_the_row() -> None:
    # The second row's segment 1 is not the first row's; padding belongs to the segment before it.
    segments = np.array([[1, 1, 2, 2], [1, 1, 1, 0], [1, 1, 1, 1]], np.int32)
    ends = segment_ends(segments)
    assert ends.tolist() == [2, 4, 8, 12] and ends.dtype == np.int64
    assert segment_ends(np.array([[1, 1, 0], [0, 0, 0]])).tolist() == [3, 6]


def test_of_more_segments_than_there_are_none_is_empty() -> None:
    # The last token, padding, becomes a segment; a full row cannot give one.
    assert segment_ends(np.array([[1, 1, 1, 0]]), num_segments=2).tolist() == [3, 4]
    with pytest.raises(AssertionError, match="1 segments and 0 tokens of padding, 2 are needed"):
        segment_ends(np.array([[1, 1, 1, 1]]), num_segments=2)


# Rows of one and of several segments, padded and full.
SEGMENTS_RT = np.array(
    [[1, 1, 1, 2, 2, 0, 0], [1, 1, 1, 1, 1, 1, 1], [1, 2, 2, 3, 3, 3, 3], [1, 1, 0, 0, 0, 0, 0]], np.int32
)


def attended(num_heads: int, num_kv_heads: int, head_dim: int) -> tuple[list[np.ndarray], np.ndarray]:
    """query, key, value of all rows; and what the composed form makes of them, [M, A * D]."""

    class Attention(nn.Cell):
        def __init__(self):
            super().__init__()
            self.mask = SegmentMask()
            self.attention = CausalAttentionOp(num_heads, num_kv_heads, head_dim)

        def construct(self, query, key, value, segments):
            return self.attention(query, key, value, self.mask(segments))

    heads = (num_heads, num_kv_heads, num_kv_heads)
    tensors = [normal(seed, SEGMENTS_RT.size, count, head_dim) for seed, count in enumerate(heads)]
    return tensors, run(Attention(), *tensors, attention_segments(SEGMENTS_RT, is_packed=has_kernels()))


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_attention_is_that_of_the_fused_op(num_kv_heads: int) -> None:
    (query, key, value), found = attended(4, num_kv_heads, 6)
    expected = flash_attention(query, key, value, segment_ends(SEGMENTS_RT), scale=6**-0.5)
    is_real = SEGMENTS_RT.reshape(-1) > 0
    assert found.shape == (SEGMENTS_RT.size, 24) and np.isfinite(found).all()
    np.testing.assert_allclose(found[is_real], expected.reshape(-1, 24)[is_real], rtol=1e-5, atol=1e-5)


def test_the_twin_of_attention_by_hand() -> None:
    # One head of size 1, two segments of 2 and 1: e^0 against e^(0.5 * 2 * ln 3) = 3 in the second query.
    query, key = np.array([[[5.0]], [[2.0]], [[7.0]]]), np.array([[[0.0]], [[np.log(3)]], [[1.0]]])
    value = np.array([[[4.0]], [[8.0]], [[9.0]]])
    found = flash_attention(query, key, value, np.array([2, 3]), scale=0.5)
    np.testing.assert_allclose(found.reshape(-1), [4, (4 + 3 * 8) / 4, 9])


def test_a_process_stays_on_its_device() -> None:
    set_up_runtime("CPU")
    with pytest.raises(RuntimeError, match="runs on CPU.*Ascend"):
        set_up_runtime("Ascend")
    assert current_device() == "CPU"
