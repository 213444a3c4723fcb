"""The composed forms of the fused ops, against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("cpu_runtime")


def run(cell, *arrays: np.ndarray) -> np.ndarray:
    from mindspore import Tensor

    return cell(*map(Tensor, arrays)).asnumpy()


def test_rms_norm_divides_by_the_root_mean_square() -> None:
    from mindgspo.parallel.device_ops import RMSNormOp

    # mean square (9 + 16 + 0 + 0) / 4 = 6.25, root 2.5; the epsilon 2.75 makes it 3
    x, weight = np.array([[3, 4, 0, 0]], np.float32), np.array([1, 2, 3, 4], np.float32)
    np.testing.assert_allclose(run(RMSNormOp(0.0), x, weight), [[1.2, 3.2, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(run(RMSNormOp(2.75), x, weight), [[1, 8 / 3, 0, 0]], rtol=1e-6)


def test_rotary_turns_pairs_half_a_head_apart() -> None:
    from mindgspo.parallel.device_ops import RotaryOp

    # One token, two heads: a quarter turn of the pair (x0, x2) and none of (x1, x3).
    cos, sin = np.array([[[0, 1, 0, 1]]], np.float32), np.array([[[1, 0, 1, 0]]], np.float32)
    turned = run(RotaryOp(4), np.array([[[1, 2, 3, 4], [5, 6, 7, 8]]], np.float32), cos, sin)
    np.testing.assert_array_equal(turned, [[[-3, 2, 1, 4], [-7, 6, 5, 8]]])


def test_swiglu_gates_with_silu() -> None:
    from mindgspo.parallel.device_ops import SwiGLUOp

    gate, up = np.array([-30, -1, 0, 2], np.float32), np.array([1, 2, 3, 4], np.float32)
    np.testing.assert_allclose(run(SwiGLUOp(), gate, up), gate / (1 + np.exp(-gate.astype(float))) * up, rtol=1e-5)


def test_pairs_are_forbidden_later_and_across_segments() -> None:
    from mindspore import Tensor

    from mindgspo.parallel.device_ops import forbidden_pairs

    segments = np.array([[1, 1, 2, 0, 0]], np.int32)
    assert forbidden_pairs(Tensor(segments)).asnumpy().tolist() == [
        [
            [0, 1, 1, 1, 1],
            [0, 0, 1, 1, 1],
            [1, 1, 0, 1, 1],
            [1, 1, 1, 0, 1],
            [1, 1, 1, 0, 0],
        ]
    ]


def attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, forbidden: np.ndarray) -> np.ndarray:
    """One row, head by head: query head a reads key/value head a // (A / B)."""
    num_slots, num_heads, head_dim = query.shape
    group = num_heads // key.shape[1]
    out = np.zeros((num_slots, num_heads, head_dim))
    for head in range(num_heads):
        scores = query[:, head] @ key[:, head // group].T / np.sqrt(head_dim)
        scores = np.where(forbidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=1, keepdims=True) @ value[:, head // group]
    return out.reshape(num_slots, num_heads * head_dim)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_attention_shares_kv_heads_and_stays_in_its_segment(num_kv_heads: int) -> None:
    from mindspore import Tensor

    from mindgspo.parallel.device_ops import CausalAttentionOp, forbidden_pairs

    rng = np.random.default_rng(0)
    shape = (2, 7, 4, 6)
    query = rng.normal(size=shape).astype(np.float32)
    key, value = rng.normal(size=(2, *shape[:2], num_kv_heads, 6)).astype(np.float32)
    segments = np.array([[1, 1, 1, 2, 2, 0, 0], [1, 1, 1, 1, 1, 1, 1]], np.int32)
    forbidden = forbidden_pairs(Tensor(segments)).asnumpy()
    found = run(CausalAttentionOp(4, num_kv_heads, 6), query, key, value, forbidden)
    for row in range(2):
        expected = attend(*(x[row].astype(np.float64) for x in (query, key, value)), forbidden[row])
        np.testing.assert_allclose(found[row], expected, rtol=1e-5, atol=1e-5)


def test_a_process_stays_on_its_device() -> None:
    from mindgspo.parallel.runtime import current_device, set_up_runtime

    set_up_runtime("CPU")
    with pytest.raises(RuntimeError, match="runs on CPU.*Ascend"):
        set_up_runtime("Ascend")
    assert current_device() == "CPU"
