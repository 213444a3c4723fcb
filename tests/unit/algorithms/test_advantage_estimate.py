import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindgspo.algorithms import AdvantageInputs, estimate_advantages, has_signal
from mindgspo.config.algorithm import AdvantageSection, EstimatorName
from mindgspo.errors import DataError

ESTIMATORS = get_args(EstimatorName)
# What is exactly 0 for equal rewards of a group, whatever stands in the others.
GROUP_RELATIVE = ("grpo", "dr_grpo", "rloo", "opo", "max_rl", "pass_k", "gpg")


def made(rewards, groups, lengths=None, counted=None, **more) -> AdvantageInputs:
    """Inputs of responses of 2 tokens that all count, with a greedy reward of 0.5 and energies of 1."""
    size = len(rewards)
    longest = 2 if lengths is None else max(lengths, default=0)
    return AdvantageInputs(
        rewards_N=np.array(rewards, dtype=np.float64),
        counted_N=np.ones(size, dtype=bool) if counted is None else np.array(counted, dtype=bool),
        groups_N=np.array(groups, dtype=np.int64),
        lengths_N=np.full(size, 2) if lengths is None else np.array(lengths, dtype=np.int64),
        **{"baselines_N": np.full(size, 0.5), "energies_NT": np.ones((size, longest)), **more},
    )


def estimated(name, inputs, **section) -> tuple[np.ndarray, ...]:
    return estimate_advantages(AdvantageSection(estimator=name, **section), inputs)


def listed(name, inputs, **section) -> list[list[float]]:
    return [tokens.tolist() for tokens in estimated(name, inputs, **section)]


def first_tokens(advantages) -> np.ndarray:
    return np.array([tokens[0] for tokens in advantages], dtype=np.float64)


def by_hand(name, rewards=(1.0, 0.0, 0.0), groups=(0, 0, 0), **section) -> np.ndarray:
    return first_tokens(estimated(name, made(rewards, groups), **section))


@pytest.mark.parametrize(("name", "section", "expected"), [
    ("grpo", {}, np.array([2, -1, -1]) / 3 / (np.sqrt(1 / 3) + 1e-6)),
    ("grpo", {"ddof": 0, "eps": 0.5}, np.array([2, -1, -1]) / 3 / (np.sqrt(2 / 9) + 0.5)),
    ("grpo", {"normalize_by_std": False}, [2 / 3, -1 / 3, -1 / 3]),
    ("dr_grpo", {}, [2 / 3, -1 / 3, -1 / 3]),
    ("rloo", {}, [1.0, -0.5, -0.5]),
    ("opo", {}, [2 / 3, -1 / 3, -1 / 3]),
    ("max_rl", {}, [2, -1, -1]),
    ("pass_k", {}, [1 / (np.sqrt(1 / 3) + 1e-6), 0, 0]),
    ("pass_k", {"normalize_by_std": False}, [1, 0, 0]),
    ("gpg", {}, [2, -1, -1]),
    ("remax", {}, [0.5, -0.5, -0.5]),
    ("optimal_token_baseline", {}, [2 / 3, -1 / 3, -1 / 3]),
    ("reinforce_plus_plus", {"whiten": "none", "gamma": 0.5}, [0.5, 0, 0]),
    # 1 and four times 0 on tokens of equal number: mean 1/3, variance 6/5 * 2/9
    ("reinforce_plus_plus", {}, np.array([2, -1, -1]) / 3 / np.sqrt(4 / 15)),
    ("reinforce_plus_plus", {"whiten": "biased"}, np.array([2, -1, -1]) / 3 / np.sqrt(2 / 9)),
    ("reinforce_plus_plus_baseline", {}, np.array([2, -1, -1]) / 3 / np.sqrt(4 / 15)),
    ("reinforce_plus_plus_baseline", {"whiten": "none"}, [2 / 3, -1 / 3, -1 / 3]),
])  # fmt: skip
def test_one_right_of_three_by_hand(name, section, expected):
    np.testing.assert_allclose(by_hand(name, **section), expected, rtol=1e-6, atol=1e-7)


def test_opo_weighs_by_the_lengths_of_responses():
    assert listed("opo", made([1, 0], [0, 0], [1, 3])) == [[0.75], [-0.25] * 3]


def test_the_last_token_earns_most_when_returns_are_discounted():
    found = listed("reinforce_plus_plus", made([1, 2], [0, 0], [3, 1]), gamma=0.5, whiten="none")
    assert found == [[0.25, 0.5, 1.0], [2.0]]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_arrays_are_float32_of_the_lengths(name):
    lengths = [3, 1, 0, 5]
    advantages = estimated(name, made([1, 0, 0.5, 2], [0, 0, 1, 1], lengths, [True, True, True, False]))
    assert [tokens.shape for tokens in advantages] == [(length,) for length in lengths]
    assert all(tokens.dtype == np.float32 for tokens in advantages)


