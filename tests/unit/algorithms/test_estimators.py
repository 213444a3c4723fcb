import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.algorithms.advantages import estimators
from mindgspo.algorithms.advantages.groups import Groups

rewards_of_a_group = st.lists(st.floats(min_value=-1e3, max_value=1e3), min_size=2, max_size=12)


def over_groups(estimate):
    """The estimator over rewards and group ids in lists."""
    return lambda rewards, ids, *more, **options: estimate(np.array(rewards, float), Groups.of(ids), *more, **options)


grpo, dr_grpo, rloo, opo, max_rl, gpg, pass_k = (
    over_groups(getattr(estimators, name)) for name in ("grpo", "dr_grpo", "rloo", "opo", "max_rl", "gpg", "pass_k")
)


# By one signature.
ESTIMATORS = {
    "grpo": grpo, "grpo_batch": lambda r, g, **options: grpo(r, g, std_over="batch", **options), "dr_grpo": dr_grpo,
    "rloo": rloo, "opo": lambda r, g, **options: opo(r, g, np.arange(1, len(r) + 1), **options), "max_rl": max_rl,
    "gpg": gpg, "pass_k": pass_k,
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
    # others of 3: (0 + 1) / 2; of 0: (3 + 1) / 2; of 1: (3 + 0) / 2
    "rloo": (lambda: rloo([3, 0, 1], [0, 0, 0]), [2.5, -2.0, -0.5]),
    # std of [5, 2, 1]: mean 8/3, squares 26/3, over 2; [0, 0, 4]: mean 4/3, squares 32/3, over 2
    "pass_k": (lambda: pass_k(*INTERLEAVED, eps=0.0), [0, 0, 3 / np.sqrt(13 / 3), 0, 0, 4 / np.sqrt(16 / 3)]),
}
EXACTLY = {
    "dr_grpo": (lambda: dr_grpo([3, 0, 0], [5, 5, 5]), [2, -1, -1]),
    "grpo without std": (lambda: grpo([3, 0, 0], [5, 5, 5], std_over="none"), [2, -1, -1]),
    "opo of equal lengths is dr_grpo": (lambda: opo([1, 0, 0.5], [0] * 3, [4, 4, 4]), [0.5, -0.5, 0]),
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
    "pass_k": (lambda: pass_k(*INTERLEAVED, std_over="none"), [0, 0, 3, 0, 0, 4]),
    "pass_k of two equal best": (lambda: pass_k([1, 1, 0], [0, 0, 0]), [0, 0, 0]),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_advantages_by_hand(name):
    np.testing.assert_allclose(BY_HAND[name][0](), BY_HAND[name][1], rtol=1e-14)


@pytest.mark.parametrize("name", EXACTLY)
def test_exact_advantages_by_hand(name):
    assert EXACTLY[name][0]().tolist() == EXACTLY[name][1]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_group_of_one(name):
    rewards, groups = [0.6, 0.2, 0.8], [4, 0, 0]
    estimate = ESTIMATORS[name]
    assert estimate(rewards, groups, singleton="zero")[0] == estimate(rewards, groups)[0] == 0
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


NAN = float("nan")


def combined(rewards_NF, weights, ids, **options):
    return estimators.normalize_then_sum(np.array(rewards_NF, float), np.array(weights), Groups.of(ids), **options)


def test_normalize_then_sum_hears_a_function_of_small_differences():
    # each function alone gives +-1/sqrt(2); they cancel for the first group, although 100 outweighs 0.01
    actual = combined([[100, 0], [0, 0.01], [1, 1], [0, 0]], [1, 1], [0, 0, 1, 1], eps=1e-9)
    # sums 0, 0, sqrt(2), -sqrt(2): variance 4/3
    np.testing.assert_allclose(actual, np.array([0, 0, 1, -1]) * np.sqrt(2) / np.sqrt(4 / 3), atol=1e-6)


def test_normalize_then_sum_with_one_judged_response_in_a_group():
    actual = combined([[NAN], [5], [1], [0]], [1], [0, 0, 1, 1], eps=0.0)
    # the group's only judged response adds 0; over 0, 1/sqrt(2), -1/sqrt(2) the variance is 1/2
    np.testing.assert_allclose(actual, [0, 0, 1, -1], atol=1e-12)


@given(rewards=st.lists(st.sampled_from([0.0, 0.1, 1.0, NAN]), min_size=8, max_size=8))
def test_advantages_are_finite_and_sum_to_zero(rewards):
    actual = combined(np.array(rewards).reshape(4, 2), [1.0, 0.5], [0, 0, 1, 1])
    assert np.isfinite(actual).all()
    assert abs(actual.sum()) < 1e-9


def test_a_reward_stands_at_the_last_token():
    mask = np.array([[1, 1, 0], [0, 0, 0]]) == 1
    assert estimators.rewards_at_last_token(np.array([5.0, 8.0]), mask).tolist() == [[0, 5, 0], [0, 0, 0]]


def test_discounted_return_by_hand():
    # 2, then 1 + 0.5 * 2, then 0 + 0.5 * 2
    assert estimators.discounted_returns(np.array([[0.0, 1, 2]]), gamma=0.5).tolist() == [[1.0, 2.0, 2.0]]


def test_unbiased_whitening_by_hand():
    # 1, 2, 6: mean 3, squares 4 + 1 + 9, over n - 1
    actual = estimators.whiten(
        np.array([[1.0, 2.0, np.nan], [6.0, np.inf, 1e30]]), np.array([[1, 1, 0], [1, 0, 0]]) == 1, "unbiased"
    )
    np.testing.assert_allclose(actual, np.array([[-2, -1, 0], [3, 0, 0]]) / np.sqrt(7), atol=1e-8)
    assert (actual[[0, 1, 1], [2, 1, 2]] == 0).all()


def test_kinds_of_whitening_differ_by_bessels_correction():
    values, mask = np.array([[1.0, 2.0, 6.0]]), np.ones((1, 3), dtype=bool)
    unbiased = estimators.whiten(values, mask, "unbiased")
    np.testing.assert_allclose(estimators.whiten(values, mask, "unbiased_moments"), unbiased, rtol=1e-7)
    np.testing.assert_allclose(estimators.whiten(values, mask, "biased"), unbiased * np.sqrt(3 / 2), rtol=1e-7)
    np.testing.assert_array_equal(estimators.whiten(values, mask, "none"), values)


@pytest.mark.parametrize("kind", ["unbiased", "unbiased_moments", "biased"])
@pytest.mark.parametrize("num_tokens", [0, 1])
def test_fewer_than_two_tokens_are_whitened_to_zero(kind, num_tokens):
    assert estimators.whiten(np.full((1, 3), 0.1), np.arange(3)[None] < num_tokens, kind).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("kind", ["unbiased", "unbiased_moments", "biased"])
def test_large_equal_values_stay_finite(kind):
    # The difference of the two moments rounds below 0 here.
    assert np.isfinite(estimators.whiten(np.full((1, 7), 1e8 + 0.1), np.ones((1, 7), dtype=bool), kind)).all()


@pytest.mark.parametrize(("kind", "ddof"), [("unbiased", 1), ("unbiased_moments", 1), ("biased", 0)])
@given(values=st.lists(st.floats(-100, 100), min_size=3, max_size=20))
def test_whitened_tokens_have_mean_0_and_deviation_1(kind, ddof, values):
    if np.std(values) < 1e-2:
        return
    whitened = estimators.whiten(np.array([values]), np.ones((1, len(values)), dtype=bool), kind)
    np.testing.assert_allclose(whitened.mean(), 0, atol=1e-5)
    np.testing.assert_allclose(whitened.std(ddof=ddof), 1, rtol=1e-3)


def otb(returns, energies, mask, ids, **options):
    arrays = np.array(returns, float), np.array(energies, float), np.array(mask, bool), Groups.of(ids)
    return estimators.optimal_token_baseline(*arrays, eps=0.0, **options)


def test_the_optimal_token_baseline_by_hand():
    # Energies so far: [1, 3], [2, 4], so the baselines are (1 * 1 + 0 * 2) / 3 and (1 * 3 + 0 * 4) / 7.
    advantages = otb([[1, 1], [0, 0]], [[1, 2], [2, 2]], [[1, 1], [1, 1]], [5, 5])
    np.testing.assert_allclose(advantages, [[2 / 3, 4 / 7], [-1 / 3, -3 / 7]])


def test_the_end_of_the_longest_response_keeps_its_return():
    mask = [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    advantages = otb(np.where(mask, 2.0, 7.0), np.ones((3, 3)), mask, [0, 0, 0])
    np.testing.assert_array_equal(advantages, [[0, 0, 2], [0, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize(("singleton", "expected"), [("zero", 0.0), ("raw", 3.0)])
def test_a_group_of_one_has_no_token_baseline(singleton, expected):
    assert (otb([[3.0, 3.0]], [[1.0, 1.0]], [[1, 1]], [0], singleton=singleton) == expected).all()


def test_the_token_baseline_of_equal_energies_is_the_groups_mean():
    rewards, mask = np.array([3.0, 0.0, 1.0, 0.5]), np.ones((4, 2))
    advantages = otb(np.repeat(rewards[:, None], 2, axis=1), np.full((4, 2), 0.3), mask, [0, 0, 1, 1])
    np.testing.assert_allclose(advantages[:, 1], [1.5, -1.5, 0.25, -0.25])
