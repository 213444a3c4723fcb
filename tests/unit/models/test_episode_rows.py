"""Episodes through a real model: observations condition what follows, and nothing else of them is trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from episodes import episode_of, response_of, training_sample
from small_plans import MIXTURE, drawn_model, small_model

from mindgspo.batches.micro_batches import BatchLayout, micro_batches
from mindgspo.batches.routing import with_experts
from mindgspo.batches.rows import TrainingSample, gathered, scattered
from mindgspo.config import AlgorithmSection, OptimizerSection, with_recipe
from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings
from mindgspo.rollout.sequences import EndedRequest
from mindgspo.rollout.service import Piece, Request
from mindgspo.types import Batch, FinishReason, Int32Array, Prompt, Response, Routing

pytestmark = pytest.mark.usefixtures("cpu_runtime")

PLAIN = BatchLayout(samples_per_micro_batch=8, length_multiple=8, pad_id=0)
ONE_ROW = BatchLayout(max_tokens_per_micro_batch=512, packing=True, in_one_row=True, length_multiple=8, pad_id=0)
ALONE = replace(PLAIN, samples_per_micro_batch=1)
LAYOUTS = pytest.mark.parametrize("layout", [PLAIN, ONE_ROW, ALONE], ids=["rows", "one row", "alone"])
SPANS = [((0, 4), (9, 12), (14, 15)), ((0, 1), (1, 6)), ((0, 5), (12, 14)), ((0, 3),), ((0, 2), (6, 9))]
SIZES = [15, 10, 14, 6, 9]  # the second and the fourth end with an observation
# Without clipping of the norm the first moment after one update is (1 - beta1) times the gradient.
OPTIMIZER = OptimizerSection(lr=1e-3, beta1=0.0, max_grad_norm=1e9)


@pytest.fixture(scope="module")
def scorer(cpu_runtime):
    from mindgspo.models.scoring import PolicyScorer

    return PolicyScorer(drawn_model(small_model(initializer_range=0.15), seed=2), temperature=0.9)


def episodes() -> tuple[list[Int32Array], list[Response]]:
    """Three siblings of one prompt, and two of another."""
    rng = np.random.default_rng(4)
    of_groups = [rng.integers(1, 61, 6, np.int32), rng.integers(1, 61, 3, np.int32)]
    prompts = [of_groups[number > 2] for number in range(5)]
    return prompts, [
        response_of(rng.integers(1, 61, size), episode_of(*spans), sample=number)
        for number, (size, spans) in enumerate(zip(SIZES, SPANS, strict=True))
    ]


def samples_of(prompts: list[Int32Array], responses: list[Response]) -> list[TrainingSample]:
    return [training_sample(prompt, one, i) for i, (prompt, one) in enumerate(zip(prompts, responses, strict=True))]


def log_probs(scorer, samples: list[TrainingSample], layout: BatchLayout) -> list[np.ndarray]:
    batches = micro_batches(samples, layout)
    return gathered(batches, [found.logp_NK for found in scorer.score(batches)], len(samples))


@LAYOUTS
def test_sampled_tokens_have_the_log_probs_of_a_plain_response_at_their_places(scorer, layout: BatchLayout) -> None:
    prompts, responses = episodes()
    found = log_probs(scorer, samples_of(prompts, responses), layout)
    whole = [replace(one, actions=None, turns=None) for one in samples_of(prompts, responses)]
    whole = [replace(one, rollout_logp=np.zeros(one.response_ids.size, np.float32)) for one in whole]
    for response, own, every in zip(responses, found, log_probs(scorer, whole, ALONE), strict=True):
        np.testing.assert_array_equal(own, every[response.actions])


def test_an_observation_conditions_what_comes_after_it(scorer) -> None:
    prompts, responses = episodes()
    before = log_probs(scorer, samples_of(prompts, responses), ONE_ROW)
    changed = [np.where(one.actions, one.ids, (one.ids + 7) % 60).astype(np.int32) for one in responses]
    changed = [replace(one, ids=ids) for one, ids in zip(responses, changed, strict=True)]
    after = log_probs(scorer, samples_of(prompts, changed), ONE_ROW)
    # Tokens sampled before the first observation; that of the second and the fourth comes after their last turn.
    for count, one, other in zip((4, 6, 5, 3, 2), before, after, strict=True):
        np.testing.assert_array_equal(one[:count], other[:count])
        assert (one[count:] != other[count:]).all()
    assert [one.size for one in before] == [8, 6, 7, 3, 5]


def updated(batches: list[Batch], *, ratio_over: str = "response"):
    """(result, gradient by weight) of one update."""
    from mindgspo.algorithms.losses.registry import build_policy_loss
    from mindgspo.algorithms.optim.updater import Updater
    from mindgspo.models.policy import PolicyLogProbs

    section = with_recipe(AlgorithmSection(name="gspo", ratio_over=ratio_over), max_new_tokens=22)
    policy = PolicyLogProbs(
        drawn_model(small_model(initializer_range=0.15), seed=2), temperature=0.9, with_entropy=True
    )
    updater = Updater(policy, build_policy_loss(section), OPTIMIZER)
    result, first = updater.step(batches, lr=1e-3), updater.state()
    return result, {weight.name: first[f"adamw.m.{weight.name}"] for weight in updater.weights}


def filled(batches: list[Batch], logp: list[np.ndarray], seed: int = 8) -> list[Batch]:
    """With old log-probs near the policy's own, and an advantage of each sample."""
    rng = np.random.default_rng(seed)
    old = [(one + rng.normal(scale=5e-4, size=one.size)).astype(np.float32) for one in logp]
    advantages = [np.full(one.size, value, np.float32) for one, value in zip(logp, (1, -2, 0.5, -1, 2), strict=True)]
    return [
        replace(batch, old_logp_NK=scattered(batch, old), advantages_NK=scattered(batch, advantages))
        for batch in batches
    ]


