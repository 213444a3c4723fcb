"""Emulated operators that move elements by shape and axis, and what CANN rules out."""

from typing import Any

import numpy as np
import pytest
from emulated_operators import draw, launch, of, refusal, unlaunched, zeros

from ascend_emulator.operators import movement
from ascend_emulator.tensors import DeviceTensor

DTYPES = ("float32", "bfloat16", "float16", "int64", "bool")


def assert_same(out: DeviceTensor, bits: np.ndarray) -> None:
    np.testing.assert_array_equal(out.bits, bits)


def turned(*shape: int, dtype: str = "float32", seed: int = 0) -> DeviceTensor:
    """A tensor whose memory has its axes in the opposite order."""
    x = draw(*shape[::-1], dtype=dtype, seed=seed)
    return x.seen(x.bits.transpose())


@pytest.mark.parametrize("dtype", DTYPES)
def test_joining_and_cutting(dtype: str) -> None:
    a, b = turned(2, 3, 4, dtype=dtype), draw(2, 5, 4, dtype=dtype, seed=1)
    whole = zeros((2, 8, 4), dtype)
    launch("aclnnCat", [a, b], -2, whole)
    assert_same(whole, np.concatenate([a.bits, b.bits], 1))
    parts = [zeros((2, size, 4), dtype) for size in (3, 5)]
    launch("aclnnSplitWithSize", whole, [3, 5], 1, parts)
    for one, expected in zip(parts, (a, b), strict=True):
        assert_same(one, expected.bits)
    parts = [zeros((2, size, 4), dtype) for size in (3, 3, 2)]
    launch("aclnnSplitTensor", whole, 3, 1, parts)
    assert_same(parts[2], whole.bits[:, 6:])
    for axis in (0, 1, 2, 3, -1):
        stacked = np.stack([a.bits, a.bits], axis)
        launch("aclnnStack", [a, a], axis, out := zeros(stacked.shape, dtype))
        assert_same(out, stacked)
    scalars = zeros((2,), dtype)
    launch("aclnnStack", [draw(dtype=dtype), draw(dtype=dtype, seed=1)], 0, scalars)
    assert_same(scalars, np.stack([draw(dtype=dtype).bits, draw(dtype=dtype, seed=1).bits]))


