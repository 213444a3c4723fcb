"""Operators that work element by element: arithmetic, comparison, logic, conversion and copies.

Complex numbers, which the documentation allows, are not emulated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ascend_emulator.contract import (
    anything,
    broadcasts,
    deduced_dtype,
    deduces,
    dtype_number,
    operator,
    same_shape,
    tensor,
    value,
)
from ascend_emulator.tensors import ANY, FLOATS, INTEGERS, REAL, DeviceTensor

_FLOATING = FLOATS | {"float64"}
_DISCRETE = INTEGERS | {"bool"}


def operands(*given: Any) -> list[np.ndarray]:
    """These tensors and numbers in the one dtype that is deduced from them, 16-bit floats widened to float32."""
    common = deduced_dtype(*given)
    assert common is not None, "the contract has not been checked"
    return [converted(one, common) for one in given]


def converted(given: DeviceTensor | float, dtype: str) -> np.ndarray:
    """The values of a tensor or number after conversion to `dtype`."""
    if isinstance(given, DeviceTensor):
        return given.values() if given.dtype == dtype else DeviceTensor.of(given.values(), dtype).values()
    return DeviceTensor.of(given, dtype).values()


def floating(values: np.ndarray) -> np.ndarray:
    """Integers and flags as the float32 that CANN computes functions of real numbers in."""
    return values if values.dtype.kind == "f" else values.astype(np.float32)


# -------------------------------------------------------------------------------------------------- of one tensor


def _of_reals(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda values: function(floating(values))


def _to_whole(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """Whole numbers stay what they are: numpy would take them through float64."""
    return lambda values: function(values) if values.dtype.kind == "f" else values


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


# name: function, dtypes allowed, dtypes of the result (None: that of self), folder of the document.
_UNARY = {
    "Abs": (np.abs, REAL, None, "math/abs"),
    "BitwiseNot": (np.invert, _DISCRETE, None, "math/bitwise_not"),
    "Ceil": (np.ceil, _FLOATING, None, "math/ceil"),
    "Cos": (_of_reals(np.cos), REAL, _FLOATING, "math/cos"),
    "Exp": (_of_reals(np.exp), _FLOATING | {"bool", "int64"}, _FLOATING, "math/exp"),
    "Exp2": (_of_reals(np.exp2), REAL, _FLOATING, "math/pow"),
    "Expm1": (_of_reals(np.expm1), _FLOATING - {"float64"} | {"bool", "int64"}, _FLOATING, "math/expm1"),
    "Floor": (_to_whole(np.floor), _FLOATING | INTEGERS, None, "math/floor"),
    "IsFinite": (np.isfinite, _FLOATING, {"bool"}, "math/is_finite"),
    "IsInf": (np.isinf, REAL, {"bool"}, "math/is_inf"),
    "Log": (_of_reals(np.log), REAL, _FLOATING, "math/log"),
    "Log1p": (_of_reals(np.log1p), REAL, _FLOATING, "math/log1p"),
    "Log2": (_of_reals(np.log2), REAL, _FLOATING, "math/log"),
    "LogicalNot": (np.logical_not, REAL, REAL, "math/logical_not"),
    "Neg": (np.negative, _FLOATING | {"int8", "int32", "int64"}, None, "math/neg"),
    "Reciprocal": (_of_reals(np.reciprocal), REAL, _FLOATING, "math/reciprocal"),
    "Relu": (lambda x: np.maximum(x, 0), FLOATS | {"int8", "int32", "int64"}, None, "activation/relu"),
    "Rsqrt": (_of_reals(lambda x: 1 / np.sqrt(x)), REAL, _FLOATING, "math/rsqrt"),
    "Sigmoid": (sigmoid, FLOATS, FLOATS, "activation/sigmoid"),
    "Sign": (lambda x: np.sign(x * 1), _FLOATING | {"int32", "int64", "bool"}, None, "math/sign"),
    "Sin": (_of_reals(np.sin), REAL, _FLOATING, "math/sin"),
    "Sqrt": (_of_reals(np.sqrt), REAL, _FLOATING, "math/sqrt"),
    "Tanh": (_of_reals(np.tanh), REAL - {"float64"}, FLOATS, "math/tanh"),
    "Trunc": (np.trunc, FLOATS, None, "math/trunc"),
}
_ARGUMENTS = {"Cos": ("input", "out"), "IsInf": ("x", "out"), "Sign": ("self", "result")}  # of the others self, out
_UNARY_IN_PLACE = ("Exp", "Floor", "Log", "Relu", "Sigmoid", "Tanh")


def _enter_unary(name: str, function: Callable, dtypes: frozenset[str], results: Any, folder: str) -> None:
    repository = "ops-nn" if folder.startswith("activation") else "ops-math"
    first, last = _ARGUMENTS.get(name, ("self", "out"))
    out_rule = tensor(last, like=first) if results is None else tensor(last, frozenset(results))

    @operator(
        f"aclnn{name}",
        takes=(tensor(first, dtypes), out_rule),
        relations=(same_shape(first, last),),
        source=f"{repository} {folder} aclnn{name}",
    )
    def run(self: DeviceTensor, out: DeviceTensor) -> None:
        out.store(function(self.values()))

    if name in _UNARY_IN_PLACE:

        @operator(
            f"aclnnInplace{name}",
            takes=(tensor("selfRef", dtypes if results is None else frozenset(results)),),
            source=f"{repository} {folder} aclnn{name}&aclnnInplace{name}",
        )
        def run_in_place(self: DeviceTensor) -> None:
            self.store(function(self.values()))


for _name, _row in _UNARY.items():
    _enter_unary(_name, *_row)


@operator(
    "aclnnRoundDecimals",
    takes=(tensor("self", _FLOATING | {"int32", "int64"}), anything("decimals"), tensor("out", like="self")),
    relations=(same_shape("self", "out"),),
    source="ops-math math/round aclnnRoundDecimals",
)
def _round(self: DeviceTensor, decimals: int, out: DeviceTensor) -> None:
    out.store(np.round(self.values(), decimals))


# -------------------------------------------------------------------------------------------------- of two


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.true_divide(floating(a), floating(b))


def truncated_quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if np.result_type(a, b).kind == "f":
        return np.trunc(a / b)
    floored = np.floor_divide(a, b)
    return floored + ((floored < 0) & (floored * b != a))


def _floored_quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.floor(a / b) if np.result_type(a, b).kind == "f" else np.floor_divide(a, b)


def _raises(arguments: dict[str, Any]) -> str | None:
    """self to the power of exponent."""
    first, second = arguments["self"], arguments["exponent"]
    if first.dtype == "bool" and (isinstance(second, bool) or getattr(second, "dtype", "") == "bool"):
        return "self and exponent must not both be bool"
    if not isinstance(second, DeviceTensor) and second < 0 and deduced_dtype(first, second) in INTEGERS:
        return f"exponent must not be negative for integers, not {second}"
    return None


_NUMBERS = _FLOATING | INTEGERS
_WIDE = _FLOATING | {"int32", "int64"}
# name: function, dtypes of the operands, dtypes of the result, folder of the document. Names of tensor and tensor.
_BINARY = {
    "Atan2": (lambda a, b: np.arctan2(floating(a), floating(b)), REAL, _FLOATING, "math/atan2"),
    "BitwiseAndTensor": (np.bitwise_and, _DISCRETE, _DISCRETE, "math/bitwise_and"),
    "BitwiseOrTensor": (np.bitwise_or, _DISCRETE, _DISCRETE, "math/bitwise_or"),
    "BitwiseXorTensor": (np.bitwise_xor, _DISCRETE, _DISCRETE, "math/bitwise_xor"),
    "Div": (_quotient, REAL, REAL, "math/div"),
    "EqTensor": (np.equal, REAL, REAL, "math/equal"),
    "FloorDivide": (_floored_quotient, REAL, _NUMBERS, "math/floor_div"),
    "FmodTensor": (np.fmod, _NUMBERS - {"int16"}, _NUMBERS - {"int16"}, "math/mod"),
    "GeTensor": (np.greater_equal, ANY - {"bool"}, ANY, "math/greater_equal"),
    "GtTensor": (np.greater, ANY, ANY, "math/greater"),
    "LeTensor": (np.less_equal, REAL | {"uint16"}, ANY, "math/less_equal"),
    "LogicalAnd": (np.logical_and, REAL, REAL, "math/logical_and"),
    "LogicalOr": (np.logical_or, REAL, REAL, "math/logical_or"),
    "LogicalXor": (np.logical_xor, REAL, REAL, "math/not_equal"),
    "LtTensor": (np.less, ANY, ANY, "math/less"),
    "Maximum": (np.maximum, REAL, REAL, "math/maximum"),
    "Minimum": (np.minimum, REAL, REAL, "math/minimum"),
    "Mul": (np.multiply, REAL, REAL, "math/mul"),
    "NeTensor": (np.not_equal, REAL, REAL, "math/not_equal"),
    "PowTensorTensor": (np.power, REAL, REAL, "math/pow"),
    "RemainderTensorTensor": (np.remainder, _WIDE, _WIDE, "math/floor_mod"),
}
# The same of tensor and number, where MindSpore launches it: its name, and its dtypes where they differ.
_WITH_SCALAR = {
    "Div": ("Divs", REAL),
    "EqTensor": ("EqScalar", REAL),
    "FloorDivide": ("FloorDivides", REAL),
    "FmodTensor": ("FmodScalar", _NUMBERS - {"int16"}),
    "GeTensor": ("GeScalar", ANY - {"bool"}),
    "LtTensor": ("LtScalar", ANY),
    "Mul": ("Muls", REAL),
    "NeTensor": ("NeScalar", REAL),
    "PowTensorTensor": ("PowTensorScalar", REAL),
    "RemainderTensorTensor": ("RemainderTensorScalar", _WIDE),
}
_BINARY_IN_PLACE = ("Mul", "Div", "FloorDivide", "RemainderTensorTensor")
# A truth value becomes any dtype, whatever was compared.
_TRUTHS = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
_TRUTHS += (np.logical_and, np.logical_or, np.logical_xor)


def _enter_binary(name: str, function: Callable, dtypes: frozenset[str], results: frozenset[str], folder: str) -> None:
    converts_to = None if function in _TRUTHS else "out"

    def run(self: DeviceTensor, other: DeviceTensor | float, out: DeviceTensor) -> None:
        out.store(function(*operands(self, other)))

    def run_in_place(self: DeviceTensor, other: DeviceTensor | float) -> None:
        self.store(function(*operands(self, other)))

    second = "exponent" if name.startswith("Pow") else "other"
    scalar_name, scalar_dtypes = _WITH_SCALAR.get(name, (None, dtypes))
    further = (_raises,) if name.startswith("Pow") else ()
    forms = [(name, tensor(second, dtypes), dtypes)]
    if scalar_name:
        forms.append((scalar_name, anything(second), scalar_dtypes))
    for form, rule, first_dtypes in forms:
        operator(
            f"aclnn{form}",
            takes=(tensor("self", first_dtypes), rule, tensor("out", results)),
            relations=(broadcasts("self", second), deduces("self", second, to=converts_to), *further),
            source=f"ops-math {folder} aclnn{form}",
        )(run)
        if name in _BINARY_IN_PLACE:
            operator(
                f"aclnnInplace{form}",
                takes=(tensor("selfRef", first_dtypes & results), rule),
                relations=(
                    broadcasts("selfRef", second, to="selfRef"),
                    deduces("selfRef", second, to="selfRef"),
                ),
                source=f"ops-math {folder} aclnn{form}&aclnnInplace{form}",
            )(run_in_place)


for _name, _row in _BINARY.items():
    _enter_binary(_name, *_row)


@operator(
    "aclnnPowScalarTensor",
    takes=(anything("self"), tensor("exponent", _NUMBERS), tensor("out", REAL)),
    relations=(same_shape("exponent", "out"), deduces("self", "exponent")),
    source="ops-math math/pow aclnnPowScalarTensor",
)
def _power_of_scalar(self: float, exponent: DeviceTensor, out: DeviceTensor) -> None:
    out.store(np.power(*operands(self, exponent)))


def _enter_sum(name: str, function: Callable, folder: str) -> None:
    """Add and Sub, whose second operand is multiplied by alpha first."""

    def compute(self: DeviceTensor, other: DeviceTensor | float, alpha: float) -> np.ndarray:
        first, second = operands(self, other)
        if alpha != 1:
            second = second * np.asarray(alpha).astype(second.dtype)
        return function(first, second)

    def run(self: DeviceTensor, other: DeviceTensor | float, alpha: float, out: DeviceTensor) -> None:
        out.store(compute(self, other, alpha))

    def run_in_place(self: DeviceTensor, other: DeviceTensor | float, alpha: float) -> None:
        self.store(compute(self, other, alpha))

    for form, second in ((name, tensor("other", REAL)), (f"{name}s", anything("other"))):
        operator(
            f"aclnn{form}",
            takes=(tensor("self", REAL), second, anything("alpha"), tensor("out", REAL)),
            relations=(broadcasts("self", "other"), deduces("self", "other")),
            source=f"ops-math {folder} aclnn{form}",
        )(run)
        operator(
            f"aclnnInplace{form}",
            takes=(tensor("selfRef", REAL), second, anything("alpha")),
            relations=(broadcasts("selfRef", "other", to="selfRef"), deduces("selfRef", "other", to="selfRef")),
            source=f"ops-math {folder} aclnn{form}&aclnnInplace{form}",
        )(run_in_place)


_enter_sum("Add", np.add, "math/add")
_enter_sum("Sub", np.subtract, "math/sub")


_QUOTIENTS = {0: _quotient, 1: truncated_quotient, 2: _floored_quotient}


@operator(
    "aclnnDivMod",
    takes=(tensor("self", REAL), tensor("other", REAL), value("mode", among=(0, 1, 2)), tensor("out", REAL)),
    relations=(broadcasts("self", "other"), deduces("self", "other")),
    source="ops-math math/div aclnnDivMod",
)
@operator(
    "aclnnDivMods",
    takes=(tensor("self", REAL), anything("other"), value("mode", among=(0, 1, 2)), tensor("out", REAL)),
    relations=(same_shape("self", "out"), deduces("self", "other")),
    source="ops-math math/div aclnnDivMods",
)
def _divide(self: DeviceTensor, other: DeviceTensor | float, mode: int, out: DeviceTensor) -> None:
    out.store(_QUOTIENTS[mode](*operands(self, other)))


@operator(
    "aclnnSigmoidBackward",
    takes=(tensor("gradOutput", _FLOATING), tensor("output", _FLOATING), tensor("gradInput", _FLOATING)),
    relations=(broadcasts("gradOutput", "output", to="gradInput"),),
    source="ops-nn activation/sigmoid_grad aclnnSigmoidBackward",
)
def _sigmoid_backward(gradient: DeviceTensor, output: DeviceTensor, out: DeviceTensor) -> None:
    slope, result = operands(gradient, output)
    out.store(slope * result * (1 - result))


@operator(
    "aclnnTanhBackward",
    takes=(tensor("gradOutput", _FLOATING), tensor("output", like="gradOutput"), tensor("gradInput", like="output")),
    relations=(broadcasts("gradOutput", "output", to="gradInput"),),
    source="ops-math math/tanh_grad aclnnTanhBackward",
)
def _tanh_backward(gradient: DeviceTensor, output: DeviceTensor, out: DeviceTensor) -> None:
    slope, result = operands(gradient, output)
    out.store(slope * (1 - result * result))


# -------------------------------------------------------------------------------------------------- bounds and choice


@operator(
    "aclnnClamp",
    takes=(tensor("self", _NUMBERS), anything("clipValueMin"), anything("clipValueMax"), tensor("out", _NUMBERS)),
    relations=(same_shape("self", "out"),),
    source="ops-math conversion/clip_by_value_v2 aclnnClamp",
)
@operator(
    "aclnnClampTensor",
    takes=(
        tensor("self", _NUMBERS),
        tensor("clipValueMin", _NUMBERS, optional=True),
        tensor("clipValueMax", _NUMBERS, optional=True),
        tensor("out", _NUMBERS),
    ),
    relations=(broadcasts("self", "clipValueMin", "clipValueMax"),),
    source="ops-math conversion/clip_by_value_v2 aclnnClampTensor",
)
def _clamp(
    self: DeviceTensor, low: DeviceTensor | float | None, high: DeviceTensor | float | None, out: DeviceTensor
) -> None:
    values = self.values()
    if low is not None:
        values = np.maximum(values, converted(low, self.dtype))
    if high is not None:
        values = np.minimum(values, converted(high, self.dtype))
    out.store(values)


@operator(
    "aclnnClampMin",
    takes=(tensor("self", _NUMBERS), anything("clipValueMin"), tensor("out", _NUMBERS)),
    relations=(same_shape("self", "out"),),
    source="ops-math conversion/clip_by_value_v2 aclnnClampMin",
)
def _clamp_below(self: DeviceTensor, low: float, out: DeviceTensor) -> None:
    _clamp(self, low, None, out)


@operator(
    "aclnnSWhere",
    takes=(
        tensor("condition", frozenset({"bool", "uint8"})),
        tensor("self", ANY),
        tensor("other", ANY),
        tensor("out", ANY),
    ),
    relations=(broadcasts("condition", "self", "other"), deduces("self", "other")),
    source="ops-math math/select aclnnSWhere",
)
def _where(condition: DeviceTensor, self: DeviceTensor, other: DeviceTensor, out: DeviceTensor) -> None:
    out.store(np.where(condition.values(), *operands(self, other)))


@operator(
    "aclnnInplaceMaskedFillTensor",
    takes=(
        tensor("selfRef", FLOATS | {"bool", "int8", "int32", "int64"}),
        tensor("mask", frozenset({"bool"})),
        tensor("value", FLOATS | {"bool", "int8", "int32", "int64"}, rank=(0, 0)),
    ),
    relations=(broadcasts("selfRef", "mask", to="selfRef"), deduces("value", to="selfRef")),
    source="ops-math conversion/masked_fill aclnnInplaceMaskedFillTensor",
)
@operator(
    "aclnnInplaceMaskedFillScalar",
    takes=(
        tensor("selfRef", FLOATS | {"bool", "int8", "int32", "int64"}),
        tensor("mask", frozenset({"bool"})),
        anything("value"),
    ),
    relations=(broadcasts("selfRef", "mask", to="selfRef"),),
    source="ops-math conversion/masked_fill aclnnInplaceMaskedFillScalar",
)
def _masked_fill(self: DeviceTensor, mask: DeviceTensor, filling: DeviceTensor | float) -> None:
    self.store(np.where(mask.values(), converted(filling, self.dtype), self.values()))


# -------------------------------------------------------------------------------------------------- conversion, copies


def copy(source: DeviceTensor, out: DeviceTensor) -> None:
    """Converts where the dtypes differ: NaN becomes the integer 0."""
    if source.dtype == out.dtype:
        out.bits[...] = source.bits
        return
    values = source.values()
    if values.dtype.kind == "f" and out.dtype in INTEGERS:
        values = np.where(np.isnan(values), 0, values)
    out.store(values)


@operator(
    "aclnnCast",
    takes=(tensor("self", ANY), anything("dtype"), tensor("out", ANY)),
    relations=(same_shape("self", "out"), dtype_number("dtype", "out")),
    source="ops-math math/cast aclnnCast",
)
def _cast(self: DeviceTensor, dtype: int, out: DeviceTensor) -> None:
    copy(self, out)


@operator(
    "aclnnInplaceCopy",
    takes=(tensor("selfRef", ANY), tensor("src", ANY)),
    relations=(broadcasts("selfRef", "src", to="selfRef"),),
    source="ops-math conversion/view_copy aclnnInplaceCopy",
)
def _copy(self: DeviceTensor, source: DeviceTensor) -> None:
    copy(source, self)
