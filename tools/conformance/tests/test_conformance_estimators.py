"""Estimators and options of peers that training has no setting for, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo_conformance.advantages import advantages_of_case, normalized_rewards
from mindgspo_conformance.estimators import gae, returns_with_holes

NAN = float("nan")
ROOT2 = np.sqrt(2)


def test_a_floor_of_the_variance_and_uncentred_rewards():
    grpo = {"estimator": "grpo", "eps": 0.0}
    # variance of [0, 2] is 2, of [0, 0.2] is 0.02
    floored = advantages_of_case(grpo | {"var_floor": 1.0}, {"rewards": [0, 2, 0, 0.2], "group": [0, 0, 1, 1]})
    np.testing.assert_allclose(floored.advantages, [-1 / ROOT2, 1 / ROOT2, -0.1, 0.1], rtol=1e-14)
    uncentred = advantages_of_case(grpo | {"center": "none"}, {"rewards": [3, 1], "group": [0, 0]})
    np.testing.assert_allclose(uncentred.advantages, np.array([3, 1]) / ROOT2, rtol=1e-14)


def combined(rewards_NF, weights, group_size: int, **options) -> np.ndarray:
    config = {"mode": "sum_then_normalize", "group_size": group_size, **options}
    return normalized_rewards(config, {"rewards_per_func": rewards_NF, "reward_weights": weights})


def test_the_weighted_sum_is_normalised():
    # sums 1 + 2 * 0.5 = 2 and 0 + 0
    np.testing.assert_allclose(combined([[1, 0.5], [0, 0]], [1, 2], 2, eps=0.0), np.array([1, -1]) / ROOT2, rtol=1e-14)
    assert combined([[1, NAN], [0, 3]], [1, 1], 2, scale="none").tolist() == [-1, 1]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_unjudged_responses_leave_the_statistics(scale):
    alone = combined([[1.0], [0.0]], [1.0], 2, scale=scale)
    actual = combined([[1.0], [0.0], [NAN], [NAN]], [1.0], 2, scale=scale)
    assert actual.tolist() == [*alone.tolist(), 0.0, 0.0]


def test_slime_leaves_a_block_of_one_at_zero():
    lone = {"mode": "slime", "group_size": 1, "center": "mean", "scale": "std"}
    assert normalized_rewards(lone, {"rewards": [1, 0.5]}).tolist() == [0, 0]


@pytest.mark.parametrize(("hole", "expected"), [
    ("carry", [[3.0, 0.0, 4.0, 8.0]]),  # 1 + 0.5 * 4: the hole costs no discount
    ("reset", [[1.0, 0.0, 4.0, 8.0]]),
    ("discount", [[2.0, 2.0, 4.0, 8.0]]),  # 1 + 0.25 * 4
])  # fmt: skip
def test_holes_of_a_return(hole, expected):
    mask = np.array([[1, 0, 1, 1]]) == 1
    found = returns_with_holes(np.array([[1.0, 0.0, 0.0, 8.0]]), mask, gamma=0.5, hole=hole)
    assert found.tolist() == expected


@given(seed=st.integers(0, 1000), gamma=st.floats(0, 1))
def test_gae_with_lam_1_is_the_return_minus_the_value_and_with_lam_0_the_td_error(seed, gamma):
    mask = np.arange(5) < np.array([[5], [3], [1]])
    rewards, values = np.where(mask, np.random.default_rng(seed).normal(size=(2, 3, 5)), 0.0)
    full = gae(rewards, values, mask, gamma=gamma, lam=1.0)
    returns = returns_with_holes(rewards, mask, gamma=gamma)
    np.testing.assert_allclose(full.advantages_NT, returns - values, atol=1e-12)
    td_error = np.where(mask, rewards + gamma * np.pad(values, ((0, 0), (0, 1)))[:, 1:] - values, 0)
    np.testing.assert_allclose(gae(rewards, values, mask, gamma=gamma, lam=0.0).advantages_NT, td_error, atol=1e-12)


def test_gae_over_a_hole():
    # skipped: delta_0 = 0.5 * 4 - 2. As a slot of value 0: delta_0 = 0.5 * 0 - 2, delta_hole = 0.5 * 4
    inputs = np.array([[0.0, 0, 8]]), np.array([[2.0, 0, 4]]), np.array([[1, 0, 1]]) == 1
    assert gae(*inputs, gamma=0.5, skip_masked=True).advantages_NT.tolist() == [[2.0, 0.0, 4.0]]
    assert gae(*inputs, gamma=0.5, skip_masked=False).advantages_NT.tolist() == [[0.0, 0.0, 4.0]]
