"""Expectations over k of n samples against counting all subsets, and by hand."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from mindgspo.metrics.sample_subsets import best_at_k, majority_at_k, pass_at_k

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


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ([RIGHT, RIGHT, WRONG], 1),
        ([RIGHT, WRONG, WRONG], 0),
        ([RIGHT, WRONG], 1 / 2),
        ([RIGHT, WRONG, OTHER], 1 / 3),
        ([RIGHT, RIGHT, WRONG, WRONG, OTHER], 1 / 2),
        ([WRONG, OTHER], 0),
        ([None, None, None, RIGHT], 1),
        ([None, None, RIGHT, WRONG, WRONG], 0),
        ([None, None], 0),
    ],
)
def test_the_vote_of_all_samples_by_hand(votes: list[int | None], expected: float) -> None:
    assert majority_at_k(votes, RIGHT, len(votes)) == expected == vote_of(tuple(votes))
    assert majority_at_k(votes[::-1], RIGHT, len(votes)) == expected, "whatever the order"


def test_the_vote_of_three_of_four_by_hand() -> None:
    """R R W -: RRW, RR- are right; RW- twice, each a tie: (1 + 1 + 1/2 + 1/2) / 4."""
    assert majority_at_k([RIGHT, RIGHT, WRONG, None], RIGHT, 3) == 3 / 4


@pytest.mark.parametrize("k", range(1, 8))
def test_the_vote_of_k_samples_is_the_mean_over_all_subsets(k: int) -> None:
    """Every way in which 7 samples can vote for the right answer, three wrong ones or not at all, up to their order."""
    for votes in itertools.combinations_with_replacement([RIGHT, WRONG, OTHER, 3, None], 7):
        subsets = list(itertools.combinations(votes, k))
        expected = sum(map(vote_of, subsets)) / len(subsets)
        assert majority_at_k(votes, RIGHT, k) == pytest.approx(expected, abs=1e-12), votes


def test_many_samples_are_counted_without_listing_them() -> None:
    """Of 64 samples 40 agree on the right answer: 32 of them nearly always have it in front; one alone is the mean."""
    votes = [RIGHT] * 40 + [WRONG] * 14 + list(range(2, 8)) + [None] * 4
    assert majority_at_k(votes, RIGHT, 1) == pytest.approx(40 / 64)
    assert 0.999 < majority_at_k(votes, RIGHT, 32) <= 1


def test_the_best_of_k_by_hand() -> None:
    """Of 1, 2, 4 two are taken: 2, 4, 4."""
    assert best_at_k([4, 1, 2], 2) == pytest.approx(10 / 3)
    assert best_at_k([4, 1, 2], 1) == pytest.approx(7 / 3)
    assert best_at_k([4, 1, 2], 3) == 4


@pytest.mark.parametrize("k", range(1, 7))
def test_the_best_of_k_is_the_mean_over_all_subsets(k: int) -> None:
    values = [0.5, -1.0, 2.0, 0.5, 3.5, -4.0]
    subsets = list(itertools.combinations(values, k))
    assert best_at_k(values, k) == pytest.approx(sum(map(max, subsets)) / len(subsets))
