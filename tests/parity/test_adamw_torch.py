"""AdamW and gradient clipping against torch itself."""

import numpy as np
import pytest

from mindgspo.config.schema import OptimizerSection

torch = pytest.importorskip("torch", reason="needs the `parity` extra")

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("cpu_runtime")]

SHAPES = {"embedding": (17, 8), "bias": (8,), "projection": (8, 5), "experts": (3, 4, 5), "norm": (5,)}


@pytest.mark.parametrize("gradient_scale", [1e-3, 1.0], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("beta2", [0.95, 0.999])
def test_ten_steps_equal_torch(gradient_scale, beta2):
    from mindspore import Parameter, ParameterTuple, Tensor

    from mindgspo.algorithms.optim.adamw import AdamW
    from mindgspo.algorithms.optim.gradients import GradientNorm

    rng = np.random.default_rng(0)
    section = OptimizerSection(lr=1e-3, beta2=beta2)
    initial = {name: 0.1 * rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    weights = ParameterTuple([Parameter(Tensor(value), name=name) for name, value in initial.items()])
    gradients = weights.clone(prefix="gradient", init="zeros")
    global_norm = GradientNorm(gradients)
    step = AdamW(weights, gradients, section)
    # float64, so that torch's own rounding does not hide ours.
    theirs = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in initial.items()}
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in theirs.values() if p.ndim >= 2], "weight_decay": section.weight_decay},
            {"params": [p for p in theirs.values() if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=section.lr, betas=(section.beta1, section.beta2), eps=section.eps,
    )  # fmt: skip
    for number in range(1, 11):
        for parameter, name in zip(gradients, SHAPES, strict=True):
            gradient = (gradient_scale * rng.normal(size=SHAPES[name])).astype(np.float32)
            parameter.set_data(Tensor(gradient))
            theirs[name].grad = torch.tensor(gradient, dtype=torch.float64)
        norm = float(global_norm().asnumpy())
        step(*step.scalars(number, section.lr, norm))
        torch_norm = torch.nn.utils.clip_grad_norm_(list(theirs.values()), section.max_grad_norm)
        optimizer.step()
        assert norm == pytest.approx(float(torch_norm), rel=1e-6)
    for weight, name in zip(weights, SHAPES, strict=True):
        expected = theirs[name].detach().numpy()
        np.testing.assert_allclose(weight.asnumpy(), expected, rtol=0, atol=1e-6 * np.abs(expected).max(), err_msg=name)
