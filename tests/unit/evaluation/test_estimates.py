"""Estimates, their intervals and expectations over k of n samples, against numbers worked by hand and by counting."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from mindgspo.evaluation.estimates import (
    best_at_k,
    best_at_k_estimate,
    change_estimate,
    effective_number,
    majority_at_k,
    majority_at_k_estimate,
    mean_at_n,
    mean_estimate,
    pass_at_k,
    pass_at_k_estimate,
    share_estimate,
    wilson,
)


def bounds(estimate: object) -> tuple[float, float, float]:
    return estimate.value, estimate.low, estimate.high


def test_wilson_by_hand() -> None:
    # z^2 = 3.8415: middle 0.5, half 1.95996 * sqrt(0.025 + 0.0096036) / 1.38415 = 0.26341.
    assert bounds(wilson(0.5, 10)) == pytest.approx((0.5, 0.23659, 0.76341), abs=1e-5)
    # 0 of 20: high = z^2 / (20 + z^2) = 3.8415 / 23.8415.
    assert bounds(wilson(0.0, 20)) == pytest.approx((0, 0, 0.161125), abs=1e-6)
    assert bounds(wilson(1.0, 20)) == pytest.approx((1, 0.838875, 1), abs=1e-6)
    assert wilson(0.0, 20).low == 0 and wilson(1.0, 20).high == 1, "exactly"
    assert share_estimate([1, 0, 0, 1, 1, 0, 1, 0, 1, 0]) == wilson(0.5, 10)


def test_samples_of_one_problem_are_alike() -> None:
    # p = 0.5, variance (0.25 + 0 + 0.25 + 0) / 4 = 0.125: 4 * 0.25 / 0.125 = 8 of the 16 samples.
    assert effective_number(np.array([0, 0.5, 1, 0.5]), 4) == 8
    assert share_estimate([0, 0.5, 1, 0.5], 4) == wilson(0.5, 8)
    assert mean_at_n([16, 0, 0, 16, 16], 16) == share_estimate([1, 0, 0, 1, 1]) == wilson(0.6, 5)
    assert mean_at_n([1, 1, 1, 1, 1], 2) == wilson(0.5, 10)
    assert effective_number(np.array([0.5, 0.5, 0.5, 0.51]), 2) == 8, "2,500 by the formula"
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


def test_estimates_over_problems_by_hand() -> None:
    # 1, 2, 3: s = 1, half = 1.95996 / sqrt(3).
    assert bounds(mean_estimate([1, 2, 3])) == pytest.approx((2, 2 - 1.131586, 2 + 1.131586), abs=1e-6)
    assert bounds(mean_estimate([4.0])) == (4, None, None)
    # Of 4 samples 0, 1, 4 right: pass@2 = 0, 1/2, 1; mean 1/2, variance 1/6, n_eff = 3 * 0.25 * 6 = 4.5 of 6.
    assert bounds(pass_at_k_estimate([0, 1, 4], 4, 2)) == pytest.approx(bounds(wilson(0.5, 4.5)))
    assert pass_at_k_estimate([1, 1], 4, 2) == wilson(0.5, 4), "of 4 samples 2 disjoint pairs can be drawn"
    assert pass_at_k_estimate([0, 1, 4], 4, 1) == mean_at_n([0, 1, 4], 4)
    assert pass_at_k_estimate([0, 1, 4], 4, 4) == share_estimate([0, 1, 1])
    # Votes of 2 of 4: 1/2 where half are right and half agree on another; best of 2 of 1, 3: 3.
    assert majority_at_k_estimate([[0, 0, 1, 1], [0, 0, 0, 0]], 0, 2) == share_estimate([1 / 2, 1], 2)
    assert best_at_k_estimate([[1, 3], [5, 5]], 2) == mean_estimate([3, 5])


def test_changes_by_hand() -> None:
    # 10 problems: 3 gained, 1 lost. With two more: c = 5/12, d = 2/12, half = 1.95996 sqrt(5/12 - 1/36) / sqrt(12).
    before, after = [0, 0, 0, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 1, 1, 1, 0, 0, 0]
    half = 1.959964 * (5 / 12 - 1 / 36) ** 0.5 / 12**0.5
    assert bounds(change_estimate(before, after)) == pytest.approx((0.2, 1 / 6 - half, 1 / 6 + half), abs=1e-6)
    # Against the accuracies' own intervals: 20 of 500 gained is beyond doubt, though both intervals overlap.
    before, after = np.zeros(500), np.zeros(500)
    before[:250], after[:270] = 1, 1
    change = change_estimate(before, after)
    assert change.value == 0.04 and change.low > 0.02
    assert share_estimate(before).high > share_estimate(after).low
    change = change_estimate([1, 0] * 15, [1, 0] * 15)
    assert change.value == 0 and change.low == -change.high and 0.05 < change.high < 0.15


def test_the_interval_of_a_change_covers_the_truth() -> None:
    """64 problems, half solved; each changes with that chance, gains twice as likely as losses."""
    random, covered, rounds, chance = np.random.default_rng(3), 0, 2000, 0.02
    for _ in range(rounds):
        before = random.random(64) < 0.5
        gained, lost = random.random(64) < 2 * chance, random.random(64) < chance
        after = np.where(before, ~lost, gained)
        change = change_estimate(before, after)
        covered += change.low <= chance / 2 <= change.high
    assert covered / rounds >= 0.93


RIGHT, WRONG, OTHER = 0, 1, 2


def vote_of(votes: tuple[int | None, ...]) -> float:
    """One vote, counted as a person would: 1/m where the right answer is one of m that lead."""
    counts = Counter(vote for vote in votes if vote is not None)
    leaders = [vote for vote, count in counts.items() if count == max(counts.values())]
    return 1 / len(leaders) if RIGHT in leaders else 0.0


@pytest.mark.parametrize("num_correct", range(6))
@pytest.mark.parametrize("k", range(1, 6))
def test_pass_at_k_counts_the_subsets_with_a_correct_sample(num_correct: int, k: int) -> None:
    samples = [True] * num_correct + [False] * (5 - num_correct)
    subsets = list(itertools.combinations(samples, k))
    assert pass_at_k(5, num_correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_votes_of_many_samples() -> None:
    # Of 64 samples 40 agree on the right answer: 32 of them nearly always have it in front; one alone is the mean.
    votes = [RIGHT] * 40 + [WRONG] * 14 + list(range(2, 8)) + [None] * 4
    assert majority_at_k(votes, RIGHT, 1) == pytest.approx(40 / 64)
    assert 0.999 < majority_at_k(votes, RIGHT, 32) <= 1
    assert majority_at_k(votes[::-1], RIGHT, 32) == majority_at_k(votes, RIGHT, 32), "whatever the order"


@pytest.mark.parametrize("k", range(1, 8))
def test_the_vote_of_k_samples_is_the_mean_over_all_subsets(k: int) -> None:
    """Every way in which 7 samples can vote for the right answer, three wrong ones or not at all, up to their order."""
    for votes in itertools.combinations_with_replacement([RIGHT, WRONG, OTHER, 3, None], 7):
        subsets = list(itertools.combinations(votes, k))
        expected = sum(map(vote_of, subsets)) / len(subsets)
        assert majority_at_k(votes, RIGHT, k) == pytest.approx(expected, abs=1e-12), votes


@pytest.mark.parametrize("k", range(1, 7))
def test_the_best_of_k_is_the_mean_over_all_subsets(k: int) -> None:
    values = [0.5, -1.0, 2.0, 0.5, 3.5, -4.0]
    subsets = list(itertools.combinations(values, k))
    assert best_at_k(values, k) == pytest.approx(sum(map(max, subsets)) / len(subsets))
