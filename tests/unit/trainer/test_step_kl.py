"""The KL penalty in a step: in the reward, in the loss, with a fixed and with an adaptive coefficient.

The old policy gives a token of id n the log-prob -0.02 n, the reference -0.03 n: u = log pi - log pi_ref = 0.01 n.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scripted_engine import assert_advantages, micro_batches, responses_of

from mindgspo.algorithms.kl_control import KLController
from mindgspo.types import StepResult

KL_IN_REWARD = ("algorithm.kl.placement=reward", "algorithm.kl.coef=0.05")
KL_IN_LOSS = ("algorithm.kl.placement=loss", "algorithm.kl.coef=0.05")
HALF = math.sqrt(0.5)  # rewards 1 and 0: (1 - 0.5) / std, ddof 1
DR_GRPO = "algorithm.advantage.estimator=dr_grpo"


@pytest.fixture
def make(make_trainer, one_of_two_right, fakes):
    """make(*overrides, **trainer): trainer with the two policies above."""

    def with_policies(*overrides: str, **changed: object):
        policies = {
            "old_policy": fakes.scorer(lambda ids: -0.02 * ids),
            "reference": fakes.reference(lambda ids: -0.03 * ids),
        }
        return make_trainer(one_of_two_right, *overrides, **{**policies, **changed})

    return with_policies


TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


def ids_of(result: StepResult) -> list[np.ndarray]:
    return [response.ids.astype(np.float64) for response in responses_of(result)]


def rewards_of(result: StepResult) -> list[float]:
    return [score.value for group in result.groups for score in group.scores]


KL = {"k1": lambda u: u, "k2": lambda u: u**2 / 2, "k3": lambda u: np.exp(-u) + u - 1, "abs": np.abs}


@pytest.mark.parametrize("estimator", KL)
def test_the_penalty_of_all_tokens_is_taken_from_the_reward(estimator: str, make) -> None:
    trainer = make(*KL_IN_REWARD, f"algorithm.kl.estimator={estimator}", DR_GRPO)
    result = trainer.train_step(1)
    tokens = [KL[estimator](0.01 * ids) for ids in ids_of(result)]
    rewards = np.array(rewards_of(result)) - 0.05 * np.array([kl.sum() for kl in tokens])
    assert len(set(np.round(rewards, 6))) > 4, "the penalties should differ"
    centred = (rewards.reshape(4, 2) - rewards.reshape(4, 2).mean(axis=1, keepdims=True)).reshape(-1)
    assert_advantages(
        result, trainer, [np.full(kl.size, one) for kl, one in zip(tokens, centred, strict=True)], **TOLERANCE
    )
    metrics = result.metrics
    assert metrics["critic/kl"] == pytest.approx(np.concatenate(tokens).mean(), rel=1e-5)
    found = [metrics[f"critic/rewards/{name}"] for name in ("mean", "max", "min")]
    assert found == pytest.approx([rewards.mean(), rewards.max(), rewards.min()], rel=1e-5)
    assert (metrics["critic/score/mean"], metrics["critic/score/max"]) == (0.5, 1), "scores are what was judged"
    assert metrics["actor/kl_coef"] == 0.05
    assert not metrics.keys() & {"actor/kl", "actor/kl_loss"} and trainer.updater.kl_coefs == [0, 0], "not twice"
    assert rewards_of(result) == [1, 0] * 4


def test_reinforce_plus_plus_charges_every_token_its_own_penalty(make) -> None:
    trainer = make(
        *KL_IN_REWARD, "algorithm.kl.estimator=k1", "algorithm.name=gspo_token",
        "algorithm.advantage.estimator=reinforce_plus_plus", "algorithm.advantage.gamma=0.5",
        "algorithm.advantage.whiten=none",
    )  # fmt: skip
    result = trainer.train_step(1)
    expected = []
    for ids, reward in zip(ids_of(result), rewards_of(result), strict=True):
        returns, to_come = [], 0.0
        for token, token_reward in zip(ids[::-1], [reward] + [0.0] * (ids.size - 1), strict=True):
            to_come = token_reward - 0.05 * 0.01 * token + 0.5 * to_come
            returns.append(to_come)
        expected.append(np.array(returns[::-1]))
    assert_advantages(result, trainer, expected, **TOLERANCE)


def test_responses_that_are_not_trained_are_not_measured(make, fakes) -> None:
    scorer = fakes.abstaining_scorer(lambda one: one.index == 0 and "999" in one.text)
    trainer = make(*KL_IN_REWARD, "algorithm.kl.estimator=k1", DR_GRPO, reward_scorer=scorer)
    result = trainer.train_step(1)
    tokens = [0.01 * ids for number, ids in enumerate(ids_of(result)) if number != 1]
    rewards = [
        reward - 0.05 * kl.sum()
        for reward, kl in zip([reward for reward in rewards_of(result) if reward is not None], tokens, strict=True)
    ]
    assert result.metrics["critic/kl"] == pytest.approx(np.concatenate(tokens).mean(), rel=1e-5)
    assert result.metrics["critic/rewards/min"] == pytest.approx(min(rewards), rel=1e-5)
    assert result.metrics["critic/rewards/mean"] == pytest.approx(np.mean(rewards), rel=1e-5)


def test_the_loss_gets_the_coefficient_and_the_reference_or_nothing(make, fakes) -> None:
    trainer = make(*KL_IN_LOSS, updater=fakes.updater(kls=[0.25, 0.75]))
    result = trainer.train_step(1)
    assert trainer.updater.kl_coefs == [0.05, 0.05]
    for batch in micro_batches(trainer):
        ids = np.where(batch.mask_NK, batch.targets_NK, 0)
        np.testing.assert_allclose(batch.ref_logp_NK, -0.03 * ids, rtol=1e-6)
        np.testing.assert_allclose(batch.old_logp_NK, -0.02 * ids, rtol=1e-6)
    metrics = result.metrics
    assert (metrics["actor/kl"], metrics["actor/kl_loss"], metrics["actor/kl_coef"]) == (0.5, 1.0, 0.05)
    assert "critic/kl" not in metrics and metrics["critic/rewards/mean"] == 0.5, "the reward is left alone"
    for group in result.groups:
        assert [advantages[0] for advantages in group.advantages] == pytest.approx([HALF, -HALF], rel=1e-5)
    trainer = make("algorithm.kl.coef=0.05", reference=None, updater=fakes.updater(kls=[0.25, 0.75]))
    metrics = trainer.train_step(1).metrics
    assert not metrics.keys() & {"actor/kl", "actor/kl_loss", "actor/kl_coef", "critic/kl"}
    assert trainer.updater.kl_coefs == [0, 0]
    assert not any(batch.ref_logp_NK.any() for batch in micro_batches(trainer))


ADAPTIVE = ("algorithm.kl.target=0.1", "algorithm.kl.horizon=80", "algorithm.kl.coef=0.5")


def test_an_adaptive_coefficient_answers_to_trained_responses_and_survives(make, fakes) -> None:
    # 8 responses at a horizon of 80. Step 1: mean KL 0.11, 10 % above the target; step 2: 0, bounded at 20 %.
    trainer = make(*KL_IN_LOSS, *ADAPTIVE, updater=fakes.updater(kls=[0.10, 0.12, 0.0, 0.0]))
    coefs = [trainer.train_step(step).metrics["actor/kl_coef"] for step in (1, 2, 3)]
    rising, falling = 0.5 * (1 + 0.1 * 8 / 80), 0.5 * (1 + 0.1 * 8 / 80) * (1 - 0.2 * 8 / 80)
    assert coefs == pytest.approx([0.5, rising, falling])
    assert trainer.updater.kl_coefs == pytest.approx([0.5, 0.5, rising, rising, falling, falling])
    abstains = [1]
    scorer = fakes.abstaining_scorer(lambda candidate: candidate.index in abstains and "999" in candidate.text)
    settings = (*KL_IN_LOSS, *ADAPTIVE, "algorithm.filter_groups.metric=reward")
    trainer = make(*settings, reward_scorer=scorer, updater=fakes.updater(kls=[0.11, 0.11]))
    assert trainer.train_step(1).metrics["samples/trained"] == 6
    moved = 0.5 * (1 + 0.1 * 6 / 80)
    assert trainer.kl.coef == pytest.approx(moved)
    abstains += [4, 5, 6, 7]
    assert trainer.train_step(2).metrics["samples/trained"] == 0
    assert trainer.kl.coef == pytest.approx(moved)
    trainer = make(*KL_IN_LOSS, *ADAPTIVE, updater=fakes.updater(kls=[0.5, 0.5]))
    trainer.train_step(1)
    saved = json.loads(json.dumps(trainer.kl.state()))
    resumed = KLController(trainer.algorithm.kl)
    assert resumed.coef == 0.5
    resumed.load_state(saved)
    assert resumed.coef == trainer.kl.coef != 0.5


def test_in_the_reward_it_answers_to_the_critics_kl_and_weighs_the_next_rewards(make) -> None:
    trainer = make(*KL_IN_REWARD, *ADAPTIVE, "algorithm.kl.estimator=k1", DR_GRPO)
    first = trainer.train_step(1)
    moved = 0.5 * (1 + 0.2 * 8 / 80)
    assert first.metrics["critic/kl"] > 0.12 and trainer.kl.coef == pytest.approx(moved)
    second = trainer.train_step(2)
    assert second.metrics["actor/kl_coef"] == pytest.approx(moved)
    rewards = [
        reward - moved * 0.01 * ids.sum() for reward, ids in zip(rewards_of(second), ids_of(second), strict=True)
    ]
    assert second.metrics["critic/rewards/mean"] == pytest.approx(np.mean(rewards), rel=1e-5)
