"""Estimators with one number per response, by hand and by their properties, and several reward functions in one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.algorithms.advantages.group_relative import (
    dr_grpo,
    gpg,
    grpo,
    grpo_passk,
    max_rl,
    normalize_then_sum,
    opo,
    rloo,
    sum_then_normalize,
    uncentred,
)
from mindgspo.errors import DataError
from mindgspo_conformance.advantages import normalized_rewards

rewards_of_a_group = st.lists(st.floats(min_value=-1e3, max_value=1e3), min_size=2, max_size=12)

# Every estimator of this room, by one signature.
ESTIMATORS = {
    "grpo": grpo, "grpo_batch": lambda r, g, **options: grpo(r, g, std_over="batch", **options), "dr_grpo": dr_grpo,
    "rloo": rloo, "opo": lambda r, g, **options: opo(r, g, np.arange(1, len(r) + 1), **options), "max_rl": max_rl,
    "gpg": gpg, "pass_k": grpo_passk,
}  # fmt: skip


INTERLEAVED = [2, 0, 5, 0, 1, 4], [1, 9, 1, 9, 1, 9]  # groups [5, 2, 1] and [0, 0, 4]
SIGNS = np.array([1, -1, -1, 1])
BY_HAND = {
    # mean 0.5; sum of squares 1.0; ddof 1: std = sqrt(1/3)
    "grpo": (lambda: grpo([1, 0, 0, 1], [0] * 4), SIGNS * 0.5 / (np.sqrt(1 / 3) + 1e-6)),
    "grpo, ddof 0": (lambda: grpo([1, 0, 0, 1], [0] * 4, ddof=0, eps=1e-5), SIGNS * 0.5 / (0.5 + 1e-5)),
    # std (ddof 1) of [0, 2] is sqrt(2)
    "grpo, eps": (lambda: grpo([0, 2], [0, 0], eps=0.5), np.array([-1, 1]) / (np.sqrt(2) + 0.5)),
    # means 1 and 11; all of [0, 2, 10, 12] around 6: squares 36 + 16 + 16 + 36 = 104, over 3
    "grpo, batch": (
        lambda: grpo([0, 2, 10, 12], [7, 7, 3, 3], std_over="batch", eps=0.1),
        np.array([-1, 1, -1, 1]) / (np.sqrt(104 / 3) + 0.1),
    ),
    # variance of [0, 2] is 2, of [0, 0.2] is 0.02
    "grpo, floor": (
        lambda: grpo([0, 2, 0, 0.2], [0, 0, 1, 1], var_floor=1.0, eps=0.0),
        [-1 / np.sqrt(2), 1 / np.sqrt(2), -0.1, 0.1],
    ),
    # others of 3: (0 + 1) / 2; of 0: (3 + 1) / 2; of 1: (3 + 0) / 2
    "rloo": (lambda: rloo([3, 0, 1], [0, 0, 0]), [2.5, -2.0, -0.5]),
    # std of [5, 2, 1]: mean 8/3, squares 26/3, over 2; [0, 0, 4]: mean 4/3, squares 32/3, over 2
    "pass_k": (lambda: grpo_passk(*INTERLEAVED, eps=0.0), [0, 0, 3 / np.sqrt(13 / 3), 0, 0, 4 / np.sqrt(16 / 3)]),
    "uncentred": (lambda: uncentred([3, 1], [0, 0], std_over="group", eps=0.0), np.array([3, 1]) / np.sqrt(2)),
}
EXACTLY = {
    "dr_grpo": (lambda: dr_grpo([3, 0, 0], [5, 5, 5]), [2, -1, -1]),
    "grpo without std": (lambda: grpo([3, 0, 0], [5, 5, 5], std_over="none"), [2, -1, -1]),
    # (10 * 1 + 30 * 0) / 40 = 0.25
    "opo": (lambda: opo([1, 0], [0, 0], [10, 30]), [0.75, -0.25]),
    "opo of empty responses": (lambda: opo([1, 0, 1], [0, 0, 1], [0, 0, 0]), [1, 0, 0]),
    # mean 0.25: (1 - 0.25) / 0.25 = 3
    "max_rl": (lambda: max_rl([1, 0, 0, 0], [0] * 4), [3, -1, -1, -1]),
    "max_rl, a mean below 0 carries no signal": (lambda: max_rl([-1, 0, 1, -3], [0] * 4), [0] * 4),
    "max_rl, nor does a mean of 0": (lambda: max_rl([-1, 1], [0, 0]), [0, 0]),
    # two of six rewards are not 0: alpha = 3
    "gpg": (lambda: gpg([1, 0, 0, 0, 0.5, 0], [0, 0, 1, 1, 2, 2]), [1.5, -1.5, 0, 0, 0.75, -0.75]),
    "gpg of nothing": (lambda: gpg([0, 0], [0, 0]), [0, 0]),
    "pass_k": (lambda: grpo_passk(*INTERLEAVED, std_over="none"), [0, 0, 3, 0, 0, 4]),
    "pass_k of two equal best": (lambda: grpo_passk([1, 1, 0], [0, 0, 0]), [0, 0, 0]),
    "uncentred": (lambda: uncentred([3, 1], [0, 0]), [3, 1]),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_advantages_by_hand(name):
    np.testing.assert_allclose(BY_HAND[name][0](), BY_HAND[name][1], rtol=1e-14)


@pytest.mark.parametrize("name", EXACTLY)
def test_exact_advantages_by_hand(name):
    assert EXACTLY[name][0]().tolist() == EXACTLY[name][1]


def test_opo_of_equal_lengths_is_dr_grpo():
    np.testing.assert_allclose(opo([1, 0, 0.5], [0] * 3, [4, 4, 4]), dr_grpo([1, 0, 0.5], [0] * 3), atol=1e-15)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_group_of_one(name):
    rewards, groups = [0.6, 0.2, 0.8], [4, 0, 0]
    estimate = ESTIMATORS[name]
    assert estimate(rewards, groups, singleton="zero")[0] == 0
    assert estimate(rewards, groups)[0] == 0
    assert np.isnan(estimate(rewards, groups, singleton="nan")[0])
    raw = {"grpo": 0.6 / (1 + 1e-6), "grpo_batch": 0.6 / (np.std(rewards, ddof=1) + 1e-6), "pass_k": 0.6 / (1 + 1e-6)}
    np.testing.assert_allclose(estimate(rewards, groups, singleton="raw")[0], raw.get(name, 0.6), rtol=1e-14)
    np.testing.assert_array_equal(estimate(rewards, groups, singleton="raw")[1:], estimate(rewards, groups)[1:])


@pytest.mark.parametrize("name", ["grpo", "grpo_batch", "dr_grpo", "rloo", "gpg"])
@given(rewards=rewards_of_a_group)
def test_advantages_of_a_group_sum_to_zero(name, rewards):
    advantages = ESTIMATORS[name](rewards, [0] * len(rewards))
    assert abs(advantages.sum()) <= 1e-9 * max(np.abs(advantages).max(), 1.0)


@given(rewards=rewards_of_a_group)
def test_opo_sums_to_zero_by_length(rewards):
    lengths = np.arange(1, len(rewards) + 1)
    assert abs((lengths * opo(rewards, [0] * len(rewards), lengths)).sum()) <= 1e-8 * max(np.abs(rewards).max(), 1.0)


@given(rewards=rewards_of_a_group)
def test_grpo_with_std_has_unit_deviation(rewards):
    rewards = np.round(rewards, 3)
    advantages = grpo(rewards, [0] * len(rewards), eps=1e-12)
    if rewards.min() != rewards.max():
        np.testing.assert_allclose(advantages.std(ddof=1), 1.0, rtol=1e-6)


@pytest.mark.parametrize("name", ["grpo", "grpo_batch", "max_rl", "pass_k"])
def test_scaled_estimators_do_not_see_the_unit_of_rewards(name):
    rewards, groups = np.array([1.0, 0.0, 0.4, 2.0, 3.0]), [0, 0, 0, 1, 1]
    options = {} if name == "max_rl" else {"eps": 0.0}
    np.testing.assert_allclose(
        ESTIMATORS[name](1000 * rewards, groups, **options), ESTIMATORS[name](rewards, groups, **options), rtol=1e-12
    )


@pytest.mark.parametrize("name", ["dr_grpo", "rloo", "opo"])
def test_centred_estimators_scale_with_the_rewards_and_ignore_a_constant(name):
    rewards, groups = np.array([1.0, 0.0, 0.4, 2.0, 3.0]), [0, 0, 0, 1, 1]
    expected = ESTIMATORS[name](rewards, groups)
    np.testing.assert_allclose(ESTIMATORS[name](1000 * rewards, groups), 1000 * expected, rtol=1e-12)
    np.testing.assert_allclose(ESTIMATORS[name](rewards + 50, groups), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: grpo([1.0, 2.0], [0]), r"group: expected shape \[2\], got \[1\]"),
    (lambda: grpo([[1.0, 2.0]], [0, 0]), r"rewards: expected shape \[any\], got \[1, 2\]"),
    (lambda: rloo([1.0, np.inf], [0, 0]), r"rewards: inf at \[1\]"),
    (lambda: rloo(["good", "bad"], [0, 0]), "rewards: not an array of numbers"),
    (lambda: opo([1.0, 0.0], [0, 0], [3, -1]), r"lengths: -1 at \[1\].*below 0"),
    (lambda: opo([1.0, 0.0], [0, 0], [3]), "lengths: expected shape"),
    (lambda: dr_grpo([1.0, 0.0], [0, 0.5]), "group: 0.5 at"),
])  # fmt: skip
def test_bad_arrays_are_refused(call, message):
    with pytest.raises(DataError, match=message):
        call()


NAN = float("nan")


def test_the_weighted_sum_is_normalised():
    # sums 1 + 2 * 0.5 = 2 and 0 + 0
    actual = sum_then_normalize([[1, 0.5], [0, 0]], [1, 2], [0, 0], eps=0.0)
    np.testing.assert_allclose(actual, np.array([1, -1]) / np.sqrt(2), rtol=1e-14)


def test_a_function_that_did_not_judge_adds_nothing():
    assert sum_then_normalize([[1, NAN], [0, 3]], [1, 1], [0, 0], std_over="none").tolist() == [-1, 1]


@pytest.mark.parametrize("std_over", ["group", "batch", "none"])
def test_unjudged_responses_leave_the_statistics(std_over):
    rewards, groups = np.array([1.0, NAN, 0.0, 2.0, NAN, 7.0, 3.0]), np.array([0, 0, 0, 0, 1, 1, 2])
    judged = ~np.isnan(rewards)
    actual = sum_then_normalize(rewards[:, None], [1.0], groups, std_over=std_over)
    assert actual[~judged].tolist() == [0, 0]
    expected = grpo(rewards[judged], groups[judged], std_over=std_over, eps=1e-4)
    np.testing.assert_allclose(actual[judged], expected, rtol=1e-14)


def test_normalize_then_sum_hears_a_function_of_small_differences():
    # each function alone gives +-1/sqrt(2); they cancel for the first group, although 100 outweighs 0.01
    actual = normalize_then_sum([[100, 0], [0, 0.01], [1, 1], [0, 0]], [1, 1], [0, 0, 1, 1], eps=1e-9)
    # sums 0, 0, sqrt(2), -sqrt(2): variance 4/3
    np.testing.assert_allclose(actual, np.array([0, 0, 1, -1]) * np.sqrt(2) / np.sqrt(4 / 3), atol=1e-6)


def test_normalize_then_sum_with_one_judged_response_in_a_group():
    actual = normalize_then_sum([[NAN], [5], [1], [0]], [1], [0, 0, 1, 1], eps=0.0)
    # the group's only judged response adds 0; over 0, 1/sqrt(2), -1/sqrt(2) the variance is 1/2
    np.testing.assert_allclose(actual, [0, 0, 1, -1], atol=1e-12)


@given(rewards=st.lists(st.sampled_from([0.0, 0.1, 1.0, NAN]), min_size=8, max_size=8))
def test_advantages_are_finite_and_sum_to_zero(rewards):
    table = np.array(rewards).reshape(4, 2)
    for combine in (sum_then_normalize, normalize_then_sum):
        actual = combine(table, [1.0, 0.5], [0, 0, 1, 1])
        assert np.isfinite(actual).all()
        assert abs(actual.sum()) < 1e-9


def test_slime_normalises_blocks_of_group_size():
    config = {"mode": "slime", "group_size": 2, "center": "mean", "scale": "none"}
    assert normalized_rewards(config, {"rewards": [1, 0, 5, 1]}).tolist() == [0.5, -0.5, 2, -2]
    assert normalized_rewards({**config, "center": "none"}, {"rewards": [1, 0, 5, 1]}).tolist() == [1, 0, 5, 1]
    scaled = normalized_rewards({**config, "scale": "std", "eps": 0.0}, {"rewards": [1, 0, 5, 1]})
    np.testing.assert_allclose(scaled, np.array([1, -1, 1, -1]) / np.sqrt(2), rtol=1e-14)


def test_slime_groups_of_one_are_zero_when_centred():
    config = {"mode": "slime", "group_size": 1, "center": "mean", "scale": "std"}
    assert normalized_rewards(config, {"rewards": [1, 0.5]}).tolist() == [0, 0]
    assert normalized_rewards({**config, "center": "none", "scale": "none"}, {"rewards": [1, 0.5]}).tolist() == [1, 0.5]
