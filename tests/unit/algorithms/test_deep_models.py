"""The compiler follows calls within calls no deeper than a thousand; graphs that loop over weights stay shallow."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from mindgspo.config.schema import OptimizerSection

NUM_WEIGHTS = 450  # a model of 36 layers has 434
LR, BETA1, BETA2 = 0.5, 0.9, 0.999


@pytest.mark.slow
@pytest.mark.parametrize("form", ["kernels", "composed"])
def test_gradients_norm_and_step_of_many_weights(cpu_runtime: None, form: str) -> None:
    from mindspore import Parameter, ParameterTuple, Tensor, nn

    from mindgspo.algorithms.optim.adamw import AdamW, short_runs
    from mindgspo.algorithms.optim.gradients import Accumulate, GradientAccumulator, GradientNorm, gradients_of
    from mindgspo.parallel.ops.device import composed_ops, has_kernels
    from mindgspo.parallel.platform.parameter_memory import values_of

    class Slope(nn.Cell):
        """An objective, see `Objective`, whose gradient is `slope` for each element of each weight."""

        def __init__(self, weights: ParameterTuple) -> None:
            super().__init__(auto_prefix=False)
            self.weights, self.runs = weights, short_runs(len(weights))

        def construct(self, probe: Tensor, slope: Tensor) -> tuple[Tensor, ...]:
            total = probe.sum()
            for first, last in self.runs:
                total += self.sum_of_run(first, last)
            return total * slope, probe, probe, probe, probe

        def sum_of_run(self, first: int, last: int) -> Tensor:
            total = self.weights[first].sum()
            for i in range(first + 1, last):
                total += self.weights[i].sum()
            return total

    weights = ParameterTuple([Parameter(Tensor(np.ones((2, 2), np.float32)), name=f"w{i}") for i in range(NUM_WEIGHTS)])
    gradients = gradients_of(weights)
    section = OptimizerSection(lr=LR, beta1=BETA1, beta2=BETA2, weight_decay=0.0, max_grad_norm=1e9)
    with composed_ops() if form == "composed" else nullcontext():
        assert has_kernels() == (form == "kernels")
        accumulate = GradientAccumulator(Slope(weights), weights, Accumulate(gradients))
        step = AdamW(weights, gradients, section)
    norm = GradientNorm(gradients)
    expected, m, v = 1.0, 0.0, 0.0
    # The second update has two micro-batches and must know nothing of the gradient that the first one had.
    for number, slopes in enumerate([(1.0,), (-3.0, 1.0)], start=1):
        for micro_batch, slope in enumerate(slopes):
            is_added = Tensor(np.array([micro_batch > 0], np.int32))
            accumulate(is_added, Tensor(np.zeros(1, np.float32)), Tensor(np.float32(slope)))[0].asnumpy()
        found = float(norm().asnumpy())
        assert found == pytest.approx(abs(sum(slopes)) * (4 * NUM_WEIGHTS) ** 0.5, rel=1e-6)
        step(*step.scalars(number, LR, found)).asnumpy()
        m, v = BETA1 * m + (1 - BETA1) * sum(slopes), BETA2 * v + (1 - BETA2) * sum(slopes) ** 2
        expected -= LR * (m / (1 - BETA1**number)) / (v / (1 - BETA2**number)) ** 0.5
        for weight in (weights[0], weights[NUM_WEIGHTS - 1]):
            np.testing.assert_allclose(values_of(weight), expected, rtol=1e-5)
