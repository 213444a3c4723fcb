"""Emulated products of matrices: results beside numpy in float64, and what CANN rules out.

Legend: M rows, K summed, N columns, B batch, E groups.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from emulated_operators import FLOATS, draw, exact, is_close, launch, of, zeros
from emulated_operators import documented_refusal as refusal

import ascend_emulator.operators.grouped_matrix
import ascend_emulator.operators.matrix  # noqa: F401  (both enter the operators into the table)
from ascend_emulator.tensors import DeviceTensor


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("name", "a", "b"), [
    ("aclnnMm", (30, 20), (20, 10)),
    ("aclnnMatmul", (2, 1, 30, 20), (3, 20, 10)),
    ("aclnnMatmul", (20,), (20, 10)),
    ("aclnnMatmul", (2, 30, 20), (20,)),
    ("aclnnMatmul", (20,), (20,)),
    ("aclnnBatchMatMul", (4, 30, 20), (4, 20, 10)),
    ("aclnnMv", (30, 20), (20,)),
])  # fmt: skip
def test_products(name: str, a: Sequence[int], b: Sequence[int], dtype: str) -> None:
    left, right = draw(*a, dtype=dtype), draw(*b, dtype=dtype, seed=1)
    expected = exact(left) @ exact(right)
    out = zeros(np.shape(expected), dtype)
    launch(name, left, right, out, 0)
    assert is_close(out, np.asarray(expected))


def test_a_transposed_view_is_multiplied_as_it_is_seen() -> None:
    a, b, out = draw(20, 30), draw(10, 20, seed=1), zeros((30, 10))
    launch("aclnnMm", a.seen(a.bits.T), b.seen(b.bits.T), out, 1)
    assert is_close(out, exact(a).T @ exact(b).T)


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "int32"])
def test_dot(dtype: str) -> None:
    a, b = (of(values, dtype) for values in ([1, 2, 3], [4, -5, 6]))
    assert launch("aclnnDot", a, b, zeros((), dtype)).values() == 12


def test_products_with_something_added() -> None:
    a, b, row = draw(5, 6), draw(6, 4, seed=1), draw(4, seed=2)
    out = zeros((5, 4))
    launch("aclnnAddmm", row, a, b, 2, 0.5, out, 0)
    assert is_close(out, 2 * exact(row) + 0.5 * exact(a) @ exact(b))
    launch("aclnnInplaceAddmm", out, a, b, -1.0, 1.0, 0)
    assert is_close(out, 0.5 * exact(a) @ exact(b) - 2 * exact(row))
    launch("aclnnAddmm", of([np.nan]), a, b, 0, 1, out, 0)  # not added, so it does not matter
    assert is_close(out, exact(a) @ exact(b))
    many, others = draw(3, 5, 6), draw(3, 6, 4, seed=1)
    batches = zeros((3, 5, 4))
    launch("aclnnBaddbmm", row, many, others, 1, 2, batches, 0)
    assert is_close(batches, exact(row) + 2 * exact(many) @ exact(others))
    launch("aclnnAddbmm", row, many, others, 1, 2, out, 0)
    assert is_close(out, exact(row) + 2 * (exact(many) @ exact(others)).sum(0))
    vector, results = draw(6, seed=3), zeros((5,))
    launch("aclnnAddmv", of([3.0]), a, vector, 2.0, 0.5, results, 0)  # alpha before beta
    assert is_close(results, 1.5 + 2 * exact(a) @ exact(vector))


def test_refused_products() -> None:
    a, b, out = draw(3, 4), draw(4, 5), zeros((3, 5))
    half = draw(4, 5, dtype="bfloat16")
    wide = draw(3, 4, dtype="bfloat16"), half, zeros((3, 5), "bfloat16")
    for said, *given in (
        ("self [3, 4] and mat2 [5, 4] must agree in the axis that is summed", "aclnnMm", a, draw(5, 4), out, 0),
        ("out must be of shape [3, 5], not float32[5, 3]", "aclnnMm", a, b, zeros((5, 3)), 0),
        ("self must have 2 axes, not 3", "aclnnMm", draw(1, 3, 4), b, out, 0),
        ("must be bfloat16 or float16 or float32, not int32", "aclnnMm", zeros((3, 4), "int32"), b, out, 0),
        ("self and mat2 must have one dtype where one is bfloat16", "aclnnMm", a, half, out, 0),
        ("out must be float32, which self and mat2 give, not float16", "aclnnMm", a, b, zeros((3, 5), "float16"), 0),
        ("cubeMathType must be 0 or 1 or 2 or 3 or 4, not 5", "aclnnMm", a, b, out, 5),
        ("cubeMathType 2 must not be given with bfloat16", "aclnnMm", *wide, 2),
        ("cubeMathType 3 must be given with float32 only", "aclnnMatmul", *wide, 3),
        ("the batch axes of self [2, 3, 4] and mat2 [3, 4, 5] must broadcast",
         "aclnnMatmul", draw(2, 3, 4), draw(3, 4, 5), zeros((3, 3, 5)), 0),
        ("self must have 3 axes, not 2", "aclnnBatchMatMul", a, b, out, 0),
        ("vec must have the dtype of self", "aclnnMv", a, draw(4, dtype="float16"), zeros((3,)), 0),
        ("must have one shape: self [3], tensor [4]", "aclnnDot", draw(3), draw(4), zeros(())),
        ("self [3] must broadcast to [3, 5]", "aclnnAddmm", draw(3), a, b, 1, 1, out, 0),
        ("must agree in batch and in the axis that is summed",
         "aclnnAddbmm", draw(5), draw(2, 3, 4), draw(3, 4, 5), 1, 1, out, 0),
    ):  # fmt: skip
        assert said in refusal(*given)


def test_internal_matmul_with_transposed_sides_and_a_bias() -> None:
    a, b, bias = draw(6, 5, dtype="bfloat16"), draw(4, 6, dtype="bfloat16", seed=1), draw(4, seed=2)
    out = zeros((5, 4), "bfloat16")
    launch("internal:MatMul", [a, b], [out], {"transpose_a": 1, "transpose_b": 1, "with_bias": 0})
    assert is_close(out, exact(a).T @ exact(b).T)
    launch("internal:MatMul", [a, b, bias], [out], {"transpose_a": 1, "transpose_b": 1, "with_bias": 1})
    assert is_close(out, exact(a).T @ exact(b).T + exact(bias))


def test_internal_gather_takes_rows_that_are_there() -> None:
    params, indices = draw(5, 4, dtype="bfloat16"), of([[4, 0], [1, 1]], "int32")
    out = zeros((2, 2, 4), "bfloat16")
    launch("internal:Gather", [params, indices], [out], {"axes": [0], "batch_dims": 0})
    np.testing.assert_array_equal(out.bits, params.bits[indices.bits])
    by_batch, two = zeros((2, 2), "bfloat16"), of([[3, 0], [1, 1]], "int32")
    rows = params.seen(params.bits[:2])
    launch("internal:Gather", [rows, two], [by_batch], {"axes": [1], "batch_dims": 1})
    np.testing.assert_array_equal(by_batch.bits, np.take_along_axis(rows.bits, two.bits.astype(np.int64), 1))
    for wrong in (5, -1):
        text = refusal("internal:Gather", [params, of([wrong], "int32")], [out], {"axes": [0], "batch_dims": 0})
        assert f"indices must be in 0 to 4, not {wrong} to {wrong}" in text


def transposed(x: DeviceTensor) -> DeviceTensor:
    """A view."""
    return x.seen(x.bits.T)


def by_version(version: str, given: dict[str, object]) -> list[object]:
    """The arguments of GroupedMatmul in the order of its prototype."""
    groups = given.get("groups")
    if groups is not None and version != "V2":
        groups = of(groups, "int64")
    middle, after, last = ([], [], []) if version != "V4" else ([None], [None, [], None], [None, None])
    kinds = [given["split"], given["kind"]] + ([given.get("list_type", 0), 0] if version == "V4" else [])
    head = [given["x"], given["weight"], given.get("bias"), None, None, None, []]
    return [*head, *middle, groups, *after, *kinds, given["out"], *last]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("version", ["V2", "V3", "V4"])
def test_groups_of_rows(version: str, dtype: str) -> None:
    """An empty group, and rows behind the last group, which are not written."""
    x, weight = draw(12, 8, dtype=dtype), draw(4, 8, 6, dtype=dtype, seed=1)
    bias = draw(4, 6, dtype="float32" if dtype == "bfloat16" else dtype, seed=2)
    expected = np.full((12, 6), 7.0)
    for group, (start, end) in enumerate([(0, 3), (3, 3), (3, 8), (8, 10)]):
        expected[start:end] = exact(x)[start:end] @ exact(weight)[group] + exact(bias)[group]
    separate = [weight.seen(one) for one in weight.bits], [bias.seen(one) for one in bias.bits]
    for weights, biases in (([weight], [bias]), separate):
        out = of(np.full((12, 6), 7.0), dtype)
        given = {
            "x": [x], "weight": weights, "bias": biases, "groups": [3, 3, 8, 10], "split": 3, "kind": 0, "out": [out],
        }  # fmt: skip
        launch(f"aclnnGroupedMatmul{version}", *by_version(version, given))
        assert is_close(out, expected)


def test_groups_by_their_sizes() -> None:
    x, weight, out = draw(10, 8), draw(2, 8, 6, seed=1), zeros((10, 6))
    given = {"x": [x], "weight": [weight], "groups": [4, 6], "split": 2, "kind": 0, "list_type": 1, "out": [out]}
    launch("aclnnGroupedMatmulV4", *by_version("V4", given))
    assert is_close(out, np.concatenate([exact(x)[:4] @ exact(weight)[0], exact(x)[4:] @ exact(weight)[1]]))


def test_groups_of_what_is_summed() -> None:
    """As gradients of weights are: x is a transposed view; an empty group gives zeros."""
    rows, weight, out = draw(10, 5), draw(10, 6, seed=1), of(np.ones((3, 5, 6)))
    given = {"x": [transposed(rows)], "weight": [weight], "groups": [4, 4, 10], "split": 3, "kind": 2, "out": [out]}
    launch("aclnnGroupedMatmulV3", *by_version("V3", given))
    first, last = exact(rows)[:4].T @ exact(weight)[:4], exact(rows)[4:].T @ exact(weight)[4:]
    assert is_close(out, np.stack([first, 0 * first, last]))


def test_what_is_summed_may_be_longer_than_the_last_axis() -> None:
    """The bound is that of the axis which is innermost in memory: with x transposed, the features."""
    rows, weight, out = draw(70_000, 2), draw(70_000, 3, seed=1), zeros((2, 2, 3))
    given = {"x": [transposed(rows)], "weight": [weight], "groups": [4, 70_000], "split": 3, "kind": 2}
    launch("aclnnGroupedMatmulV3", *by_version("V3", given | {"out": [out]}))
    np.testing.assert_allclose(exact(out)[0], exact(rows)[:4].T @ exact(weight)[:4], rtol=1e-5)
    np.testing.assert_allclose(exact(out)[1], exact(rows)[4:].T @ exact(weight)[4:], rtol=1e-3, atol=1e-2)


def test_separate_products() -> None:
    x, weight = [draw(3, 8), draw(2, 4, seed=1)], [draw(8, 5, seed=2), draw(4, 7, seed=3)]
    out = [zeros((3, 5)), zeros((2, 7))]
    given = {"x": x, "weight": weight, "split": 0, "kind": -1, "out": out, "groups": []}
    launch("aclnnGroupedMatmulV2", *by_version("V2", given))
    assert all(is_close(o, exact(a) @ exact(b)) for a, b, o in zip(x, weight, out, strict=True))


def test_internal_groups_of_rows() -> None:
    x, weight = draw(10, 8, dtype="bfloat16"), draw(2, 6, 8, dtype="bfloat16", seed=1)
    out = zeros((10, 6), "bfloat16")
    inputs = [x, weight, None, None, of([4, 10], "int32")]
    launch("internal:GroupedMatmul", inputs, [out], {"transpose_a": 0, "transpose_b": 1, "with_bias": 0})
    assert is_close(out, np.concatenate([exact(x)[:4] @ exact(weight)[0].T, exact(x)[4:] @ exact(weight)[1].T]))


@pytest.mark.parametrize(("changed", "reason"), [
    ({"x": []}, "x must hold 1 to 128 tensors, not 0"),
    ({"weight": [draw(2, 8, 6, dtype="float16")]}, "weight must hold the dtype of x, float32, not float16"),
    ({"bias": [draw(2, 6, dtype="float16")]}, "biasOptional must hold float32 with float32, not float16"),
    ({"kind": 1}, "groupType must be -1 or 0 or 2, not 1"),
    ({"split": 0}, "groupType 0 must have a groupList and splitItem 2 or 3, not 0"),
    ({"groups": None}, "groupType 0 must have a groupList and splitItem 2 or 3, not 3"),
    ({"kind": -1}, "groupType -1 must have no groupList and splitItem 0 or 1, not 3"),
    ({"groups": [10]}, "groupList must have 2 entries, of at most 1"),
    ({"groups": [6, 11]}, "groupList must not fall, and must end within the 10 of x, not [6, 11]"),
    ({"x": [draw(1, 10, 8)]}, "groupType 0 does not take x [float32[1, 10, 8]]"),
    ({"x": [draw(1, 65536)]}, "x must have a last axis of at most 65535, not 65536"),
    ({"x": [transposed(draw(8, 10))]}, "groupType 0 must have x not transposed in memory"),
    ({"kind": 2, "x": [draw(8, 10)], "weight": [draw(10, 6)], "out": [zeros((2, 8, 6))]},
     "groupType 2 must have x and not weight transposed in memory"),
])  # fmt: skip
def test_refused_groups(changed: dict[str, object], reason: str) -> None:
    given = {"x": [draw(10, 8)], "weight": [draw(2, 8, 6)], "groups": [4, 10], "split": 3, "kind": 0}
    given |= {"out": [zeros((10, 6))]} | changed
    for version in ("V2", "V3", "V4"):
        assert reason in refusal(f"aclnnGroupedMatmul{version}", *by_version(version, given))


def test_lists_of_groups_on_the_host_are_shorter() -> None:
    given = {"x": [draw(4, 8)], "weight": [draw(129, 8, 2)], "groups": [4] * 129, "split": 3, "kind": 0}
    arguments = {version: by_version(version, given | {"out": [zeros((4, 2))]}) for version in ("V2", "V3")}
    assert "groupList must have 129 entries, of at most 128" in refusal("aclnnGroupedMatmulV2", *arguments["V2"])
    launch("aclnnGroupedMatmulV3", *arguments["V3"])
