"""The batch table and the formulas of the start banner."""

from __future__ import annotations

import pytest

from mindgspo.config import batch_table, planned_steps
from mindgspo.config.algorithm import POLICY_LOSSES
from mindgspo.config.summary import advantage, objective
from mindgspo.errors import ConfigError


def test_batch_table_of_the_small_experiment(load):
    assert batch_table(load(), num_rows=1000) == [
        ("prompts per step", "12"),
        ("samples per step", "48 = 12 prompts x 4"),
        ("updates per rollout", "2 of 24 samples (6 prompts)"),
        ("micro-batches per update", "3 of 8 samples"),
        ("max tokens per step", "4,608 = 48 x (64 prompt + 32 response)"),
        ("steps", "3 (trainer.max_steps), 1,000 rows"),
        ("total samples", "144"),
        ("objective",
         "GSPO: mean_i min(s_i A_i, clip(s_i, 1-0.0003, 1+0.0004) A_i), s_i = exp(mean_t(logp_it - old_it))"),
        ("advantage", "A_i = (r_i - mean(r)) / (std(r) + 1e-06), over the group, ddof 1"),
        ("plans", "train 1 x 1 x 1, infer 1 x 1 x 1 (data x model x pipeline)"),
    ]  # fmt: skip


def test_epochs_become_full_steps_once_rows_are_counted(load):
    for epochs, rows, steps in ((1, 24, 2), (1, 35, 2), (3, 20, 5), (2, 6, 1)):
        config = load("trainer.max_steps=", f"trainer.epochs={epochs}")
        assert planned_steps(config, rows) == steps
        assert dict(batch_table(config, rows))["total samples"] == str(steps * 48)
    assert planned_steps(config, None) is None
    assert dict(batch_table(config, None))["steps"] == "2 epochs"
    assert planned_steps(load(), None) == 3
    with pytest.raises(ConfigError, match="12 prompts do not fit into 5 rows x 2 epochs; largest legal: 10"):
        planned_steps(config, 5)


# ----- The formulas of the start banner: one line each, with the numbers in use
S = "s_i = exp(mean_t(logp_it - old_it))"
W = "w_it = exp(logp_it - old_it)"
GAMMA = "algorithm.advantage={estimator: reinforce_plus_plus, gamma: 0.9}"
OBJECTIVES = {
    "gspo": f"GSPO: mean_i min(s_i A_i, clip(s_i, 1-0.0003, 1+0.0004) A_i), {S}",
    "gspo_token": "GSPO-token: mean_i mean_t min(s_it A_i, clip(s_it, 1-0.0003, 1+0.0004) A_i), "
                  f"s_it = sg[s_i] exp(logp_it - sg[logp_it]), {S}",
    "grpo": f"GRPO: mean_i mean_t min(w_it A_i, clip(w_it, 1-0.2, 1+0.27) A_i), {W}",
    "ppo": f"PPO: mean_it max(min(w_it A_i, clip(w_it, 1-0.2, 1+0.2) A_i), 3 A_i if A_i < 0), {W}",
    "dapo": f"DAPO: mean_it min(w_it A_i, clip(w_it, 1-0.2, 1+0.28) A_i), {W}",
    "dr_grpo": f"Dr.GRPO: 1/32 mean_i sum_t min(w_it A_i, clip(w_it, 1-0.2, 1+0.2) A_i), {W}",
    "gmpo": "GMPO: mean_i A_i s_i, s_i = exp(mean_t d_it), d_it = logp_it - old_it, at most 0.4 if A_i > 0, at least "
            "-0.4 if A_i < 0",
    "cispo": f"CISPO: mean_it sg[clip(w_it, 1-1, 1+4)] A_i logp_it, {W}",
    "sapo": f"SAPO: mean_i mean_t A_i sigmoid(tau (w_it - 1)) 4 / tau, tau = 1 if A_i > 0 else 1.05, {W}",
    "gpg": "GPG: mean_it A_i logp_it",
    "luspo": f"LUSPO: mean_i sum_t min(s_i A_i, clip(s_i, 1-0.002, 1+0.0025) A_i), {S}",
    "dppo_tv": "DPPO-TV: mean_it m_it sg[min(w_it, 20)] A_i logp_it, m_it = 0 beyond |p - q| of 0.15 below, 0.15 above "
               f"q, else 1, {W}",
    "dppo_kl": "DPPO-KL: mean_it m_it sg[min(w_it, 20)] A_i logp_it, m_it = 0 beyond KL of q and p of 0.05 below, 0.05 "
               f"above q, else 1, {W}",
    "vespo": "VESPO: mean_it sg[phi(W_i)] A_i logp_it, W_i = prod_t w_it, phi(W) = W^k exp(lambda (1 - W)), "
             f"k, lambda = 2, 3 if A_i >= 0 else 3, 2, {W}",
    "fipo": "FIPO: mean_it max(min(w_it f_it A_i, clip(w_it, 1-0.2, 1+0.28) f_it A_i), 10 f_it A_i if f_it A_i < 0), "
            f"f_it = sg[clip(exp(sum_(k>=t) 2^(-(k-t)/32) log w_ik), 1, 1.2)], {W}",
    "clip_cov": "Clip-Cov: mean_it min(w_it A_i, clip(w_it, 1-1, 1+1) A_i), 0 at 0.0002 of the tokens, with "
                f"1 < cov_it < 5, {W}",
    "kl_cov": "KL-Cov: mean_it (w_it A_i - 1 m_it |log w_it|), m_it = 1 at the 0.0002 of the tokens with the largest "
              f"cov_it, else 0, {W}",
}  # fmt: skip