def assert_alike(found, expected) -> None:
    (result, gradients), (other, others) = found, expected
    assert result.loss == pytest.approx(other.loss, abs=1e-6)
    assert result.entropy == pytest.approx(other.entropy, rel=1e-5)
    for name, gradient in others.items():
        bound = 1e-5 * np.abs(gradient).max()
        assert bound > 0
        np.testing.assert_allclose(gradients[name], gradient, rtol=0, atol=bound, err_msg=name)


def test_what_stands_for_an_observation_in_a_whole_response_has_no_effect(scorer) -> None:
    """Whole responses in which the slots of observations are masked, and hold anything else; in small operators, whose
    masks may have holes."""
    from mindgspo.parallel.ops.device import composed_ops

    prompts, responses = episodes()
    samples = samples_of(prompts, responses)
    own = filled(micro_batches(samples, PLAIN), log_probs(scorer, samples, PLAIN))
    kernels = updated(own)
    (whole,) = micro_batches(
        [
            replace(one, actions=None, turns=None, rollout_logp=np.full(one.response_ids.size, np.nan, np.float32))
            for one in samples
        ],
        PLAIN,
    )
    with_holes = np.zeros_like(whole.mask_NK)
    for row, number in enumerate(whole.samples_N):
        if number >= 0:
            with_holes[row, : responses[number].ids.size] = responses[number].actions
    rows = {
        name: gathered(own, [getattr(batch, name) for batch in own], len(samples))
        for name in ("old_logp_NK", "advantages_NK")
    }
    whole = replace(whole, mask_NK=with_holes, num_tokens=own[0].num_tokens)
    masked = replace(whole, **{name: scattered(whole, values) for name, values in rows.items()})
    masked = replace(masked, old_logp_NK=np.where(with_holes, masked.old_logp_NK, np.float32(-77)))
    with composed_ops():
        expected = updated([masked])
        assert_alike(updated(own), expected)
    assert_alike(kernels, expected)


def test_packed_episodes_have_the_loss_and_gradients_of_rows(scorer) -> None:
    prompts, responses = episodes()
    samples = samples_of(prompts, responses)
    logp = log_probs(scorer, samples, PLAIN)
    for ratio_over in ("response", "turn"):
        expected = updated(filled(micro_batches(samples, PLAIN), logp), ratio_over=ratio_over)
        assert 0 < expected[0].metrics["pg_clipfrac"] < 1
        assert_alike(updated(filled(micro_batches(samples, ONE_ROW), logp), ratio_over=ratio_over), expected)


def test_a_ratio_of_turns_is_that_of_the_response_where_each_is_one_turn(scorer) -> None:
    prompts, responses = episodes()
    single = [response_of(one.ids, episode_of((0, one.ids.size)), sample=one.sample_index) for one in responses]
    samples = samples_of(prompts, single)
    batches = filled(micro_batches(samples, ONE_ROW), log_probs(scorer, samples, ONE_ROW))
    (turn, by_turn), (response, by_response) = updated(batches, ratio_over="turn"), updated(batches)
    assert (turn.loss, turn.grad_norm, turn.metrics) == (response.loss, response.grad_norm, response.metrics)
    for name, gradient in by_response.items():
        np.testing.assert_array_equal(by_turn[name], gradient, err_msg=name)


