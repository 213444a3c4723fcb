"""AdamW against a float64 twin: bias correction, decay groups, clipping, and refusal of a non-finite norm."""

from typing import NamedTuple

import numpy as np
import pytest

from mindgspo.config.schema import OptimizerSection

pytestmark = pytest.mark.usefixtures("form")


SHAPES = {"embedding": (17, 8), "bias": (8,), "projection": (8, 5), "experts": (3, 4, 5), "norm": (5,)}


class Rig(NamedTuple):
    """An optimizer over small weights, with gradients that a test sets."""

    norm: object
    step: object
    weights: dict
    gradients: dict

    def update(self, number: int, lr: float, gradients: dict[str, np.ndarray]) -> float:
        from mindspore import Tensor

        for name, gradient in gradients.items():
            self.gradients[name].set_data(Tensor(gradient))
        norm = float(self.norm().asnumpy())
        self.step(*self.step.scalars(number, lr, norm))
        return norm

    def everything(self) -> dict[str, np.ndarray]:
        optimizer = self.step
        parameters = (*self.weights.values(), *optimizer.first_moments, *optimizer.second_moments)
        return {parameter.name: parameter.asnumpy().copy() for parameter in parameters}


def make_rig(section: OptimizerSection, initial: dict[str, np.ndarray]) -> Rig:
    from mindspore import Parameter, ParameterTuple, Tensor

    from mindgspo.algorithms.optim.adamw import AdamW
    from mindgspo.algorithms.optim.gradients import GradientNorm

    weights = ParameterTuple([Parameter(Tensor(value), name=name) for name, value in initial.items()])
    gradients = weights.clone(prefix="gradient", init="zeros")
    step = AdamW(weights, gradients, section)
    return Rig(
        GradientNorm(gradients), step, dict(zip(initial, weights, strict=True)),
        dict(zip(initial, gradients, strict=True)),
    )  # fmt: skip


def filled(value: float) -> dict[str, np.ndarray]:
    return {name: np.full(shape, value, np.float32) for name, shape in SHAPES.items()}


def draw(rng: np.random.Generator, scale: float) -> dict[str, np.ndarray]:
    return {name: (scale * rng.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}


class Twin:
    """The textbook algorithm in float64: torch's AdamW after torch's clip_grad_norm_."""

    def __init__(self, section: OptimizerSection, initial: dict[str, np.ndarray]) -> None:
        self.section = section
        self.weights = {name: value.astype(np.float64) for name, value in initial.items()}
        self.m, self.v = ({name: np.zeros(value.shape) for name, value in initial.items()} for _ in range(2))

    def update(self, number: int, lr: float, gradients: dict[str, np.ndarray]) -> float:
        s = self.section
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients.values()))
        for name, g in gradients.items():
            g = g.astype(np.float64) * min(1.0, s.max_grad_norm / (norm + 1e-6))
            self.m[name] = s.beta1 * self.m[name] + (1 - s.beta1) * g
            self.v[name] = s.beta2 * self.v[name] + (1 - s.beta2) * g**2
            m_hat = self.m[name] / (1 - s.beta1**number)
            v_hat = self.v[name] / (1 - s.beta2**number)
            if g.ndim >= 2:
                self.weights[name] *= 1 - lr * s.weight_decay
            self.weights[name] -= lr * m_hat / (np.sqrt(v_hat) + s.eps)
        return norm


