"""Emulated operators along axes, beside their definitions in float64 and whole numbers, and what CANN rules out."""

from typing import Any

import numpy as np
import pytest
from emulated_operators import FLOATS, NUMBER_OF, assert_is, draw, exact, index, launch, of, refusal, unlaunched, zeros

from ascend_emulator.operators import reduction

AXES: list[tuple[list[int], bool, tuple[int, ...]]] = [
    ([1], False, (3, 5)),
    ([-1, 0], True, (1, 4, 1)),
    ([], False, ()),
    ([0, 1, 2], True, (1, 1, 1)),
]


def all_axes(dims: list[int]) -> tuple[int, ...]:
    return tuple(dims) or (0, 1, 2)


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "int64", "uint8"])
@pytest.mark.parametrize(("dims", "keep", "shape"), AXES)
def test_along_axes(dims: list[int], keep: bool, shape: tuple[int, ...], dtype: str) -> None:
    x = draw(4, 3, 5, dtype=dtype)
    x = x.seen(x.bits.transpose(1, 0, 2))
    out, axes = zeros(shape, dtype), all_axes(dims)
    assert_is(launch("aclnnReduceSum", x, dims, keep, NUMBER_OF[dtype], out), exact(x).sum(axes).reshape(shape))
    assert_is(launch("aclnnAmax", x, dims, keep, out), exact(x).max(axes).reshape(shape))
    assert_is(launch("aclnnAmin", x, dims, keep, out), exact(x).min(axes).reshape(shape))
    flags = zeros(shape, "bool")
    launch("aclnnAll", x, dims, keep, flags)
    np.testing.assert_array_equal(flags.bits, (exact(x) != 0).all(axes).reshape(shape))
    launch("aclnnAny", x, dims, keep, flags)
    np.testing.assert_array_equal(flags.bits, (exact(x) != 0).any(axes).reshape(shape))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("dims", "keep", "shape"), AXES)
def test_means(dims: list[int], keep: bool, shape: tuple[int, ...], dtype: str) -> None:
    x, out = draw(3, 4, 5, dtype=dtype), zeros(shape, dtype)
    assert_is(launch("aclnnMean", x, dims, keep, NUMBER_OF[dtype], out), exact(x).mean(all_axes(dims)).reshape(shape))


def test_sums_of_16_bit_floats_are_accumulated_in_32() -> None:
    for dtype in ("float16", "bfloat16"):
        ones = of(np.ones(5000), dtype)
        launch("aclnnReduceSum", ones, [0], False, NUMBER_OF[dtype], out := zeros((), dtype))
        assert_is(out, 5000)
        assert_is(launch("aclnnMean", ones, [0], False, NUMBER_OF[dtype], out), 1)


def test_sums_are_of_the_dtype_that_is_asked_for() -> None:
    flags, numbers = draw(100, dtype="bool"), of([100, 100], "int8")
    launch("aclnnReduceSum", flags, [0], False, NUMBER_OF["int32"], out := zeros((), "int32"))
    assert out.bits == flags.bits.sum()
    launch("aclnnReduceSum", numbers, [0], False, NUMBER_OF["int8"], out := zeros((), "int8"))
    assert out.bits == -56
    launch("aclnnReduceSum", numbers, [0], False, NUMBER_OF["int64"], out := zeros((), "int64"))
    assert out.bits == 200
    assert launch("aclnnMean", numbers, [0], False, NUMBER_OF["float32"], zeros(())).bits == 100


@pytest.mark.parametrize("dtype", [*FLOATS, "int64", "bool"])
def test_extremes(dtype: str) -> None:
    x = of([[0, 1, 1], [0, 0, 1]], dtype)
    for one in ((), (1,)):
        out = zeros(one, dtype)
        assert launch("aclnnMax", x, out).values().max() == 1
        assert launch("aclnnMin", x, out).values().max() == 0
    for keep, shape in ((False, (2,)), (True, (2, 1))):
        values, places = zeros(shape, dtype), zeros(shape, "int64")
        launch("aclnnMaxDim", x, -1, keep, values, places)
        assert values.values().ravel().tolist() == [1, 1] and places.bits.ravel().tolist() == [1, 2]
        launch("aclnnMinDim", x, 1, keep, values, places)
        assert values.values().ravel().tolist() == [0, 0] and places.bits.ravel().tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
