"""Rules of `algorithm`: what is refused, with the numbers and what to write instead."""

from __future__ import annotations

from typing import get_args

import pytest

from mindgspo.config import AdvantageSection, dump_config, load_config
from mindgspo.config.algorithm import POLICY_LOSSES, AggregationMode, EstimatorName
from mindgspo.config.algorithm_rules import LENGTH_FACTORS, READERS, WITHOUT_SIBLINGS, default_kl_agg_mode

ON = "algorithm.kl.placement=loss"
FUNCTIONS = ["reward.functions=[gsm8k, math_dapo]", "reward.weights=[1, 1]"]
BOTH_GSPO = pytest.mark.parametrize("name", ["gspo", "gspo_token"])


def test_every_loss_and_every_estimator_runs_with_its_defaults(load):
    for name in POLICY_LOSSES:
        load(f"algorithm.name={name}")
    for estimator in ("rloo", "opo", "max_rl", "pass_k", "gpg", "remax", "reinforce_plus_plus_baseline"):
        load(f"algorithm.advantage.estimator={estimator}")


# ----- GSPO's two traps


@BOTH_GSPO
@pytest.mark.parametrize("key", ["clip_low", "clip_high"])
def test_grpos_clip_range_is_refused_for_gspo(problems, load, name, key):
    name = f"algorithm.name={name}"
    (line,) = problems(name, f"algorithm.{key}=0.2")
    assert line.startswith(f"algorithm.{key}: ")
    assert "0.2" in line and "nothing would be clipped" in line
    assert "clip_low=3e-4" in line and "clip_high=4e-4" in line and "allow_wide_clip=true" in line
    assert load(name, f"algorithm.{key}=0.01")
    assert load(f"algorithm.{key}=0.2", "algorithm.name=grpo")
    assert load(name, f"algorithm.{key}=0.2", "algorithm.allow_wide_clip=true")


@BOTH_GSPO
@pytest.mark.parametrize(
    ("mode", "factor"),
    [
        ("token-mean", "B |y_i| / sum |y|"),
        ("token-sum", "B |y_i|"),
        ("seq-mean-token-sum", "|y_i|"),
        ("seq-mean-token-sum-norm", "|y_i| / L"),
        ("batch-token-sum-norm", "B |y_i| / L"),
    ],
)
def test_token_weighting_is_refused_for_gspo(problems, load, name, mode, factor):
    overrides = [f"algorithm.name={name}", f"algorithm.loss_agg_mode={mode}"]
    (line,) = problems(*overrides)
    assert line.startswith(f"algorithm.loss_agg_mode: {mode} multiplies each response's gradient in {name} by {factor}")
    assert "long responses dominate" in line
    assert "loss_agg_mode=seq-mean-token-mean" in line and "allow_token_weighting=true" in line
    assert load(*overrides, "algorithm.allow_token_weighting=true").algorithm.loss_agg_mode == mode
    assert load("algorithm.name=grpo", f"algorithm.loss_agg_mode={mode}")


def test_both_traps_are_reported_together(problems):
    lines = problems("algorithm.clip_high=0.2", "algorithm.loss_agg_mode=token-mean")
    assert [line.partition(":")[0] for line in lines] == ["algorithm.clip_high", "algorithm.loss_agg_mode"]


