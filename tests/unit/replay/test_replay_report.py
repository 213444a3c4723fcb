"""Differences of two computations, by hand-made arrays."""

from __future__ import annotations

import numpy as np
import pytest

from mindgspo.replay.run import ReplayReport, ReplayVerdict, _backward_order, compare_tensors

ONE = np.array([1.0, -4.0, 2.0], np.float32)


@pytest.mark.parametrize(("found", "recorded", "max_abs", "relative", "is_equal"), [
    (ONE, ONE, 0.0, 0.0, True),
    (ONE + np.float32([0, 0, 0.5]), ONE, 0.5, 0.125, False),
    ([np.nan, np.inf], [np.nan, np.inf], 0.0, 0.0, True),
    ([np.nan, 1.0], [2.0, 1.0], np.inf, np.inf, False),
    ([np.inf], [-np.inf], np.inf, np.inf, False),
    ([1.0, 2.0], [1.0], np.inf, np.inf, False),
    ([0.0], [-0.0], 0.0, 0.0, True),
    (np.zeros((0, 3)), np.zeros((0, 3)), 0.0, 0.0, True),
])  # fmt: skip
def test_how_far_two_tensors_are_apart(found, recorded, max_abs, relative, is_equal) -> None:
    one = compare_tensors("forward", "x", np.array(found), np.array(recorded), tolerance=0.1)
    assert (one.max_abs, one.is_equal) == (max_abs, is_equal) and one.relative == pytest.approx(relative)
    assert one.is_within == (relative <= 0.1)


def test_the_first_beyond_its_tolerance_is_named_with_what_is_in_front_of_it() -> None:
    found = ReplayReport("step 1", "CPU")
    for name, off in (("a", 0.0), ("b", 1e-6), ("c", 0.1), ("d", 0.2)):
        found.differences.append(
            compare_tensors("forward", name, ONE + np.float32(off), ONE, tolerance=1e-4, operator=name.upper())
        )
    assert found.verdict is ReplayVerdict.DIFFERENT and found.first_beyond() is found.differences[2]
    lines = found.lines()
    first = lines.index(
        next(line for line in lines if line.startswith("first difference: forward: c (C) is off by 0.1"))
    )
    assert lines[first + 1] == "right before it comes b, which agrees"
    assert lines[first + 2].startswith("then forward: d (D)") and lines[-1] == "different: 2 of 4 tensors"
    assert any(line.split() == ["forward", "4", "1", "0.05", "0.0001"] for line in lines)
    del found.differences[2:]
    assert found.verdict is ReplayVerdict.WITHIN and found.lines()[-1] == "within tolerance: 2 tensors"
    del found.differences[1:]
    assert found.verdict is ReplayVerdict.EQUAL and found.lines()[-1] == "bit-equal: 1 tensor"


def test_gradients_come_in_the_order_of_the_backward_pass() -> None:
    names = [
        "model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight", "model.layers.1.input_layernorm.weight",
        "model.layers.1.mlp.down_proj.weight", "model.layers.1.mlp.gate_proj.weight", "lm_head.weight",
        "model.layers.1.self_attn.o_proj.weight", "model.layers.1.self_attn.q_proj.bias", "model.norm.weight",
        "model.layers.1.post_attention_layernorm.weight",
    ]  # fmt: skip
    assert [name.removeprefix("model.").removesuffix(".weight") for name in sorted(names, key=_backward_order)] == [
        "lm_head", "norm", "layers.1.mlp.down_proj", "layers.1.mlp.gate_proj", "layers.1.post_attention_layernorm",
        "layers.1.self_attn.o_proj", "layers.1.self_attn.q_proj.bias", "layers.1.input_layernorm",
        "layers.0.mlp.down_proj", "embed_tokens",
    ]  # fmt: skip
