"""The chunked log-prob head against a float64 twin in numpy: values and gradients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from mindgspo.models.log_prob import ChunkedLogProb, ChunkedLogProbEntropy

pytestmark = pytest.mark.usefixtures("cpu_runtime")

NUM_TOKENS, VOCAB_SIZE, HIDDEN_SIZE = 13, 23, 6


class Inputs(NamedTuple):
    """Slopes are the gradients of the loss with respect to log-probs and entropies."""

    hidden: np.ndarray
    weight: np.ndarray
    targets: np.ndarray
    logp_slopes: np.ndarray
    entropy_slopes: np.ndarray


class Outputs(NamedTuple):
    logp: np.ndarray
    entropy: np.ndarray
    hidden_gradient: np.ndarray
    weight_gradient: np.ndarray


def make_inputs(seed: int = 0, scale: float = 1.0) -> Inputs:
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, VOCAB_SIZE, NUM_TOKENS).astype(np.int32)
    # The same token in one chunk and in several, and both ends of the vocabulary.
    targets[[1, 2, 9]], targets[3], targets[4] = 7, 0, VOCAB_SIZE - 1
    return Inputs(
        (scale * rng.normal(size=(NUM_TOKENS, HIDDEN_SIZE))).astype(np.float32),
        rng.normal(size=(VOCAB_SIZE, HIDDEN_SIZE)).astype(np.float32),
        targets,
        rng.normal(size=NUM_TOKENS).astype(np.float32),
        rng.normal(size=NUM_TOKENS).astype(np.float32),
    )


def twin(inputs: Inputs, temperature: float) -> Outputs:
    hidden, weight = inputs.hidden.astype(np.float64), inputs.weight.astype(np.float64)
    rows = np.arange(len(hidden))
    logits = hidden @ weight.T / temperature
    log_probs = logits - logits.max(axis=1, keepdims=True)
    log_probs -= np.log(np.exp(log_probs).sum(axis=1, keepdims=True))
    probs = np.exp(log_probs)
    entropy = -(probs * log_probs).sum(axis=1)
    onehot = np.zeros_like(probs)
    onehot[rows, inputs.targets] = 1
    slope = inputs.logp_slopes[:, None] * (onehot - probs)
    slope -= inputs.entropy_slopes[:, None] * probs * (log_probs + entropy[:, None])
    return Outputs(
        log_probs[rows, inputs.targets], entropy, slope @ weight / temperature, slope.T @ hidden / temperature
    )


def run(head, inputs: Inputs) -> Outputs:
    class WeightedSum(nn.Cell):
        def __init__(self):
            super().__init__()
            self.head = head

        def construct(self, hidden, weight, targets, logp_slopes, entropy_slopes):
            logp, entropy = self.head(hidden, weight, targets)
            return (logp * logp_slopes).sum() + (entropy * entropy_slopes).sum(), logp, entropy

    compiled = ops.value_and_grad(WeightedSum(), grad_position=(0, 1), has_aux=True)
    (_, logp, entropy), gradients = compiled(*map(Tensor, inputs))
    return Outputs(*(output.asnumpy() for output in (logp, entropy, *gradients)))


def assert_near(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    assert found.dtype == np.float32 and found.shape == expected.shape, what
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()), err_msg=what)


def test_the_twin_is_the_derivative() -> None:
    inputs, temperature, step = make_inputs(), 0.7, 1e-5

    def loss(hidden: np.ndarray, weight: np.ndarray) -> float:
        moved = twin(inputs._replace(hidden=hidden, weight=weight), temperature)
        return float((moved.logp * inputs.logp_slopes).sum() + (moved.entropy * inputs.entropy_slopes).sum())

    expected = twin(inputs, temperature)
    rng = np.random.default_rng(1)
    hidden, weight = inputs.hidden.astype(np.float64), inputs.weight.astype(np.float64)
    along_hidden, along_weight = rng.normal(size=hidden.shape), rng.normal(size=weight.shape)
    ahead, behind = (loss(hidden + way * along_hidden, weight + way * along_weight) for way in (step, -step))
    slope = (expected.hidden_gradient * along_hidden).sum() + (expected.weight_gradient * along_weight).sum()
    assert (ahead - behind) / (2 * step) == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize(("chunk_tokens", "temperature"), [(1, 0.7), (5, 1.0), (5, 1.7), (NUM_TOKENS, 0.7), (100, 1.0)])
def test_log_probs_and_their_gradients(chunk_tokens: int, temperature: float) -> None:
    head = ChunkedLogProb(temperature=temperature, chunk_bytes=4 * VOCAB_SIZE * chunk_tokens)
    inputs = make_inputs()
    found, expected = run(head, inputs), twin(inputs._replace(entropy_slopes=np.zeros(NUM_TOKENS)), temperature)
    assert (found.entropy == 0).all()
    for name in ("logp", "hidden_gradient", "weight_gradient"):
        assert_near(getattr(found, name), getattr(expected, name), name)


# The entropy head takes half as many tokens per chunk as its bytes would hold.
@pytest.mark.parametrize(("chunk_tokens", "temperature"), [(2, 1.0), (8, 0.7), (2 * NUM_TOKENS, 1.0), (100, 1.7)])
def test_entropies_and_their_gradients(chunk_tokens: int, temperature: float) -> None:
    head = ChunkedLogProbEntropy(temperature=temperature, chunk_bytes=4 * VOCAB_SIZE * chunk_tokens)
    inputs = make_inputs()
    found, expected = run(head, inputs), twin(inputs, temperature)
    for name in Outputs._fields:
        assert_near(getattr(found, name), getattr(expected, name), name)


def test_a_nearly_certain_distribution_stays_finite() -> None:
    inputs = make_inputs(scale=300.0)
    expected = twin(inputs, 1.0)
    assert expected.logp.min() < -500, "probabilities must underflow in float32"
    found = run(ChunkedLogProbEntropy(temperature=1.0, chunk_bytes=4 * VOCAB_SIZE * 8), inputs)
    for name in Outputs._fields:
        output = getattr(found, name)
        assert np.isfinite(output).all(), name
        np.testing.assert_allclose(output, getattr(expected, name), rtol=1e-4, atol=1e-3, err_msg=name)


def test_a_chunk_smaller_than_one_row_of_logits_still_takes_one_token() -> None:
    inputs = make_inputs(3)
    found = run(ChunkedLogProb(temperature=1.0, chunk_bytes=1), inputs)
    assert_near(found.logp, twin(inputs, 1.0).logp, "log-probs")