@pytest.mark.parametrize("name", GROUP_RELATIVE)
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 0.7, -1e6])
def test_groups_of_equal_rewards_are_exactly_zero(name, reward):
    for size in (1, 2, 3, 7, 16):
        rewards, groups = [reward] * size + [1.0, 0.0], [5] * size + [2, 2]
        for section in ({}, {"std_over": "batch"}) if name == "grpo" else ({},):
            assert by_hand(name, rewards, groups, **section)[:size].tolist() == [0.0] * size


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "remax"])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1])
def test_a_step_of_equal_rewards_is_exactly_zero(name, reward):
    assert by_hand(name, [reward] * 6, [0, 0, 0, 1, 1, 1]).tolist() == [0.0] * 6


@pytest.mark.parametrize("name", ["reinforce_plus_plus", "reinforce_plus_plus_baseline"])
@pytest.mark.parametrize("whiten", ["unbiased", "biased"])
def test_whitening_a_single_token_gives_zero(name, whiten):
    assert listed(name, made([3.0], [0], [1]), whiten=whiten, singleton="raw") == [[0.0]]


@pytest.mark.parametrize("name", [*GROUP_RELATIVE, "reinforce_plus_plus_baseline"])
def test_the_only_counted_reward_of_a_group(name):
    section = {"whiten": "none", "normalize_by_std": False}
    inputs = made([0.5, 9.0, 1.0, 0.0], [0, 0, 1, 1], counted=[True, False, True, True])
    zero, raw = estimated(name, inputs, **section), estimated(name, inputs, **section, singleton="raw")
    assert zero[0].tolist() == zero[1].tolist() == [0, 0]
    # gpg: two of three rewards are not 0
    np.testing.assert_allclose(raw[0], 0.5 * (1.5 if name == "gpg" else 1.0), rtol=1e-6)
    np.testing.assert_array_equal(raw[2:], zero[2:])


@pytest.mark.parametrize("name", ESTIMATORS)
@given(data=st.data())
@settings(max_examples=40)
def test_abstaining_is_the_same_as_not_being_there(name, data):
    size = data.draw(st.integers(1, 8))
    draw = lambda of: np.array(data.draw(st.lists(of, min_size=size, max_size=size)))  # noqa: E731
    rewards, groups = draw(st.sampled_from([0.0, 0.1, 1.0, -2.0])), draw(st.integers(0, 2))
    lengths, counted = draw(st.integers(1, 4)), draw(st.booleans())
    with_all = estimated(name, made(np.where(counted, rewards, np.nan), groups, lengths, counted))
    without = estimated(name, made(rewards[counted], groups[counted], lengths[counted]))
    assert all((tokens == 0).all() for tokens, counts in zip(with_all, counted, strict=True) if not counts)
    for actual, expected in zip([with_all[i] for i in np.flatnonzero(counted)], without, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", ESTIMATORS)
@given(data=st.data())
@settings(max_examples=40)
def test_order_of_responses_and_names_of_groups_do_not_matter(name, data):
    size = data.draw(st.integers(1, 8))
    draw = lambda of: np.array(data.draw(st.lists(of, min_size=size, max_size=size)))  # noqa: E731
    rewards, groups = draw(st.sampled_from([0.0, 0.1, 1.0, -2.0])), draw(st.integers(0, 2))
    lengths = draw(st.integers(1, 4))
    order = np.array(data.draw(st.permutations(range(size))))
    penalties = data.draw(st.sampled_from([None, np.arange(size * 4).reshape(size, 4) / 10]))
    std_over = data.draw(st.sampled_from(["group", "batch"])) if name == "grpo" else "group"
    section = AdvantageSection(estimator=name, gamma=0.9, std_over=std_over)
    expected = estimate_advantages(section, made(rewards, groups, lengths, token_penalties=penalties))
    shuffled = None if penalties is None else penalties[order]
    inputs = made(rewards[order], np.array([40, -3, 10**12])[groups][order], lengths[order], token_penalties=shuffled)
    actual = estimate_advantages(section, inputs)
    for tokens, place in zip(actual, order, strict=True):
        np.testing.assert_allclose(tokens, expected[place], rtol=1e-5, atol=1e-6)


def test_penalties_are_summed_for_outcomes_and_kept_apart_for_tokens():
    # real penalties 0.1 + 0.2 and 0.4; the rest is garbage past the end
    inputs = made([1, 1], [0, 0], [2, 1], token_penalties=np.array([[0.1, 0.2, np.nan], [0.4, np.inf, 1e30]]))
    for found, expected in (
        (estimated("dr_grpo", inputs), ([0.05, 0.05], [-0.05])),  # 0.7 and 0.6 around 0.65
        (estimated("reinforce_plus_plus", inputs, whiten="none", gamma=0.5), ([-0.1 + 0.5 * 0.8, 0.8], [0.6])),
        (estimated("remax", inputs)[:1], ([0.2, 0.3],)),  # 0.7 - 0.5 and 0.8 - 0.5
    ):
        for tokens, by_token in zip(found, expected, strict=True):
            np.testing.assert_allclose(tokens, by_token, rtol=1e-6)


def test_penalties_of_abstaining_responses_are_not_read():
    inputs = made([1, np.nan], [0, 0], [1, 1], [True, False], token_penalties=np.array([[0.1], [np.nan]]))
    assert listed("grpo", inputs) == [[0], [0]]


def test_parts_are_normalised_before_they_are_summed():
    parts = np.array([[100, 0], [0, 0.01], [1, 1], [0, 0], [np.nan, np.nan]])
    inputs = made(
        [100, 0.01, 2, 0, 0], [0, 0, 1, 1, 1], counted=[True, True, True, True, False],
        part_rewards_NF=parts, part_weights_F=np.array([1.0, 1.0]),
    )  # fmt: skip
    actual = first_tokens(estimated("grpo", inputs, combine="normalize_then_sum", eps=1e-9))
    # sums of +-1/sqrt(2): 0, 0, sqrt(2), -sqrt(2), of variance 4/3
    np.testing.assert_allclose(actual, np.array([0, 0, 1, -1, 0]) * np.sqrt(3 / 2), atol=1e-6)
    summed = first_tokens(estimated("grpo", inputs))
    np.testing.assert_allclose(summed, np.array([1, -1, 1, -1, 0]) / np.sqrt(2), rtol=1e-5)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "reinforce_plus_plus"])