def test_places_and_products(dtype: str) -> None:
    x, places = of([[1, 3, 3], [0, 0, 3]], dtype), zeros((3,), "int32")
    assert launch("aclnnArgMax", x, 0, False, places).bits.tolist() == [0, 0, 0]
    assert launch("aclnnArgMin", x, 0, False, places).bits.tolist() == [1, 1, 0]
    assert launch("aclnnProd", x, NUMBER_OF[dtype], out := zeros((), dtype)).values() == 0
    launch("aclnnProdDim", x, 1, True, NUMBER_OF[dtype], out := zeros((2, 1), dtype))
    assert out.values().ravel().tolist() == [9, 0]


def test_nan_is_an_extreme() -> None:
    x, value, place = of([1, np.nan, 3]), zeros(()), zeros((), "int64")
    for name in ("aclnnMaxDim", "aclnnMinDim"):
        launch(name, x, 0, False, value, place)
        assert np.isnan(value.bits) and place.bits == 1


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
def test_cumulative_sums(dtype: str) -> None:
    x, out = draw(3, 6, dtype=dtype), zeros((3, 6), dtype)
    launch("aclnnCumsum", x, -1, NUMBER_OF[dtype], out)
    expected = np.zeros((3, 6))
    for column in range(6):
        expected[:, column] = exact(x)[:, : column + 1].sum(1)
    assert_is(out, expected)
    launch("aclnnCumsum", draw(dtype=dtype), 0, NUMBER_OF[dtype], zeros((), dtype))


@pytest.mark.parametrize(("exclusive", "reverse", "expected"), [
    (False, False, [1, 3, 6, 10]),
    (True, False, [0, 1, 3, 6]),
    (False, True, [10, 9, 7, 4]),
    (True, True, [9, 7, 4, 0]),
])  # fmt: skip
def test_cumulative_sums_without_the_element_and_from_the_end(exclusive, reverse, expected):
    assert reduction.cumulative(np.arange(1, 5), 0, exclusive=exclusive, reverse=reverse).tolist() == expected


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("dims", "keep", "shape"), AXES)
def test_norms(dims: list[int], keep: bool, shape: tuple[int, ...], dtype: str) -> None:
    x, out, axes = draw(3, 4, 5, dtype=dtype), zeros(shape, dtype), all_axes(dims)
    assert_is(launch("aclnnLogSumExp", x, dims, keep, out), np.log(np.exp(exact(x)).sum(axes)).reshape(shape))
    sizes = np.abs(exact(x))
    for p, expected in (
        (2.0, np.sqrt((sizes**2).sum(axes))),
        (1.0, sizes.sum(axes)),
        (3.0, np.cbrt((sizes**3).sum(axes))),
        (np.inf, sizes.max(axes)),
        (-np.inf, sizes.min(axes)),
        (0.0, np.full(sizes.sum(axes).shape, sizes.size // max(1, np.prod(shape)))),
    ):
        assert_is(launch("aclnnNorm", x, p, dims, keep, out), expected.reshape(shape))
        assert_is(launch("aclnnLinalgVectorNorm", x, p, dims, keep, NUMBER_OF[dtype], out), expected.reshape(shape))


def test_the_sum_of_exponentials_neither_overflows_nor_loses_infinity() -> None:
    x = of([[1000, 1000], [-np.inf, -np.inf], [np.inf, 0]])
    launch("aclnnLogSumExp", x, [1], False, out := zeros((3,)))
    np.testing.assert_allclose(out.bits, [1000 + np.log(2), -np.inf, np.inf])


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("descending", [False, True])
def test_sorting(dtype: str, descending: bool) -> None:
    x = draw(3, 9, dtype=dtype)
    values, order = zeros((3, 9), dtype), zeros((3, 9), "int64")
    launch("aclnnSort", x, True, 1, descending, values, order)
    for row in range(3):
        expected = sorted(range(9), key=lambda at: exact(x)[row, at] * (-1 if descending else 1))
        assert order.bits[row].tolist() == expected
        np.testing.assert_array_equal(values.bits[row], x.bits[row, expected])


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "int64", "uint8"])
@pytest.mark.parametrize("largest", [False, True])
def test_the_greatest_and_the_least(dtype: str, largest: bool) -> None:
    x = draw(4, 9, dtype=dtype)
    most, places = zeros((2, 9), dtype), zeros((2, 9), "int64")
    launch("aclnnTopk", x, 2, 0, largest, True, most, places)
    ordered = np.sort(exact(x), 0)
    np.testing.assert_array_equal(exact(most), ordered[::-1][:2] if largest else ordered[:2])
    np.testing.assert_array_equal(np.take_along_axis(x.bits, places.bits, 0), most.bits)


