"""Real phases around compiled graphs: forward, accumulated gradients, Adam, a cache and a copy of the weights.

A twin goes through the same steps in MindSpore's own memory; both must agree in every bit after every step.
"""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from mindgspo.config.schema import SwapSection
from mindgspo.swap.states import Holding, Phase
from mindgspo.swap.swap import Swap, open_swap

pytestmark = pytest.mark.usefixtures("cpu_runtime")

WIDTH, STEPS = 600, 3


class TwoLayers(nn.Cell):
    """tanh(x A) B, summed squares: enough for gradients that differ in every element."""

    def __init__(self, weights: ParameterTuple) -> None:
        super().__init__(auto_prefix=False)
        self.first, self.second = weights
        self.matmul = ops.MatMul()

    def construct(self, x: Tensor) -> Tensor:
        return ops.square(self.matmul(ops.tanh(self.matmul(x, self.first)), self.second)).mean()


class Accumulate(nn.Cell):
    """Adds the gradient of one batch to `gradients`."""

    def __init__(self, network: nn.Cell, weights: ParameterTuple, gradients: ParameterTuple) -> None:
        super().__init__(auto_prefix=False)
        self.network, self.gradients = network, gradients
        self.value_and_grad = ops.value_and_grad(network, None, weights)

    def construct(self, x: Tensor) -> Tensor:
        loss, gradients = self.value_and_grad(x)
        for i in range(2):
            ops.assign_add(self.gradients[i], gradients[i])
        return loss


class AdamStep(nn.Cell):
    """One step of Adam in place; leaves zeros in `gradients`."""

    def __init__(self, weights: ParameterTuple, gradients: ParameterTuple, moments: ParameterTuple) -> None:
        super().__init__(auto_prefix=False)
        self.weights, self.gradients, self.moments = weights, gradients, moments
        self.adam = ops.Adam()

    def construct(self, step_size: Tensor) -> Tensor:
        zero = ops.zeros_like(step_size)
        for i in range(2):
            self.adam(
                self.weights[i], self.moments[2 * i], self.moments[2 * i + 1], zero, zero, step_size,
                ops.full_like(step_size, 0.9), ops.full_like(step_size, 0.999), ops.full_like(step_size, 1e-8),
                self.gradients[i],
            )  # fmt: skip
            ops.assign(self.gradients[i], ops.zeros_like(self.gradients[i]))
        return step_size


class Fill(nn.Cell):
    """Writes the product of input and weights into a cache and returns its sum."""

    def __init__(self, weights: ParameterTuple, cache: Parameter) -> None:
        super().__init__(auto_prefix=False)
        self.first, self.cache = weights[0], cache
        self.matmul = ops.MatMul()

    def construct(self, x: Tensor) -> Tensor:
        ops.assign(self.cache, self.matmul(x, self.first))
        return self.cache.sum()


class Training:
    """All that one small run holds; `swap` is a ledger only, or the real thing."""

    def __init__(self, swap: Swap) -> None:
        random = np.random.default_rng(0)
        values = [random.standard_normal((WIDTH, WIDTH), np.float32) * 0.05 for _ in range(2)]
        self.swap = swap
        self.weights = matrices("w", values)
        self.rollout_weights = matrices("w", [np.zeros_like(value) for value in values])
        self.gradients = matrices("g", [np.zeros_like(value) for value in values])
        self.moments = matrices("m", [np.zeros_like(values[0])] * 4)
        self.cache = matrices("kv", [np.zeros((8, WIDTH), np.float32)])[0]
        self.score = TwoLayers(self.weights)
        self.accumulate = Accumulate(self.score, self.weights, self.gradients)
        self.step = AdamStep(self.weights, self.gradients, self.moments)
        self.generate = Fill(self.rollout_weights, self.cache)
        swap.register(Holding.ACTOR_WEIGHTS, self.weights)
        swap.register(Holding.ROLLOUT_WEIGHTS, self.rollout_weights)
        swap.register(Holding.GRADIENTS, self.gradients, keeps_content=False)
        swap.register(Holding.MOMENTS, self.moments)
        swap.register(Holding.KV_CACHE, [self.cache], keeps_content=False)

    def run(self, number: int) -> list[bytes]:
        """One step; the bytes of every result and of every parameter that has a value to keep."""
        x = Tensor(np.random.default_rng(number).standard_normal((8, WIDTH), np.float32))
        results = []
        with self.swap.phase(Phase.ROLLOUT):
            self.swap.prefetch(Phase.SCORE)
            results.append(self.generate(x).asnumpy())
        with self.swap.phase(Phase.SCORE):
            self.swap.prefetch(Phase.UPDATE)
            results.append(self.score(x).asnumpy())
        with self.swap.phase(Phase.UPDATE):
            results += [self.accumulate(x).asnumpy(), self.accumulate(x * 0.5).asnumpy()]
            self.step(Tensor(1e-3, ms.float32)).asnumpy()
        with self.swap.phase(Phase.RESHARD):
            for source, destination in zip(self.weights, self.rollout_weights, strict=True):
                with self.swap.reshard_step([source.name]):
                    destination.asnumpy()[...] = source.asnumpy()
        with self.swap.phase(Phase.SAVE):
            kept = [*self.weights, *self.rollout_weights, *self.moments, *self.gradients]
            return [array.tobytes() for array in (*results, *(each.asnumpy() for each in kept))]


