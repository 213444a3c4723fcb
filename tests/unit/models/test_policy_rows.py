"""How samples are laid into rows changes neither log-probs nor the update: padding, packing, micro-batches, fillers."""

from dataclasses import replace

import numpy as np
import pytest
from small_plans import drawn_model

from mindgspo.batches.rows import TrainingSample, lay_out, scattered
from mindgspo.config import AlgorithmSection, ModelSection, OptimizerSection
from mindgspo.config.load import with_recipe

pytestmark = pytest.mark.usefixtures("cpu_runtime")

SECTION = ModelSection(
    vocab_size=41, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=True, initializer_range=0.3,
)  # fmt: skip
TEMPERATURE = 0.8
# Without clipping of the norm or decay the first moment after one update is (1 - beta1) times the gradient.
OPTIMIZER = OptimizerSection(lr=1e-3, beta1=0.0, max_grad_norm=1e9, weight_decay=0.0)
# Wide enough that some sequences are clipped and others are not.
ALGORITHM = with_recipe(AlgorithmSection(clip_low=0.1, clip_high=0.1, allow_wide_clip=True), max_new_tokens=10)
NUM_SAMPLES = 10
ADVANTAGES = [(number + 1 if number % 2 else -number - 1) / 5 for number in range(NUM_SAMPLES)]


def make_model():
    return drawn_model(SECTION, seed=1)


@pytest.fixture(scope="module")
def scorer(cpu_runtime):
    from mindgspo.models.scoring import PolicyScorer

    return PolicyScorer(make_model(), temperature=TEMPERATURE)


def make_samples(old_logp: dict[int, np.ndarray] | None = None) -> list[TrainingSample]:
    """Ten samples of 4 to 15 tokens; `rollout_logp` carries the old policy's log-probs, if given."""
    rng = np.random.default_rng(3)
    samples = []
    for number in range(NUM_SAMPLES):
        prompt, response = rng.integers(1, 6), rng.integers(1, 11)
        ids = rng.integers(0, SECTION.vocab_size, prompt + response).astype(np.int32)
        noise = rng.normal(scale=0.2, size=response)
        old = np.zeros(response) if old_logp is None else old_logp[number] + noise
        ids, old = np.split(ids, [prompt]), old.astype(np.float32)
        samples.append(TrainingSample(prompt_ids=ids[0], response_ids=ids[1], rollout_logp=old, number=number))
    return samples


def score_by_sample(scorer, samples, **layout: int) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """{sample number: (log-probs, entropies)}."""
    batches = lay_out(samples, pad_id=0, **layout)
    found = {}
    for batch, scores in zip(batches, scorer.score(batches), strict=True):
        assert (scores.logp_NK[~batch.mask_NK] == 0).all() and (scores.entropy_NK[~batch.mask_NK] == 0).all()
        for row, (number, mask) in enumerate(zip(batch.samples_N, batch.mask_NK, strict=True)):
            assert mask.any() == (number >= 0)
            if mask.any():
                found[number] = (scores.logp_NK[row][mask], scores.entropy_NK[row][mask])
    assert len(found) == len(samples)
    return found


LAYOUTS = [{"samples_per_micro_batch": 4, "length_multiple": 8}, {"samples_per_micro_batch": 3, "length_multiple": 16}]
WHOLE = {"samples_per_micro_batch": 10, "length_multiple": 1}


@pytest.mark.parametrize("layout", LAYOUTS, ids=["micro-batches", "padded"])
def test_log_probs_and_entropies_do_not_depend_on_the_layout(scorer, layout: dict[str, int]) -> None:
    samples = make_samples()
    expected = score_by_sample(scorer, samples, **WHOLE)
    for number, (logp, entropy) in score_by_sample(scorer, samples, **layout).items():
        np.testing.assert_allclose(logp, expected[number][0], rtol=1e-6, atol=2e-6)
        np.testing.assert_allclose(entropy, expected[number][1], rtol=1e-6, atol=2e-6)


def test_what_stands_in_padded_slots_does_not_matter(scorer) -> None:
    batch = lay_out(make_samples(), samples_per_micro_batch=3, length_multiple=16, pad_id=0)[0]
    rubbish = np.where(batch.segments_RT == 0, 33, batch.ids_RT).astype(np.int32)
    assert (rubbish != batch.ids_RT).any()
    expected, found = scorer.score([batch, replace(batch, ids_RT=rubbish)])
    np.testing.assert_array_equal(found.logp_NK, expected.logp_NK)


