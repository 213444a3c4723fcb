"""Emulated operators of the graph engine, beside MindSpore's own on the CPU, and what their registrations rule out."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from emulated_operators import FLOATS, assert_is, draw, exact, index, launch, of, refusal, unlaunched, zeros

from ascend_emulator.operators import graph_engine, graph_movement
from ascend_emulator.tensors import DeviceTensor

Case = tuple[str, list[DeviceTensor], dict[str, Any], Callable[..., Any]]
MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def masks(*bits: int) -> dict[str, int]:
    return dict(zip(MASKS, bits, strict=False))


def positive(*shape: int, dtype: str) -> DeviceTensor:
    return of(np.abs(draw(*shape, dtype=dtype).values()) + 0.5, dtype)


def cases(dtype: str) -> list[Case]:
    """Inputs, attributes, and what MindSpore calls the same: with its `ops` first, then the inputs."""
    x, y = draw(4, 6, dtype=dtype), draw(4, 6, dtype=dtype, seed=1)
    cube, rows = draw(2, 3, 4, dtype=dtype), draw(5, 6, dtype=dtype, seed=2)
    large = positive(4, 6, dtype=dtype)
    begin, end, strides = index([1, 0]), index([-1, 6]), index([1, 2])
    last, nd = index(-1), index([[0, 5], [3, 0], [0, 5]], "int32")
    return [
        ("aclop:Add", [cube, draw(4, dtype=dtype)], {}, lambda ops, a, b: a + b),
        ("aclop:FloorMod", [x, large], {}, lambda ops, a, b: ops.floor_mod(a, b)),
        ("aclop:RealDiv", [x, large], {}, lambda ops, a, b: ops.RealDiv()(a, b)),
        ("aclop:RsqrtGrad", [large, y], {}, lambda ops, a, b: -0.5 * b * a * a * a),
        ("aclop:SqrtGrad", [large, y], {}, lambda ops, a, b: 0.5 * b / a),
        ("aclop:IsNan", [of([1, np.nan, np.inf], dtype)], {}, lambda ops, a: ops.isnan(a)),
        ("aclop:Identity", [x], {}, lambda ops, a: a),
        ("aclop:TensorMove", [x], {}, lambda ops, a: a),
        ("aclop:AddN", [x, y, large], {"N": 3}, lambda ops, *all_of_them: ops.addn(list(all_of_them))),
        ("aclop:OnesLike", [x], {}, lambda ops, a: ops.ones_like(a)),
        ("aclop:ZerosLike", [x], {}, lambda ops, a: ops.zeros_like(a)),
        ("aclop:ReduceSum", [cube, index([0, -1])], {"keep_dims": True},
         lambda ops, a, b: a.sum((0, 2), keepdims=True)),
        ("aclop:ReduceSum", [cube, index([], "int32")], {}, lambda ops, a, b: a),
        ("aclop:ReduceSum", [cube, index([])], {"noop_with_empty_axes": False}, lambda ops, a, b: a.sum()),
        ("aclop:ReduceMean", [cube, index([1])], {}, lambda ops, a, b: a.mean(1)),
        ("aclop:ReduceProd", [cube, index([2])], {}, lambda ops, a, b: ops.prod(a, 2)),
        ("aclop:ArgMaxV2", [x, index(1)], {}, lambda ops, a, b: ops.argmax(a, 1)),
        ("aclop:ArgMin", [x, index(0)], {"dtype": 3}, lambda ops, a, b: ops.argmin(a, 0)),
        ("aclop:Cumsum", [x, last], {}, lambda ops, a, b: ops.cumsum(a, -1)),
        ("aclop:Cumsum", [x, index(0)], {"exclusive": True, "reverse": True},
         lambda ops, a, b: ops.CumSum(True, True)(a, 0)),
        ("aclop:Sort", [x], {"axis": 0, "descending": True}, lambda ops, a: ops.Sort(0, True)(a)),
        ("aclop:Sort", [x], {}, lambda ops, a: ops.Sort()(a)),
        ("aclop:TopK", [x, index(3, "int32")], {"sorted": True}, lambda ops, a, b: ops.TopK(True)(a, 3)),
        ("aclop:Pack", [x, y], {"N": 2, "axis": -1}, lambda ops, a, b: ops.stack((a, b), -1)),
        ("aclop:Pack", [draw(dtype=dtype)] * 2, {"N": 2}, lambda ops, a, b: ops.stack((a, b))),
        ("aclop:Unpack", [x], {"num": 6, "axis": 1}, lambda ops, a: ops.unstack(a, 1)),
        ("aclop:Split", [index(1, "int32"), x], {"num_split": 3}, lambda ops, a, b: ops.split(b, 2, 1)),
        ("aclop:StridedSlice", [x, begin, end, strides], {}, lambda ops, a, *_: a[1:-1, 0:6:2]),
        ("aclop:StridedSlice", [x, begin, end, strides], masks(3, 3), lambda ops, a, *_: a[:, ::2]),
        ("aclop:StridedSlice", [x, begin, end, strides], masks(0, 0, 0, 0, 1), lambda ops, a, *_: a[1, 0:6:2]),
        ("aclop:StridedSlice", [cube, begin, end, strides], masks(0, 0, 1, 0, 2), lambda ops, a, *_: a[..., 0]),
        ("aclop:StridedSlice", [x, begin, end, strides], masks(0, 0, 0, 1), lambda ops, a, *_: a[None, 0:6:2]),
        ("aclop:StridedSliceGrad", [index([4, 6]), begin, end, index([1, 1]), draw(2, 6, dtype=dtype)], {},
         lambda ops, *given: ops.pad(given[4], (0, 0, 1, 1))),
        ("aclop:Slice", [x, index([1, 2]), index([2, -1])], {}, lambda ops, a, *_: a[1:3, 2:]),
        ("aclop:Pad", [x, index([[1, 0], [0, 2]])], {}, lambda ops, a, b: ops.pad(a, (0, 2, 1, 0))),
        ("aclop:PadV3", [x, index([1, 0, 0, 2]), of(3, dtype)],
         {"mode": "constant", "paddings_contiguous": True}, lambda ops, a, *_: ops.pad(a, (0, 2, 1, 0), value=3.0)),
        ("aclop:GatherV2", [x, index([3, 0, 3]), index(0)], {}, lambda ops, a, b, c: ops.gather(a, b, 0)),
        ("aclop:GatherV2", [cube, index([[3], [0]]), last], {}, lambda ops, a, b, c: ops.gather(a, b, 2)),
        ("aclop:GatherV2", [cube, index([[2, 0], [1, -3]]), index(1)],
         {"batch_dims": 1, "negative_index_support": True},
         lambda ops, a, b, c: ops.gather(a, b + 3 * (b < 0).astype(b.dtype), 1, 1)),
        ("aclop:GatherNd", [x, nd], {}, lambda ops, a, b: ops.gather_nd(a, b)),
        ("aclop:GatherNd", [cube, index([[1], [0]])], {}, lambda ops, a, b: ops.gather_nd(a, b)),
        ("aclop:TensorScatterUpdate", [x, index([[2], [0]], "int32"), draw(2, 6, dtype=dtype)], {},
         lambda ops, a, b, c: ops.TensorScatterUpdate()(a, b, c)),
        ("aclop:ScatterNd", [nd, draw(3, dtype=dtype), index([4, 6])], {},
         lambda ops, a, b, c: ops.scatter_nd(a, b, (4, 6))),
        *(
            (
                "aclop:ScatterElements",
                [x, index([[0, 0, 5], [1, 2, 1]]), draw(2, 3, dtype=dtype, seed=4)],
                {"axis": 1, "reduction": reduction},
                lambda ops, a, b, c, reduction=reduction: ops.tensor_scatter_elements(a, b, c, 1, reduction),
            )
            for reduction in ("none", "add")
        ),
        ("aclop:GatherElements", [x, index([[0, 0, 5], [1, -2, 1]])], {"dim": 1},
         lambda ops, a, b: ops.gather_elements(a, 1, b)),
        ("aclop:UnsortedSegmentSum", [rows, index([1, -1, 1, 0, 1], "int32"), index(3)], {},
         lambda ops, a, b, c: ops.UnsortedSegmentSum()(a, b, 3)),
        ("aclop:UnsortedSegmentSum", [rows, index([[0, 1, 0, 1, 2, 2]] * 5, "int32"), index(4)], {},
         lambda ops, a, b, c: ops.UnsortedSegmentSum()(a, b, 4)),
        ("aclop:OneHot", [index([1, 3, 0], "int32"), index(3), of(2, dtype), of(0, dtype)],
         {"axis": -1}, lambda ops, a, b, c, d: ops.one_hot(a, 3, c, d)),
        ("aclop:Range", [of(given, dtype) for given in (1, 8, 2)], {},
         lambda ops, a, b, c: ops.range(a, b, c)),
        ("aclop:Fill", [index([2, 3]), of(1.5, dtype)], {}, lambda ops, a, b: b.broadcast_to((2, 3))),
        ("aclop:Tril", [x], {"diagonal": -1}, lambda ops, a: ops.tril(a, -1)),
    ]  # fmt: skip


PLACES = ("aclop:ArgMaxV2", "aclop:ArgMin")
NAMES = sorted({name for name, *_ in cases("float32")})


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", NAMES)
def test_beside_mindspore(name: str, dtype: str, cpu_runtime: None) -> None:
    from mindspore import Tensor, ops

    for case, inputs, attributes, twin in cases(dtype):
        if case != name:
            continue
        expected = twin(ops, *(Tensor(one.values()) for one in inputs))
        expected = [one.asnumpy() for one in (expected if isinstance(expected, tuple | list) else [expected])]
        own = next((one.dtype for one in inputs if one.dtype in FLOATS), dtype)
        kinds = {"f": own, "b": "bool", "i": "int64" if name in PLACES else "int32"}
        outputs = [zeros(one.shape, kinds[one.dtype.kind]) for one in expected]
        launch(name, inputs, outputs, attributes)
        for out, one in zip(outputs, expected, strict=True):
            assert_is(out, one)


@pytest.mark.parametrize("dtype", FLOATS)
def test_references_change_with_their_output(dtype: str) -> None:
    old, value = draw(4, 3, dtype=dtype), draw(4, 3, dtype=dtype, seed=1)
    where, rows = index([2, 0, 2], "int32"), draw(3, 3, dtype=dtype, seed=2)
    added, updated = exact(old).copy(), exact(old).copy()
    for at, row in zip(where.bits, exact(rows), strict=True):
        added[at] += row
        updated[at] = row
    for name, inputs, expected in (
        ("aclop:Assign", [value], exact(value)),
        ("aclop:AssignAdd", [value], exact(old) + exact(value)),
        ("aclop:AssignSub", [value], exact(old) - exact(value)),
        *([] if dtype == "bfloat16" else [("aclop:ScatterAdd", [where, rows], added)]),
        ("aclop:ScatterUpdate", [where, rows], updated),
    ):
        reference, out = DeviceTensor(dtype, old.shape, old.bits.copy()), zeros((4, 3), dtype)
        launch(name, [reference, *inputs], [out], {})
        assert_is(reference, expected)
        np.testing.assert_array_equal(reference.bits, out.bits)
        launch(name, [reference, *inputs], [DeviceTensor(dtype, (4, 3), None)], {})


def test_gradients_of_16_bits_are_added_to_an_accumulator_of_32() -> None:
    accumulator, gradient = of([256.0]), of([0.5], "bfloat16")
    launch("aclop:AssignAdd", [accumulator, gradient], [zeros((1,))], {})
    assert accumulator.bits.tolist() == [256.5]


@pytest.mark.parametrize("nesterov", [False, True])
def test_adam_beside_mindspore(nesterov: bool, cpu_runtime: None) -> None:
    from mindspore import Parameter, Tensor, ops

    var, m, slope = draw(4, 3), draw(4, 3, seed=1), draw(4, 3, seed=2)
    v = of(draw(4, 3, seed=3).bits ** 2)
    rates = [of(rate) for rate in (0.81, 0.998, 0.1, 0.9, 0.999, 1e-8)]
    parameters = [Parameter(Tensor(one.bits.copy()), name=name) for one, name in ((var, "var"), (m, "m"), (v, "v"))]
    ops.Adam(use_nesterov=nesterov)(*parameters, *(Tensor(rate.bits) for rate in rates), Tensor(slope.bits))
    outputs = [zeros((4, 3)) for _ in range(3)]
    launch("aclop:ApplyAdamD", [var, m, v, *rates, slope], outputs, {"use_locking": False, "use_nesterov": nesterov})
    for reference, out, parameter in zip((var, m, v), outputs, parameters, strict=True):
        np.testing.assert_allclose(out.bits, parameter.asnumpy(), rtol=2e-6, atol=1e-7)
        np.testing.assert_array_equal(out.bits, reference.bits)


def test_whole_numbers_keep_all_their_digits() -> None:
    big = 2**30 + 1
    x, axis, out = index([[big, 1]], "int32"), index([1]), zeros((1,), "int32")
    launch("aclop:ReduceSum", [x, axis], [out], {})
    assert out.bits.tolist() == [big + 1]
    launch("aclop:UnsortedSegmentSum", [index([big, 1], "int32"), index([0, 0]), index(1)], [out], {})
    assert out.bits.tolist() == [big + 1]
    written = zeros((1, 2), "int32")
    launch("aclop:ScatterElements", [x, index([[1]]), index([[big]], "int32")], [written], {"axis": 1})
    assert written.bits.tolist() == [[big, big]]
    attributes = {"axis": 1, "reduction": "mul"}
    factors = index([[3, 5]], "int32"), index([[0, 0]]), index([[2, 2]], "int32")
    launch("aclop:ScatterElements", factors, [written], attributes)
    assert written.bits.tolist() == [[12, 5]]


def refused() -> list[tuple[str, list[Any], list[Any], dict[str, Any], str]]:
    x, out, flags = draw(3, 4), zeros((3, 4)), draw(3, 4, dtype="bool")
    zero, one = index(0), index([1])
    beyond = "an index must be within"
    bounds = [index([0]), index([2]), index([1])]
    return [
        ("RealDiv", [x], [out], {}, "takes 2 tensors and gives 1, not 1 and 1"),
        ("RealDiv", [x, draw(5)], [out], {}, "shapes must broadcast: x1 [3, 4], x2 [5]"),
        ("FloorMod", [flags, flags], [flags], {}, "x1 must be bfloat16 or float16"),
        ("AddN", [x, draw(4, 3)], [out], {}, "inputs must be alike, not [float32[3, 4], float32[4, 3]]"),
        ("AddN", [x] * 33, [out], {}, "takes 32 inputs at most, not 33"),
        (
            "AddN",
            [flags, flags],
            [flags],
            {},
            "inputs must be bfloat16 or float16 or float32 or int32 or int64, not bool",
        ),
        (
            "Cumsum",
            [index([1]), zero],
            [index([1])],
            {},
            "x must be bfloat16 or float16 or float32 or int32, not int64",
        ),
        ("UnsortedSegmentSum", [index([1]), zero, zero], [index([1])], {}, "float32 or int32, not int64"),
        ("UnsortedSegmentSum", [of([1], "uint32"), zero, zero], [of([1], "uint32")], {}, "or int32, not uint32"),
        ("ReduceSum", [of([1], "int8"), zero], [of([1], "int8")], {}, "float32 or int32 or int64, not int8"),
        ("ReduceMean", [of([1], "int32"), zero], [of([1], "int32")], {}, "bfloat16 or float16 or float32, not int32"),
        ("ScatterElements", [index([[1]]), index([[0]]), index([[1]])], [index([[1]])], {}, "or uint8, not int64"),
        ("Sort", [index([1], "int32")], [index([1], "int32")] * 2, {}, "or float16 or float32, not int32"),
        (
            "ApplyAdamD",
            [x, x, x, *[of(1)] * 6, draw(3, 4, dtype="bfloat16")],
            [out] * 3,
            {},
            "grad must have the dtype of var, float32, not bfloat16",
        ),
        (
            "ApplyAdamD",
            [x, draw(3, 4, dtype="bfloat16"), x, *[of(1)] * 6, x],
            [out] * 3,
            {},
            "m must have the dtype of var, float32, not bfloat16",
        ),
        ("AssignAdd", [x, draw(4)], [out], {}, "must have one shape: ref [3, 4], value [4], ref_out [3, 4]"),
        ("AssignSub", [x, draw(3, 4, dtype="bfloat16")], [out], {}, "value must have the dtype of ref, float32"),
        ("ReduceSum", [x, one], [out], {}, "y must be of shape [3], not float32[3, 4]"),
        ("ArgMaxV2", [x, zero], [out], {}, "y must be int32 or int64, not float32"),
        ("TopK", [x, index(9, "int32")], [out, draw(3, 4, dtype="int32")], {}, "values must be of shape [3, 9]"),
        ("TopK", [x, index(4)], [out, draw(3, 4, dtype="int32")], {}, "k must be int32, not int64"),
        ("Pack", [x, draw(4)], [out], {}, "inputs must be alike"),
        ("Pack", [x] * 33, [draw(33, 3, 4)], {}, "takes 32 inputs at most, not 33"),
        ("Pack", [x, x], [out], {"axis": 1}, "y must be of shape [3, 2, 4], not float32[3, 4]"),
        ("Unpack", [x], [draw(4)] * 2, {}, "outputs must be 3 of float32[4], not [float32[4], float32[4]]"),
        ("Split", [index(1, "int32"), x], [draw(3, 1)] * 3, {}, "outputs must be equal parts of axis 1 of x"),
        ("StridedSlice", [x, *bounds], [out], {}, "y must be of shape [2, 4], not float32[3, 4]"),
        ("StridedSliceGrad", [index([3, 4]), *bounds, x], [out], {}, "dy must be of shape [2, 4], not float32[3, 4]"),
        ("Slice", [x, index([1, 0]), index([3, 4])], [out], {}, "offsets [1, 0] and size [3, 4] leave x [3, 4]"),
        ("PadV3", [x, one, None], [out], {"mode": "edge"}, "mode must be 'constant', not 'edge'"),
        ("Pad", [x, index([0, 0])], [out], {}, "paddings must be two numbers for each axis of x [3, 4]"),
        ("GatherV2", [x, index([3]), zero], [draw(1, 4)], {}, f"{beyond} 0 and 2, not 3"),
        ("GatherV2", [x, index([-1]), zero], [draw(1, 4)], {}, f"{beyond} 0 and 2, not -1"),
        ("GatherV2", [x, index([0]), index(2)], [draw(1, 4)], {}, "axis 2 of x [3, 4] does not fit batch_dims 0"),
        ("GatherV2", [x, index([[0]]), one], [draw(1, 1)], {"batch_dims": 1}, "differ in the first 1 axes"),
        ("GatherNd", [x, index([[0, 4]])], [draw(1)], {}, f"{beyond} 0 and 3, not 4"),
        ("TensorScatterUpdate", [x, index([[3]]), draw(1, 4)], [out], {}, f"{beyond} 0 and 2, not 3"),
        ("TensorScatterUpdate", [x, index([[0]]), draw(4)], [out], {}, "updates must be of shape [1, 4]"),
        ("ScatterNd", [index([[3]]), draw(1, 4), index([3, 4])], [out], {}, f"{beyond} 0 and 2, not 3"),
        ("ScatterElements", [x, index([[0]]), draw(1, 1)], [out], {"reduction": "max"}, "reduction must be 'none'"),
        ("ScatterElements", [x, index([[9]]), draw(1, 1)], [out], {}, f"{beyond} -3 and 2, not 9"),
        ("ScatterUpdate", [x, index([3]), draw(1, 4)], [out], {}, f"{beyond} 0 and 2, not 3"),
        ("ScatterUpdate", [x, index([0]), draw(4)], [out], {}, "updates must be of shape [1, 4], not float32[4]"),
        ("UnsortedSegmentSum", [x, index([0, 1, 2]), index(2)], [draw(2, 4)], {}, f"{beyond} 0 and 1, not 2"),
        ("UnsortedSegmentSum", [x, index([0, 1]), index(2)], [draw(2, 4)], {}, "must have the first axes of x [3, 4]"),
        ("Fill", [index([2]), draw()], [draw(3)], {}, "y must be of shape [2], not float32[3]"),
    ]


@pytest.mark.parametrize(("name", "inputs", "outputs", "attributes", "expected"), refused())
def test_refusals(name: str, inputs: list[Any], outputs: list[Any], attributes: dict[str, Any], expected: str) -> None:
    assert expected in refusal(f"aclop:{name}", inputs, outputs, attributes)


def test_every_operator_is_launched(request: pytest.FixtureRequest) -> None:
    assert unlaunched(request, graph_engine, graph_movement) == set()