def matrices(prefix: str, values: list[np.ndarray]) -> ParameterTuple:
    return ParameterTuple([Parameter(Tensor(value), name=f"{prefix}.{number}") for number, value in enumerate(values)])


@pytest.mark.parametrize("reshard_level", [0, 1])
def test_every_bit_is_that_of_a_run_without_swap(tmp_path: Path, reshard_level: int):
    plain = Training(open_swap(SwapSection(), tmp_path))
    section = SwapSection(enabled=True, reshard_level=reshard_level, prefetch=True)
    swapped = Training(open_swap(section, tmp_path))
    for number in range(STEPS):
        assert swapped.run(number) == plain.run(number), f"step {number}"
    results = plain.run(STEPS)
    assert len(set(results)) > 8, "steps that change nothing would prove nothing"
    matrix = WIDTH * WIDTH * 4
    cache = 8 * WIDTH * 4
    peaks = {phase: record.peak_total for phase, record in swapped.swap.ledger.records.items()}
    assert peaks[Phase.UPDATE] == 8 * matrix
    assert peaks[Phase.RESHARD] == (4 if reshard_level == 0 else 2) * matrix
    # Prefetched behind them: the actor's weights, gradients and moments.
    assert peaks[Phase.ROLLOUT] == 2 * matrix + cache + 2 * matrix
    assert peaks[Phase.SCORE] == 8 * matrix
    swapped.swap.close()


def test_shared_weights_survive_a_step(tmp_path: Path):
    """One set of parameters under two holdings: trained in one phase, read by generation in the next."""
    swap = open_swap(SwapSection(enabled=True), tmp_path)
    weights = matrices("w", [np.full((4, 4), 2.0, np.float32), np.ones((4, 4), np.float32)])
    cache = matrices("kv", [np.zeros((8, 4), np.float32)])[0]
    generate = Fill(weights, cache)
    swap.register(Holding.ACTOR_WEIGHTS, weights)
    swap.register(Holding.ROLLOUT_WEIGHTS, weights)
    swap.register(Holding.KV_CACHE, [cache], keeps_content=False)
    with swap.phase(Phase.UPDATE):
        weights[0].asnumpy()[...] = 3.0
    with swap.phase(Phase.ROLLOUT):
        assert float(generate(Tensor(np.ones((8, 4), np.float32))).asnumpy()) == 8 * 4 * 12.0
    with swap.phase(Phase.SCORE):
        assert not cache.asnumpy().any()
        np.testing.assert_array_equal(weights[0].asnumpy(), np.full((4, 4), 3.0, np.float32))
    swap.close()


def test_an_error_in_an_update_does_not_lose_gradients(tmp_path: Path):
    swap = open_swap(SwapSection(enabled=True), tmp_path)
    training = Training(swap)
    with pytest.raises(ZeroDivisionError), swap.phase(Phase.UPDATE):
        training.accumulate(Tensor(np.ones((8, WIDTH), np.float32))).asnumpy()
        _ = 1 / 0
    with pytest.raises(AssertionError, match="would lose gradients"), swap.phase(Phase.SAVE):
        pass
    with swap.phase(Phase.UPDATE):
        assert all(gradient.asnumpy().any() for gradient in training.gradients)
        training.step(Tensor(1e-3, ms.float32)).asnumpy()
    with swap.phase(Phase.SAVE):
        pass