MOST_PROMPT, MOST_NEW = 30, 18


def pieces_of(decoding, *requests: Request) -> list[Piece]:
    """What is drawn for these requests, sample by sample."""
    ended: list[EndedRequest] = []
    for request in requests:
        decoding.add(request)
    while not decoding.done:
        decoding.advance()
        ended += decoding.ended()
    return [piece for one in sorted(ended, key=lambda one: one.request.samples) for piece in one.pieces]


def sampled_episodes(model) -> tuple[list[Prompt], list[Response]]:
    """Two turns of the sampler with an observation of three tokens between them, two siblings of each of two prompts;
    with the routing of all tokens, if it is recorded."""
    from mindgspo.rollout.engine import NativeEngine

    engine = NativeEngine(
        model, eos_ids=(3, 11, 20, 31), max_prompt_length=MOST_PROMPT, max_new_tokens=MOST_NEW, records_experts=True,
        num_slots=3, prefill_width=2, length_multiple=4,
    )  # fmt: skip
    engine.load_weights(1)

    stream = RandomStream(seed=9, purpose=Purpose.TRAINING, step=1)
    settings = SamplingSettings(num_samples=2, temperature=1.0, max_new_tokens=MOST_NEW // 3, stream=stream)
    prompts, responses = [], []
    for index, length in enumerate((4, 7)):
        ids = (np.arange(length, dtype=np.int32) * 7 + index) % 61
        prompt = Prompt(index=index, ids=ids, text="", answer="", data_source="test")
        decoding = engine.begin(settings)
        asked = Request(number=0, prompt=prompt, samples=(0, 1), settings=settings, may_continue=True)
        firsts = pieces_of(decoding, asked)
        prefixes = [np.concatenate([one.ids, np.int32([5, 40 + sample, 17])]) for sample, one in enumerate(firsts)]
        longer = replace(settings, max_new_tokens=MOST_NEW)
        seconds = pieces_of(
            decoding, *(replace(asked, number=1 + n, samples=(n,), settings=longer, prefix=prefixes[n]) for n in (0, 1))
        )
        for sample, (first, prefix, second) in enumerate(zip(firsts, prefixes, seconds, strict=True)):
            assert first.routing is not None and second.routing is not None
            whole = second.routing.whole
            np.testing.assert_array_equal(whole[: len(first.routing.whole)], first.routing.whole)
            spans = (0, first.ids.size), (prefix.size, prefix.size + second.ids.size)
            prompts.append(prompt)
            responses.append(
                Response(
                    prompt_index=index, sample_index=sample, ids=np.concatenate([prefix, second.ids]),
                    logprobs=np.concatenate([first.logprobs, second.logprobs]), finish_reason=FinishReason.STOP,
                    temperature=1.0, weight_version=1, episode=episode_of(*spans),
                    routing=Routing(prompt_LX=whole[: length - 1], response_LX=whole[length - 1 :]),
                )
            )  # fmt: skip
    return prompts, responses


@LAYOUTS
def test_recorded_routing_of_observations_is_replayed(layout: BatchLayout) -> None:
    """The sampler reads an observation as part of a prompt; its log-probs of both turns are the trainer's, bit for
    bit."""
    from mindgspo.models.scoring import PolicyScorer

    model = drawn_model(small_model(**MIXTURE | {"num_experts": 6}, initializer_range=0.2), seed=5)
    prompts, responses = sampled_episodes(model)
    for response in responses:
        assert len(response.routing.response_LX) == response.ids.size == response.length + 3
    samples = samples_of([prompt.ids for prompt in prompts], responses)
    routing, like = {number: one.routing for number, one in enumerate(responses)}, responses[0].routing.response_LX
    batches = [with_experts(batch, routing, like=like) for batch in micro_batches(samples, layout)]
    for replays in (False, True):
        scores = PolicyScorer(model, temperature=1.0, replays_experts=replays, returns_routing=True).score(batches)
        assert all(sum(score.mismatch.differing) == 0 for score in scores)
        found = gathered(batches, [score.logp_NK for score in scores], len(samples))
        for own, response in zip(found, responses, strict=True):
            np.testing.assert_array_equal(own, response.logprobs)
