"""Emulated operators that read and write by index, beside their definitions written out, and what CANN rules out.

Places that do not exist are refused when the operator is launched.
"""

from typing import Any

import numpy as np
import pytest
from emulated_operators import FLOATS, assert_is, draw, exact, index, launch, of, refusal, unlaunched, zeros

from ascend_emulator.operators import indexing
from ascend_emulator.tensors import DeviceTensor

MOVED = ("float32", "bfloat16", "int32", "bool")
ADDED = (*FLOATS, "int32")
INDEX = ("int32", "int64")


def copied(x: DeviceTensor) -> DeviceTensor:
    return DeviceTensor(x.dtype, x.shape, x.bits.copy())


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("index_dtype", INDEX)
def test_reading(dtype: str, index_dtype: str) -> None:
    x = draw(5, 4, dtype=dtype)
    x = x.seen(x.bits.T)  # of 4 rows and 5 columns
    where = index([[0, -5, 2], [1, 1, 4]], index_dtype)
    launch("aclnnGather", x, 1, where, out := zeros((2, 3), dtype))
    assert all(out.bits[i, j] == x.bits[i, where.bits[i, j]] for i, j in np.ndindex(2, 3))
    launch("aclnnGather", x, 0, index([[0, 3], [3, 1]], index_dtype), out := zeros((2, 2), dtype))
    assert out.bits.tolist() == [[x.bits[0, 0], x.bits[3, 1]], [x.bits[3, 0], x.bits[1, 1]]]
    launch("aclnnGather", draw(dtype=dtype), 0, index(0, index_dtype), out := zeros((), dtype))
    assert out.bits == draw(dtype=dtype).bits
    launch("aclnnIndexSelect", x, -1, index([4, 0, 4], index_dtype), out := zeros((4, 3), dtype))
    np.testing.assert_array_equal(out.bits, np.stack([x.bits[:, 4], x.bits[:, 0], x.bits[:, 4]], 1))
    launch("aclnnIndexSelect", x, 0, index(3, index_dtype), out := zeros((1, 5), dtype))
    np.testing.assert_array_equal(out.bits[0], x.bits[3])
    launch("aclnnEmbedding", x, index([[3, 0]], index_dtype), out := zeros((1, 2, 5), dtype))
    np.testing.assert_array_equal(out.bits[0], [x.bits[3], x.bits[0]])
    launch("aclnnGatherNd", x, index([[0, 4], [3, 0]], index_dtype), False, out := zeros((2,), dtype))
    assert out.bits.tolist() == [x.bits[0, 4], x.bits[3, 0]]
    launch("aclnnGatherNd", x, index([[-1]], index_dtype), True, out := zeros((1, 5), dtype))
    np.testing.assert_array_equal(out.bits[0], x.bits[3])


@pytest.mark.parametrize("dtype", ADDED)
def test_writing_one_element_per_index(dtype: str) -> None:
    x, source = draw(3, 5, dtype=dtype), draw(4, 4, dtype=dtype, seed=1)
    where = index([[0, 0, -1], [2, 1, 1]])
    for reduce in (0, 1, 2):
        expected = exact(x).copy()
        by_value = exact(x).copy()
        for i, j in np.ndindex(2, 3):
            at = i, where.bits[i, j]
            for result, given in ((expected, exact(source)[i, j]), (by_value, 2)):
                result[at] = (given, result[at] + given, result[at] * given)[reduce]
        launch("aclnnScatter", x, 1, where, source, reduce, out := zeros((3, 5), dtype))
        assert_is(out, expected)
        launch("aclnnInplaceScatter", in_place := copied(x), 1, where, source, reduce)
        np.testing.assert_array_equal(in_place.bits, out.bits)
        assert_is(launch("aclnnScatterValue", x, 1, where, 2, reduce, out), by_value)
        launch("aclnnInplaceScatterValue", in_place := copied(x), 1, where, 2, reduce)
        np.testing.assert_array_equal(in_place.bits, out.bits)
        if reduce == 1:
            assert_is(launch("aclnnScatterAdd", x, 1, where, source, out), expected)
    zero = zeros((), dtype)
    assert launch("aclnnScatterAdd", zero, 0, index(0), of(3, dtype), zero).values() == 3


