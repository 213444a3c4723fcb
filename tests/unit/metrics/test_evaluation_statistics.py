"""Estimates and their intervals, against numbers worked by hand and against simulated evaluations."""

from __future__ import annotations

import numpy as np
import pytest

from mindgspo.metrics.evaluation_statistics import (
    best_at_k_estimate,
    change_estimate,
    effective_number,
    majority_at_k_estimate,
    mean_at_n,
    mean_estimate,
    pass_at_k_estimate,
    share_estimate,
    wilson,
)

WRONG, OTHER, RIGHT = 1, 2, 0


def bounds(estimate: object) -> tuple[float, float, float]:
    return estimate.value, estimate.low, estimate.high


# ----- Wilson's interval


def test_wilson_of_five_in_ten() -> None:
    """z^2 = 3.8415: middle 0.5, half 1.95996 * sqrt(0.025 + 0.0096036) / 1.38415 = 0.26341."""
    assert bounds(wilson(0.5, 10)) == pytest.approx((0.5, 0.23659, 0.76341), abs=1e-5)


def test_wilson_at_the_ends_is_not_certain() -> None:
    """0 of 20: high = z^2 / (20 + z^2) = 3.8415 / 23.8415."""
    assert bounds(wilson(0.0, 20)) == pytest.approx((0, 0, 0.161125), abs=1e-6)
    assert bounds(wilson(1.0, 20)) == pytest.approx((1, 0.838875, 1), abs=1e-6)
    assert wilson(0.0, 20).low == 0 and wilson(1.0, 20).high == 1, "exactly"


def test_greedy_accuracy_has_the_usual_wilson_interval() -> None:
    assert share_estimate([1, 0, 0, 1, 1, 0, 1, 0, 1, 0]) == wilson(0.5, 10)


# ----- samples of one problem are alike


def test_effective_number_by_hand() -> None:
    """p = 0.5, variance (0.25 + 0 + 0.25 + 0) / 4 = 0.125: 4 * 0.25 / 0.125 = 8 of the 16 samples."""
    assert effective_number(np.array([0, 0.5, 1, 0.5]), 4) == 8
    assert share_estimate([0, 0.5, 1, 0.5], 4) == wilson(0.5, 8)


def test_samples_that_never_differ_within_a_problem_count_once() -> None:
    assert mean_at_n([16, 0, 0, 16, 16], 16) == share_estimate([1, 0, 0, 1, 1]) == wilson(0.6, 5)


def test_problems_that_do_not_differ_count_with_all_their_samples_and_no_more() -> None:
    assert mean_at_n([1, 1, 1, 1, 1], 2) == wilson(0.5, 10)
    assert effective_number(np.array([0.5, 0.5, 0.5, 0.51]), 2) == 8, "2,500 by the formula"


def test_nothing_solved_claims_no_more_than_one_answer_per_problem() -> None:
    assert mean_at_n([0] * 30, 16) == wilson(0.0, 30)


@pytest.mark.parametrize("spread", [0.5, 4.0], ids=["problems easy or hard", "problems alike"])
def test_the_interval_covers_the_truth_in_95_of_100_evaluations(spread: float) -> None:
    """40 problems whose chances follow Beta(spread, 2 spread), 8 samples each; the mean over all such is 1/3."""
    random = np.random.default_rng(7)
    num_evaluations, covered, covered_as_if_independent = 2000, 0, 0
    for _ in range(num_evaluations):
        counts = random.binomial(8, random.beta(spread, 2 * spread, size=40))
        honest, naive = mean_at_n(counts, 8), wilson(counts.mean() / 8, 40 * 8)
        covered += honest.low <= 1 / 3 <= honest.high
        covered_as_if_independent += naive.low <= 1 / 3 <= naive.high
    assert 0.93 <= covered / num_evaluations <= 0.97
    assert covered_as_if_independent / num_evaluations < 0.9, "320 answers that are not independent"


def test_a_mean_without_bounds() -> None:
    """1, 2, 3: s = 1, half = 1.95996 / sqrt(3)."""
    assert bounds(mean_estimate([1, 2, 3])) == pytest.approx((2, 2 - 1.131586, 2 + 1.131586), abs=1e-6)
    assert bounds(mean_estimate([4.0])) == (4, None, None)


def test_pass_at_k_over_problems() -> None:
    """Of 4 samples 0, 1, 4 right: pass@2 = 0, 1/2, 1; mean 1/2, variance 1/6, n_eff = 3 * 0.25 * 6 = 4.5 of 6."""
    assert bounds(pass_at_k_estimate([0, 1, 4], 4, 2)) == pytest.approx(bounds(wilson(0.5, 4.5)))
    assert pass_at_k_estimate([1, 1], 4, 2) == wilson(0.5, 4), "of 4 samples 2 disjoint pairs can be drawn"
    assert pass_at_k_estimate([0, 1, 4], 4, 1) == mean_at_n([0, 1, 4], 4)
    assert pass_at_k_estimate([0, 1, 4], 4, 4) == share_estimate([0, 1, 1])


# ----- k of n samples over problems, and changes


def test_votes_and_best_over_problems() -> None:
    """Votes of 2 of 4: 1/2 where half are right and half agree on another; best of 2 of 1, 3: 3."""
    assert majority_at_k_estimate([[0, 0, 1, 1], [0, 0, 0, 0]], 0, 2) == share_estimate([1 / 2, 1], 2)
    assert best_at_k_estimate([[1, 3], [5, 5]], 2) == mean_estimate([3, 5])


def test_a_change_by_hand() -> None:
    """10 problems: 3 gained, 1 lost. With two more: c = 5/12, d = 2/12, half = 1.95996 sqrt(5/12 - 1/36) / sqrt(12)."""
    before, after = [0, 0, 0, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 1, 1, 1, 0, 0, 0]
    half = 1.959964 * (5 / 12 - 1 / 36) ** 0.5 / 12**0.5
    assert bounds(change_estimate(before, after)) == pytest.approx((0.2, 1 / 6 - half, 1 / 6 + half), abs=1e-6)


def test_problems_that_stay_as_they_are_make_a_change_more_certain() -> None:
    """Against the accuracies' own intervals: 20 of 500 gained is beyond doubt, though both intervals overlap."""
    before, after = np.zeros(500), np.zeros(500)
    before[:250], after[:270] = 1, 1
    change = change_estimate(before, after)
    assert change.value == 0.04 and change.low > 0.02
    assert share_estimate(before).high > share_estimate(after).low


def test_nothing_changed_is_not_certainly_no_change() -> None:
    change = change_estimate([1, 0] * 15, [1, 0] * 15)
    assert change.value == 0 and change.low == -change.high and 0.05 < change.high < 0.15


@pytest.mark.parametrize("chance", [0.02, 0.2])
def test_the_interval_of_a_change_covers_the_truth(chance: float) -> None:
    """64 problems, half solved; each changes with that chance, gains twice as likely as losses."""
    random, covered, rounds = np.random.default_rng(3), 0, 2000
    for _ in range(rounds):
        before = random.random(64) < 0.5
        gained, lost = random.random(64) < 2 * chance, random.random(64) < chance
        after = np.where(before, ~lost, gained)
        change = change_estimate(before, after)
        covered += change.low <= chance / 2 <= change.high
    assert covered / rounds >= 0.93