@pytest.mark.parametrize("reward", [1e308, 1e200, 1e39])
def test_rewards_beyond_the_arithmetic_are_refused(name, reward):
    if name == "grpo" and reward == 1e39:
        np.testing.assert_allclose(by_hand("grpo", [reward, 0], [0, 0]), np.array([1, -1]) / np.sqrt(2), rtol=1e-6)
        return
    with pytest.raises(DataError, match="too large to make float32 advantages from"):
        estimated(name, made([reward, -reward, reward], [0, 0, 0]), whiten="none")


@pytest.mark.parametrize(("changes", "message"), [
    ({"rewards_N": np.array([1.0, np.nan])}, r"rewards_N: nan at \[1\]"),
    ({"baselines_N": np.array([0.0, np.inf])}, r"baselines_N: inf at \[1\]"),
    ({"token_penalties": np.full((2, 2), np.nan)}, r"token_penalties: nan at \[0, 0\]"),
])  # fmt: skip
def test_values_that_count_and_are_not_finite_are_refused(changes, message):
    with pytest.raises(DataError, match=message):
        AdvantageInputs(**{"rewards_N": np.array([1.0, 0.0]), "counted_N": np.array([True, True]),
                           "groups_N": np.array([0, 0]), "lengths_N": np.array([2, 1]), **changes})  # fmt: skip


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_step_without_rewards_is_all_zero(name):
    assert listed(name, made([1, 2], [0, 0], counted=[False, False])) == [[0, 0], [0, 0]]
    assert estimated(name, made([], [])) == ()


@pytest.mark.parametrize(("rewards", "expected"), [
    ([1.0, 0.0], True),
    ([0.1, 0.1, 0.1], False),
    ([1.0], False),
    ([], False),
    ([None, 1.0, None], False),
    ([None, 1.0, 0.0], True),
    ([0.1 + 0.2, 0.3, 0.3], False),  # the last digit of a sum is no signal
    ([1e6 * (0.1 + 0.2), 3e5], False),
    ([0.3 + 1e-9, 0.3], True),
])  # fmt: skip
def test_a_group_has_signal_when_rewards_that_count_differ(rewards, expected):
    assert has_signal(rewards) is expected


@pytest.mark.parametrize("settings", [{"eps": 1e-12}, {"normalize_by_std": False}])
def test_rewards_that_differ_by_rounding_have_no_advantage(settings):
    assert listed("grpo", made([0.1 + 0.2, 0.3, 0.3], [0, 0, 0]), **settings) == [[0.0, 0.0]] * 3


def test_the_package_does_not_import_mindspore():
    script = "import sys, mindgspo.algorithms; sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