def test_nan_sorts_as_the_greatest() -> None:
    x, values, order = (of([2, np.nan, -np.inf]), zeros((3,)), zeros((3,), "int64"))
    assert launch("aclnnSort", x, False, 0, False, values, order).bits.tolist() == [2, 0, 1]
    assert launch("aclnnSort", x, False, 0, True, values, order).bits.tolist() == [1, 0, 2]


def test_counts() -> None:
    x = of([1, 3, 3, 0], "int32")
    launch("aclnnBincount", x, None, 6, out := zeros((6,), "int64"))
    assert out.bits.tolist() == [1, 1, 0, 2, 0, 0]
    launch("aclnnBincount", x, of([0.5, 1, 2, 4]), 0, weighted := zeros((4,)))
    assert weighted.bits.tolist() == [4, 0.5, 0, 3]
    reals = of([0, 0.5, 1, 2, 2.5, -1])
    assert launch("aclnnHistc", reals, 2, 0, 2, out := zeros((2,))).bits.tolist() == [2, 2]
    launch("aclnnHistc", reals, 7, 0, 0, out := zeros((7,)))  # from the least to the greatest
    assert out.bits.sum() == 6


def refused_sums() -> list[tuple[str, tuple[Any, ...], str]]:
    x, out = draw(3, 4), zeros((3,))
    places = zeros((3,), "int64")
    half, few = draw(3, 1, dtype="bfloat16"), zeros((3, 1), "int64")
    return [
        ("aclnnReduceSum", (x, [2], False, 0, out), "dims must be an axis of self [3, 4], not 2"),
        ("aclnnReduceSum", (x, [1, -1], False, 0, out), "dims must name each axis once, not [1, -1]"),
        ("aclnnReduceSum", (x, [0], False, 0, out), "out must be of shape [4], not float32[3]"),
        ("aclnnReduceSum", (x, [1], True, 0, out), "out must be of shape [3, 1], not float32[3]"),
        ("aclnnReduceSum", (x, [1], False, 3, out), "dtype must be the dtype of out, float32, not int32"),
        ("aclnnAmax", (x, [1], False, places), "out must have the dtype of self, float32, not int64"),
        ("aclnnMax", (x, out), "out must have one element, not float32[3]"),
        ("aclnnMaxDim", (draw(3, 4, dtype="int32"), 1, False, places, places), "self must be bfloat16 or bool or"),
        ("aclnnMaxDim", (x, 1, False, out, few), "must have one shape: out [3], indices [3, 1]"),
        ("aclnnArgMax", (x, 1, False, out), "out must be int32 or int64, not float32"),
        ("aclnnCumsum", (x, 2, 0, zeros((3, 4))), "dim must be an axis of self [3, 4], not 2"),
        ("aclnnSort", (half, True, 1, False, half, few), "an axis of length 1 cannot be sorted in bfloat16"),
        ("aclnnTopk", (x, 5, 1, True, True, x, places), "k must be within 0 and the length of axis 1 of self [3, 4]"),
        ("aclnnTopk", (x, 4, 1, True, False, x, places), "sorted must be True, not False"),
        ("aclnnBincount", (index([-1]), None, 0, index([0])), "self must not be negative, not -1"),
        ("aclnnBincount", (index([4]), None, 2, index([0, 0])), "out must be of shape [5], not int64[2]"),
        ("aclnnHistc", (x, 0, 0, 1, out), "bins must be at least 1, not 0"),
        ("aclnnAny", (x, [1], False, out), "out must be bool, not float32"),
    ]


@pytest.mark.parametrize(("name", "arguments", "expected"), refused_sums())
def test_refusals(name: str, arguments: tuple[Any, ...], expected: str) -> None:
    assert expected in refusal(name, *arguments)


def test_every_operator_is_launched(request: pytest.FixtureRequest) -> None:
    assert unlaunched(request, reduction) == set()
