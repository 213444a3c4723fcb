import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.algorithms.advantages.token_level import (
    discounted_returns,
    gae,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    rewards_at_last_token,
    whiten,
)
from mindgspo.errors import DataError

HOLE = [[1, 0, 1, 1]]


def test_a_reward_stands_at_the_last_real_token():
    mask = [[1, 1, 0], [0, 1, 0], [1, 0, 1], [0, 0, 0]]
    expected = [[0, 5, 0], [0, 6, 0], [0, 0, 7], [0, 0, 0]]
    assert rewards_at_last_token([5, 6, 7, 8], mask).tolist() == expected


def test_discounted_return_by_hand():
    # 2, then 1 + 0.5 * 2, then 0 + 0.5 * 2
    assert discounted_returns([[0, 1, 2]], [[1, 1, 1]], gamma=0.5).tolist() == [[1.0, 2.0, 2.0]]


@pytest.mark.parametrize(("hole", "expected"), [
    ("carry", [[3.0, 0.0, 4.0, 8.0]]),  # 1 + 0.5 * 4: the hole costs no discount
    ("reset", [[1.0, 0.0, 4.0, 8.0]]),
    ("discount", [[2.0, 2.0, 4.0, 8.0]]),  # 1 + 0.25 * 4
])  # fmt: skip
def test_holes_of_a_return(hole, expected):
    assert discounted_returns([[1.0, np.nan, 0.0, 8.0]], HOLE, gamma=0.5, hole=hole).tolist() == expected


def test_unbiased_whitening_by_hand():
    # 1, 2, 6: mean 3, squares 4 + 1 + 9, over n - 1
    actual = whiten(
        np.array([[1.0, 2.0, np.nan], [6.0, np.inf, 1e30]]), np.array([[1, 1, 0], [1, 0, 0]]) == 1, "unbiased"
    )
    np.testing.assert_allclose(actual, np.array([[-2, -1, 0], [3, 0, 0]]) / np.sqrt(7), atol=1e-8)
    assert (actual[[0, 1, 1], [2, 1, 2]] == 0).all()


def test_kinds_of_whitening_differ_by_bessels_correction():
    values, mask = np.array([[1.0, 2.0, 6.0]]), np.ones((1, 3), dtype=bool)
    unbiased = whiten(values, mask, "unbiased")
    np.testing.assert_allclose(whiten(values, mask, "unbiased_moments"), unbiased, rtol=1e-7)
    np.testing.assert_allclose(whiten(values, mask, "biased"), unbiased * np.sqrt(3 / 2), rtol=1e-7)
    np.testing.assert_array_equal(whiten(values, mask, "none"), values)


@pytest.mark.parametrize("kind", ["unbiased", "unbiased_moments", "biased"])
@pytest.mark.parametrize("num_tokens", [0, 1])
def test_fewer_than_two_tokens_are_whitened_to_zero(kind, num_tokens):
    assert whiten(np.full((1, 3), 0.1), np.arange(3)[None] < num_tokens, kind).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("kind", ["unbiased", "unbiased_moments", "biased"])
def test_large_equal_values_stay_finite(kind):
    # The difference of the two moments rounds below 0 here.
    assert np.isfinite(whiten(np.full((1, 7), 1e8 + 0.1), np.ones((1, 7), dtype=bool), kind)).all()


@pytest.mark.parametrize(("kind", "ddof"), [("unbiased", 1), ("unbiased_moments", 1), ("biased", 0)])
@given(values=st.lists(st.floats(-100, 100), min_size=3, max_size=20))
def test_whitened_tokens_have_mean_0_and_deviation_1(kind, ddof, values):
    if np.std(values) < 1e-2:
        return
    whitened = whiten(np.array([values]), np.ones((1, len(values)), dtype=bool), kind)
    np.testing.assert_allclose(whitened.mean(), 0, atol=1e-5)
    np.testing.assert_allclose(whitened.std(ddof=ddof), 1, rtol=1e-3)


def test_reinforce_plus_plus_by_hand():
    # returns 0.5, 1 and 3: mean 1.5, squares 1 + 0.25 + 2.25, over 2
    result = reinforce_plus_plus([[0, 1], [3, np.nan]], [[1, 1], [1, 0]], gamma=0.5)
    assert result.returns_NT.tolist() == [[0.5, 1.0], [3.0, 0.0]]
    np.testing.assert_allclose(result.advantages_NT, np.array([[-1, -0.5], [1.5, 0]]) / np.sqrt(1.75), rtol=1e-7)


def test_reinforce_plus_plus_baseline_by_hand():
    # r - mean: 1, -1 and 0 alone; on 1, 3 and 2 tokens: mean -1/3, squares 16/9 + 3 * 4/9 + 2 * 1/9, over 5
    mask = [[1, 0, 0], [1, 1, 1], [1, 1, 0]]
    result = reinforce_plus_plus_baseline([2, 0, 9], [0, 0, 1], mask)
    deviation = np.sqrt((30 / 9) / 5)
    np.testing.assert_allclose(result.advantages_NT[:, 0], np.array([4 / 3, -2 / 3, 1 / 3]) / deviation, rtol=1e-6)
    assert result.returns_NT.tolist() == [[1, 0, 0], [-1, -1, -1], [0, 0, 0]]
    raw = reinforce_plus_plus_baseline([2, 0, 9], [0, 0, 1], mask, singleton="raw", whiten_kind="none")
    assert raw.advantages_NT[2].tolist() == [9, 9, 0]