def test_entropy_and_log_prob_are_of_the_softmax_at_the_temperature(scorer) -> None:
    from mindspore import Tensor

    from mindgspo.parallel.ops.device import attention_segments, takes_packed

    model, samples = make_model(), make_samples()
    batch = lay_out(samples, samples_per_micro_batch=10, length_multiple=1, pad_id=0)[0]
    segments = Tensor(attention_segments(batch.segments_RT, is_packed=takes_packed(model)))
    hidden = model(Tensor(batch.ids_RT), Tensor(batch.positions_RT), segments).asnumpy()
    hidden = hidden.astype(np.float64)[batch.predict_NK[batch.mask_NK]]
    logits = hidden @ model.output_weight().asnumpy().astype(np.float64).T / TEMPERATURE
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    (scores,) = scorer.score([batch])
    expected = log_probs[np.arange(len(hidden)), batch.targets_NK[batch.mask_NK]]
    np.testing.assert_allclose(scores.logp_NK[batch.mask_NK], expected, atol=1e-5)
    entropy = -(np.exp(log_probs) * log_probs).sum(axis=1)
    # ops.exp on CPU is off by up to 4e-6 of its value, and with it p log p.
    np.testing.assert_allclose(scores.entropy_NK[batch.mask_NK], entropy, rtol=5e-6)


@pytest.fixture(scope="module")
def updater(cpu_runtime):
    """One updater for all layouts; `update_once` puts weights and optimizer back before it runs."""
    from mindgspo.algorithms.losses.registry import build_policy_loss
    from mindgspo.algorithms.optim.updater import Updater
    from mindgspo.models.policy import PolicyLogProbs

    policy = PolicyLogProbs(make_model(), temperature=TEMPERATURE, with_entropy=False)
    return Updater(policy, build_policy_loss(ALGORITHM), OPTIMIZER), policy.model


def update_once(updater, samples, **layout: int):
    """(result, gradient by weight) of one update from the initial weights."""
    from mindgspo.models.weights import initialize_weights

    optimizer, model = updater
    initialize_weights(model, SECTION, seed=1)
    state = optimizer.state()
    optimizer.load_state({name: np.zeros_like(array) for name, array in state.items()})
    in_order = sorted(samples, key=lambda sample: sample.number)
    advantages = [np.full(one.response_ids.size, ADVANTAGES[one.number], np.float32) for one in in_order]
    batches = [
        replace(b, old_logp_NK=b.rollout_logp_NK, advantages_NK=scattered(b, advantages))
        for b in lay_out(samples, pad_id=0, **layout)
    ]
    result, state = optimizer.step(batches, lr=1e-3), optimizer.state()
    first = {name: array.astype(np.float64) for name, array in state.items() if name.startswith("adamw.m.")}
    norm = np.sqrt(sum(np.square(array).sum() for array in first.values()))
    assert result.grad_norm == pytest.approx(norm, rel=1e-5), "these arrays are not the gradients"
    return result, first


@pytest.mark.parametrize("layout", LAYOUTS, ids=["micro-batches", "padded"])
def test_loss_and_gradients_do_not_depend_on_the_layout(scorer, updater, layout: dict[str, int]) -> None:
    scores = score_by_sample(scorer, make_samples(), **WHOLE)
    samples = make_samples({number: logp for number, (logp, _) in scores.items()})
    expected, expected_gradients = update_once(updater, samples, **WHOLE)
    assert 0 < expected.metrics["pg_clipfrac_seq"] < 1, "some sequences must be clipped, others not"
    found, gradients = update_once(updater, samples[::-1], **layout)
    assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-6)
    # A gradient is a sum over slots: n float32 terms added in another order differ by up to n units of rounding.
    rounding = 2.0**-24 * sum(sample.prompt_ids.size + sample.response_ids.size for sample in samples)
    for name, gradient in expected_gradients.items():
        largest = np.abs(gradient).max()
        np.testing.assert_allclose(gradients[name], gradient, rtol=0, atol=rounding * largest, err_msg=name)
    for name, value in expected.metrics.items():
        assert found.metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
