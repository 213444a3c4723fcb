"""Emulated operators that work element by element, beside their definitions in float64, and what CANN rules out."""

from typing import Any

import numpy as np
import pytest
from emulated_operators import FLOATS, NUMBER_OF, assert_is, draw, exact, index, launch, of, refusal, unlaunched, zeros

from ascend_emulator.contract import deduced_dtype
from ascend_emulator.operators import elementwise
from ascend_emulator.tensors import DeviceTensor

INTEGERS = ("int8", "int16", "int32", "int64", "uint8")


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


# name: definition, dtypes beside the 16 and 32 bit floats, whether the result is of self's dtype.
UNARY: dict[str, tuple[Any, tuple[str, ...], bool]] = {
    "aclnnAbs": (abs, (*INTEGERS, "float64"), True),
    "aclnnBitwiseNot": (lambda x: -1 - x, INTEGERS[:4], True),
    "aclnnCeil": (np.ceil, ("float64",), True),
    "aclnnCos": (np.cos, INTEGERS, False),
    "aclnnExp": (np.exp, ("bool", "int64", "float64"), False),
    "aclnnExp2": (lambda x: 2.0**x, INTEGERS, False),
    "aclnnExpm1": (np.expm1, ("int64", "bool"), False),
    "aclnnFloor": (np.floor, INTEGERS, True),
    "aclnnLog": (np.log, INTEGERS, False),
    "aclnnLog1p": (np.log1p, INTEGERS, False),
    "aclnnLog2": (np.log2, INTEGERS, False),
    "aclnnNeg": (lambda x: -x, ("int8", "int32", "int64"), True),
    "aclnnReciprocal": (lambda x: 1 / x, INTEGERS, False),
    "aclnnRelu": (lambda x: np.where(x > 0, x, 0), ("int8", "int32", "int64"), True),
    "aclnnRsqrt": (lambda x: x**-0.5, INTEGERS, False),
    "aclnnSigmoid": (sigmoid, (), True),
    "aclnnSign": (lambda x: (x > 0) * 1.0 - (x < 0), ("int32", "int64", "bool"), True),
    "aclnnSin": (np.sin, INTEGERS, False),
    "aclnnSqrt": (np.sqrt, INTEGERS, False),
    "aclnnTanh": (np.tanh, INTEGERS, False),
    "aclnnTrunc": (np.trunc, (), True),
}
OF_POSITIVE = ("aclnnLog", "aclnnLog1p", "aclnnLog2", "aclnnRsqrt", "aclnnSqrt", "aclnnReciprocal")


@pytest.mark.parametrize(("name", "dtype"), [
    (name, dtype)
    for name, (_, more, _) in UNARY.items()
    for dtype in (*(() if name == "aclnnBitwiseNot" else FLOATS), *more)
])  # fmt: skip
def test_functions_of_one_number(name: str, dtype: str) -> None:
    definition, _, is_of_own_dtype = UNARY[name]
    x = draw(5, 7, dtype=dtype)
    if name in OF_POSITIVE:
        x.store(np.abs(x.values()) + 1)
    x = x.seen(x.bits.T)
    out_dtype = dtype if is_of_own_dtype or dtype in FLOATS else "float32"
    out = zeros((7, 5), out_dtype)
    launch(name, x, out)
    with np.errstate(all="ignore"):
        assert_is(out, definition(exact(x).astype(np.float64) if out_dtype in FLOATS else exact(x)))
    in_place = name.replace("aclnn", "aclnnInplace")
    if in_place in IN_PLACE and dtype in FLOATS:
        assert_is(launch(in_place, x), exact(out))


IN_PLACE = [f"aclnnInplace{name}" for name in ("Exp", "Floor", "Log", "Relu", "Sigmoid", "Tanh")]


def test_what_a_number_is() -> None:
    for dtype in FLOATS:
        x, out = of([0, 1, np.inf, -np.inf, np.nan], dtype), zeros((5,), "bool")
        assert launch("aclnnIsFinite", x, out).bits.tolist() == [True, True, False, False, False]
        assert launch("aclnnIsInf", x, out).bits.tolist() == [False, False, True, True, False]
        assert launch("aclnnLogicalNot", x, out).bits.tolist() == [True, False, False, False, False]
    halves, rounded = of([0.5, 1.5, -2.5, 0.25]), zeros((4,))
    assert launch("aclnnRoundDecimals", halves, 0, rounded).bits.tolist() == [0, 2, -2, 0]
    launch("aclnnRoundDecimals", of([14, 15, 25], "int32"), -1, out := zeros((3,), "int32"))
    assert out.bits.tolist() == [10, 20, 20]


