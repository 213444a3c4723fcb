"""Packed rows compute what rows of one sample do: log-probs, losses and all gradients; and no sample sees another."""

from dataclasses import replace

import numpy as np
import pytest
from small_plans import GLM4, MIXTURE, drawn_model, small_model

from mindgspo.batches.micro_batches import BatchLayout, micro_batches
from mindgspo.batches.rows import TrainingSample, gathered, scattered
from mindgspo.config import AlgorithmSection, OptimizerSection, with_recipe
from mindgspo.types import Batch

pytestmark = pytest.mark.usefixtures("cpu_runtime")

FAMILIES = {
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"architecture": "qwen3", "head_dim": 12, "tie_word_embeddings": True},
    "qwen3_moe": MIXTURE,
    "llama": {"architecture": "llama"},
    "glm": {"architecture": "glm", "attention_bias": False, "partial_rotary_factor": 0.25},
    "glm4": GLM4 | {"tie_word_embeddings": True},
}
PLAIN = BatchLayout(samples_per_micro_batch=12, length_multiple=8, pad_id=0)
PACKED = BatchLayout(max_tokens_per_micro_batch=64, packing=True, length_multiple=8, pad_id=0)
ONE_ROW = replace(PACKED, in_one_row=True)
# Without clipping of the norm the first moment after one update is (1 - beta1) times the gradient.
OPTIMIZER = OptimizerSection(lr=1e-3, beta1=0.0, max_grad_norm=1e9)


def samples() -> list[TrainingSample]:
    """Twelve of 3 to 20 tokens, but for one of 30. Some have another's prompt, some a response of one token."""
    random = np.random.default_rng(5)
    found = []
    for number in range(12):
        prompt, response = random.integers(2, 9), random.integers(2, 13)
        if number == 4:
            prompt, response = 8, 22
        if number in (6, 10):
            response = 1
        ids = random.integers(1, 61, prompt + response).astype(np.int32)
        if number >= 8:
            ids = np.concatenate([found[number % 2 + 2].prompt_ids, ids[prompt:]])
            prompt = ids.size - response
        logp = random.uniform(-5, -3, response).astype(np.float32)
        found.append(
            TrainingSample(prompt_ids=ids[:prompt], response_ids=ids[prompt:], rollout_logp=logp, number=number)
        )
    return found


def model_of(family: str):
    return drawn_model(small_model(**FAMILIES[family], initializer_range=0.15), seed=2)


def updated(family: str, algorithm: str, layout: BatchLayout, old: list[np.ndarray]):
    """(result, gradient by weight) of one update."""
    from mindgspo.algorithms.losses.registry import build_policy_loss
    from mindgspo.algorithms.optim.updater import Updater
    from mindgspo.models.policy import PolicyLogProbs

    section = with_recipe(AlgorithmSection(name=algorithm, entropy_coef=0.01), max_new_tokens=22)
    policy = PolicyLogProbs(model_of(family), temperature=0.9, with_entropy=True)
    updater = Updater(policy, build_policy_loss(section), OPTIMIZER)
    advantages = [
        np.full(one.size, value, np.float32) for one, value in zip(old, np.linspace(-2, 2, len(old)), strict=True)
    ]
    batches = [
        replace(batch, old_logp_NK=scattered(batch, old), advantages_NK=scattered(batch, advantages))
        for batch in micro_batches(samples(), layout)
    ]
    result, first = updater.step(batches, lr=1e-3), updater.state()
    return result, {weight.name: first[f"adamw.m.{weight.name}"] for weight in updater.weights}


