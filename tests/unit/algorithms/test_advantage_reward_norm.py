from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.algorithms.advantages.group_relative import grpo, normalize_then_sum, sum_then_normalize
from mindgspo.conformance.advantages import normalized_rewards

NAN = float("nan")


def test_the_weighted_sum_is_normalised():
    # sums 1 + 2 * 0.5 = 2 and 0 + 0
    actual = sum_then_normalize([[1, 0.5], [0, 0]], [1, 2], [0, 0], eps=0.0)
    np.testing.assert_allclose(actual, np.array([1, -1]) / np.sqrt(2), rtol=1e-14)


def test_a_function_that_did_not_judge_adds_nothing():
    actual = sum_then_normalize([[1, NAN], [0, 3]], [1, 1], [0, 0], std_over="none")
    assert actual.tolist() == [-1, 1]


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
    rewards = [[100, 0], [0, 0.01], [1, 1], [0, 0]]
    actual = normalize_then_sum(rewards, [1, 1], [0, 0, 1, 1], eps=1e-9)
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
