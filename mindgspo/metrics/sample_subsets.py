"""What k samples of a problem would have come to, expected over all ways of taking k from the n that were drawn.

What enters: verdicts, votes or rewards of one problem's n samples. What leaves: one number per problem, exact, without
random numbers. Called by evaluation, in training and by `mindgspo eval`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import comb

import numpy as np


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Probability that at least one of k samples drawn without replacement is correct (arXiv 2107.03374, eq. 1)."""
    assert 1 <= k <= num_samples and 0 <= num_correct <= num_samples, (num_samples, num_correct, k)
    return 1.0 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def best_at_k(values: Sequence[float], k: int) -> float:
    """Expected highest of k values. The i-th smallest is the highest of C(i-1, k-1) of the C(n, k) subsets."""
    num_samples = len(values)
    assert 1 <= k <= num_samples, (num_samples, k)
    subsets = comb(num_samples, k)
    return sum(comb(rank, k - 1) / subsets * value for rank, value in enumerate(sorted(values)))


def majority_at_k(votes: Sequence[int | None], right: int, k: int) -> float:
    """Expected correctness of the answer that most of k samples give.

    votes: a number per sample, equal for equal answers, None for a sample without an answer, which does not vote.
    right: the number of the right answer. Of m answers with equally many votes each is taken with probability 1/m, as
    drawing lots would on average. 0 where nobody votes.
    """
    counts = Counter(vote for vote in votes if vote is not None)
    num_right = counts.pop(right, 0)
    return _majority_at_k(num_right, tuple(sorted(counts.values())), len(votes), k)


@lru_cache(maxsize=65536)
def _majority_at_k(num_right: int, num_wrong: tuple[int, ...], num_samples: int, k: int) -> float:
    """num_wrong: votes of each wrong answer. Many problems have the same counts, hence the cache.

    Subsets are counted by how many right answers they hold (`taken`), how many wrong answers have as many, and how many
    samples these wrong answers use up.
    """
    assert 1 <= k <= num_samples, (num_samples, k)
    silent, expected = num_samples - num_right - sum(num_wrong), 0.0
    for taken in range(1, min(num_right, k) + 1):
        room = k - taken
        ways = np.zeros((room // taken + 1, room + 1))  # [wrong answers with as many votes, samples used]
        ways[0, 0] = 1
        for votes in num_wrong:
            ways = _with_one_more_answer(ways, votes, taken)
        by_ties = sum(comb(silent, rest) * ways[:, room - rest] for rest in range(min(silent, room) + 1))
        expected += comb(num_right, taken) * float(np.sum(by_ties / np.arange(1, len(ways) + 1)))
    return expected / comb(num_samples, k)


def _with_one_more_answer(ways: np.ndarray, votes: int, taken: int) -> np.ndarray:
    """The ways after one more wrong answer has given 0, 1, ... of its `votes` samples, at most `taken`."""
    ties, used = ways.shape
    more = np.zeros_like(ways)
    for given in range(min(votes, taken - 1, used - 1) + 1):
        more[:, given:] += comb(votes, given) * ways[:, : used - given]
    if votes >= taken and ties > 1:
        more[1:, taken:] += comb(votes, taken) * ways[:-1, : used - taken]
    return more
