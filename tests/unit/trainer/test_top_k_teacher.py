"""KL to a teacher as a loss, with a real policy and a teacher of another size: value, gradient, layouts of rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mindspore import Tensor
from small_plans import drawn_model

from mindgspo.algorithms.losses.registry import build_policy_loss
from mindgspo.algorithms.optim.updater import Updater, UpdateResult
from mindgspo.batches.micro_batches import BatchLayout, micro_batches
from mindgspo.batches.rows import TrainingSample
from mindgspo.config import AlgorithmSection, ModelSection, OptimizerSection, with_recipe
from mindgspo.models.policy import PolicyLogProbs
from mindgspo.models.scoring import PolicyScorer
from mindgspo.models.weights import initialize_weights
from mindgspo.parallel.ops.device import attention_segments, composed_ops, takes_packed
from mindgspo.types import Batch

pytestmark = pytest.mark.usefixtures("cpu_runtime")

SECTION = ModelSection(
    vocab_size=31, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.3,
)  # fmt: skip
# More tokens than the policy, and other sizes.
TEACHER = SECTION.model_copy(update={"vocab_size": 37, "hidden_size": 24, "num_attention_heads": 3, "head_dim": 8})
TEMPERATURE, COEF, TOP_K, LEAST = 0.8, 0.25, 6, 1e-5
WHOLE = BatchLayout(samples_per_micro_batch=5, length_multiple=1, pad_id=0)
LAYOUTS = {
    "micro-batches, padded": BatchLayout(samples_per_micro_batch=3, length_multiple=16, pad_id=0),
    "packed": BatchLayout(max_tokens_per_micro_batch=32, packing=True, length_multiple=8, pad_id=0),
}


@pytest.fixture(scope="module")
def teacher(cpu_runtime):
    return drawn_model(TEACHER, seed=8)


@pytest.fixture(params=["kernels", pytest.param("small operators", marks=pytest.mark.slow)], scope="module")
def updater(request: pytest.FixtureRequest, cpu_runtime) -> Updater:
    """beta1 = 0 and no clipping of the norm: the first moment after an update is its gradient."""
    distillation = {"teachers": [{"path": "none"}], "loss": "top_k", "top_k": TOP_K, "coef": COEF}
    algorithm = with_recipe(AlgorithmSection(distillation=distillation), max_new_tokens=8)
    optimizer = OptimizerSection(lr=1e-3, beta1=0.0, max_grad_norm=1e9, weight_decay=0.0)

    def build() -> Updater:
        policy = PolicyLogProbs(
            drawn_model(SECTION, seed=3), temperature=TEMPERATURE, with_entropy=False, scores_ids=True
        )
        return Updater(policy, build_policy_loss(algorithm), optimizer)

    if request.param == "kernels":
        return build()
    with composed_ops():
        return build()


def laid_out(layout: BatchLayout, teacher) -> list[Batch]:
    """Five responses of 1 to 8 tokens with advantage 0, and the teacher's likeliest tokens."""
    random, samples = np.random.default_rng(4), []
    for number in range(5):
        ids = random.integers(0, SECTION.vocab_size, 4 + 2 * number - (number == 4)).astype(np.int32)
        empty = np.zeros(ids.size - 3, np.float32)
        samples.append(TrainingSample(prompt_ids=ids[:3], response_ids=ids[3:], rollout_logp=empty, number=number))
    batches = micro_batches(samples, layout)
    scorer = PolicyScorer(teacher, temperature=TEMPERATURE, likeliest=(TOP_K, SECTION.vocab_size))
    return [
        replace(batch, teacher_ids_NKA=one.top_ids_NKA, teacher_logp_NKA=one.top_logp_NKA)
        for batch, one in zip(batches, scorer.score(batches), strict=True)
    ]


