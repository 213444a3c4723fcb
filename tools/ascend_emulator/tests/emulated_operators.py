"""Launching operators of the emulated card in tests, and judging their results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import ascend_emulator.operators  # noqa: F401  (enters all of them into the table)
from ascend_emulator.contract import OPERATORS, ContractError
from ascend_emulator.tensors import DTYPE_NAMES, DeviceTensor

FLOATS = ("float32", "float16", "bfloat16")
TOLERANCE = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}  # of a result's size
# Half a unit in the last place, relative, with some room for what is computed in float32 before the rounding.
_ROUNDING = {"float32": 1e-5, "float16": 2.0**-11 * 1.02, "bfloat16": 2.0**-8 * 1.02, "float64": 1e-12}
NUMBER_OF = {name: number for number, name in DTYPE_NAMES.items()}


_launched: set[str] = set()


def exercises(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator of a test that launches these operators; with an argument `name`, that one of them at a time."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**arguments: Any) -> None:
            _launched.clear()
            test(**arguments)
            assert ({arguments["name"]} if "name" in arguments else {*names}) <= _launched

        run.exercises = names
        return run

    return decorate


def exercised(tests: Iterable[Any]) -> set[str]:
    """Of the tests of a file, which are its globals."""
    return {name for test in tests for name in getattr(test, "exercises", ())}


def draw(*shape: int, dtype: str = "float32", seed: int = 0) -> DeviceTensor:
    """Normally distributed floats, or integers from -5 to 5, or flags."""
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return DeviceTensor.of(random.integers(0, 2, shape), dtype)
    if dtype in _ROUNDING:
        return DeviceTensor.of(random.standard_normal(shape), dtype)
    return DeviceTensor.of(random.integers(0 if dtype.startswith("u") else -5, 6, shape), dtype)


def index(values: Any, dtype: str = "int64") -> DeviceTensor:
    return DeviceTensor.of(values, dtype)


def exact(tensor: DeviceTensor) -> np.ndarray:
    """The values in the widest dtype of their kind."""
    values = tensor.values()
    return values.astype({"f": np.float64, "i": np.int64, "u": np.int64}.get(values.dtype.kind, values.dtype))


def launch(name: str, *arguments: Any) -> Any:
    """As the launcher does it. Returns the last argument, in which most operators leave their result."""
    _launched.add(name)
    OPERATORS[name].check(arguments)
    with np.errstate(all="ignore"):
        OPERATORS[name].run(*arguments)
    return arguments[-1]


def refusal(name: str, *arguments: Any) -> str:
    """What the operator says to arguments that it refuses, which begins with its name and ends with the document."""
    with pytest.raises(ContractError) as caught:
        launch(name, *arguments)
    text = str(caught.value)
    assert text.startswith(f"{name}: ")
    return text


def documented_refusal(name: str, *arguments: Any) -> str:
    """A `refusal` that names the document of its rule."""
    text = refusal(name, *arguments)
    assert OPERATORS[name].source in text
    return text


def assert_is(out: DeviceTensor, expected: Any, dtype_of_rounding: str | None = None) -> None:
    """Floats are the expected numbers rounded once to their dtype; anything else is equal, after wrapping.

    dtype_of_rounding: of an operand, where that is coarser than the result.
    """
    expected = np.asarray(expected)
    assert out.shape == expected.shape
    tolerance = _ROUNDING.get(dtype_of_rounding or out.dtype)
    if tolerance is None:
        np.testing.assert_array_equal(out.bits, expected.astype(out.bits.dtype))
    else:
        np.testing.assert_allclose(exact(out), expected, rtol=tolerance, atol=1e-6)


def is_close(out: DeviceTensor, expected: np.ndarray) -> bool:
    """Within TOLERANCE of the largest element: for what is summed up in float32."""
    assert out.shape == expected.shape
    return np.abs(exact(out) - expected).max(initial=0) <= TOLERANCE[out.dtype] * np.abs(expected).max(initial=1e-30)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    weights = np.exp(x - x.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def silu_slope(x: np.ndarray) -> np.ndarray:
    """By central differences."""
    return (silu(x + 1e-6) - silu(x - 1e-6)) / 2e-6


def own_names(module: Any) -> list[str]:
    """The operators that a module enters into the table."""
    return sorted(name for name, operator in OPERATORS.items() if operator.compute.__module__ == module.__name__)
