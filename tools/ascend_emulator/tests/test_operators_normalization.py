"""Emulated norms, softmax and activations: results beside numpy in float64, and what CANN rules out."""

import numpy as np
import pytest
from emulated_operators import FLOATS, draw, exact, is_close, launch, silu, silu_slope, softmax, zeros
from emulated_operators import documented_refusal as refusal

import ascend_emulator.operators.normalization  # noqa: F401  (enters them into the table)

# The last ones are more rows than one task's.
SHAPES = [((6, 32), (32,)), ((2, 3, 4, 8), (8,)), ((2, 3, 4, 8), (4, 8)), ((200, 96), (96,)), ((3, 4, 1000), (1000,))]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "own"), SHAPES)
def test_rms_norm_and_its_gradients(shape: tuple[int, ...], own: tuple[int, ...], dtype: str) -> None:
    axes = tuple(range(-len(own), 0))
    x, gamma, d_y = draw(*shape, dtype=dtype), draw(*own, seed=1), draw(*shape, dtype=dtype, seed=2)
    y, rstd = zeros(shape, dtype), zeros((*shape[: len(shape) - len(own)], *[1] * len(own)))
    launch("aclnnRmsNorm", x, gamma, 1e-6, y, rstd)
    expected = 1 / np.sqrt((exact(x) ** 2).mean(axes, keepdims=True) + 1e-6)
    assert is_close(rstd, expected) and is_close(y, exact(x) * expected * exact(gamma))
    normal, upstream = exact(x) * exact(rstd), exact(d_y) * exact(gamma)
    slopes = exact(rstd) * (upstream - normal * (upstream * normal).mean(axes, keepdims=True))
    of_gamma = (exact(d_y) * normal).reshape(-1, *own).sum(0)
    for given in (rstd, rstd.view(*shape[: len(shape) - len(own)])):  # with and without the axes that are 1
        d_x, d_gamma = zeros(shape, dtype), zeros(own)
        launch("aclnnRmsNormGrad", d_y, x, given, gamma, d_x, d_gamma)
        assert is_close(d_x, slopes) and is_close(d_gamma, of_gamma)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(6, 32), (5, 7), (200, 96), (60, 1000)])
@pytest.mark.parametrize("name", ["aclnnAddRmsNorm", "internal:AddRmsNorm"])
def test_rms_norm_of_a_sum(name: str, shape: tuple[int, int], dtype: str) -> None:
    x1, x2 = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype, seed=1)
    gamma = draw(shape[1], dtype=dtype, seed=2)
    y, total = zeros(x1.shape, dtype), zeros(x1.shape, dtype)
    rstd = zeros((shape[0], 1))
    if name.startswith("aclnn"):
        launch(name, x1, x2, gamma, 1e-6, y, rstd, total)
    else:
        launch(name, [x1, x2, gamma], [y, rstd, total], {"epsilon": 1e-6})
    added = exact(x1) + exact(x2)
    expected = 1 / np.sqrt((added**2).mean(-1, keepdims=True) + 1e-6)
    assert is_close(total, added) and is_close(rstd, expected) and is_close(y, added * expected * exact(gamma))


def test_internal_rms_norm() -> None:
    x, gamma, y, rstd = draw(6, 32), draw(32, seed=1), zeros((6, 32)), zeros((6, 1))
    for outputs in ([y], [y, rstd]):
        launch("internal:RmsNorm", [x, gamma], outputs, {"epsilon": 1e-6})
        assert is_close(y, exact(x) * (1 / np.sqrt((exact(x) ** 2).mean(-1, keepdims=True) + 1e-6)) * exact(gamma))


def test_refused_norms() -> None:
    x, gamma, y, rstd = draw(6, 32), draw(32), zeros((6, 32)), zeros((6, 1))
    half = draw(6, 32, dtype="bfloat16")
    for said, *given in (
        ("gamma [16] must be the last axes of x [6, 32]", "aclnnRmsNorm", x, draw(16), 1e-6, y, rstd),
        ("rstdOut must be of shape [6, 1], not float32[6]", "aclnnRmsNorm", x, gamma, 1e-6, y, zeros((6,))),
        ("rstdOut must be float32, not float16", "aclnnRmsNorm", x, gamma, 1e-6, y, zeros((6, 1), "float16")),
        ("gamma must be bfloat16 or float32, not float16",
         "aclnnRmsNorm", half, draw(32, dtype="float16"), 1e-6, half, rstd),
        ("yOut must have the dtype of x, float32, not bfloat16", "aclnnRmsNorm", x, gamma, 1e-6, half, rstd),
        ("must have one shape: x [6, 32], yOut [3, 32]", "aclnnRmsNorm", x, gamma, 1e-6, zeros((3, 32)), rstd),
        ("x is required, not given", "aclnnRmsNorm", None, gamma, 1e-6, y, rstd),
        ("gamma must have the dtype of x1, bfloat16, not float32",
         "aclnnAddRmsNorm", half, half, gamma, 1e-6, half, rstd, half),
        ("epsilon must be at least 0, not -1e-06", "aclnnAddRmsNorm", x, x, gamma, -1e-6, y, rstd, y),
        ("rstd must be of shape [6], not [5]", "aclnnRmsNormGrad", x, x, zeros((5,)), gamma, y, zeros((32,))),
        ("dgammaOut must be float32, not bfloat16",
         "aclnnRmsNormGrad", half, half, rstd, gamma, half, zeros((32,), "bfloat16")),
    ):  # fmt: skip
        assert said in refusal(*given)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "axis"), [((5, 4, 6), 0), ((4, 30, 5), 1), ((5, 4, 6), -1), ((2, 2000), 1)])