@pytest.mark.parametrize("dtype", ADDED)
def test_adding_rows(dtype: str) -> None:
    x, rows = draw(3, 4, dtype=dtype), draw(5, 4, dtype=dtype, seed=1)
    chosen = [2, 0, 2, 2, 0]
    expected, twice = exact(x).copy(), exact(x).copy()
    for at, row in zip(chosen, exact(rows), strict=True):
        expected[at] += row
        twice[at] += 2 * row
    assert_is(launch("aclnnIndexAdd", x, 0, index(chosen), rows, 1, out := zeros((3, 4), dtype)), expected)
    turned, sideways = x.seen(x.bits.T), rows.seen(rows.bits.T)
    launch("aclnnIndexAdd", turned, 1, index(chosen), sideways, 2, out := zeros((4, 3), dtype))
    assert_is(out, twice.T)
    for where in (index(chosen), index([[at] for at in chosen], "int32")):  # as a list of rows, and of one axis
        launch("aclnnTfScatterAdd", var := copied(x), where, rows)
        assert_is(var, expected)
    launch("aclnnTfScatterAdd", var := copied(x), index([[1, 3], [1, 3]]), of([1, 2], dtype))
    expected = exact(x).copy()
    expected[1, 3] += 3
    assert_is(var, expected)
    if dtype == "int32":
        rows = draw(5, 4)
    sums = np.zeros((3, 4))
    np.add.at(sums, chosen, exact(rows))
    launch("aclnnEmbeddingDenseBackward", rows, index(chosen), 3, -1, False, out := zeros((3, 4), rows.dtype))
    assert_is(out, sums)
    launch("aclnnEmbeddingDenseBackward", rows, index(chosen), 3, 2, True, out)
    assert_is(out, sums / [[2], [1], [3]] * [[1], [1], [0]])


def test_many_rows_that_fall_on_one_place_are_added_in_32_bits() -> None:
    rows = of(np.ones((3000, 2)), "bfloat16")
    var = zeros((2, 2), "bfloat16")
    launch("aclnnTfScatterAdd", var, index(np.ones(3000)), rows)
    assert_is(var, [[0, 0], [3000, 3000]])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_writing_stretches_of_rows(dtype: str) -> None:
    data, updates = draw(3, 6, 2, dtype=dtype), draw(2, 2, 2, dtype=dtype, seed=1)
    expected = data.bits.copy()
    expected[0, 4:6], expected[1, 1:3] = updates.bits
    launch("aclnnInplaceScatterUpdate", written := copied(data), index([4, 1]), updates, 1)
    np.testing.assert_array_equal(written.bits, expected)
    expected = data.bits.copy()
    expected[2, 3:5], expected[0, 0:2] = updates.bits
    launch("aclnnInplaceScatterUpdate", written := copied(data), index([[2, 3], [0, 0]]), updates, -2)
    np.testing.assert_array_equal(written.bits, expected)


@pytest.mark.parametrize("dtype", MOVED)
def test_several_axes_at_once(dtype: str) -> None:
    x = draw(3, 4, 5, dtype=dtype)
    nothing, mask = zeros((0,), "int64"), draw(3, 4, dtype="bool")
    cases: list[tuple[list[DeviceTensor | None], Any]] = [
        ([index([2, -1])], np.s_[[2, -1]]),
        ([index([[0], [1]]), index([3, 0])], np.s_[[[0], [1]], [3, 0]]),
        ([nothing, index([0, 2])], np.s_[:, [0, 2]]),
        ([index([0, 2]), None, index([1, 4])], np.s_[[0, 2], :, [1, 4]]),
        ([mask], mask.bits),
    ]
    for indices, meaning in cases:
        expected = x.bits[meaning]
        launch("aclnnIndex", x, indices, out := zeros(expected.shape, dtype))
        np.testing.assert_array_equal(out.bits, expected)
        values = draw(*expected.shape, dtype=dtype, seed=1)
        launch("aclnnIndexPutImpl", put := copied(x), indices, values, False, True)
        expected = x.bits.copy()
        expected[meaning] = values.bits
        np.testing.assert_array_equal(put.bits, expected)
    if dtype != "bool":
        ones, twice = of([1, 1], dtype), index([2, 2])
        launch("aclnnIndexPutImpl", added := zeros((3,), dtype), [twice], ones, True, True)
        assert added.values().tolist() == [0, 0, 2]


