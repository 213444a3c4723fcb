from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.algorithms import group_advantages, has_signal
from mindgspo.config.schema import AdvantageSection

finite_rewards = st.floats(min_value=-1e3, max_value=1e3)


def test_two_right_of_four_by_hand():
    # mean 0.5; sum of squares 1.0; ddof 1: std = sqrt(1/3) = 0.5773503
    advantages = group_advantages([1.0, 0.0, 0.0, 1.0], AdvantageSection(eps=1e-6))
    expected = 0.5 / (np.sqrt(1 / 3) + 1e-6)
    assert advantages.dtype == np.float32
    np.testing.assert_allclose(advantages, [expected, -expected, -expected, expected], rtol=1e-6)


def test_ddof_0_divides_by_the_biased_deviation():
    advantages = group_advantages([1.0, 0.0, 0.0, 1.0], AdvantageSection(ddof=0, eps=1e-6))
    np.testing.assert_allclose(advantages, np.array([1, -1, -1, 1]) * 0.5 / (0.5 + 1e-6), rtol=1e-6)


def test_without_std_only_the_mean_is_subtracted():
    advantages = group_advantages([3.0, 0.0, 0.0], AdvantageSection(normalize_by_std=False))
    np.testing.assert_allclose(advantages, [2.0, -1.0, -1.0], rtol=1e-7)


def test_eps_is_added_to_the_deviation():
    # std (ddof 1) of [0, 2] is sqrt(2)
    advantages = group_advantages([0.0, 2.0], AdvantageSection(eps=0.5))
    np.testing.assert_allclose(advantages, np.array([-1, 1]) / (np.sqrt(2) + 0.5), rtol=1e-6)


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, -1e6])
def test_equal_rewards_are_exactly_zero(reward):
    # 0.1 is the case that std == 0 would miss: the mean of three 0.1 is not 0.1.
    for size in (1, 2, 3, 7, 16):
        advantages = group_advantages([reward] * size, AdvantageSection())
        assert advantages.tolist() == [0.0] * size
        assert not has_signal(advantages)


def test_abstaining_rewards_leave_the_statistics():
    with_none = group_advantages([1.0, None, 0.0, None, 0.5], AdvantageSection())
    without = group_advantages([1.0, 0.0, 0.5], AdvantageSection())
    assert with_none[[1, 3]].tolist() == [0.0, 0.0]
    np.testing.assert_array_equal(with_none[[0, 2, 4]], without)
    assert has_signal(with_none)


@pytest.mark.parametrize("rewards", [[], [None], [None, None], [1.0], [None, 1.0]])
def test_fewer_than_two_rewards_give_zero(rewards):
    assert group_advantages(rewards, AdvantageSection()).tolist() == [0.0] * len(rewards)


@given(st.lists(finite_rewards, min_size=2, max_size=16), st.randoms(use_true_random=False))
def test_advantages_sum_to_zero_and_follow_the_order_of_responses(rewards, random):
    advantages = group_advantages(rewards, AdvantageSection()).astype(np.float64)
    assert abs(advantages.sum()) <= 1e-5 * max(np.abs(advantages).max(), 1.0)
    order = list(range(len(rewards)))
    random.shuffle(order)
    shuffled = group_advantages([rewards[i] for i in order], AdvantageSection())
    np.testing.assert_allclose(shuffled, advantages[order], rtol=1e-5, atol=1e-6)


@given(st.lists(finite_rewards, min_size=2, max_size=16), st.floats(min_value=-100, max_value=100))
def test_a_constant_added_to_all_rewards_changes_nothing(rewards, constant):
    section = AdvantageSection(normalize_by_std=False)
    shifted = group_advantages([reward + constant for reward in rewards], section)
    np.testing.assert_allclose(shifted, group_advantages(rewards, section), rtol=1e-5, atol=1e-6)


def test_the_door_of_the_room_does_not_import_mindspore():
    script = "import sys, mindgspo.algorithms; sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