def test_remax_subtracts_the_greedy_reward():
    result = remax([[0, 1, 0], [-1, 0, 4]], [0.25, 2.0], [[1, 1, 0], [1, 1, 1]])
    assert result.advantages_NT.tolist() == [[0.75, 0.75, 0.0], [1.0, 2.0, 2.0]]
    assert result.returns_NT.tolist() == [[1, 1, 0], [3, 4, 4]]


def test_gae_by_hand():
    # delta: 0 + 0.5 * 4 - 2 = 0; 8 - 4 = 4. A: 0 + 0.5 * 0.5 * 4 = 1; 4
    result = gae([[0, 8]], [[2, 4]], [[1, 1]], gamma=0.5, lam=0.5)
    assert result.advantages_NT.tolist() == [[1.0, 4.0]]
    assert result.returns_NT.tolist() == [[3.0, 8.0]]


@given(seed=st.integers(0, 1000), gamma=st.floats(0, 1))
def test_gae_with_lam_1_is_the_return_minus_the_value_and_with_lam_0_the_td_error(seed, gamma):
    rewards, values = np.random.default_rng(seed).normal(size=(2, 3, 5))
    mask = np.arange(5) < np.array([[5], [3], [1]])
    full = gae(rewards, values, mask, gamma=gamma, lam=1.0)
    returns = discounted_returns(rewards, mask, gamma=gamma)
    np.testing.assert_allclose(full.advantages_NT, np.where(mask, returns - values, 0), atol=1e-12)
    np.testing.assert_allclose(full.returns_NT, returns, atol=1e-12)
    clean = np.where(mask, values, 0)
    td_error = np.where(mask, rewards + gamma * np.pad(clean, ((0, 0), (0, 1)))[:, 1:] - clean, 0)
    np.testing.assert_allclose(gae(rewards, values, mask, gamma=gamma, lam=0.0).advantages_NT, td_error, atol=1e-12)


def test_gae_over_a_hole():
    # skipped: delta_0 = 0.5 * 4 - 2. As a slot of value 0: delta_0 = 0.5 * 0 - 2, delta_hole = 0.5 * 4
    inputs = ([[0, np.nan, 8]], [[2, np.nan, 4]], [[1, 0, 1]])
    assert gae(*inputs, gamma=0.5, lam=1.0, skip_masked=True).advantages_NT.tolist() == [[2.0, 0.0, 4.0]]
    assert gae(*inputs, gamma=0.5, lam=1.0, skip_masked=False).advantages_NT.tolist() == [[0.0, 0.0, 4.0]]


@pytest.mark.parametrize("skip_masked", [True, False])
def test_padding_changes_nothing(skip_masked):
    rng = np.random.default_rng(0)
    rewards, values, mask = rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), [[1, 1, 1], [1, 1, 0]]
    padded = [np.pad(array, ((0, 0), (0, 4)), constant_values=np.nan) for array in (rewards, values)]
    padded_mask = np.pad(mask, ((0, 0), (0, 4)))
    options = {"gamma": 0.9, "lam": 0.8, "skip_masked": skip_masked, "whiten_kind": "unbiased"}
    expected = gae(rewards, values, mask, **options).advantages_NT
    actual = gae(*padded, padded_mask, **options).advantages_NT
    np.testing.assert_array_equal(actual[:, :3], expected)
    assert (actual[:, 3:] == 0).all()


@pytest.mark.parametrize(("call", "message"), [
    (lambda: rewards_at_last_token([1, 2], [[1, 1]]), r"rewards: expected shape \[1\], got \[2\]"),
    (lambda: discounted_returns([[1, 2]], [[1, 1, 1]]), r"token_rewards: expected shape \[1, 3\]"),
    (lambda: discounted_returns([[np.nan, 2]], [[1, 1]]), r"token_rewards: nan at \[0, 0\]"),
    (lambda: discounted_returns([[1, 2]], [[1, 2]]), r"mask: 2 at \[0, 1\].*0 and 1"),
    (lambda: discounted_returns([1, 2], [1, 1]), "mask: expected shape"),
    (lambda: remax([[1.0]], [0.0, 0.0], [[1]]), r"reward_baselines: expected shape \[1\], got \[2\]"),
    (lambda: gae([[1.0]], [[1.0, 2.0]], [[1]]), r"values: expected shape \[1, 1\]"),
    (lambda: reinforce_plus_plus_baseline([1.0], [0, 0], [[1]]), r"group: expected shape \[1\]"),
])  # fmt: skip
def test_bad_arrays_are_refused(call, message):
    with pytest.raises(DataError, match=message):
        call()
