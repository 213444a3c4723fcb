"""The entropy bonus with the real policy: its gradient reaches every weight, and it does what it is there for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mindspore import Tensor

from mindgspo.algorithms.losses.registry import build_policy_loss
from mindgspo.algorithms.optim.updater import Updater
from mindgspo.batches.rows import TrainingSample, lay_out
from mindgspo.config import AlgorithmSection, ModelSection, OptimizerSection
from mindgspo.config.load import with_recipe
from mindgspo.models.policy import PolicyLogProbs, build_model
from mindgspo.models.scoring import PolicyScorer
from mindgspo.models.weights import initialize_weights
from mindgspo.types import Batch

pytestmark = pytest.mark.usefixtures("cpu_runtime")

SECTION = ModelSection(
    vocab_size=31, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=32, initializer_range=0.3,
)  # fmt: skip
TEMPERATURE, COEF = 0.8, 0.25


@pytest.fixture
def policy(cpu_runtime: None):
    model = build_model(SECTION)
    initialize_weights(model, SECTION, seed=3)
    return PolicyLogProbs(model, temperature=TEMPERATURE, with_entropy=True)


@pytest.fixture
def batches(policy) -> list[Batch]:
    """Five responses of 1 to 8 tokens on the policy, all with advantage 0, in two micro-batches with a filler."""
    random = np.random.default_rng(4)
    samples = []
    for number in range(5):
        ids = random.integers(0, SECTION.vocab_size, 4 + 2 * number).astype(np.int32)
        empty = np.zeros(ids.size - 3, np.float32)
        samples.append(TrainingSample(prompt_ids=ids[:3], response_ids=ids[3:], rollout_logp=empty, number=number))
    laid_out = lay_out(samples, samples_per_micro_batch=3, length_multiple=4, pad_id=0)
    old = PolicyScorer(policy.model, temperature=TEMPERATURE).score(laid_out)
    return [replace(batch, old_logp_NK=scores.logp_NK) for batch, scores in zip(laid_out, old, strict=True)]


def make_updater(policy, *, lr: float = 1e-3):
    """beta1 = 0 and no clipping of the norm: the first moment after an update is its gradient."""
    section = with_recipe(AlgorithmSection(entropy_coef=COEF), max_new_tokens=8)
    optimizer = OptimizerSection(lr=lr, beta1=0.0, max_grad_norm=1e9, weight_decay=0.0)
    return Updater(policy, build_policy_loss(section), optimizer)


def mean_entropy(scorer, batches: list[Batch]) -> float:
    """Mean over responses of the mean over their tokens, as gspo aggregates; float64 sums."""
    means = []
    for batch, scores in zip(batches, scorer.score(batches), strict=True):
        rows = zip(scores.entropy_NK.astype(np.float64), batch.mask_NK, strict=True)
        means += [row[mask].mean() for row, mask in rows if mask.any()]
    return float(np.mean(means))


def test_its_gradient_is_that_of_the_entropy_by_central_differences(policy, batches) -> None:
    """One weight matrix at a time, along its own gradient, where the derivative is the gradient's norm."""
    scorer, updater = PolicyScorer(policy.model, temperature=TEMPERATURE), make_updater(policy)
    before = mean_entropy(scorer, batches)
    result = updater.step(batches, lr=0.0)
    assert result.loss == pytest.approx(-COEF * before, rel=1e-5), "advantages are 0: nothing else is in the loss"
    assert result.metrics["pg_loss"] == 0
    weights = policy.model.trainable_params()
    gradients = [array for array in updater.state().values() if array.ndim][: len(weights)]
    total = np.sqrt(sum(np.square(gradient.astype(np.float64)).sum() for gradient in gradients))
    assert result.grad_norm == pytest.approx(total, rel=1e-5), "these arrays are not the gradients"
    looked_at = 0
    for weight, gradient in zip(weights, gradients, strict=True):
        norm = float(np.linalg.norm(gradient.astype(np.float64)))
        if norm < 1e-2 * total:  # a difference of float32 losses cannot resolve it
            continue
        looked_at += 1
        start, step = weight.asnumpy().copy(), 2e-2
        losses = []
        for side in (1, -1):
            weight.set_data(Tensor(start + np.float32(side * step / norm) * gradient))
            losses.append(-COEF * mean_entropy(scorer, batches))
        weight.set_data(Tensor(start))
        assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(norm, rel=2e-2), weight.name
    assert looked_at > len(weights) / 2


def test_it_makes_the_policy_less_certain(policy, batches) -> None:
    scorer, updater = PolicyScorer(policy.model, temperature=TEMPERATURE), make_updater(policy)
    entropies = [mean_entropy(scorer, batches)]
    for _ in range(5):
        updater.step(batches, lr=3e-3)
        entropies.append(mean_entropy(scorer, batches))
    assert entropies == sorted(entropies) and entropies[-1] > entropies[0] + 0.1
