"""One training step with a scripted engine: what is sampled, judged, counted, trained and reported."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace

import numpy as np
import pytest

from mindgspo.config import ModelSection, ParallelPlan, RewardSection
from mindgspo.errors import TrainingError
from mindgspo.rewards import Candidate, Scorer
from mindgspo.rewards.verification import Verification
from mindgspo.trainer.metrics import Speed

HALF = math.sqrt(0.5)  # rewards 1 and 0: (1 - 0.5) / std, ddof 1


def test_a_step_by_hand(make_trainer, one_of_two_right, prompts) -> None:
    trainer = make_trainer(one_of_two_right)
    result = trainer.train_step(1)
    assert [group.prompt.index for group in result.groups] == [0, 1, 2, 3]
    for group in result.groups:
        for response, advantages, expected in zip(group.responses, group.advantages, (HALF, -HALF), strict=True):
            np.testing.assert_allclose(advantages, np.full(response.length, expected), rtol=1e-5)
    metrics = result.metrics
    assert (metrics["critic/score/mean"], metrics["reward/correct_ratio"]) == (0.5, 0.5)
    assert [metrics[f"samples/{name}"] for name in ("generated", "trained", "filtered")] == [8, 8, 0]
    assert (metrics["actor/pg_loss"], metrics["actor/grad_norm"], metrics["actor/updates"]) == (0.5, 2.0, 2)
    assert (metrics["actor/loss"], metrics["actor/pg_clipfrac_seq"]) == (0.75, 0.25)
    assert metrics["actor/entropy"] == pytest.approx(0.5)
    # The script samples with log-prob -1, the old policy says -1.25.
    assert metrics["training/rollout_logprob_diff_max"] == pytest.approx(0.25)
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(math.exp(-1) - math.exp(-1.25))
    response_tokens = sum(response.length for group in result.groups for response in group.responses)
    prompt_tokens = 2 * sum(prompt.ids.size for prompt in prompts[:4])
    assert (metrics["perf/total_num_tokens"], metrics["training/epoch"]) == (response_tokens + prompt_tokens, 0.5)
    assert metrics["response/aborted_ratio"] == 0 and "perf/mfu/actor" not in metrics
    # The updater got every sample once, with its old log-probs.
    assert len(trainer.updater.batches) == 2
    for first_prompt, batches in zip((0, 2), trainer.updater.batches, strict=True):
        groups = result.groups[first_prompt : first_prompt + 2]
        assert {batch.num_sequences for batch in batches} == {4}
        assert {batch.num_tokens for batch in batches} == {
            sum(response.length for group in groups for response in group.responses)
        }
        rows = [
            (number, *(tuple(array[row][batch.mask_NK[row]]) for array in (batch.targets_NK, batch.advantages_NK)))
            for batch in batches
            for row, number in enumerate(batch.samples_N)
        ]
        sampled = [
            (2 * (first_prompt + place) + sibling, tuple(response.ids), tuple(advantages))
            for place, group in enumerate(groups)
            for sibling, (response, advantages) in enumerate(zip(group.responses, group.advantages, strict=True))
        ]
        assert sorted(rows) == sorted(sampled)
        for batch in batches:
            assert set(batch.old_logp_NK[batch.mask_NK]) == {np.float32(-1.25)}
            assert not batch.old_logp_NK[~batch.mask_NK].any() and not batch.advantages_NK[~batch.mask_NK].any()
            assert not batch.ref_logp_NK.any() and (batch.correction_NK == 1).all()


def test_speed_is_per_card_and_counts_what_was_trained(make_trainer, one_of_two_right) -> None:
    speed = Speed(cards=4, peak=2.0, per_token=6.0, per_square=12.0)
    result = make_trainer(one_of_two_right, "trainer.epochs_per_rollout=2", speed=speed).train_step(1)
    metrics = result.metrics
    lengths = [group.prompt.ids.size + response.length for group in result.groups for response in group.responses]
    operations = 2 * sum(6 * length + 12 * length**2 for length in lengths)
    seconds = metrics["timing_s/update_actor"]
    assert metrics["perf/mfu/actor"] == pytest.approx(operations / (seconds * 4 * 2.0))
    assert metrics["perf/throughput"] == pytest.approx(sum(lengths) / metrics["timing_s/step"] / 4)


def test_operations_of_an_update_by_hand() -> None:
    sizes = {"vocab_size": 32, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 3,
             "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip
    plan = ParallelPlan(data_parallel=2, model_parallel=2, pipeline_stage=2)
    # Per layer 8 x (8 + 4 + 4 + 8) of attention and 3 x 8 x 16, then 2 x 32 x 8 of the tables.
    dense = Speed.of(ModelSection(**sizes), plan, 0.5)
    assert dense == Speed(cards=8, peak=5e11, per_token=6 * (3 * (192 + 384) + 512), per_square=12 * 3 * 2 * 4)
    # Per layer two experts of 3 x 8 x 5 and a router of 8 x 6.
    experts = {"architecture": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 5}
    assert Speed.of(ModelSection(**sizes, **experts), plan, 0.5).per_token == 6 * (3 * (192 + 240 + 48) + 512)
    assert Speed.of(ModelSection(**sizes), plan, None).utilization([7], 1.0) is None
    assert dense.utilization([7], 0.0) is None, "every update was skipped"


def test_the_learning_rate_the_version_and_the_prompts_follow_the_updates(make_trainer, one_of_two_right) -> None:
    trainer = make_trainer(one_of_two_right)
    for step in (1, 2, 3):
        result = trainer.train_step(step)
    # 6 updates in all, the rise takes half of them.
    assert trainer.updater.rates == pytest.approx([1e-3 / 3, 2e-3 / 3, 1e-3, 1e-3, 1e-3, 1e-3])
    assert (result.metrics["actor/lr"], result.metrics["training/updates"], trainer.weights.version) == (1e-3, 6, 6)
    assert [response.weight_version for response in result.groups[0].responses] == [4, 4]
    trainer = make_trainer(one_of_two_right)
    drawn = [[group.prompt.index for group in trainer.train_step(step).groups] for step in (1, 2, 3)]
    assert drawn == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]


def test_responses_without_a_reward_are_filtered_and_counted_by_reason(make_trainer, one_of_two_right, fakes) -> None:
    scorer = fakes.abstaining_scorer(lambda one: one.index == 0 and "999" in one.text)
    trainer = make_trainer(one_of_two_right, reward_scorer=scorer)
    result = trainer.train_step(1)
    names = ("samples/generated", "samples/trained", "samples/filtered", "samples/filtered/timeout")
    assert [result.metrics[name] for name in names] == [8, 7, 1, 1]
    assert result.metrics["reward/invalid_ratio"] == 1 / 8
    # A sibling left alone has nothing to be compared with.
    assert not np.concatenate(result.groups[0].advantages).any()
    assert trainer.updater.batches[0][0].num_sequences == 3
    numbers = sorted(number for batch in trainer.updater.batches[0] for number in batch.samples_N if number >= 0)
    assert numbers == [0, 2, 3], "the filtered response must not be a row"
    rows = sum(int(batch.mask_NK.any(axis=1).sum()) for batch in trainer.updater.batches[0])
    assert rows == 3


def test_mini_batches_and_steps_without_any_reward(make_trainer, one_of_two_right, fakes, caplog) -> None:
    scorer = fakes.abstaining_scorer(lambda one: one.index < 2)
    trainer = make_trainer(one_of_two_right, reward_scorer=scorer)
    metrics = trainer.train_step(1).metrics
    assert (metrics["actor/updates"], metrics["samples/trained"], metrics["samples/filtered"]) == (1, 4, 4)
    assert trainer.weights.version == 1
    trainer = make_trainer(one_of_two_right, reward_scorer=fakes.abstaining_scorer(lambda one: True))
    with pytest.raises(TrainingError, match=r"step 7: none of the 8 responses has a reward \(8 timeout\)"):
        trainer.train_step(7)
    assert trainer.updater.batches == [] and trainer.weights.version == 0

    def verify(candidate: Candidate) -> Verification:
        raise RuntimeError("broken")

    scorer = Scorer(RewardSection(), build=lambda name, section: SimpleNamespace(verify=verify))
    with caplog.at_level(logging.WARNING), pytest.raises(TrainingError, match=r"\(8 error\)"):
        make_trainer(one_of_two_right, reward_scorer=scorer).train_step(1)
    assert "RuntimeError: broken" in caplog.text


def test_ratios_off_one_and_a_stale_engine(make_trainer, one_of_two_right, fakes) -> None:
    trainer = make_trainer(one_of_two_right, updater=fakes.updater(ratio_errors=[2e-5]))
    with pytest.raises(TrainingError, match=r"step 1: .* off 1 by 2e-05, allowed is trainer.max_ratio_error = 1e-05"):
        trainer.train_step(1)
    trainer = make_trainer(one_of_two_right, updater=fakes.updater(ratio_errors=[1e-6, 0.5]))
    metrics = trainer.train_step(1).metrics
    assert (metrics["actor/first_ratio_error_max"], metrics["actor/ratio_error_max"]) == (1e-6, 0.5)
    assert (metrics["actor/log_ratio_max"], metrics["actor/log_ratio_min"]) == (0.5, -0.5)
    trainer = make_trainer(one_of_two_right)
    trainer.weights.version = 1
    with pytest.raises(AssertionError):
        trainer.train_step(1)
