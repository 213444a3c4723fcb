"""Emulated operators that make values, and what CANN rules out."""

from typing import Any

import numpy as np
import pytest
from emulated_operators import FLOATS, assert_is, draw, exact, index, launch, of, refusal, unlaunched, zeros

from ascend_emulator.operators import creation

DTYPES = (*FLOATS, "int32", "int64", "uint8", "bool")


@pytest.mark.parametrize("dtype", DTYPES)
def test_constants(dtype: str) -> None:
    x = draw(4, 6, dtype=dtype)
    inner = x.seen(x.bits[1:3, ::2])
    outside = x.bits.copy()
    for name, arguments, number in (
        ("aclnnInplaceZero", (), 0),
        ("aclnnInplaceOne", (), 1),
        ("aclnnInplaceFillScalar", (1,), 1),
        ("aclnnInplaceFillTensor", (of([0], dtype),), 0),
    ):
        launch(name, inner, *arguments)
        assert (inner.values() == number).all()
    outside[1:3, ::2] = 0
    np.testing.assert_array_equal(x.bits, outside)  # nothing beside the view was written


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
def test_ranges(dtype: str) -> None:
    for start, end, step in ((0, 7, 1), (5, -4, -3), (2, 9, 3)):
        expected = list(range(start, end, step))
        launch("aclnnArange", start, end, step, out := zeros((len(expected),), dtype))
        assert out.values().tolist() == expected
    launch("aclnnLinspace", -3, 9, 5, out := zeros((5,), dtype))
    assert out.values().tolist() == [-3, 0, 3, 6, 9]
    assert launch("aclnnLinspace", 2, 9, 1, out := zeros((1,), dtype)).values().tolist() == [2]
    assert launch("aclnnEye", 2, 3, zeros((2, 3), dtype)).values().tolist() == [[1, 0, 0], [0, 1, 0]]


def test_ranges_of_fractions() -> None:
    assert_is(launch("aclnnArange", 0.0, 1.0, 0.1, zeros((10,), "bfloat16")), np.arange(10) / 10)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int64"])
def test_one_hot(dtype: str) -> None:
    classes, on, off = index([[0, 2], [3, 1]], "int32"), of([5], dtype), of([1], dtype)
    for axis, shape in ((-1, (2, 2, 3)), (0, (3, 2, 2)), (1, (2, 3, 2)), (2, (2, 2, 3))):
        launch("aclnnOneHot", classes, 3, on, off, axis, out := zeros(shape, dtype))
        codes = np.moveaxis(exact(out), axis, -1)
        assert codes[0, 0].tolist() == [5, 1, 1]
        assert codes[0, 1].tolist() == [1, 1, 5]
        assert codes[1, 0].tolist() == [1, 1, 1]  # there is no class 3
        assert codes[1, 1].tolist() == [1, 5, 1]


@pytest.mark.parametrize("dtype", FLOATS)
def test_random_numbers_follow_from_seed_and_offset(dtype: str) -> None:
    for name, first, second, mean, deviation in (
        ("aclnnInplaceUniform", -1.0, 3.0, 1, 4 / 12**0.5),
        ("aclnnInplaceNormal", 1.0, 2.0, 1, 2),
    ):
        drawn = []
        for seed, offset in ((1, 0), (1, 0), (2, 0), (1, 12)):
            x = zeros((20_000,), dtype)
            launch(name, x, first, second, seed, offset)
            drawn.append(exact(x))
        assert (drawn[0] == drawn[1]).all()
        assert (drawn[0] != drawn[2]).any() and (drawn[0] != drawn[3]).any()
        assert drawn[0].mean() == pytest.approx(mean, abs=0.05)
        assert drawn[0].std() == pytest.approx(deviation, rel=0.03)
        if name == "aclnnInplaceUniform":
            assert drawn[0].min() >= -1 and drawn[0].max() <= 3


def refused() -> list[tuple[str, tuple[Any, ...], str]]:
    x, codes = draw(3), draw(2)
    classes, on = index([0, 1]), of([1.0])
    return [
        ("aclnnInplaceZero", (None,), "selfRef is required, not given"),
        ("aclnnInplaceFillTensor", (x, codes), "value must be of shape [1], not float32[2]"),
        ("aclnnInplaceFillTensor", (x, index([1])), "value must have the dtype of selfRef, float32, not int64"),
        ("aclnnArange", (0, 3, 0, x), "step must lead from start to end, not 0 from 0 to 3"),
        ("aclnnArange", (3, 0, 1, x), "step must lead from start to end, not 1 from 3 to 0"),
        ("aclnnArange", (0, 4, 1, x), "out must be of shape [4], not float32[3]"),
        ("aclnnLinspace", (0, 1, 2, x), "out must be of shape [2], not float32[3]"),
        ("aclnnEye", (-1, 2, draw(1, 2)), "n must be at least 0, not -1"),
        ("aclnnEye", (2, 3, draw(2, 2)), "out must be of shape [2, 3], not float32[2, 2]"),
        ("aclnnOneHot", (classes, 3, on, on, -1, codes), "out must be of shape [2, 3], not float32[2]"),
        ("aclnnOneHot", (draw(2), 3, on, on, -1, codes), "self must be int32 or int64, not float32"),
        ("aclnnOneHot", (classes, 3, draw(1, dtype="int8"), on, -1, codes), "int32 or int64, not int8"),
        ("aclnnOneHot", (classes, 3, on, on, 2, codes), "axis must be at most the rank of self, 1, not 2"),
        ("aclnnInplaceUniform", (x, 2.0, 1.0, 0, 0), "from must be at most to, 1.0, not 2.0"),
        ("aclnnInplaceNormal", (x, 0.0, -1.0, 0, 0), "std must be at least 0, not -1.0"),
        ("aclnnInplaceNormal", (index([1]), 0.0, 1.0, 0, 0), "selfRef must be bfloat16 or float16"),
    ]


@pytest.mark.parametrize(("name", "arguments", "expected"), refused())
def test_refusals(name: str, arguments: tuple[Any, ...], expected: str) -> None:
    assert expected in refusal(name, *arguments)


def test_every_operator_is_launched(request: pytest.FixtureRequest) -> None:
    assert unlaunched(request, creation) == set()
