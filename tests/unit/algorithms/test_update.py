"""The updater on a bigram policy small enough to be differentiated by hand in numpy."""

from dataclasses import replace

import numpy as np
import pytest

from mindgspo.algorithms.loss_metrics import POLICY_METRICS, telemetry_metrics
from mindgspo.batches.rows import BatchSize, TrainingSample, batch_of, denominators
from mindgspo.config.algorithm import AlgorithmSection, KLSection
from mindgspo.config.load import with_recipe
from mindgspo.config.schema import OptimizerSection
from mindgspo.errors import CheckpointError, TrainingError
from mindgspo.types import Batch
from mindgspo_conformance.twins.policy_loss import PolicyLossResult, policy_loss

pytestmark = pytest.mark.usefixtures("cpu_runtime")

VOCAB, HIDDEN, PROMPT = 11, 6, 2
SECTION = OptimizerSection(lr=1e-2, weight_decay=0.1, max_grad_norm=1e9)


def algorithm(name="gspo", **settings) -> AlgorithmSection:
    """The section as a loaded configuration has it."""
    return with_recipe(AlgorithmSection(name=name, **settings), max_new_tokens=5)


WIDE = algorithm(clip_low=0.1, clip_high=0.1, allow_wide_clip=True)


def initial_weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"embedding": (VOCAB, HIDDEN), "head": (VOCAB, HIDDEN), "bias": (VOCAB,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def make_policy():
    """logits of the next token = head @ embedding[token] + bias."""
    from mindspore import Parameter, Tensor, nn, ops

    class Bigram(nn.Cell):
        def __init__(self):
            super().__init__()
            for name, value in initial_weights().items():
                setattr(self, name, Parameter(Tensor(value), name=name))

        def construct(self, ids_RT, positions_RT, segments_RT, predict_P, targets_P, place_NK):
            hidden = ops.gather(self.embedding, ops.gather(ids_RT.reshape(-1), predict_P, 0), 0)
            log_probs = ops.log_softmax(ops.matmul(hidden, self.head.T) + self.bias, -1)
            logp = ops.gather_elements(log_probs, 1, targets_P.reshape(-1, 1))
            entropy = -(ops.exp(log_probs) * log_probs).sum(-1)
            return ops.gather(logp.reshape(-1), place_NK, 0), ops.gather(entropy, place_NK, 0)

    return Bigram()


def bigram_log_probs(weights, tokens) -> np.ndarray:
    """float64 [len(tokens), V] log-probs of what follows each token."""
    weights = {name: value.astype(np.float64) for name, value in weights.items()}
    logits = weights["embedding"][tokens] @ weights["head"].T + weights["bias"]
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def make_batch(num_samples=6, num_slots=5, extra_slots=0, fillers=0, seed=1) -> Batch:
    """One row per sample: two prompt tokens, then 1 .. num_slots response tokens; padding is token 0."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, num_slots + 1, size=num_samples)
    responses = rng.integers(1, VOCAB, size=(num_samples, PROMPT + num_slots)).astype(np.int32)
    noise = 0.1 * rng.normal(size=(num_samples, num_slots))
    advantages = rng.normal(size=num_samples)
    samples = []
    for number, length in enumerate(lengths):
        prompt, response = np.split(responses[number, : PROMPT + length], [PROMPT])
        log_probs = bigram_log_probs(initial_weights(), [prompt[-1], *response[:-1]])[np.arange(length), response]
        logp = (log_probs + noise[number, :length]).astype(np.float32)
        samples.append(TrainingSample(prompt_ids=prompt, response_ids=response, rollout_logp=logp, number=number))
    rows, slots = num_samples + fillers, num_slots + extra_slots
    size = BatchSize(rows=rows, row_length=PROMPT + slots, samples=rows, slots=slots)
    batch = batch_of([[sample] for sample in samples], size, 0, denominators(samples))
    advantages_NK = np.where(batch.mask_NK, np.pad(advantages, (0, fillers))[:, None], 0).astype(np.float32)
    return replace(batch, old_logp_NK=batch.rollout_logp_NK, advantages_NK=advantages_NK)


def cut(batch: Batch, size: int) -> list[Batch]:
    """Micro-batches of `size` samples with the denominators of the whole."""
    width = batch.ids_RT.shape[1]
    parts = []
    for start in range(0, len(batch.mask_NK), size):
        rows = slice(start, start + size)
        arrays = {name: getattr(batch, name) for name in batch.__slots__ if name.endswith(("_N", "_NK", "_RT"))}
        fields = {name: array[rows] for name, array in arrays.items() if array is not None}
        mask, targets = fields["mask_NK"], batch.targets_NK[rows]
        predict = np.where(mask, batch.predict_NK[rows] - start * width, 0).astype(np.int32)
        place = np.arange(mask.size, dtype=np.int32).reshape(mask.shape)
        fields |= {"predict_P": predict.reshape(-1), "targets_P": targets.reshape(-1), "place_NK": place}
        parts.append(replace(batch, **fields))
    return parts


def make_updater(section=WIDE, loss=None):
    from mindgspo.algorithms.losses.registry import build_policy_loss
    from mindgspo.algorithms.optim.updater import Updater

    policy = make_policy()
    return Updater(policy, loss or build_policy_loss(section), SECTION), policy


def assert_same(found, expected) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def weights_of(policy) -> dict[str, np.ndarray]:
    return {parameter.name: parameter.asnumpy().copy() for parameter in policy.get_parameters()}


def numpy_update(
    batch: Batch, weights, section: AlgorithmSection = WIDE, kl_coef: float = 0.0
) -> tuple[PolicyLossResult, dict[str, np.ndarray], float]:
    """Loss, gradient by every weight, and entropy sum, in float64: the twin, then the bigram's chain rule."""
    from mindgspo.algorithms.losses.registry import loss_definition

    mask = batch.mask_NK
    tokens, targets = batch.ids_RT.reshape(-1)[batch.predict_NK[mask]], batch.targets_NK[mask]
    log_probs = bigram_log_probs(weights, tokens)
    logp = np.zeros(mask.shape)
    logp[mask] = log_probs[np.arange(len(tokens)), targets]
    twin = policy_loss(
        loss_definition(section), logp_NK=logp, old_logp_NK=batch.old_logp_NK, advantages_NK=batch.advantages_NK,
        mask_NK=mask, ref_logp_NK=batch.ref_logp_NK, correction_NK=batch.correction_NK, kl_coef=kl_coef,
        num_sequences=batch.num_sequences, num_tokens=batch.num_tokens,
    )  # fmt: skip
    d_logits = twin.grad_logp_NK[mask][:, None] * (np.eye(VOCAB)[targets] - np.exp(log_probs))
    return twin, gradients_of(weights, tokens, d_logits), -(np.exp(log_probs) * log_probs).sum()


def gradients_of(weights, tokens, d_logits) -> dict[str, np.ndarray]:
    d_embedding = np.zeros((VOCAB, HIDDEN))
    np.add.at(d_embedding, tokens, d_logits @ weights["head"])
    hidden = weights["embedding"].astype(np.float64)[tokens]
    return {"embedding": d_embedding, "head": d_logits.T @ hidden, "bias": d_logits.sum(axis=0)}


def assert_gradients(updater, expected: dict[str, np.ndarray]) -> None:
    """Those of the first update, by its moments."""
    for name, gradient in expected.items():
        found, scale = updater.state()[f"adamw.m.{name}"], np.abs(gradient).max()
        np.testing.assert_allclose(found, 0.1 * gradient, rtol=0, atol=1e-5 * scale, err_msg=name)


def numpy_first_step(weights, gradients, lr) -> dict[str, np.ndarray]:
    """The first AdamW step: bias-corrected moments are g and g^2."""
    return {
        name: value * (1 - lr * SECTION.weight_decay * (value.ndim >= 2))
        - lr * gradients[name] / (np.abs(gradients[name]) + SECTION.eps)
        for name, value in weights.items()
    }


def test_one_update_equals_numpy():
    updater, policy = make_updater()
    batch = make_batch()
    twin, gradients, entropy = numpy_update(batch, initial_weights())
    result = updater.step([batch], lr=1e-2)
    assert result.loss == pytest.approx(twin.loss, rel=1e-5)
    norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
    assert result.grad_norm == pytest.approx(norm, rel=1e-4)
    assert result.entropy == pytest.approx(entropy / batch.num_tokens, rel=1e-5)
    assert 0 < result.metrics["pg_clipfrac_seq"] < 1, "the example should clip some sequences, not all"
    assert {metric.name for metric in POLICY_METRICS} < result.metrics.keys() == twin.metrics.keys()
    assert dict(result.metrics) == pytest.approx(twin.metrics, rel=1e-4, abs=1e-6)
    assert updater.updates == 1
    assert_gradients(updater, gradients)
    # Where a gradient is rounding noise the sign of the step is too.
    for name, expected in numpy_first_step(initial_weights(), gradients, 1e-2).items():
        clear = np.abs(gradients[name]) > 1e-3 * np.abs(gradients[name]).max()
        np.testing.assert_allclose(weights_of(policy)[name][clear], expected[clear], atol=1e-6, err_msg=name)


def test_an_update_does_not_remember_the_gradients_of_the_one_before():
    """The same batch twice at lr 0: equal gradients, so m = 0.1 g, then 0.19 g."""
    updater, policy = make_updater()
    updater.step([make_batch()], lr=0.0)
    first = updater.state()
    updater.step([make_batch()], lr=0.0)
    second = updater.state()
    for name in initial_weights():
        np.testing.assert_allclose(second[f"adamw.m.{name}"], 1.9 * first[f"adamw.m.{name}"], rtol=1e-5, atol=1e-8)
    assert_same(weights_of(policy), initial_weights())


@pytest.mark.parametrize(("field", "value", "message"), [
    pytest.param("advantages_NK", np.nan, "loss of micro-batch 2 of 3 is nan", id="loss"),
    pytest.param("advantages_NK", 1e30, "gradient norm is inf", id="norm"),
])  # fmt: skip
def test_a_non_finite_update_is_refused_and_leaves_no_trace(field, value, message):
    updater, policy = make_updater()
    good, poisoned = cut(make_batch(), 2), cut(make_batch(), 2)
    updater.step(good, lr=1e-3)
    before, state = weights_of(policy), updater.state()
    poisoned[1] = replace(poisoned[1], **{field: np.full(poisoned[1].mask_NK.shape, value, np.float32)})
    with pytest.raises(TrainingError, match=message):
        updater.step(poisoned, lr=1e-3)
    assert updater.updates == 1
    assert_same(weights_of(policy), before)
    assert_same(updater.state(), state)
    # The next update must be as if the refused one had never been: no nan left in the gradients.
    twin, policy_twin = make_updater()
    for each in (updater, twin):
        each.step(good, lr=1e-3)
    twin.step(good, lr=1e-3)
    assert_same(updater.state(), twin.state())
    assert_same(weights_of(policy), weights_of(policy_twin))


def test_micro_batches_with_different_denominators_are_refused():
    updater, _ = make_updater()
    parts = cut(make_batch(), 3)
    with pytest.raises(AssertionError, match="denominators"):
        updater.step([parts[0], replace(parts[1], num_sequences=3)], lr=1e-3)


def test_a_loaded_state_continues_bit_for_bit():
    from mindspore import Tensor

    straight, policy_straight = make_updater()
    for _ in range(2):
        straight.step([make_batch()], lr=1e-3)
    saved_state, saved_weights = straight.state(), weights_of(policy_straight)
    straight.step([make_batch(seed=2)], lr=1e-3)
    resumed, policy_resumed = make_updater()
    for parameter in policy_resumed.get_parameters():
        parameter.set_data(Tensor(saved_weights[parameter.name]))
    resumed.load_state(saved_state)
    assert resumed.updates == 2
    resumed.step([make_batch(seed=2)], lr=1e-3)
    assert_same(resumed.state(), straight.state())
    assert_same(weights_of(policy_resumed), weights_of(policy_straight))


def test_state_has_documented_names_and_does_not_alias():
    updater, _ = make_updater()
    state = updater.state()
    assert set(state) == {"adamw.updates"} | {f"adamw.{m}.{name}" for m in "mv" for name in initial_weights()}
    updater.step([make_batch()], lr=1e-3)
    assert state["adamw.updates"] == 0 and not state["adamw.m.head"].any()


@pytest.mark.parametrize("change", [
    {"adamw.v.head": None}, {"adamw.v.other": np.zeros(3, np.float32)}, {"adamw.v.head": np.zeros((2, 2), np.float32)},
], ids=["missing", "unknown", "shape"])  # fmt: skip
def test_a_foreign_state_is_refused_by_name(change):
    updater, _ = make_updater()
    state = {name: array for name, array in (updater.state() | change).items() if array is not None}
    with pytest.raises(CheckpointError, match=r"adamw\.v\.(head|other)"):
        updater.load_state(state)
    assert updater.updates == 0


def test_supervised_loss_is_the_mean_negative_log_likelihood():
    from mindgspo.algorithms.losses.supervised import SupervisedLoss

    updater, _ = make_updater(loss=SupervisedLoss())
    batch = make_batch()
    mask = batch.mask_NK
    tokens, targets = batch.ids_RT.reshape(-1)[batch.predict_NK[mask]], batch.targets_NK[mask]
    logp = bigram_log_probs(initial_weights(), tokens)[np.arange(len(tokens)), targets]
    result = updater.step(cut(batch, 2), lr=1e-2)
    assert result.loss == pytest.approx(-logp.mean(), rel=1e-5)
    assert result.metrics["token_probability"] == pytest.approx(np.exp(logp).mean(), rel=1e-5)
    assert [updater.step([batch], lr=1e-1).loss for _ in range(30)][-1] < 0.5 * result.loss


def dressed(batch: Batch, seed: int = 7) -> Batch:
    """The batch with an advantage per token, a reference policy and correction weights, none of them trivial."""
    random = np.random.default_rng(seed)
    mask = batch.mask_NK
    return replace(
        batch,
        ref_logp_NK=np.where(mask, batch.old_logp_NK + 0.3 * random.normal(size=mask.shape), 0).astype(np.float32),
        advantages_NK=np.where(mask, random.normal(size=mask.shape), 0).astype(np.float32),
        correction_NK=np.where(mask, random.uniform(0.5, 1.5, mask.shape), 1).astype(np.float32),
    )


KL = KLSection(placement="loss")


@pytest.mark.parametrize(("section", "size"), [
    (algorithm("gspo_token", clip_low=0.1, clip_high=0.1, allow_wide_clip=True, kl=KL), 2),
    (algorithm("ppo", kl=KL), 1),
    (algorithm("gmpo", clip_low=0.05, clip_high=0.05, kl=KL), 4),
    (algorithm("cispo", clip_low=0.05, clip_high=0.05, kl=KL), 8),
], ids=["gspo_token", "ppo", "gmpo", "cispo"])  # fmt: skip
def test_other_losses_with_all_their_inputs_equal_numpy(section, size):
    """Cut into micro-batches, of which the last has fillers."""
    updater, _ = make_updater(section)
    batch = dressed(make_batch(extra_slots=1, fillers=2))
    twin, gradients, entropy = numpy_update(batch, initial_weights(), section, kl_coef=0.4)
    result = updater.step(cut(batch, size), lr=1e-2, kl_coef=0.4)
    assert result.loss == pytest.approx(twin.loss, rel=1e-5)
    assert result.loss == pytest.approx(result.metrics["pg_loss"] + 0.4 * result.metrics["kl_loss"], rel=1e-5)
    assert result.metrics["kl_loss"] > 1e-3 and result.metrics["pg_clipfrac"] > 0, "the example shows too little"
    assert result.metrics.keys() == twin.metrics.keys()
    assert dict(result.metrics) == pytest.approx(twin.metrics, rel=1e-4, abs=1e-6)
    assert result.entropy == pytest.approx(entropy / batch.num_tokens, rel=1e-5)
    assert_gradients(updater, gradients)


def test_the_kl_coefficient_may_change_from_update_to_update():
    """At lr 0 the weights stay, so the loss is linear in the coefficient."""
    updater, _ = make_updater(algorithm("gspo", kl=KL))
    batch = dressed(make_batch())
    results = [updater.step([batch], lr=0.0, kl_coef=coef) for coef in (0.0, 0.5, 2.0)]
    (kl_loss,) = {result.metrics["kl_loss"] for result in results}
    assert kl_loss > 0 and results[0].loss == pytest.approx(results[0].metrics["pg_loss"], rel=1e-6)
    for result, coef in zip(results[1:], (0.5, 2.0), strict=True):
        assert result.loss - results[0].loss == pytest.approx(coef * kl_loss, rel=1e-4)


@pytest.mark.parametrize("name", ["gspo", "gspo_token", "grpo"])
def test_telemetry_tells_the_gradient_that_flowed(name):
    """The gradient by log-prob, summed over the responses of each length, is the twin's; whatever the cut."""
    section = algorithm(name, **{"clip_low": 0.1, "clip_high": 0.1, "allow_wide_clip": True, "kl": KL})
    updater, _ = make_updater(section)
    batch = dressed(make_batch(num_samples=7, fillers=1))
    twin, _, _ = numpy_update(batch, initial_weights(), section, kl_coef=0.4)
    length_N = batch.mask_NK.sum(axis=1)
    expected_L = np.bincount(length_N, weights=np.abs(twin.grad_logp_NK).sum(axis=1), minlength=6)
    whole = updater.step([batch], lr=0.0, kl_coef=0.4)
    parts = updater.step(cut(batch, 2), lr=0.0, kl_coef=0.4)
    assert (len(whole.telemetry), len(parts.telemetry)) == (1, 4)
    for result in (whole, parts):
        gradient_L = np.sum([micro.gradient_L for micro in result.telemetry], axis=0)
        np.testing.assert_allclose(gradient_L, expected_L, rtol=1e-4, atol=1e-7)
        responses_L = np.sum([micro.responses_L for micro in result.telemetry], axis=0)
        np.testing.assert_array_equal(responses_L, np.bincount(length_N[:7], minlength=6))
        counted = sum(int(micro.log_ratio_counts.sum()) for micro in result.telemetry)
        assert counted == (batch.num_tokens if name == "grpo" else 7), "one ratio per response, or per token"
    assert telemetry_metrics(parts.telemetry) == pytest.approx(telemetry_metrics(whole.telemetry), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "token-mean"])