@pytest.mark.parametrize(("start", "beta2", "gradient_scale", "lr", "bound"), [
    pytest.param(0.1, 0.95, 1e-3, 1e-3, 1e-6, id="unclipped"),
    pytest.param(0.1, 0.95, 1.0, 1e-3, 1e-6, id="clipped"),
    pytest.param(0.1, 0.999, 0.1, 1e-3, 1e-6, id="beta2 whose complement float32 misses by 1e-5"),
    pytest.param(0.1, 0.95, 1e-8, 1e-3, 1e-6, id="gradients as small as eps"),
    pytest.param(0.1, 0.95, 1e-3, 1e-6, 1e-6, id="default learning rate"),
    # Starting from 0 the weight is the sum of its updates.
    pytest.param(0.0, 0.999, 0.05, 1e-6, 2e-6, id="the movement alone"),
])  # fmt: skip
def test_ten_steps_equal_the_float64_twin(start, beta2, gradient_scale, lr, bound):
    rng = np.random.default_rng(0)
    section = OptimizerSection(beta2=beta2)
    initial = draw(rng, start)
    rig, twin = make_rig(section, initial), Twin(section, initial)
    for number in range(1, 11):
        gradients = draw(rng, gradient_scale)
        rate = lr * number / 10
        assert rig.update(number, rate, gradients) == pytest.approx(twin.update(number, rate, gradients), rel=1e-6)
    for name, weight in rig.weights.items():
        expected = twin.weights[name]
        np.testing.assert_allclose(
            weight.asnumpy(), expected, rtol=0, atol=bound * np.abs(expected).max(), err_msg=name
        )


def test_the_first_update_by_hand():
    """With bias correction the first step is lr * sign(g), whatever the betas (BERT's variant: 0.45 lr)."""
    rig = make_rig(OptimizerSection(), filled(0.0))
    rig.update(1, 0.5, filled(-0.01))
    for weight in rig.weights.values():
        np.testing.assert_allclose(weight.asnumpy(), np.full(weight.shape, 0.5), rtol=2e-6)


def test_decay_touches_matrices_only():
    rig = make_rig(OptimizerSection(weight_decay=0.5), filled(1.0))
    rig.update(1, 0.1, filled(0.0))
    for name, weight in rig.weights.items():
        expected = 1.0 if name in ("bias", "norm") else 0.95
        np.testing.assert_allclose(weight.asnumpy(), np.full(weight.shape, expected), rtol=1e-7, err_msg=name)


def test_clipping_scales_by_the_global_norm_and_reports_it_unclipped():
    rig = make_rig(OptimizerSection(max_grad_norm=1.0), filled(0.0))
    gradients = dict(filled(0.0), bias=np.array([3, 0, 0, 0, 0, 0, 0, 0], np.float32))
    gradients["projection"] = np.pad([[4.0]], ((0, 7), (0, 4))).astype(np.float32)
    assert rig.update(1, 1e-3, gradients) == pytest.approx(5.0, rel=1e-6)
    moments = rig.everything()
    assert moments["adamw.m.bias"][0] == pytest.approx(0.1 * 3 / 5, rel=1e-6)
    assert moments["adamw.v.projection"][0, 0] == pytest.approx(0.05 * (4 / 5) ** 2, rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_a_non_finite_norm_is_seen_and_refused_before_the_step(bad):
    rng = np.random.default_rng(2)
    rig = make_rig(OptimizerSection(), draw(rng, 0.1))
    gradients = draw(rng, 0.1)
    gradients["experts"][1, 2, 3] = bad
    before = rig.everything()
    with pytest.raises(AssertionError, match="gradient norm"):
        rig.update(1, 1e-3, gradients)
    for name, value in rig.everything().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_the_step_leaves_the_gradients_at_zero_for_small_ops_to_add_to(form):
    if form == "kernels":
        pytest.skip("the first micro-batch replaces what is there")
    rng = np.random.default_rng(3)
    rig = make_rig(OptimizerSection(), draw(rng, 0.1))
    rig.update(1, 1e-3, draw(rng, 0.1))
    assert not any(gradient.asnumpy().any() for gradient in rig.gradients.values())


def test_weights_of_large_tensors_have_an_exact_norm():
    """A float32 sum of a million squares may lose 1e-5; the norm decides the scale of every gradient."""
    from mindspore import Parameter, ParameterTuple, Tensor

    from mindgspo.algorithms.optim.gradients import GradientNorm

    rng = np.random.default_rng(4)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((4096, 256), (300_000,), (3, 7, 64))]
    gradients = ParameterTuple([Parameter(Tensor(array), name=f"g{i}") for i, array in enumerate(arrays)])
    expected = np.sqrt(sum((array.astype(np.float64) ** 2).sum() for array in arrays))
    assert float(GradientNorm(gradients)().asnumpy()) == pytest.approx(expected, rel=1e-6)
