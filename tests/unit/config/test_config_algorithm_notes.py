"""Notes about settings of `algorithm` that are legal, but may not do what they seem to."""

from __future__ import annotations

import pytest

from mindgspo.config import notes
from mindgspo.config.algorithm import POLICY_LOSSES

ONE_UPDATE = "trainer.prompts_per_mini_batch=12"
KL_IN_LOSS = "algorithm.kl.placement=loss"
ASCEND = ("device=Ascend", "model.hidden_size=128")


@pytest.mark.parametrize("name", sorted(POLICY_LOSSES.keys() - {"gpg"}))
def test_no_notes_about_the_papers_settings(load, name):
    assert notes(load(f"algorithm.name={name}")) == []


@pytest.mark.parametrize("name", sorted(POLICY_LOSSES.keys() - {"gpg"}))
def test_one_update_per_rollout_is_noted_for_every_ratio(load, name):
    (note,) = notes(load(ONE_UPDATE, f"algorithm.name={name}"))
    assert note.startswith("one update per rollout: every ratio is 1 when it is used")
    assert ("nothing is ever clipped" in note) == (name != "sapo")


def test_several_updates_are_noted_where_there_is_no_ratio(load):
    (note,) = notes(load("algorithm.name=gpg"))
    assert "all but the first of the 2 updates" in note and "prompts_per_mini_batch=12" in note
    assert notes(load("algorithm.name=gpg", ONE_UPDATE)) == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["algorithm.clip_low=0.2", "algorithm.allow_wide_clip=true"], "algorithm.allow_wide_clip: "),
        (
            ["algorithm.loss_agg_mode=token-mean", "algorithm.allow_token_weighting=true"],
            "algorithm.allow_token_weighting: with token-mean a response counts in proportion to its length",
        ),
        (
            ["algorithm.name=grpo", "algorithm.clip_low=3e-4", "algorithm.clip_high=4e-4"],
            "algorithm.clip_low / clip_high: 0.0003 / 0.0004 is a range for gspo; grpo's token ratios leave it almost "
            "at once (usual: 0.2 / 0.27)",
        ),
        (
            ["algorithm.name=dapo", "algorithm.clip_low=3e-4", "algorithm.clip_high=4e-4"],
            "algorithm.clip_low / clip_high: 0.0003 / 0.0004 is a range for gspo; dapo's token ratios leave it almost "
            "at once (usual: 0.2 / 0.28)",
        ),
        (["algorithm.clip_low=0", "algorithm.clip_high=0"], "algorithm.clip_low / clip_high: 0 / 0 leaves a ratio no"),
        (
            ["algorithm.name=cispo", "algorithm.clip_low=0", "algorithm.clip_high=0"],
            "algorithm.clip_low / clip_high: 0 / 0 makes every weight of cispo 1",
        ),
        (["model.dtype=bfloat16", *ASCEND], "model.dtype: bfloat16 rounds the sequence ratio"),
        (["algorithm.clip_ratio_c=3"], "algorithm.clip_ratio_c: 3 bounds only responses with a ratio above it"),
        (["algorithm.entropy_coef=0.01"], "algorithm.entropy_coef: 0.01 takes the entropy of every token through"),
        (
            ["algorithm.filter_groups.metric=reward"],
            "algorithm.filter_groups: groups of equal rewards leave",
        ),
        (["algorithm.loss_scale_factor=7"], "algorithm.loss_scale_factor: 7 is not read by"),
        (
            ["algorithm.advantage={estimator: rloo, ddof: 0, eps: 1e-4}"],
            "algorithm.advantage.ddof, algorithm.advantage.eps: not read by estimator rloo",
        ),
        (
            ["algorithm.advantage={estimator: reinforce_plus_plus, gamma: 0.9}"],
            "algorithm.advantage.estimator: reinforce_plus_plus gives each token its own advantage here, but gspo's",
        ),
        (
            ["algorithm.advantage.estimator=remax", "algorithm.kl.placement=reward"],
            "algorithm.advantage.estimator: remax gives each token its own advantage here, but gspo's",
        ),
        (["algorithm.kl.coef=0.1"], "algorithm.kl.coef: not read, because algorithm.kl.placement is none"),
        ([KL_IN_LOSS, "algorithm.kl.coef=0"], "algorithm.kl.coef: 0 computes the reference policy's log-probs"),
        ([KL_IN_LOSS, "algorithm.kl.horizon=99"], "algorithm.kl.horizon: not read, because algorithm.kl.target is not"),
        (
            [KL_IN_LOSS, "algorithm.kl={estimator: k2, exponent_clamp: 5, value_clamp: 5}"],
            "algorithm.kl.exponent_clamp, algorithm.kl.value_clamp: not read, because they bound k3 alone",
        ),
        (
            [KL_IN_LOSS, "algorithm.kl={straight_through: true, importance_weight: true}"],
            "algorithm.kl.importance_weight: with straight_through the gradient is k2's alone",
        ),
        (
            ["algorithm.rollout_correction={mode: mask, max: 3}"],
            "algorithm.rollout_correction.mode, algorithm.rollout_correction.max: not read, because",
        ),
        (
            ["algorithm.rollout_correction.level=sequence"],
            "algorithm.rollout_correction.level: sequence, but on the CPU sampler and trainer compute the same",
        ),
        (
            ["algorithm.rollout_correction.level=token", *ASCEND],
            "algorithm.rollout_correction.level: token weights act in gspo through their mean over a response",
        ),
        (
            ["algorithm.rollout_correction.level=geometric", *ASCEND],
            "algorithm.rollout_correction.max: 2 hardly ever bounds a geometric mean",
        ),
    ],
)
def test_a_surprising_setting_is_noted(load, overrides, expected):
    (note,) = notes(load(*overrides))
    assert note.startswith(expected)


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.name=dr_grpo", "algorithm.loss_scale_factor=7"],
        [KL_IN_LOSS, "algorithm.kl.agg_mode=batch-token-sum-norm", "algorithm.loss_scale_factor=7"],
        ["algorithm.name=gspo_token", "algorithm.advantage={estimator: reinforce_plus_plus, gamma: 0.9}"],
        ["algorithm.advantage.estimator=reinforce_plus_plus"],
        ["algorithm.kl.placement=reward"],
        [KL_IN_LOSS, "algorithm.kl={exponent_clamp: 5, target: 0.1, horizon: 99}"],
        [*ASCEND, "algorithm.rollout_correction.level=sequence"],
        [*ASCEND, "algorithm.rollout_correction={level: geometric, mode: mask, max: 1.001}"],
    ],
)
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