def test_the_entropy_bonus_has_the_gradient_of_the_entropy(mode):
    """Without advantages nothing else is left: loss -c H, and dH / dlogit_v = -p_v (log p_v + H), in float64."""
    updater, _ = make_updater(algorithm("grpo", entropy_coef=0.25, loss_agg_mode=mode))
    batch = make_batch(fillers=2)
    batch = replace(batch, advantages_NK=np.zeros_like(batch.advantages_NK))
    result = updater.step(cut(batch, 4), lr=1e-2)
    mask, weights = batch.mask_NK, initial_weights()
    length_N1 = np.maximum(mask.sum(axis=1, keepdims=True), 1)
    share_NK = mask / length_N1 / 6 if mode == "seq-mean-token-mean" else mask / batch.num_tokens
    share, tokens = share_NK[mask][:, None], batch.ids_RT.reshape(-1)[batch.predict_NK[mask]]
    log_probs = bigram_log_probs(weights, tokens)
    entropy = -(np.exp(log_probs) * log_probs).sum(axis=1, keepdims=True)
    assert result.loss == pytest.approx(-0.25 * float((share * entropy).sum()), rel=1e-5)
    assert result.metrics["pg_loss"] == 0
    d_logits = 0.25 * share * np.exp(log_probs) * (log_probs + entropy)
    assert_gradients(updater, gradients_of(weights, tokens, d_logits))