def log_probs(scorer, batches: list[Batch]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Log-probs and entropies by sample."""
    scores = scorer.score(batches)
    return tuple(gathered(batches, [getattr(one, name) for one in scores], 12) for name in ("logp_NK", "entropy_NK"))


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_compute_what_small_ops_do(family: str) -> None:
    from mindgspo.models.scoring import PolicyScorer
    from mindgspo.parallel.ops.device import composed_ops

    def outcome(layout: BatchLayout):
        logp, entropy = log_probs(PolicyScorer(model_of(family), temperature=0.9), micro_batches(samples(), layout))
        return logp, entropy, updated(family, "gspo", layout, [values - 0.01 for values in logp])

    with composed_ops():
        logp, entropy, (result, gradients) = outcome(PLAIN)
    for layout in (PLAIN, PACKED, ONE_ROW):
        found_logp, found_entropy, (found, found_gradients) = outcome(layout)
        np.testing.assert_allclose(np.concatenate(found_logp), np.concatenate(logp), rtol=0, atol=1e-5)
        # ops.exp on CPU is off by up to 4e-6 of its value, and with it p log p.
        np.testing.assert_allclose(np.concatenate(found_entropy), np.concatenate(entropy), rtol=5e-6, atol=0)
        assert found.loss == pytest.approx(result.loss, abs=1e-6)
        assert found.grad_norm == pytest.approx(result.grad_norm, rel=1e-5)
        for name, gradient in gradients.items():
            np.testing.assert_allclose(
                found_gradients[name], gradient, rtol=0, atol=1e-5 * np.abs(gradient).max(), err_msg=name
            )


@pytest.fixture(scope="module")
def scorer(cpu_runtime):
    from mindgspo.models.scoring import PolicyScorer

    return PolicyScorer(model_of("qwen2"), temperature=0.9)


@pytest.mark.parametrize("layout", [PACKED, ONE_ROW], ids=["rows", "one row"])
def test_packed_log_probs_are_those_of_rows_of_one_sample(scorer, layout: BatchLayout) -> None:
    batches = micro_batches(samples(), layout)
    assert max(batch.segments_RT.max() for batch in batches) >= 3, "hardly packed"
    plain = log_probs(scorer, micro_batches(samples(), PLAIN))
    for found, expected in zip(log_probs(scorer, batches), plain, strict=True):
        for one, other in zip(found, expected, strict=True):
            assert one.size
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=2e-6)


def test_a_sample_does_not_see_its_neighbours_in_the_row(scorer) -> None:
    batch = max(micro_batches(samples(), PACKED), key=lambda batch: batch.segments_RT.max())
    changed = batch.segments_RT == 2
    other = replace(batch, ids_RT=np.where(changed, (batch.ids_RT + 7) % 60, batch.ids_RT).astype(np.int32))
    before, after = (scorer.score([one])[0].logp_NK for one in (batch, other))
    in_segment = changed.reshape(-1)[batch.predict_NK] & batch.mask_NK
    assert in_segment.any() and (before[in_segment] != after[in_segment]).any()
    np.testing.assert_array_equal(before[~in_segment], after[~in_segment])


SLOW = [("llama", "gspo"), ("glm4", "gspo"), ("qwen3", "dapo"), ("qwen3_moe", "gspo")]
CASES = [("qwen2", "gspo"), ("qwen3_moe", "dapo"), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]


@pytest.mark.parametrize(("family", "algorithm"), CASES)
def test_packed_loss_and_gradients_are_those_of_rows_of_one_sample(family: str, algorithm: str) -> None:
    from mindgspo.models.scoring import PolicyScorer

    random = np.random.default_rng(6)
    # Near the policy's own log-probs, so that some ratios are clipped and others not.
    own, _ = log_probs(PolicyScorer(model_of(family), temperature=0.9), micro_batches(samples(), PLAIN))
    width = {"gspo": 1e-3, "dapo": 0.3}[algorithm]
    old = [(one + random.normal(scale=width, size=one.size)).astype(np.float32) for one in own]
    expected, gradients = updated(family, algorithm, PLAIN, old)
    found, packed = updated(family, algorithm, PACKED, old)
    assert 0 < expected.metrics["pg_clipfrac"] < 1
    assert found.loss == pytest.approx(expected.loss, abs=1e-6)
    assert found.entropy == pytest.approx(expected.entropy, rel=1e-6)
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
    assert packed.keys() == gradients.keys() and len(packed) > 20
    for name, gradient in gradients.items():
        np.testing.assert_allclose(packed[name], gradient, rtol=0, atol=1e-5 * np.abs(gradient).max(), err_msg=name)
    for name, value in expected.metrics.items():
        assert found.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