# ----- what fits which loss, estimator and placement


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["algorithm.name=gmpo", "algorithm.loss_agg_mode=token-mean"],
            "algorithm.loss_agg_mode: token-mean adds up losses of tokens, but gmpo has one loss per response; "
            "set algorithm.loss_agg_mode=batch-mean",
        ),
        (
            ["algorithm.name=dapo", "algorithm.loss_agg_mode=batch-mean"],
            "algorithm.loss_agg_mode: batch-mean is for gmpo, which has one loss per response and none per token; "
            "for dapo set algorithm.loss_agg_mode=token-mean",
        ),
        (
            ["algorithm.loss_agg_mode=batch-mean"],
            "algorithm.loss_agg_mode: batch-mean is for gmpo, which has one loss per response and none per token; "
            "for gspo set algorithm.loss_agg_mode=seq-mean-token-mean",
        ),
        (
            ["algorithm.name=sapo", "algorithm.clip_low=0.2"],
            "algorithm.clip_low: 0.2, but sapo has no clip range; remove it (--set algorithm.clip_low=), or set "
            "algorithm.name to a loss that clips, e.g. grpo",
        ),
        (
            ["algorithm.name=gpg", "algorithm.clip_high=0.3"],
            "algorithm.clip_high: 0.3, but gpg has no clip range; remove it (--set algorithm.clip_high=), or set "
            "algorithm.name to a loss that clips, e.g. grpo",
        ),
        (
            ["algorithm.name=cispo", "algorithm.clip_ratio_c=3"],
            "algorithm.clip_ratio_c: 3 bounds the clipped surrogate, which cispo does not use; remove it "
            "(--set algorithm.clip_ratio_c=), or set algorithm.name to one of gspo, gspo_token, grpo, ppo, dapo, "
            "dr_grpo",
        ),
        (
            ["algorithm.name=grpo", "algorithm.ratio_upper_clamp=1"],
            "algorithm.ratio_upper_clamp: 1 is not above 1, where every ratio starts, so nothing but ratios below it "
            "would be trained; set it above 1 + algorithm.clip_high",
        ),
        (
            ["algorithm.tau_neg=2"],
            "algorithm.tau_neg: 2 is read by sapo alone, not by gspo; remove it, or set algorithm.name=sapo",
        ),
        (
            [ON, "algorithm.kl.agg_mode=batch-mean"],
            "algorithm.kl.agg_mode: batch-mean takes one value per response, but a KL estimate has one per token; "
            "set algorithm.kl.agg_mode=seq-mean-token-mean",
        ),
        (
            ["algorithm.kl.placement=reward", "algorithm.kl.straight_through=true"],
            "algorithm.kl.straight_through: true belongs to a penalty in the loss, but algorithm.kl.placement is "
            "reward; set algorithm.kl.placement=loss, or remove it",
        ),
        (
            ["algorithm.kl.importance_weight=true"],
            "algorithm.kl.importance_weight: true belongs to a penalty in the loss, but algorithm.kl.placement is "
            "none; set algorithm.kl.placement=loss, or remove it",
        ),
        (
            ["algorithm.kl.agg_mode=token-mean"],
            "algorithm.kl.agg_mode: token-mean belongs to a penalty in the loss, but algorithm.kl.placement is none; "
            "set algorithm.kl.placement=loss, or remove it",
        ),
        (
            ["algorithm.kl.target=0.1"],
            "algorithm.kl.target: 0.1 has no penalty to steer, because algorithm.kl.placement is none; set "
            "algorithm.kl.placement to loss or reward, or remove it",
        ),
        (
            [ON, "algorithm.kl.target=0.1", "algorithm.kl.coef=0"],
            "algorithm.kl.coef: 0 stays 0, because steering to algorithm.kl.target 0.1 multiplies it; set a first "
            "value, e.g. algorithm.kl.coef=1e-3",
        ),
        (
            [ON, "algorithm.kl.target=0.1", "algorithm.kl.horizon=9"],
            "algorithm.kl.horizon: 9 is too short for the 48 responses of a step, after which the coefficient could "
            "be 0 or negative; legal: above 9; usual: at least 48",
        ),
        (
            ["algorithm.rollout_correction={level: token, min: 0.5}"],
            "algorithm.rollout_correction.min: 0.5 is the lower bound of mode mask, but "
            "algorithm.rollout_correction.mode is truncate; set algorithm.rollout_correction.mode=mask, or remove it",
        ),
        (
            ["algorithm.rollout_correction={level: token, mode: mask, min: 2}"],
            "algorithm.rollout_correction.min: 2 must be below algorithm.rollout_correction.max 2 and at most 1, the "
            "weight where sampler and trainer agree; usual: 0.5 to 2",
        ),
        (
            ["algorithm.rollout_correction={level: token, mode: mask, max: 1}"],
            "algorithm.rollout_correction.min: none, so 1 / max = 1 must be below algorithm.rollout_correction.max 1 "
            "and at most 1, the weight where sampler and trainer agree; usual: 0.5 to 2",
        ),
        (
            ["algorithm.rollout_correction={level: token, max: 0.9}"],
            "algorithm.rollout_correction.max: 0.9 is below 1, the weight where sampler and trainer agree; set 1 or "
            "more (usual: 2)",
        ),
        (
            ["algorithm.advantage.gamma=0.9"],
            "algorithm.advantage.gamma: 0.9 is not read by estimator grpo; remove it, or set "
            "algorithm.advantage.estimator=reinforce_plus_plus",
        ),
        (
            ["algorithm.advantage={estimator: rloo, whiten: none}"],
            "algorithm.advantage.whiten: none is not read by estimator rloo; remove it, or set "
            "algorithm.advantage.estimator=reinforce_plus_plus or reinforce_plus_plus_baseline",
        ),
        (
            ["algorithm.name=dr_grpo", "algorithm.advantage.std_over=batch"],
            "algorithm.advantage.std_over: batch is not read by estimator dr_grpo; remove it, or set "
            "algorithm.advantage.estimator=grpo or pass_k",
        ),
        (
            ["algorithm.advantage={estimator: rloo, combine: normalize_then_sum}", *FUNCTIONS],
            "algorithm.advantage.combine: normalize_then_sum is not read by estimator rloo; remove it, or set "
            "algorithm.advantage.estimator=grpo",
        ),
        (
            ["algorithm.advantage.combine=normalize_then_sum"],
            "algorithm.advantage.combine: normalize_then_sum joins several reward functions, but reward.functions has "
            "only auto; add one, or set algorithm.advantage.combine=sum_then_normalize",
        ),
        (
            [
                "algorithm.advantage.combine=normalize_then_sum",
                "reward.functions=[auto, math_dapo]",
                "reward.weights=[1, 1]",
            ],
            "reward.functions: auto stands for another function in each row, but "
            "algorithm.advantage.combine=normalize_then_sum compares each function with itself; name the functions, "
            "e.g. [gsm8k, math_dapo]",
        ),
        (
            ["algorithm.advantage={combine: normalize_then_sum, normalize_by_std: false}", *FUNCTIONS],
            "algorithm.advantage.normalize_by_std: false is not read with "
            "algorithm.advantage.combine=normalize_then_sum, which means true; remove it, or set "
            "algorithm.advantage.combine=sum_then_normalize",
        ),
        (
            ["algorithm.advantage={combine: normalize_then_sum, singleton: raw}", *FUNCTIONS],
            "algorithm.advantage.singleton: raw is not read with algorithm.advantage.combine=normalize_then_sum, "
            "which means zero; remove it, or set algorithm.advantage.combine=sum_then_normalize",
        ),
        (
            ["algorithm.advantage.combine=normalize_then_sum", "algorithm.kl.placement=reward", *FUNCTIONS],
            "algorithm.kl.placement: a penalty in the reward has no unit beside rewards that are normalised one by "
            "one (algorithm.advantage.combine=normalize_then_sum); set algorithm.kl.placement=loss",
        ),
        (
            ["rollout.num_generations=1", "trainer.samples_per_micro_batch=6"],
            "rollout.num_generations: 1 leaves estimator grpo nothing to compare a response with; nearest legal: 2 "
            "(usual: 8 or 16), or algorithm.advantage.estimator=remax or reinforce_plus_plus",
        ),
    ],
)
def test_one_violated_rule_gives_one_line_with_numbers_and_a_fix(problems, overrides, expected):
    assert problems(*overrides) == [expected]


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.name=cispo", "algorithm.loss_upper_clamp=3"],
        ["algorithm.name=gmpo", "algorithm.ratio_upper_clamp=3"],
        ["algorithm.name=gpg", "algorithm.clip_ratio_c=3"],
    ],
)
def test_caps_belong_to_the_clipped_surrogate(problems, overrides):
    (line,) = problems(*overrides)
    assert "bounds the clipped surrogate" in line


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.name=ppo", "algorithm.clip_ratio_c=2", "algorithm.ratio_upper_clamp=4"],
        ["algorithm.clip_ratio_c=3"],  # any ratio level, as slime and OpenRLHF
        ["algorithm.name=sapo", "algorithm.tau_pos=2"],
        ["algorithm.clip_low=0", "algorithm.clip_high=0"],
        [ON, "algorithm.kl.target=0.1", "algorithm.kl.horizon=10"],
        [ON, "algorithm.kl.agg_mode=token-mean"],
        [ON, "algorithm.name=gmpo"],
        ["algorithm.kl.placement=reward", "algorithm.kl.estimator=k1", "algorithm.kl.target=0.1"],
        ["algorithm.rollout_correction={level: sequence, mode: mask, max: 1, min: 0.5}"],
        ["algorithm.rollout_correction={level: token, max: 1}"],
        ["algorithm.advantage={estimator: reinforce_plus_plus, gamma: 0.9, whiten: none}"],
        ["algorithm.advantage={estimator: pass_k, std_over: batch}"],
        ["algorithm.advantage.combine=normalize_then_sum", *FUNCTIONS],
    ],
)
def test_settings_at_their_limits_are_legal(load, overrides):
    load(*overrides)