def test_softmax(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    x, d_y = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype, seed=1)
    expected = softmax(exact(x), axis)
    y, d_x = zeros(x.shape, dtype), zeros(x.shape, dtype)
    launch("aclnnSoftmax", x, axis, y)
    launch("aclnnSoftmaxBackward", d_y, y, axis, d_x)
    assert is_close(y, expected)
    assert is_close(d_x, exact(y) * (exact(d_y) - (exact(d_y) * exact(y)).sum(axis, keepdims=True)))
    launch("aclnnLogSoftmax", x, axis, y)
    launch("aclnnLogSoftmaxBackward", d_y, y, axis, d_x)
    assert is_close(y, np.log(expected))
    assert is_close(d_x, exact(d_y) - np.exp(exact(y)) * exact(d_y).sum(axis, keepdims=True))
    launch("internal:Softmax", [x], [y], {"axes": [axis]})
    assert is_close(y, expected)


def test_softmax_of_one_number_and_into_another_dtype() -> None:
    assert launch("aclnnSoftmax", draw(), 0, zeros(())).bits == 1
    x, y = draw(3, 5, dtype="float16"), zeros((3, 5))
    assert is_close(launch("aclnnLogSoftmax", x, 1, y), np.log(softmax(exact(x), 1)))


def test_refused_softmax() -> None:
    x, y = draw(3, 5), zeros((3, 5))
    assert "dim must be an axis of self [3, 5], not 2" in refusal("aclnnSoftmax", x, 2, y)
    assert "must have one shape: self [3, 5], out [5, 3]" in refusal("aclnnSoftmax", x, 1, zeros((5, 3)))
    assert "self must have 1 to 8 axes, not 0" in refusal("aclnnLogSoftmax", draw(), 0, zeros(()))
    assert "self must be bfloat16 or float16 or float32, not int32" in refusal(
        "aclnnLogSoftmax", zeros((3, 5), "int32"), 1, y
    )
    assert "output must have the dtype of gradOutput" in refusal(
        "aclnnSoftmaxBackward", x, draw(3, 5, dtype="float16"), 1, y
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "axis"), [((3, 6, 8), 1), ((3, 6, 8), -1), ((6, 9000), 1)])
def test_swiglu(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    x = draw(*shape, dtype=dtype)
    gate, value = np.split(exact(x), 2, axis)
    y, d_x, d_y = (zeros(gate.shape, dtype), zeros(x.shape, dtype), draw(*gate.shape, dtype=dtype))
    assert is_close(launch("aclnnSwiGlu", x, axis, y), silu(gate) * value)
    launch("aclnnSwiGluGrad", d_y, x, axis, d_x)
    assert is_close(d_x, np.concatenate([exact(d_y) * value * silu_slope(gate), exact(d_y) * silu(gate)], axis))
    launch("internal:SwiGLU", [x], [y], {"axis": axis})
    assert is_close(y, silu(gate) * value)


@pytest.mark.parametrize("dtype", FLOATS)
def test_silu(dtype: str) -> None:
    x, d_y = draw(4, 2500, dtype=dtype), draw(4, 2500, dtype=dtype, seed=1)
    y, d_x = zeros(x.shape, dtype), zeros(x.shape, dtype)
    launch("aclnnSilu", x, y)
    launch("aclnnSiluBackward", d_y, x, d_x)
    assert is_close(y, silu(exact(x))) and is_close(d_x, exact(d_y) * silu_slope(exact(x)))
    launch("internal:Swish", [x], [y], {})
    assert is_close(y, silu(exact(x)))


def test_refused_activations() -> None:
    x = draw(3, 6)
    assert "x must be even along dim 0, not [3, 6]" in refusal("aclnnSwiGlu", x, 0, x)
    assert "dim must be an axis of x [3, 6], not -3" in refusal("aclnnSwiGlu", x, -3, x)
    assert "out must be of shape [3, 3], not float32[3, 6]" in refusal("aclnnSwiGlu", x, 1, x)
    assert "yGrad must be of shape [3, 3], not float32[3, 6]" in refusal("aclnnSwiGluGrad", x, x, 1, x)
    assert "x must have 1 to 8 axes, not 0" in refusal("aclnnSwiGlu", draw(), 0, x)
    assert "out must have the dtype of self" in refusal("aclnnSilu", x, zeros((3, 6), "float16"))
    assert "gradInput must be of shape [3, 6]" in refusal("aclnnSiluBackward", x, x, zeros((6, 3)))