def test_objective_of_turns(load):
    assert objective(load("algorithm.ratio_over=turn")) == (
        "GSPO: mean_i mean_t min(s_it A_i, clip(s_it, 1-0.0003, 1+0.0004) A_i), "
        "s_it = exp(mean over t's turn (logp_it - old_it))"
    )


def test_objective_of_every_loss(load):
    assert {name: objective(load(f"algorithm.name={name}")) for name in POLICY_LOSSES} == OBJECTIVES


@pytest.mark.parametrize(("mode", "mean"), [
    ("token-mean", "mean_it"),
    ("token-sum", "sum_it"),
    ("seq-mean-token-mean", "mean_i mean_t"),
    ("seq-mean-token-sum", "mean_i sum_t"),
    ("seq-mean-token-sum-norm", "1/50 mean_i sum_t"),
    ("batch-token-sum-norm", "1/50 sum_it"),
])  # fmt: skip
def test_objective_shows_the_aggregation(load, mode, mean):
    line = objective(load("algorithm.name=grpo", f"algorithm.loss_agg_mode={mode}", "algorithm.loss_scale_factor=50"))
    assert line == f"GRPO: {mean} min(w_it A_i, clip(w_it, 1-0.2, 1+0.27) A_i), {W}"


def test_objective_shows_caps_and_explains_the_weight_of_a_kl_term(load):
    caps = ["algorithm.clip_ratio_c=2.5", "algorithm.ratio_upper_clamp=4", "algorithm.loss_upper_clamp=6"]
    assert objective(load(*caps)) == (
        "GSPO: mean_i max(min(min(s_i, 4) A_i, clip(s_i, 1-0.0003, 1+0.0004) A_i), 2.5 A_i if A_i < 0, -6), " + S
    )
    line = objective(load("algorithm.kl={placement: loss, importance_weight: true}"))
    assert line.endswith(f" - 0.001 mean_i mean_t w_it k3(logp_it - ref_it), {S}, {W}")


@pytest.mark.parametrize(("overrides", "added"), [
    (["algorithm.kl.placement=loss"], " - 0.001 mean_i mean_t k3(logp_it - ref_it)"),
    (["algorithm.kl={placement: loss, coef: 0.04, agg_mode: token-mean}"], " - 0.04 mean_it k3(logp_it - ref_it)"),
    (["algorithm.kl={placement: loss, estimator: k1, straight_through: true}"],
     " - 0.001 mean_i mean_t k1(logp_it - ref_it) with the gradient of k2"),
    (["algorithm.kl={placement: loss, target: 0.1}"], " - beta mean_i mean_t k3(logp_it - ref_it)"),
    (["algorithm.kl.placement=reward"], ""),
    (["algorithm.entropy_coef=0.01"], " + 0.01 mean_i mean_t H_it"),
    (["algorithm.kl.placement=loss", "algorithm.entropy_coef=0.01"],
     " - 0.001 mean_i mean_t k3(logp_it - ref_it) + 0.01 mean_i mean_t H_it"),
])  # fmt: skip
def test_objective_shows_kl_and_entropy(load, overrides, added):
    surrogate = "mean_i mean_t A_i sigmoid(tau (w_it - 1)) 4 / tau"
    line = objective(load("algorithm.name=sapo", *overrides))
    assert line == f"SAPO: {surrogate}{added}, tau = 1 if A_i > 0 else 1.05, {W}"


@pytest.mark.parametrize(("overrides", "expected"), [
    ([GAMMA], f"GSPO: mean_i mean_t min(s_i A_it, clip(s_i, 1-0.0003, 1+0.0004) A_it), {S}"),
    (["algorithm.rollout_correction.level=token"],
     f"GSPO: mean_i mean_t c_it min(s_i A_i, clip(s_i, 1-0.0003, 1+0.0004) A_i), {S}"),
    (["algorithm.rollout_correction.level=geometric"],
     f"GSPO: mean_i c_i min(s_i A_i, clip(s_i, 1-0.0003, 1+0.0004) A_i), {S}"),
    ([GAMMA, "algorithm.name=gpg"], "GPG: mean_it A_it logp_it"),
    ([GAMMA, "algorithm.name=gmpo", "algorithm.rollout_correction.level=token"],
     "GMPO: mean_i exp(mean_t(log c_it)) mean_t(A_it) s_i, s_i = exp(mean_t d_it), d_it = logp_it - old_it, at most "
     "0.4 if A_it > 0, at least -0.4 if A_it < 0"),
])  # fmt: skip
def test_objective_tells_values_per_token_from_values_per_response(load, overrides, expected):
    assert objective(load(*overrides)) == expected