def test_infinities_and_nan_go_through() -> None:
    x, out = of([np.nan, np.inf, -np.inf, 90.0]), zeros((4,))
    np.testing.assert_array_equal(launch("aclnnRelu", x, out).bits, [np.nan, np.inf, 0, 90])
    np.testing.assert_array_equal(launch("aclnnExp", x, out).bits, [np.nan, np.inf, 0, np.inf])
    np.testing.assert_allclose(launch("aclnnSigmoid", x, out).bits, [np.nan, 1, 0, 1])


def floor_modulo(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a - np.floor(a / b) * b


# name: definition, dtypes beside floats, dtype of the result (None: the operands').
BINARY: dict[str, tuple[Any, tuple[str, ...], str | None]] = {
    "aclnnAtan2": (np.arctan2, (), None),
    "aclnnBitwiseAndTensor": (lambda a, b: a & b, INTEGERS, None),
    "aclnnBitwiseOrTensor": (lambda a, b: a | b, INTEGERS, None),
    "aclnnBitwiseXorTensor": (lambda a, b: a ^ b, INTEGERS, None),
    "aclnnDiv": (lambda a, b: a / b, (), None),
    "aclnnEqTensor": (lambda a, b: a == b, INTEGERS, "bool"),
    "aclnnFloorDivide": (lambda a, b: np.floor(a / b), INTEGERS, None),
    "aclnnFmodTensor": (lambda a, b: a - np.trunc(a / b) * b, ("int32", "int64"), None),
    "aclnnGeTensor": (lambda a, b: a >= b, INTEGERS, "bool"),
    "aclnnGtTensor": (lambda a, b: a > b, INTEGERS, "bool"),
    "aclnnLeTensor": (lambda a, b: a <= b, INTEGERS, "bool"),
    "aclnnLogicalAnd": (lambda a, b: (a != 0) & (b != 0), (*INTEGERS, "bool"), "bool"),
    "aclnnLogicalOr": (lambda a, b: (a != 0) | (b != 0), (*INTEGERS, "bool"), "bool"),
    "aclnnLogicalXor": (lambda a, b: (a != 0) ^ (b != 0), (*INTEGERS, "bool"), "bool"),
    "aclnnLtTensor": (lambda a, b: a < b, INTEGERS, "bool"),
    "aclnnMaximum": (lambda a, b: np.where(a > b, a, b), INTEGERS, None),
    "aclnnMinimum": (lambda a, b: np.where(a < b, a, b), INTEGERS, None),
    "aclnnMul": (lambda a, b: a * b, INTEGERS, None),
    "aclnnNeTensor": (lambda a, b: a != b, INTEGERS, "bool"),
    "aclnnPowTensorTensor": (lambda a, b: a**b, (), None),
    "aclnnRemainderTensorTensor": (floor_modulo, ("int32", "int64"), None),
    "aclnnAdd": (lambda a, b: a + b, INTEGERS, None),
    "aclnnSub": (lambda a, b: a - b, INTEGERS, None),
}
SCALAR_NAMES = {
    "aclnnDiv": "aclnnDivs", "aclnnEqTensor": "aclnnEqScalar", "aclnnFloorDivide": "aclnnFloorDivides",
    "aclnnFmodTensor": "aclnnFmodScalar", "aclnnGeTensor": "aclnnGeScalar", "aclnnLtTensor": "aclnnLtScalar",
    "aclnnMul": "aclnnMuls", "aclnnNeTensor": "aclnnNeScalar", "aclnnPowTensorTensor": "aclnnPowTensorScalar",
    "aclnnRemainderTensorTensor": "aclnnRemainderTensorScalar", "aclnnAdd": "aclnnAdds", "aclnnSub": "aclnnSubs",
}  # fmt: skip
ONLY_INTEGERS = ("aclnnBitwiseAndTensor", "aclnnBitwiseOrTensor", "aclnnBitwiseXorTensor")


def with_alpha(name: str, *arguments: Any) -> tuple[Any, ...]:
    """Add and Sub have a factor of the second operand before the output."""
    return (*arguments[:2], 1, *arguments[2:]) if name.startswith(("Add", "Sub"), 5) else arguments


def operand_pair(name: str, dtype: str) -> tuple[DeviceTensor, DeviceTensor]:
    a, b = draw(4, 1, 6, dtype=dtype), draw(5, 1, dtype=dtype, seed=1)
    if "Pow" in name:
        a.store(np.abs(a.values()) + 0.5)
    if any(word in name for word in ("Div", "Fmod", "Remainder")):
        b.store(np.where(np.abs(b.values()) < 0.3, 2, b.values()))
    return a, b


@pytest.mark.parametrize(("name", "dtype"), [
    (name, dtype)
    for name, (_, more, _) in BINARY.items()
    for dtype in (*(() if name in ONLY_INTEGERS else FLOATS), *more)
])  # fmt: skip
def test_functions_of_two_numbers_broadcast(name: str, dtype: str) -> None:
    definition, _, result = BINARY[name]
    a, b = operand_pair(name, dtype)
    out = zeros((4, 5, 6), result or dtype)
    launch(name, *with_alpha(name, a, b, out))
    expected = definition(exact(a), exact(b))
    if "Remainder" in name or "Fmod" in name:  # a difference of large numbers is judged by those
        np.testing.assert_allclose(exact(out), expected, atol=np.abs(exact(b)).max() * 2.0**-8)
    else:
        assert_is(out, expected)


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
@pytest.mark.parametrize("name", SCALAR_NAMES.values())
def test_functions_of_a_tensor_and_a_number(name: str, dtype: str) -> None:
    tensors = {scalar: tensor for tensor, scalar in SCALAR_NAMES.items()}
    definition, _, result = BINARY[tensors[name]]
    a, number = operand_pair(tensors[name], dtype)[0], 3 if dtype == "int32" else 1.5
    out_dtype = "float32" if name == "aclnnDivs" and dtype == "int32" else dtype
    out = zeros(a.shape, result or out_dtype)
    launch(name, *with_alpha(name, a, number, out))
    if "Remainder" in name or "Fmod" in name:
        np.testing.assert_allclose(exact(out), definition(exact(a), number), atol=2.0**-8)
    else:
        assert_is(out, definition(exact(a), number))


ARITHMETIC_IN_PLACE = ("Add", "Sub", "Mul", "Div", "FloorDivide", "RemainderTensorTensor")
NAMES_IN_PLACE = [
    name.replace("aclnn", "aclnnInplace")
    for tensor in ARITHMETIC_IN_PLACE
    for name in (f"aclnn{tensor}", SCALAR_NAMES[f"aclnn{tensor}"])
]


@pytest.mark.parametrize("name", NAMES_IN_PLACE)
def test_arithmetic_in_place(name: str) -> None:
    ordinary = name.replace("Inplace", "")
    a, b = draw(3, 4, dtype="bfloat16"), of([2, -1, 0.5, 3], "bfloat16")
    second = 2.0 if ordinary in SCALAR_NAMES.values() else b
    out = zeros((3, 4), "bfloat16")
    launch(ordinary, *with_alpha(ordinary, a, second, out))
    launch(name, *with_alpha(ordinary, a, second))
    np.testing.assert_array_equal(a.bits, out.bits)


def test_alpha_multiplies_the_second_operand_before_the_only_rounding() -> None:
    a, b = draw(64, dtype="bfloat16"), draw(64, dtype="bfloat16", seed=1)
    out = zeros((64,), "bfloat16")
    assert_is(launch("aclnnAdd", a, b, 0.5, out), exact(a) + 0.5 * exact(b))
    assert_is(launch("aclnnSubs", a, 2.0, 3, out), exact(a) - 6)


def test_nan_goes_through_extremes() -> None:
    a, b = of([np.nan, 1, np.nan]), of([1, np.nan, np.nan])
    for name in ("aclnnMaximum", "aclnnMinimum"):
        out = zeros((3,))
        launch(name, a, b, out)
        assert np.isnan(out.bits).all()


def test_integers_wrap() -> None:
    a, out = of([100, -100], "int8"), zeros((2,), "int8")
    assert launch("aclnnAdd", a, a, 1, out).bits.tolist() == [-56, 56]
    assert launch("aclnnMul", a, a, out).bits.tolist() == [16, 16]
    big = of([2**31 - 1], "int32")
    assert launch("aclnnAdds", big, 1, 1, big).bits.tolist() == [-(2**31)]


def test_flags_add_as_or_and_multiply_as_and() -> None:
    a, b = of([0, 0, 1, 1], "bool"), of([0, 1, 0, 1], "bool")
    out = zeros((4,), "bool")
    assert launch("aclnnAdd", a, b, 1, out).bits.tolist() == [False, True, True, True]
    assert launch("aclnnMul", a, b, out).bits.tolist() == [False, False, False, True]
    counted = zeros((4,), "int32")
    assert launch("aclnnMul", a, of([5, 6, 7, 8], "int32"), counted).bits.tolist() == [0, 0, 7, 8]


@pytest.mark.parametrize(("operands", "common"), [
    (("float32", "bfloat16"), "float32"),
    (("bfloat16", "float16"), "float32"),
    (("float16", "float64"), "float64"),
    (("bfloat16", "int64"), "bfloat16"),
    (("int8", "uint8"), "int16"),
    (("int64", "int32"), "int64"),
    (("bool", "uint8"), "uint8"),
    (("uint16", "int32"), None),
    (("bfloat16", 1.5), "bfloat16"),
    (("int32", 1.5), "float32"),
    (("bool", 1.5), "float32"),
    (("int8", 300), "int8"),
    (("bool", 2), "int64"),
    (("bool", True), "bool"),
    (("float32", "int32", "bfloat16"), "float32"),
])  # fmt: skip
def test_the_dtype_that_is_deduced(operands: tuple[Any, ...], common: str | None) -> None:
    given = [zeros((1,), one) if isinstance(one, str) else one for one in operands]
    assert deduced_dtype(*given) == common


def test_operands_are_converted_to_the_deduced_dtype_first() -> None:
    out = zeros((1,))
    launch("aclnnMul", of([1.0], "bfloat16"), index([257]), out)
    assert out.bits.tolist() == [256]  # 257 is no bfloat16
    halves = zeros((1,), "bfloat16")
    assert launch("aclnnAdds", of([0.0], "bfloat16"), 0.1, 1, halves).values().tolist() == [0.10009765625]


def test_division_by_rounding() -> None:
    a, b = of([7, -7, 7, -7], "int64"), of([2, 2, -2, -2], "int64")
    out, quotients = zeros((4,), "int64"), zeros((4,))
    assert launch("aclnnDivMod", a, b, 0, quotients).bits.tolist() == [3.5, -3.5, -3.5, 3.5]
    assert launch("aclnnDivMod", a, b, 1, out).bits.tolist() == [3, -3, -3, 3]
    assert launch("aclnnDivMod", a, b, 2, out).bits.tolist() == [3, -4, -4, 3]
    assert launch("aclnnDivMods", a, 2, 2, out).bits.tolist() == [3, -4, 3, -4]
    reals = of([7.5, -7.5], "bfloat16")
    assert launch("aclnnDivMods", reals, 2.0, 1, zeros((2,), "bfloat16")).values().tolist() == [3, -3]
    launch("aclnnInplaceFloorDivide", a, b)
    assert a.bits.tolist() == [3, -4, -4, 3]
    launch("aclnnPowScalarTensor", 2, index([0, 3, 10]), powers := zeros((3,), "int64"))
    assert powers.bits.tolist() == [1, 8, 1024]


@pytest.mark.parametrize("dtype", FLOATS)
def test_slopes(dtype: str) -> None:
    slope, result = draw(3, 4, dtype=dtype), draw(3, 4, dtype=dtype, seed=1)
    out = zeros((3, 4), dtype)
    assert_is(launch("aclnnSigmoidBackward", slope, result, out), exact(slope) * exact(result) * (1 - exact(result)))
    assert_is(launch("aclnnTanhBackward", slope, result, out), exact(slope) * (1 - exact(result) ** 2))


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
def test_bounds(dtype: str) -> None:
    x, out = of([-5, -1, 0, 2, 9], dtype), zeros((5,), dtype)
    assert launch("aclnnClamp", x, -1, 2, out).values().tolist() == [-1, -1, 0, 2, 2]
    assert launch("aclnnClamp", x, None, 0, out).values().tolist() == [-5, -1, 0, 0, 0]
    assert launch("aclnnClampMin", x, 1, out).values().tolist() == [1, 1, 1, 2, 9]
    assert launch("aclnnClampTensor", x, of([0], dtype), None, out).values().tolist() == [0, 0, 0, 2, 9]


@pytest.mark.parametrize("dtype", [*FLOATS, "int64", "bool"])
def test_choice(dtype: str) -> None:
    condition, a, b = draw(5, 1, dtype="bool"), draw(5, 6, dtype=dtype), draw(6, dtype=dtype, seed=1)
    out = zeros((5, 6), dtype)
    launch("aclnnSWhere", condition, a, b, out)
    for row in range(5):
        np.testing.assert_array_equal(out.bits[row], a.bits[row] if condition.bits[row, 0] else b.bits)
    filled = DeviceTensor(dtype, a.shape, a.bits.copy())
    launch("aclnnInplaceMaskedFillScalar", filled, condition, 1)
    assert (filled.values()[condition.bits[:, 0]] == 1).all()
    np.testing.assert_array_equal(filled.bits[~condition.bits[:, 0]], a.bits[~condition.bits[:, 0]])
    launch("aclnnInplaceMaskedFillTensor", a, condition, of(1, dtype))
    np.testing.assert_array_equal(a.bits, filled.bits)


def test_conversion() -> None:
    x = of([1.9, -1.9, 0, np.nan, 300])
    for dtype, expected in (
        ("int32", [1, -1, 0, 0, 300]),
        ("bool", [True, True, False, True, True]),
        ("float64", x.bits),
        ("bfloat16", [1.8984375, -1.8984375, 0, np.nan, 300]),
    ):
        out = zeros((5,), dtype)
        np.testing.assert_array_equal(launch("aclnnCast", x, NUMBER_OF[dtype], out).values(), np.asarray(expected))
        copied = zeros((2, 5), dtype)
        launch("aclnnInplaceCopy", copied, x)
        np.testing.assert_array_equal(copied.bits, np.stack([out.bits] * 2))
    ties = of([1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.4e38, np.inf])
    launch("aclnnCast", ties, NUMBER_OF["bfloat16"], out := zeros((4,), "bfloat16"))
    np.testing.assert_array_equal(out.values(), [1, 1 + 2.0**-6, np.inf, np.inf])  # ties to even
    launch("aclnnCast", ties, NUMBER_OF["float16"], halves := zeros((4,), "float16"))
    np.testing.assert_array_equal(halves.values()[2:], [np.inf, np.inf])


def test_copies_between_views_of_one_memory() -> None:
    x = index(np.arange(12).reshape(3, 4))
    rows = x.seen(x.bits[:2])
    launch("aclnnInplaceCopy", x.seen(x.bits[1:]), rows)
    assert x.bits.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7]]
    square = index(np.arange(9).reshape(3, 3))
    launch("aclnnInplaceCopy", square, square.seen(square.bits.T))
    assert square.bits.tolist() == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_refusals() -> None:
    a, b, out, nine_axes = draw(3, 4), draw(3, 4), zeros((3, 4)), zeros((1,) * 9)
    for said, *given in (
        ("self is required, not given (ops-math math/add aclnnAdd)", "aclnnAdd", None, b, 1, out),
        ("shapes must broadcast: self [3, 4], other [5]", "aclnnAdd", a, draw(5), 1, out),
        ("out must be of shape [3, 4], not float32[3, 1]", "aclnnMul", a, b, zeros((3, 1))),
        ("selfRef must be of shape [3, 4], not float32[4]", "aclnnInplaceMul", draw(4), b),
        ("out is bool, to which the deduced float32 does not convert", "aclnnMul", a, b, zeros((3, 4), "bool")),
        ("no common dtype can be deduced: self uint16[2], other int32[2]",
         "aclnnLtTensor", draw(2, dtype="uint16"), draw(2, dtype="int32"), zeros((2,), "bool")),
        ("self must be bfloat16 or float16 or float32, not int32", "aclnnSigmoid", draw(3, dtype="int32"), zeros((3,))),
        ("uint64 or uint8, not bool", "aclnnGeTensor", *[draw(2, dtype="bool")] * 3),
        ("or int32 or int64, not int8", "aclnnRemainderTensorTensor", *[draw(2, dtype="int8")] * 3),
        ("out must have the dtype of self, float32, not bfloat16", "aclnnAbs", a, zeros((3, 4), "bfloat16")),
        ("must have one shape: self [3, 4], out [4, 3]", "aclnnExp", a, zeros((4, 3))),
        ("self must have 0 to 8 axes, not 9", "aclnnNeg", nine_axes, nine_axes),
        ("mode must be 0 or 1 or 2, not 3", "aclnnDivMod", a, b, 3, out),
        ("dtype must be the dtype of out, float32, not bfloat16", "aclnnCast", a, 27, out),
        ("condition must be bool or uint8, not float32", "aclnnSWhere", a, a, b, out),
        ("value must have 0 axes, not 1", "aclnnInplaceMaskedFillTensor", a, draw(3, 4, dtype="bool"), draw(1)),
        ("self and exponent must not both be bool",
         "aclnnPowTensorScalar", draw(2, dtype="bool"), True, zeros((2,), "int8")),
        ("exponent must not be negative for integers, not -1",
         "aclnnPowTensorScalar", draw(2, dtype="int32"), -1, zeros((2,), "int32")),
    ):  # fmt: skip
        assert said in refusal(*given)


def test_every_operator_is_launched(request: pytest.FixtureRequest) -> None:
    assert unlaunched(request, elementwise) == set()