def log_probs(model, batch: Batch) -> np.ndarray:
    """Of the whole vocabulary in place of each response token, float64 [tokens, V]."""
    segments = Tensor(attention_segments(batch.segments_RT, is_packed=takes_packed(model)))
    hidden = model(Tensor(batch.ids_RT), Tensor(batch.positions_RT), segments).asnumpy()
    hidden = hidden.astype(np.float64)[batch.predict_NK[batch.mask_NK]]
    logits = hidden @ model.output_weight().asnumpy().astype(np.float64).T / TEMPERATURE
    logits -= logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def mean_kl(p: np.ndarray, q: np.ndarray, mask_NK: np.ndarray) -> float:
    """Mean over responses of the mean over tokens, as gspo aggregates. p, q: probabilities of policy and teacher
    [tokens, V]."""
    ids = np.argsort(-q[:, : SECTION.vocab_size], axis=1)[:, :TOP_K]
    p, q = (np.take_along_axis(one, ids, 1) for one in (p, q))
    p, q = (np.concatenate([one, np.maximum(1 - one.sum(1, keepdims=True), LEAST)], 1) for one in (p, q))
    kl_NK = np.zeros(mask_NK.shape)
    kl_NK[mask_NK] = (p * np.log(p / q)).sum(1)
    return float((kl_NK.sum(1) / mask_NK.sum(1)).mean())


def test_the_teachers_likeliest_tokens_are_those_of_its_softmax(teacher) -> None:
    (batch,) = laid_out(WHOLE, teacher)
    expected = log_probs(teacher, batch)
    ids = np.argsort(-expected[:, : SECTION.vocab_size], axis=1)[:, :TOP_K]
    assert (batch.teacher_ids_NKA[batch.mask_NK] == ids).all()
    found = batch.teacher_logp_NKA[batch.mask_NK]
    np.testing.assert_allclose(found, np.take_along_axis(expected, ids, 1), rtol=0, atol=1e-5)


def once(updater: Updater, batches: list[Batch]) -> tuple[UpdateResult, list[np.ndarray]]:
    """One update of the first weights that moves nothing, and the gradient of each."""
    initialize_weights(updater.policy.model, SECTION, seed=3)
    result = updater.step(batches, lr=0.0)
    weights = updater.policy.model.trainable_params()
    return result, [array.copy() for array in updater.state().values() if array.ndim][: len(weights)]


def test_loss_and_gradient_by_central_differences(updater, teacher) -> None:
    """One weight matrix at a time, along its own gradient, where the derivative is the gradient's norm."""
    (batch,) = laid_out(WHOLE, teacher)
    result, gradients = once(updater, [batch])
    model, q = updater.policy.model, np.exp(log_probs(teacher, batch))

    def loss() -> float:
        return COEF * mean_kl(np.exp(log_probs(model, batch)), q, batch.mask_NK)

    assert result.loss == pytest.approx(loss(), rel=1e-4)
    assert result.metrics["pg_loss"] == 0 and result.metrics["distillation_kl"] > 0.1
    total = np.sqrt(sum(np.square(gradient.astype(np.float64)).sum() for gradient in gradients))
    assert result.grad_norm == pytest.approx(total, rel=1e-5), "these arrays are not the gradients"
    looked_at = 0
    for weight, gradient in zip(model.trainable_params(), gradients, strict=True):
        norm = float(np.linalg.norm(gradient.astype(np.float64)))
        if norm < 1e-2 * total:  # a difference of float32 losses cannot resolve it
            continue
        looked_at += 1
        start, step, losses = weight.asnumpy().copy(), 1e-2, []
        for side in (1, -1):
            weight.set_data(Tensor(start + np.float32(side * step / norm) * gradient))
            losses.append(loss())
        weight.set_data(Tensor(start))
        assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(norm, rel=2e-2), weight.name
    assert looked_at > len(gradients) / 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_of_rows_does_not_matter(updater, teacher, layout: str) -> None:
    expected, wanted = once(updater, laid_out(WHOLE, teacher))
    batches = laid_out(LAYOUTS[layout], teacher)
    for batch in batches:
        batch.teacher_logp_NKA[~batch.mask_NK] = np.nan
    found, gradients = once(updater, batches)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert found.metrics["distillation_kl"] == pytest.approx(expected.metrics["distillation_kl"], rel=1e-5)
    scale = max(np.abs(one).max() for one in wanted)
    for one, other in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * scale)


def test_tokens_without_a_teacher_have_no_gradient(updater, teacher) -> None:
    batches = laid_out(WHOLE, teacher)
    result, gradients = once(updater, [replace(one, teacher_ids_NKA=one.teacher_ids_NKA * 0 - 1) for one in batches])
    assert result.loss == result.grad_norm == 0 and not any(one.any() for one in gradients)