@pytest.mark.parametrize(("settings", "expected"), [
    ("{}", "A_i = (r_i - mean(r)) / (std(r) + 1e-06), over the group, ddof 1"),
    ("{ddof: 0, eps: 1e-4}", "A_i = (r_i - mean(r)) / (std(r) + 0.0001), over the group, ddof 0"),
    ("{std_over: batch}", "A_i = (r_i - mean(r)) / (std(r) + 1e-06), mean over the group, std over the batch, ddof 1"),
    ("{normalize_by_std: false}", "A_i = r_i - mean(r), over the group"),
    ("{estimator: dr_grpo}", "A_i = r_i - mean(r), over the group"),
    ("{estimator: rloo}", "A_i = r_i - mean(r of the others), over the group"),
    ("{estimator: opo}", "A_i = r_i - sum(|y| r) / sum(|y|), over the group"),
    ("{estimator: max_rl}", "A_i = (r_i - mean(r)) / mean(r), over the group"),
    ("{estimator: pass_k}", "A_i = (r_i - second best r) / (std(r) + 1e-06) for the best of the group, else 0"),
    ("{estimator: pass_k, normalize_by_std: false}", "A_i = (r_i - second best r) for the best of the group, else 0"),
    ("{estimator: gpg}",
     "A_i = N / (number of r other than 0) (r_i - mean(r)), mean over the group, N over the batch"),
    ("{estimator: remax}", "A_i = r_i - r of the greedy response"),
    ("{estimator: reinforce_plus_plus}", "A_i = r_i, whitened over all tokens (unbiased)"),
    ("{estimator: reinforce_plus_plus, gamma: 0.9, whiten: none}", "A_it = sum of 0.9^(s-t) r_is over s >= t"),
    ("{estimator: reinforce_plus_plus_baseline, whiten: biased}",
     "A_i = r_i - mean(r), over the group, whitened over all tokens (biased)"),
])  # fmt: skip
def test_advantage_of_every_estimator(load, settings, expected):
    assert advantage(load(f"algorithm.advantage={settings}")) == expected


def test_advantage_of_several_reward_functions(load):
    functions = ["reward.functions=[gsm8k, math_dapo]", "reward.weights=[1, 1]"]
    assert advantage(load("algorithm.advantage.combine=normalize_then_sum", *functions)) == (
        "A_i = B_i normalised over the batch, B_i = sum_k weight_k (r_ik - mean(r_k)) / (std(r_k) + 1e-06), "
        "over the group"
    )


def test_advantage_shows_a_penalty_in_the_reward(load):
    reward = "algorithm.kl={placement: reward, estimator: k1, coef: 0.1}"
    assert advantage(load(reward, "algorithm.advantage.estimator=rloo")) == (
        "A_i = r_i - mean(r of the others), over the group; r_i less sum_t 0.1 k1(old_it - ref_it)"
    )
    assert advantage(load(reward, "algorithm.advantage.estimator=remax")) == (
        "A_it = (sum of r_is over s >= t) - r of the greedy response; r_it less 0.1 k1(old_it - ref_it)"
    )


@pytest.mark.parametrize(("overrides", "line", "text"), [
    (["algorithm.kl.placement=loss"], "reference policy",
     "the policy before the first step; k3 in the loss, coefficient 0.001"),
    (["algorithm.kl={placement: reward, estimator: k1, coef: 0.1, target: 6}"], "reference policy",
     "the policy before the first step; k1 in the reward, coefficient beta = 0.1 at first, steered to a mean KL of 6 "
     "per token (horizon 10,000)"),
    (["algorithm.rollout_correction.level=token"], "rollout correction", "c_it = exp(old_it - sampler_it), at most 2"),
    (["algorithm.rollout_correction={level: sequence, mode: mask, max: 4}"], "rollout correction",
     "c_i = exp(sum_t(old_it - sampler_it)), 0 outside [0.25, 4]"),
    (["algorithm.rollout_correction={level: geometric, mode: mask, max: 4, min: 0.5}"], "rollout correction",
     "c_i = exp(mean_t(old_it - sampler_it)), 0 outside [0.5, 4]"),
])  # fmt: skip
def test_batch_table_says_what_is_switched_on(load, overrides, line, text):
    table = batch_table(load(*overrides), None)
    assert dict(table)[line] == text
    assert len(table) == len(batch_table(load(), None)) + 1