@pytest.mark.parametrize("estimator", ["remax", "reinforce_plus_plus"])
def test_one_response_per_prompt_is_enough_without_siblings(load, estimator):
    load("rollout.num_generations=1", "trainer.samples_per_micro_batch=6", f"algorithm.advantage.estimator={estimator}")


def test_k1_in_the_loss_needs_a_gradient(problems, load):
    k1 = [ON, "algorithm.kl.estimator=k1"]
    (line,) = problems(*k1)
    assert line.startswith("algorithm.kl.estimator: k1 in the loss has a gradient of mean 0")
    for fix in ("algorithm.kl.straight_through=true", "algorithm.kl.importance_weight=true"):
        assert fix in line
        load(*k1, fix)
    for estimator in ("k2", "k3", "low_var_kl", "abs"):
        load(ON, f"algorithm.kl.estimator={estimator}")


def test_what_a_resolved_config_says_is_legal_again(load, tmp_path):
    """Derived defaults, once written out, must not look like choices of the user."""
    for name in POLICY_LOSSES:
        config = load(f"algorithm.name={name}")
        (tmp_path / "dumped.yaml").write_text(dump_config(config))
        assert load_config(tmp_path / "dumped.yaml") == config


def test_tables_of_the_rules_name_what_the_schema_knows():
    estimators = set(get_args(EstimatorName))
    assert set(READERS) == set(AdvantageSection.model_fields) - {"estimator"}
    assert all(set(names) <= estimators for names in READERS.values())
    assert set(WITHOUT_SIBLINGS) <= estimators
    assert set(LENGTH_FACTORS) == set(get_args(AggregationMode)) - {"seq-mean-token-mean", "batch-mean"}


@pytest.mark.parametrize("mode", get_args(AggregationMode))
def test_default_aggregation_of_the_kl_term_is_the_one_that_loading_fills_in(load, mode):
    name = "gmpo" if mode == "batch-mean" else "grpo"
    config = load(f"algorithm.name={name}", f"algorithm.loss_agg_mode={mode}")
    assert config.algorithm.kl.agg_mode == default_kl_agg_mode(mode)
