"""Rules and notes of `algorithm`, rules of `reward`."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from mindgspo.config import AdvantageSection, dump_config, load_config, notes
from mindgspo.config.algorithm import POLICY_LOSSES, AggregationMode, EstimatorName
from mindgspo.config.algorithm_rules import LENGTH_FACTORS, READERS, WITHOUT_SIBLINGS, default_kl_agg_mode
from mindgspo.config.reward import file_function, function_label

ON = "algorithm.kl.placement=loss"
FUNCTIONS = ["reward.functions=[gsm8k, math_dapo]", "reward.weights=[1, 1]"]
ALONE = ["rollout.num_generations=1", "trainer.samples_per_micro_batch=6"]
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
    line, second = problems(name, f"algorithm.{key}=0.2", "algorithm.loss_agg_mode=token-mean")
    assert line.startswith(f"algorithm.{key}: ") and second.startswith("algorithm.loss_agg_mode: ")
    assert "0.2" in line and "nothing would be clipped" in line
    assert "clip_low=3e-4" in line and "clip_high=4e-4" in line and "allow_wide_clip=true" in line
    load(name, f"algorithm.{key}=0.01")
    load(f"algorithm.{key}=0.2", "algorithm.name=grpo")
    load(name, f"algorithm.{key}=0.2", "algorithm.allow_wide_clip=true")


@BOTH_GSPO
@pytest.mark.parametrize(("mode", "factor"), [
    ("token-mean", "B |y_i| / sum |y|"),
    ("token-sum", "B |y_i|"),
    ("seq-mean-token-sum", "|y_i|"),
    ("seq-mean-token-sum-norm", "|y_i| / L"),
    ("batch-token-sum-norm", "B |y_i| / L"),
])  # fmt: skip
def test_token_weighting_is_refused_for_gspo(problems, load, name, mode, factor):
    overrides = [f"algorithm.name={name}", f"algorithm.loss_agg_mode={mode}"]
    (line,) = problems(*overrides)
    assert line.startswith(f"algorithm.loss_agg_mode: {mode} multiplies each response's gradient in {name} by {factor}")
    assert "long responses dominate" in line
    assert "loss_agg_mode=seq-mean-token-mean" in line and "allow_token_weighting=true" in line
    assert load(*overrides, "algorithm.allow_token_weighting=true").algorithm.loss_agg_mode == mode
    assert load("algorithm.name=grpo", f"algorithm.loss_agg_mode={mode}")


def test_only_gspo_takes_turns_for_sequences(problems, load):
    assert load("algorithm.ratio_over=turn").algorithm.ratio_over == "turn"
    for name in sorted(POLICY_LOSSES.keys() - {"gspo"}):
        (line,) = problems(f"algorithm.name={name}", "algorithm.ratio_over=turn")
        assert line.startswith("algorithm.ratio_over: turn is for gspo") and line.endswith("set algorithm.name=gspo")


# ----- what fits which loss, estimator and placement
@pytest.mark.parametrize(("overrides", "expected"), [
    (["algorithm.name=gmpo", "algorithm.loss_agg_mode=token-mean"],
     "algorithm.loss_agg_mode: token-mean adds up losses of tokens, but gmpo has one loss per response; set "
     "algorithm.loss_agg_mode=batch-mean"),
    (["algorithm.name=dapo", "algorithm.loss_agg_mode=batch-mean"],
     "algorithm.loss_agg_mode: batch-mean is for gmpo, which has one loss per response and none per token; for dapo "
     "set algorithm.loss_agg_mode=token-mean"),
    (["algorithm.loss_agg_mode=batch-mean"],
     "algorithm.loss_agg_mode: batch-mean is for gmpo, which has one loss per response and none per token; for gspo "
     "set algorithm.loss_agg_mode=seq-mean-token-mean"),
    (["algorithm.name=sapo", "algorithm.clip_low=0.2"],
     "algorithm.clip_low: 0.2, but sapo has no clip range; remove it (--set algorithm.clip_low=), or set "
     "algorithm.name to a loss that clips, e.g. grpo"),
    (["algorithm.name=gpg", "algorithm.clip_high=0.3"],
     "algorithm.clip_high: 0.3, but gpg has no clip range; remove it (--set algorithm.clip_high=), or set "
     "algorithm.name to a loss that clips, e.g. grpo"),
    (["algorithm.name=cispo", "algorithm.clip_ratio_c=3"],
     "algorithm.clip_ratio_c: 3 bounds the clipped surrogate, which cispo does not use; remove it (--set "
     "algorithm.clip_ratio_c=), or set algorithm.name to one of gspo, gspo_token, grpo, ppo, dapo, dr_grpo, luspo, "
     "dppo_tv, dppo_kl, fipo, clip_cov"),
    (["algorithm.name=luspo", "algorithm.loss_agg_mode=seq-mean-token-mean"],
     "algorithm.loss_agg_mode: seq-mean-token-mean divides every response by the length that luspo multiplies it by, "
     "which leaves gspo; set algorithm.loss_agg_mode=seq-mean-token-sum (paper), or algorithm.name=gspo"),
    (["algorithm.vespo.k_pos=1"],
     "algorithm.vespo.k_pos: 1 is read by vespo alone, not by gspo; remove it, or set algorithm.name=vespo"),
    (["algorithm.name=kl_cov", "algorithm.covariance.low=0.5"],
     "algorithm.covariance.low: 0.5 is read by clip_cov alone, not by kl_cov; remove it, or set "
     "algorithm.name=clip_cov"),
    (["algorithm.name=clip_cov", "algorithm.covariance.low=5"],
     "algorithm.covariance.low: 5 is not below algorithm.covariance.high 5, so no token lies between; paper: 1 and 5"),
    (["algorithm.name=vespo", "algorithm.rollout_correction.level=sequence"],
     "algorithm.rollout_correction.level: sequence gives every token of a response one weight, and vespo multiplies "
     "the weights of a response's tokens; set algorithm.rollout_correction.level=token"),
    (["algorithm.name=grpo", "algorithm.ratio_upper_clamp=1"],
     "algorithm.ratio_upper_clamp: 1 is not above 1, where every ratio starts, so nothing but ratios below it would "
     "be trained; set it above 1 + algorithm.clip_high"),
    (["algorithm.tau_neg=2"],
     "algorithm.tau_neg: 2 is read by sapo alone, not by gspo; remove it, or set algorithm.name=sapo"),
    ([ON, "algorithm.kl.agg_mode=batch-mean"],
     "algorithm.kl.agg_mode: batch-mean takes one value per response, but a KL estimate has one per token; set "
     "algorithm.kl.agg_mode=seq-mean-token-mean"),
    (["algorithm.kl.placement=reward", "algorithm.kl.straight_through=true"],
     "algorithm.kl.straight_through: true belongs to a penalty in the loss, but algorithm.kl.placement is reward; set "
     "algorithm.kl.placement=loss, or remove it"),
    (["algorithm.kl.importance_weight=true"],
     "algorithm.kl.importance_weight: true belongs to a penalty in the loss, but algorithm.kl.placement is none; set "
     "algorithm.kl.placement=loss, or remove it"),
    (["algorithm.kl.agg_mode=token-mean"],
     "algorithm.kl.agg_mode: token-mean belongs to a penalty in the loss, but algorithm.kl.placement is none; set "
     "algorithm.kl.placement=loss, or remove it"),
    (["algorithm.kl.target=0.1"],
     "algorithm.kl.target: 0.1 has no penalty to steer, because algorithm.kl.placement is none; set "
     "algorithm.kl.placement to loss or reward, or remove it"),
    ([ON, "algorithm.kl.target=0.1", "algorithm.kl.coef=0"],
     "algorithm.kl.coef: 0 stays 0, because steering to algorithm.kl.target 0.1 multiplies it; set a first value, "
     "e.g. algorithm.kl.coef=1e-3"),
    ([ON, "algorithm.kl.target=0.1", "algorithm.kl.horizon=9"],
     "algorithm.kl.horizon: 9 is too short for the 48 responses of a step, after which the coefficient could be 0 or "
     "negative; legal: above 9; usual: at least 48"),
    (["algorithm.rollout_correction={level: token, min: 0.5}"],
     "algorithm.rollout_correction.min: 0.5 is the lower bound of mode mask, but algorithm.rollout_correction.mode is "
     "truncate; set algorithm.rollout_correction.mode=mask, or remove it"),
    (["algorithm.rollout_correction={level: token, mode: mask, min: 2}"],
     "algorithm.rollout_correction.min: 2 must be below algorithm.rollout_correction.max 2 and at most 1, the weight "
     "where sampler and trainer agree; usual: 0.5 to 2"),
    (["algorithm.rollout_correction={level: token, mode: mask, max: 1}"],
     "algorithm.rollout_correction.min: none, so 1 / max = 1 must be below algorithm.rollout_correction.max 1 and at "
     "most 1, the weight where sampler and trainer agree; usual: 0.5 to 2"),
    (["algorithm.rollout_correction={level: token, max: 0.9}"],
     "algorithm.rollout_correction.max: 0.9 is below 1, the weight where sampler and trainer agree; set 1 or more "
     "(usual: 2)"),
    (["algorithm.advantage.gamma=0.9"],
     "algorithm.advantage.gamma: 0.9 is not read by estimator grpo; remove it, or set "
     "algorithm.advantage.estimator=reinforce_plus_plus"),
    (["algorithm.advantage={estimator: rloo, whiten: none}"],
     "algorithm.advantage.whiten: none is not read by estimator rloo; remove it, or set "
     "algorithm.advantage.estimator=reinforce_plus_plus or reinforce_plus_plus_baseline"),
    (["algorithm.name=dr_grpo", "algorithm.advantage.std_over=batch"],
     "algorithm.advantage.std_over: batch is not read by estimator dr_grpo; remove it, or set "
     "algorithm.advantage.estimator=grpo or pass_k"),
    (["algorithm.advantage={estimator: rloo, combine: normalize_then_sum}", *FUNCTIONS],
     "algorithm.advantage.combine: normalize_then_sum is not read by estimator rloo; remove it, or set "
     "algorithm.advantage.estimator=grpo"),
    (["algorithm.advantage.combine=normalize_then_sum"],
     "algorithm.advantage.combine: normalize_then_sum joins several reward functions, but reward.functions has only "
     "auto; add one, or set algorithm.advantage.combine=sum_then_normalize"),
    (["algorithm.advantage.combine=normalize_then_sum", "reward.functions=[auto, math_dapo]", "reward.weights=[1, 1]"],
     "reward.functions: auto stands for another function in each row, but "
     "algorithm.advantage.combine=normalize_then_sum compares each function with itself; name the functions, e.g. "
     "[gsm8k, math_dapo]"),
    (["algorithm.advantage={combine: normalize_then_sum, normalize_by_std: false}", *FUNCTIONS],
     "algorithm.advantage.normalize_by_std: false is not read with algorithm.advantage.combine=normalize_then_sum, "
     "which means true; remove it, or set algorithm.advantage.combine=sum_then_normalize"),
    (["algorithm.advantage={combine: normalize_then_sum, singleton: raw}", *FUNCTIONS],
     "algorithm.advantage.singleton: raw is not read with algorithm.advantage.combine=normalize_then_sum, which means "
     "zero; remove it, or set algorithm.advantage.combine=sum_then_normalize"),
    (["algorithm.advantage.combine=normalize_then_sum", "algorithm.kl.placement=reward", *FUNCTIONS],
     "algorithm.kl.placement: a penalty in the reward has no unit beside rewards that are normalised one by one "
     "(algorithm.advantage.combine=normalize_then_sum); set algorithm.kl.placement=loss"),
    (ALONE,
     "rollout.num_generations: 1 leaves estimator grpo nothing to compare a response with; nearest legal: 2 (usual: 8 "
     "or 16), or algorithm.advantage.estimator=remax or reinforce_plus_plus"),
])  # fmt: skip
def test_one_violated_rule_gives_one_line_with_numbers_and_a_fix(problems, overrides, expected):
    assert problems(*overrides) == [expected]


@pytest.mark.parametrize(("loss", "cap"), [("cispo", "loss_upper"), ("gmpo", "ratio_upper"), ("gpg", "loss_upper")])
def test_caps_belong_to_the_clipped_surrogate(problems, loss, cap):
    (line,) = problems(f"algorithm.name={loss}", f"algorithm.{cap}_clamp=3")
    assert "bounds the clipped surrogate" in line


@pytest.mark.parametrize("overrides", [
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
    # One response per prompt is enough without siblings.
    [*ALONE, "algorithm.advantage.estimator=remax"],
    [*ALONE, "algorithm.advantage.estimator=reinforce_plus_plus"],
])  # fmt: skip
def test_settings_at_their_limits_are_legal(load, overrides):
    load(*overrides)


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


# ----- Notes about settings of `algorithm` that are legal, but may not do what they seem to
ONE_UPDATE = "trainer.prompts_per_mini_batch=12"
KL_IN_LOSS = "algorithm.kl.placement=loss"
ASCEND = ("device=Ascend", "model.hidden_size=128")


@pytest.mark.parametrize("name", sorted(POLICY_LOSSES))
def test_one_update_per_rollout_is_noted_for_every_ratio_and_several_where_there_is_none(load, name):
    several, one = (notes(load(*updates, f"algorithm.name={name}")) for updates in ((), (ONE_UPDATE,)))
    if name == "gpg":
        assert "all but the first of the 2 updates" in several[0] and "prompts_per_mini_batch=12" in several[0]
        assert (len(several), one) == (1, [])
    else:
        assert several == [], "the papers' settings"
        assert len(one) == 1 and one[0].startswith("one update per rollout: every ratio is 1 when it is used")
        assert ("nothing is ever clipped" in one[0]) == (name != "sapo")


@pytest.mark.parametrize(("overrides", "expected"), [
    (["algorithm.clip_low=0.2", "algorithm.allow_wide_clip=true"], "algorithm.allow_wide_clip: "),
    (["algorithm.loss_agg_mode=token-mean", "algorithm.allow_token_weighting=true"],
     "algorithm.allow_token_weighting: with token-mean a response counts in proportion to its length"),
    (["algorithm.name=grpo", "algorithm.clip_low=3e-4", "algorithm.clip_high=4e-4"],
     "algorithm.clip_low / clip_high: 0.0003 / 0.0004 is a range for gspo; grpo's token ratios leave it almost at "
     "once (usual: 0.2 / 0.27)"),
    (["algorithm.name=dapo", "algorithm.clip_low=3e-4", "algorithm.clip_high=4e-4"],
     "algorithm.clip_low / clip_high: 0.0003 / 0.0004 is a range for gspo; dapo's token ratios leave it almost at "
     "once (usual: 0.2 / 0.28)"),
    (["algorithm.clip_low=0", "algorithm.clip_high=0"], "algorithm.clip_low / clip_high: 0 / 0 leaves a ratio no"),
    (["algorithm.name=cispo", "algorithm.clip_low=0", "algorithm.clip_high=0"],
     "algorithm.clip_low / clip_high: 0 / 0 makes every weight of cispo 1"),
    (["model.dtype=bfloat16", *ASCEND], "model.dtype: bfloat16 rounds the sequence ratio"),
    (["algorithm.clip_ratio_c=3"], "algorithm.clip_ratio_c: 3 bounds only responses with a ratio above it"),
    (["algorithm.entropy_coef=0.01"], "algorithm.entropy_coef: 0.01 takes the entropy of every token through"),
    (["algorithm.filter_groups.metric=reward"], "algorithm.filter_groups: groups of equal rewards leave"),
    (["algorithm.loss_scale_factor=7"], "algorithm.loss_scale_factor: 7 is not read by"),
    (["algorithm.advantage={estimator: rloo, ddof: 0, eps: 1e-4}"],
     "algorithm.advantage.ddof, algorithm.advantage.eps: not read by estimator rloo"),
    (["algorithm.advantage={estimator: reinforce_plus_plus, gamma: 0.9}"],
     "algorithm.advantage.estimator: reinforce_plus_plus gives each token its own advantage here, but gspo's"),
    (["algorithm.advantage.estimator=remax", "algorithm.kl.placement=reward"],
     "algorithm.advantage.estimator: remax gives each token its own advantage here, but gspo's"),
    (["algorithm.kl.coef=0.1"], "algorithm.kl.coef: not read, because algorithm.kl.placement is none"),
    ([KL_IN_LOSS, "algorithm.kl.coef=0"], "algorithm.kl.coef: 0 computes the reference policy's log-probs"),
    ([KL_IN_LOSS, "algorithm.kl.horizon=99"], "algorithm.kl.horizon: not read, because algorithm.kl.target is not"),
    ([KL_IN_LOSS, "algorithm.kl={estimator: k2, exponent_clamp: 5, value_clamp: 5}"],
     "algorithm.kl.exponent_clamp, algorithm.kl.value_clamp: not read, because they bound k3 alone"),
    ([KL_IN_LOSS, "algorithm.kl={straight_through: true, importance_weight: true}"],
     "algorithm.kl.importance_weight: with straight_through the gradient is k2's alone"),
    (["algorithm.rollout_correction={mode: mask, max: 3}"],
     "algorithm.rollout_correction.mode, algorithm.rollout_correction.max: not read, because"),
    (["algorithm.rollout_correction.level=sequence"],
     "algorithm.rollout_correction.level: sequence, but on the CPU sampler and trainer compute the same"),
    (["algorithm.rollout_correction.level=token", *ASCEND],
     "algorithm.rollout_correction.level: token weights act in gspo through their mean over a response"),
    (["algorithm.rollout_correction.level=geometric", *ASCEND],
     "algorithm.rollout_correction.max: 2 hardly ever bounds a geometric mean"),
    (["trainer.deterministic=true"],
     "trainer.deterministic: without effect, because on a CPU everything is added up in one order"),
    (["plans={train: {data_parallel: 2, overlap_grad_reduce: true}, infer: {data_parallel: 2}}",
      "trainer.samples_per_micro_batch=6"],
     "plans.train.overlap_grad_reduce: without effect, because kernels on a CPU run one after the other"),
])  # fmt: skip
def test_a_surprising_setting_is_noted(load, overrides, expected):
    (note,) = notes(load(*overrides))
    assert note.startswith(expected)


@pytest.mark.parametrize("overrides", [
    ["algorithm.name=dr_grpo", "algorithm.loss_scale_factor=7"],
    [KL_IN_LOSS, "algorithm.kl.agg_mode=batch-token-sum-norm", "algorithm.loss_scale_factor=7"],
    ["algorithm.name=gspo_token", "algorithm.advantage={estimator: reinforce_plus_plus, gamma: 0.9}"],
    ["algorithm.advantage.estimator=reinforce_plus_plus"],
    ["algorithm.kl.placement=reward"],
    [KL_IN_LOSS, "algorithm.kl={exponent_clamp: 5, target: 0.1, horizon: 99}"],
    [*ASCEND, "algorithm.rollout_correction.level=sequence"],
    [*ASCEND, "algorithm.rollout_correction={level: geometric, mode: mask, max: 1.001}"],
])  # fmt: skip
def test_settings_that_do_what_they_say_are_not_noted(load, overrides):
    assert notes(load(*overrides)) == []


@pytest.mark.parametrize("ddof", [0, 1])
def test_a_cap_that_silences_the_only_wrong_answer_is_noted(load, ddof):
    """Of 32 answers the only wrong one lies 31 / sqrt(32) = 5.48 (ddof 1) or sqrt(31) = 5.57 (ddof 0) below."""
    overrides = ["rollout.num_generations=32", f"algorithm.advantage.ddof={ddof}"]
    (note,) = notes(load(*overrides, "algorithm.loss_upper_clamp=3"))
    assert note.startswith(f"algorithm.loss_upper_clamp: 3 is below {5.48 if ddof else 5.57}, the loss of the only")
    assert notes(load(*overrides, "algorithm.loss_upper_clamp=5.6")) == []


@pytest.mark.parametrize("estimator", ["remax", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_filtering_groups_that_have_a_signal_is_noted(load, estimator):
    first, second = notes(load("algorithm.filter_groups.metric=reward", f"algorithm.advantage.estimator={estimator}"))
    assert first.startswith("algorithm.filter_groups: groups of equal rewards leave")
    assert second.startswith(f"algorithm.filter_groups: with estimator {estimator} groups of equal rewards do have")


# ----- The reward section: names, files, weights, and settings that nobody would read
@pytest.mark.parametrize(("overrides", "line"), [
    (["reward.functions=[gsm8]"], "reward.functions: unknown function 'gsm8'; did you mean 'gsm8k'? (known: gsm8k, "),
    (["reward.functions=[reward.py]"],
     "reward.functions: 'reward.py' names no function; write reward.py:compute_score"),
    (["reward.functions=[gsm8k, gsm8k]"], "reward.functions: gsm8k stands there 2 times; name each function once"),
    (["reward.functions=[gsm8k, math_dapo]", "reward.weights=[1]"],
     "reward.weights: 1 weights for 2 reward.functions; give one weight per function"),
    (["reward.weights=[0]"], "reward.weights: all are 0, so that every response gets the same reward"),
    (["reward.overlong.factor=0.5"], "reward.overlong: is not read, because reward.functions does not name overlong"),
    (["reward.functions=[gsm8k]", "reward.math_dapo.strict_box=true"],
     "reward.math_dapo: is not read, because reward.functions does not name math_dapo"),
    (["reward.functions=[auto, overlong]"],
     "reward.overlong.buffer_len: 4096 is longer than reward.overlong.max_len 32 (rollout.max_new_tokens where it is "
     "not set); nearest legal: 32"),
    (["reward.functions=[length, format]"],
     "reward.functions: length pays by whether the answer is correct, but no function here verifies the answer"),
    (["reward.functions=[verl_strict]", "reward.answer=last"],
     "reward.answer: last is not read by verl_strict; remove it"),
])  # fmt: skip
def test_a_violated_rule_is_named(problems, overrides, line):
    (found,) = problems(*overrides)
    assert found.startswith(line)


def test_a_missing_file_names_its_neighbour_and_two_of_one_name_would_be_logged_as_one(problems, tmp_path: Path):
    (tmp_path / "a").mkdir()
    for file in ("my_reward.py", "a/my_reward.py"):
        (tmp_path / file).write_text("")
    (found,) = problems(f"reward.functions=['{tmp_path}/my_rewards.py:compute_score']")
    assert found.endswith("my_rewards.py does not exist; did you mean my_reward.py?")
    (found,) = problems(f"reward.functions=['{tmp_path}/my_reward.py:2nd']")
    assert "'" in found and "after the colon stands the name of a function" in found
    (found,) = problems(f"reward.functions=['{tmp_path}/my_reward.py:f', '{tmp_path}/a/my_reward.py:f']")
    assert found.startswith("reward.functions: my_reward.f stands there 2 times")
    assert function_label("gsm8k") == "gsm8k"
    assert file_function("gsm8k") is None and file_function("a.txt:f") is None and file_function("a.py") is None


def test_a_file_counts_from_the_folder_of_its_yaml_and_an_override_from_here(experiment, monkeypatch, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in (experiment.parent / "mine.py", elsewhere / "other.py"):
        file.write_text("")
    experiment.write_text(experiment.read_text() + "reward: {functions: ['mine.py:compute_score', gsm8k]}\n")
    monkeypatch.chdir(elsewhere)
    assert load_config(experiment).reward.functions == (f"{experiment.parent}/mine.py:compute_score", "gsm8k")
    changed = load_config(experiment, ["reward.functions=['other.py:score']"])
    assert changed.reward.functions == (f"{elsewhere}/other.py:score",)


def test_weights_and_lengths_are_filled_in(load):
    functions = "reward.functions=[auto, overlong]"
    reward = load(functions, "reward.overlong.buffer_len=8").reward
    assert (reward.weights, reward.overlong.max_len, reward.length.max_len) == ((1.0, 1.0), 32, 32)
    assert load(functions, "reward.overlong={max_len: 24, buffer_len: 8}").reward.overlong.max_len == 24