def test_what_is_joined_is_converted_to_the_output() -> None:
    out = zeros((3,))
    launch("aclnnCat", [of([1.5], "bfloat16"), of([2, 3], "int32")], 0, out)
    assert out.bits.tolist() == [1.5, 2, 3]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rearranging(dtype: str) -> None:
    x = turned(2, 3, 4, dtype=dtype)
    out = zeros((4, 2, 3), dtype)
    launch("aclnnPermute", x, [-1, 0, 1], out)
    assert all(out.bits[k, i, j] == x.bits[i, j, k] for i, j, k in np.ndindex(2, 3, 4))
    launch("aclnnExpand", x.seen(x.bits[:, :1]), [5, -1, 3, 4], out := zeros((5, 2, 3, 4), dtype))
    assert_same(out, np.stack([x.bits[:, [0, 0, 0]]] * 5))
    launch("aclnnRepeat", x, [2, 1, 3, 1], out := zeros((2, 2, 9, 4), dtype))
    assert_same(out, np.stack([np.concatenate([x.bits] * 3, 1)] * 2))
    for start, end, step in ((0, 4, 1), (1, 4, 2), (-3, -1, 1), (2, 100, 1)):
        expected = x.bits[:, :, start:end:step]
        launch("aclnnSlice", x, 2, start, end, step, out := zeros(expected.shape, dtype))
        assert_same(out, expected)
    launch("aclnnFlip", x, [0, -1], out := zeros(x.shape, dtype))
    assert_same(out, x.bits[::-1, :, ::-1])
    launch("aclnnRoll", x, [1, -1], [1, 2], out)
    assert all(out.bits[i, (j + 1) % 3, (k - 1) % 4] == x.bits[i, j, k] for i, j, k in np.ndindex(2, 3, 4))
    launch("aclnnRoll", x, [5], [], out)
    assert_same(out.seen(out.bits.reshape(-1)), np.concatenate([x.bits.ravel()[-5:], x.bits.ravel()[:-5]]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_repeating_masking_and_padding(dtype: str) -> None:
    x = turned(3, 4, dtype=dtype)
    launch("aclnnRepeatInterleaveInt", x, 2, 24, out := zeros((24,), dtype))
    assert all(out.bits[at] == x.bits.ravel()[at // 2] for at in range(24))
    launch("aclnnRepeatInterleaveIntWithDim", x, 3, 0, 9, out := zeros((9, 4), dtype))
    assert all((out.bits[at] == x.bits[at // 3]).all() for at in range(9))
    for diagonal in (-1, 0, 2):
        launch("aclnnTril", x, diagonal, out := zeros((3, 4), dtype))
        assert all(out.bits[i, j] == (x.bits[i, j] if j - i <= diagonal else 0) for i, j in np.ndindex(3, 4))
        launch("aclnnTriu", x, diagonal, out)
        assert all(out.bits[i, j] == (x.bits[i, j] if j - i >= diagonal else 0) for i, j in np.ndindex(3, 4))
    launch("aclnnConstantPadNd", x, [1, 2, 0, 1], 1, out := zeros((4, 7), dtype))
    assert_same(out.seen(out.bits[:3, 1:5]), x.bits)
    assert out.values().sum(dtype=float) == pytest.approx(x.values().sum(dtype=float) + 28 - 12, abs=1e-4)
    launch("aclnnConstantPadNd", x, [-1, 1], 0, out := zeros((3, 4), dtype))
    assert_same(out.seen(out.bits[:, :3]), x.bits[:, 1:])


def refused() -> list[tuple[str, tuple[Any, ...], str]]:
    x, out = draw(3, 4), zeros((3, 4))
    half = zeros((3, 4), "bfloat16")
    column = draw(3, 1)
    return [
        ("aclnnCat", ([], 0, out), "tensors must not be empty"),
        ("aclnnCat", ([x, draw(2, 5)], 0, out), "tensors must differ in axis 0 alone: [[3, 4], [2, 5]]"),
        ("aclnnCat", ([x, draw(4)], 0, out), "tensors must differ in axis 0 alone: [[3, 4], [4]]"),
        ("aclnnCat", ([x, x], 2, out), "dim must be an axis of tensors [3, 4], not 2"),
        ("aclnnCat", ([x, x], 0, out), "out must be of shape [6, 4], not float32[3, 4]"),
        ("aclnnStack", ([x, draw(4, 3)], 0, out), "tensors must have one shape: [[3, 4], [4, 3]]"),
        ("aclnnStack", ([x, x], 3, out), "dim must be within -3 and 2, not 3"),
        ("aclnnSplitTensor", (x, 2, 1, [out]), "out must be of shapes [[3, 2], [3, 2]], not [[3, 4]]"),
        ("aclnnSplitTensor", (x, 0, 1, [out]), "splitSections is 0 where the axis has 4 elements"),
        ("aclnnSplitWithSize", (x, [1, 2], 1, [out]), "splitSize must sum up to 4, not [1, 2]"),
        ("aclnnPermute", (x, [0], out), "dims must name every axis, not [0]"),
        ("aclnnPermute", (x, [0, 0], out), "dims must name each axis once, not [0, 0]"),
        ("aclnnPermute", (x, [1, 0], out), "out must be of shape [4, 3], not float32[3, 4]"),
        ("aclnnPermute", (x, [0, 1], half), "out must have the dtype of self, float32, not bfloat16"),
        ("aclnnExpand", (x, [3, 5], out), "self [3, 4] does not expand to size [3, 5]"),
        ("aclnnExpand", (x, [4], out), "self [3, 4] does not expand to size [4]"),
        ("aclnnRepeat", (x, [2], out), "repeats must be 2 to 8 numbers, none negative, not [2]"),
        ("aclnnRepeat", (column, [1, 2, 2, 2, 2], out), "at most 3 axes can be repeated at once"),
        ("aclnnRepeat", (column, [2, 2, 2, 2, 2], out), "at most 4 axes can be repeated at once"),
        ("aclnnRepeatInterleaveInt", (x, -1, 0, out), "repeats must be at least 0, not -1"),
        ("aclnnRepeatInterleaveIntWithDim", (x, 2, 1, 9, out), "outputSize must be 8, not 9"),
        ("aclnnSlice", (x, 1, 0, 2, 0, out), "step must be at least 1, not 0"),
        ("aclnnSlice", (x, 1, 0, 2, 1, out), "out must be of shape [3, 2], not float32[3, 4]"),
        (
            "aclnnSplitWithSize",
            (draw(2, dtype="uint16"), [1, 1], 0, [draw(1, dtype="uint16")] * 2),
            "uint8, not uint16",
        ),
        ("aclnnRoll", (x, [1, 2], [0], out), "shifts and dims must be as many, not [1, 2] and [0]"),
        ("aclnnTril", (draw(3), 0, draw(3)), "self must have 2 to 8 axes, not 1 [3]"),
        ("aclnnConstantPadNd", (x, [1], 0, out), "pad must be two numbers for each of at most 2 axes, not [1]"),
        ("aclnnConstantPadNd", (x, [-5, 0], 0, out), "pad [-5, 0] takes more than there is of [3, 4]"),
    ]


@pytest.mark.parametrize(("name", "arguments", "expected"), refused())
def test_refusals(name: str, arguments: tuple[Any, ...], expected: str) -> None:
    assert expected in refusal(name, *arguments)


def test_every_operator_is_launched(request: pytest.FixtureRequest) -> None:
    assert unlaunched(request, movement) == set()
