"""Launching operators of the emulated card in tests, and judging their results."""

from __future__ import annotations

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


zeros, of = DeviceTensor.zeros, DeviceTensor.of
_launched: set[str] = set()


def unlaunched(request: pytest.FixtureRequest, *modules: Any) -> set[str]:
    """Operators that these modules enter into the table and no test of the file has launched; skips where only some
    tests of it are run."""
    tests = {name for name in vars(request.module) if name.startswith("test_")}
    if tests != {item.originalname for item in request.session.items if item.path == request.path}:
        pytest.skip("only some tests of this file are run")
    own = {name for name, operator in OPERATORS.items() if operator.compute.__module__ in {m.__name__ for m in modules}}
    return own - _launched


def draw(*shape: int, dtype: str = "float32", seed: int = 0) -> DeviceTensor:
    """Normally distributed floats, or integers from -5 to 5, or flags."""
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return DeviceTensor.of(random.integers(0, 2, shape), dtype)
    if dtype in _ROUNDING:
        return DeviceTensor.of(random.standard_normal(shape), dtype)
    return DeviceTensor.of(random.integers(0 if dtype.startswith("u") else -5, 6, shape), dtype)


def index(values: Any, dtype: str = "int64") -> DeviceTensor:
    return of(values, dtype)


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


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, hidden: np.ndarray, scale: float) -> tuple[np.ndarray, ...]:
    """Output, maximum and sum of one sequence: q [T, N, D], k, v [T2, K, D], hidden [N or 1, T, T2]."""
    group = q.shape[1] // k.shape[1]
    scores = np.where(hidden, -np.inf, scale * np.einsum("qnd,knd->nqk", q, k.repeat(group, 1)))
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    out = np.einsum("nqk,knd->qnd", weights / np.where(total == 0, 1, total), v.repeat(group, 1))
    return out, top[..., 0].T, total[..., 0].T


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def silu_slope(x: np.ndarray) -> np.ndarray:
    """By central differences."""
    return (silu(x + 1e-6) - silu(x - 1e-6)) / 2e-6