def refused() -> list[tuple[str, tuple[Any, ...], str]]:
    x, out = draw(3, 4), zeros((2,))
    pair, rows = index([0, 1]), draw(2, 4)
    beyond = "an index must be within"
    return [
        ("aclnnGather", (x, 1, index([[0], [4]]), zeros((2, 1))), f"{beyond} -4 and 3, not 4"),
        ("aclnnGather", (x, 1, pair, out), "index [2] must fit into [3, 4] but for axis 1"),
        ("aclnnGather", (x, 0, index([[0] * 5]), zeros((1, 5))), "index [1, 5] must fit into [3, 4]"),
        ("aclnnGather", (x, 1, index([[0]]), draw(1, 2)), "must have one shape: index [1, 1], out [1, 2]"),
        ("aclnnIndexSelect", (x, 0, index([-1]), draw(1, 4)), f"{beyond} 0 and 2, not -1"),
        ("aclnnIndexSelect", (x, 0, index([[0]]), draw(1, 4)), "index must have 0 to 1 axes, not 2"),
        ("aclnnEmbedding", (x, index([0, 7, 9]), draw(3, 4)), f"{beyond} 0 and 2, not 7, the first of 2"),
        ("aclnnEmbedding", (x, pair, draw(2, 3)), "out must be of shape [2, 4], not float32[2, 3]"),
        ("aclnnEmbedding", (x, draw(2), rows), "indices must be int32 or int64, not float32"),
        ("aclnnGatherNd", (x, index([[0, 4]]), False, draw(1)), f"{beyond} 0 and 3, not 4"),
        ("aclnnGatherNd", (x, index([[-1]]), False, draw(1, 4)), f"{beyond} 0 and 2, not -1"),
        ("aclnnGatherNd", (x, index([[0, 0, 0]]), False, draw(1)), "the last axis of indices must be 1 to 2 long"),
        ("aclnnScatter", (x, 1, index([[4]]), x, 0, draw(3, 4)), f"{beyond} -4 and 3, not 4"),
        ("aclnnScatter", (x, 1, index([[0]]), x, 3, draw(3, 4)), "reduce must be 0 or 1 or 2, not 3"),
        ("aclnnScatterAdd", (x, 0, index([[0, 0]] * 2), draw(1, 2), x), "index [2, 2] must fit into src [1, 2]"),
        ("aclnnScatterAdd", (x, 0, index([[0]]), draw(1), x), "index [1, 1] must fit into src [1]"),
        ("aclnnIndexAdd", (x, 0, index([3]), draw(1, 4), 1, x), f"{beyond} 0 and 2, not 3"),
        ("aclnnIndexAdd", (x, 0, pair, draw(3, 4), 1, x), "source must be of shape [2, 4], not float32[3, 4]"),
        ("aclnnTfScatterAdd", (x, index([3]), draw(1, 4)), f"{beyond} 0 and 2, not 3"),
        ("aclnnTfScatterAdd", (x, pair, draw(3, 4)), "updates must be of shape [2, 4] or [], not float32[3, 4]"),
        ("aclnnTfScatterAdd", (x, pair, draw(2, 4, dtype="bfloat16")), "updates must have the dtype of varRef"),
        ("aclnnInplaceScatterUpdate", (x, pair, rows, 0), "axis must be another than 0 of data [3, 4], not 0"),
        ("aclnnInplaceScatterUpdate", (x, index([3, 0]), draw(2, 2), 1), f"{beyond} 0 and 2, not 3"),
        ("aclnnInplaceScatterUpdate", (x, index([0]), rows, 1), "updates must have a row per index"),
        ("aclnnIndex", (x, [index([3])], draw(1, 4)), f"{beyond} -3 and 2, not 3"),
        ("aclnnIndexPutImpl", (x, [None, index([4])], draw(3, 1), False, True), f"{beyond} -4 and 3, not 4"),
        ("aclnnEmbeddingDenseBackward", (rows, index([0, 3]), 3, -1, False, draw(3, 4)), f"{beyond} 0 and 2, not 3"),
        ("aclnnEmbeddingDenseBackward", (rows, pair, 3, -1, False, draw(4, 4)), "out must be of shape [3, 4]"),
    ]


@pytest.mark.parametrize(("name", "arguments", "expected"), refused())
def test_refusals(name: str, arguments: tuple[Any, ...], expected: str) -> None:
    assert expected in refusal(name, *arguments)


def test_every_operator_is_launched(request: pytest.FixtureRequest) -> None:
    assert unlaunched(request, indexing) == set()
