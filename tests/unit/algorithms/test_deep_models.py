"""The compiler follows calls within calls no deeper than a thousand; graphs that loop over weights stay shallow."""

import numpy as np
import pytest

from mindgspo.config.schema import OptimizerSection

NUM_WEIGHTS = 450  # a model of 36 layers has 434


@pytest.mark.slow
def test_gradients_norm_and_step_of_many_weights(cpu_runtime: None) -> None:
    from mindspore import Parameter, ParameterTuple, Tensor

    from mindgspo.algorithms.optim.adamw import AdamW
    from mindgspo.algorithms.optim.gradients import GradientNorm, OptimizerStep, gradients_of
    from mindgspo.parallel.parameter_memory import set_values, values_of

    weights = ParameterTuple([Parameter(Tensor(np.ones((2, 2), np.float32)), name=f"w{i}") for i in range(NUM_WEIGHTS)])
    gradients = gradients_of(weights)
    for gradient in gradients:
        set_values(gradient, np.ones((2, 2), np.float32))
    norm = float(GradientNorm(gradients)().asnumpy())
    assert norm == pytest.approx((4 * NUM_WEIGHTS) ** 0.5, rel=1e-6)
    adamw = AdamW(weights, OptimizerSection(lr=0.5, weight_decay=0.0, max_grad_norm=1e9))
    OptimizerStep(adamw, gradients)(*adamw.scalars(1, 0.5, norm)).asnumpy()
    # The first step of Adam is lr times the sign of the gradient, for the last weight as for the first.
    np.testing.assert_allclose(values_of(weights[NUM_WEIGHTS - 1]), 0.5, rtol=1e-5)
    assert not values_of(gradients[NUM_WEIGHTS - 1]).any()
