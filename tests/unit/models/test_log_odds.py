"""Log-odds of further tokens against a float64 twin in numpy: values, gradients, and the likeliest ids."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from small_plans import small_model

from mindgspo.models.log_odds import LikeliestTokens, LogOdds
from mindgspo.parallel.plans.placement import ALONE

pytestmark = pytest.mark.usefixtures("cpu_runtime")

NUM_TOKENS, VOCAB_SIZE, HIDDEN_SIZE, NUM_IDS = 13, 23, 6, 4
RNG = np.random.default_rng(0)
HIDDEN = RNG.normal(size=(NUM_TOKENS, HIDDEN_SIZE)).astype(np.float32)
WEIGHT = RNG.normal(size=(VOCAB_SIZE, HIDDEN_SIZE)).astype(np.float32)
TARGETS = RNG.integers(0, VOCAB_SIZE, NUM_TOKENS).astype(np.int32)
IDS = np.stack([RNG.permutation(VOCAB_SIZE)[:NUM_IDS] for _ in range(NUM_TOKENS)]).astype(np.int32)
IDS[3, 1] = TARGETS[3]  # the target itself, perhaps twice
SLOPES = RNG.normal(size=IDS.shape).astype(np.float32)
ONE_BY_ONE, ALL = 1, 1 << 20


def log_odds(hidden: np.ndarray, weight: np.ndarray, temperature: float) -> np.ndarray:
    """Of the whole vocabulary, float64."""
    logits = hidden.astype(np.float64) @ weight.astype(np.float64).T / temperature
    return logits - logits[np.arange(len(hidden)), TARGETS][:, None]


def gradients(head: LogOdds) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, and the gradients of their sum with the slopes by hidden and weight."""

    class WeightedSum(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.head = head

        def construct(self, hidden, weight, targets, ids, slopes):
            odds = self.head(hidden, weight, targets, ids)
            return (odds * slopes).sum(), odds

    compiled = ops.value_and_grad(WeightedSum(), grad_position=(0, 1), has_aux=True)
    (_, odds), found = compiled(*map(Tensor, (HIDDEN, WEIGHT, TARGETS, IDS, SLOPES)))
    return odds.asnumpy(), *(one.asnumpy() for one in found)


@pytest.mark.parametrize(("chunk_bytes", "temperature"), [(ONE_BY_ONE, 0.7), (4 * 3 * 4 * 6 * 5, 1.7), (ALL, 1.0)])
def test_values_and_gradients(chunk_bytes: int, temperature: float) -> None:
    odds, dhidden, dweight = gradients(LogOdds(ALONE, temperature=temperature, chunk_bytes=chunk_bytes))
    expected = np.take_along_axis(log_odds(HIDDEN, WEIGHT, temperature), IDS, 1)
    np.testing.assert_allclose(odds, expected, rtol=0, atol=1e-5)
    assert odds[3, 1] == 0
    dlogits = np.zeros((NUM_TOKENS, VOCAB_SIZE))
    np.add.at(dlogits, (np.arange(NUM_TOKENS)[:, None], IDS), SLOPES)
    dlogits[np.arange(NUM_TOKENS), TARGETS] -= SLOPES.astype(np.float64).sum(1)
    np.testing.assert_allclose(dhidden, dlogits @ WEIGHT / temperature, rtol=0, atol=1e-5)
    np.testing.assert_allclose(dweight, dlogits.T @ HIDDEN / temperature, rtol=0, atol=1e-5)


def test_a_frozen_table_has_no_gradient() -> None:
    frozen, whole = (gradients(LogOdds(ALONE, temperature=1.0, is_frozen=one)) for one in (True, False))
    assert not frozen[2].any() and whole[2].any()
    np.testing.assert_array_equal(frozen[1], whole[1])


@pytest.mark.parametrize("chunk_bytes", [ONE_BY_ONE, ALL])
@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, 9])
def test_the_likeliest_ids(chunk_bytes: int, vocab_size: int) -> None:
    model = small_model(vocab_size=VOCAB_SIZE)
    head = LikeliestTokens(model, ALONE, count=NUM_IDS, vocab_size=vocab_size, temperature=0.7)
    head.chunk_bytes = chunk_bytes
    odds, ids = (one.asnumpy() for one in head(*map(Tensor, (HIDDEN, WEIGHT, TARGETS))))
    expected = log_odds(HIDDEN, WEIGHT, 0.7)
    likeliest = np.argsort(-expected[:, :vocab_size], axis=1)[:, :NUM_IDS]
    assert ids.dtype == np.int32 and (ids == likeliest).all()
    np.testing.assert_allclose(odds, np.take_along_axis(expected, likeliest, 1), rtol=0, atol=1e-5)
