r"""Summary of an evaluation: mean@n, pass@k, maj@k and best@k with 95 % intervals over problems.

    acc/mean@n      share of correct answers; of greedy ones (n = 1), or of n samples per problem
    acc/pass@k      probability that one of k samples is correct
    acc/maj@k       share of problems whose most frequent answer among k samples is correct; ties are drawn by lot
    reward/mean@n   mean reward
    reward/best@k   the highest reward among k samples of a problem; a failed verification counts as the lowest reward

Estimates for k samples are expectations over all ways of taking k of the n samples drawn; maj and best are also given
for k = n, and not for k = 1, where they equal the mean.

The samples of one problem are correlated, so 30 problems with 16 samples are not 480 independent answers. Every
interval therefore rests on the spread between problems. For shares it is Wilson's interval with the effective number of
answers

    n_eff = p (1 - p) / (s^2 / P)        s^2: variance of the P problems' values around p, ddof 0

which is P if every problem's value is 0 or 1 (a greedy accuracy: the usual Wilson interval) and P times the number of
samples if problems do not differ. Against the plain p +- 1.96 s / sqrt(P), it stays within 0 and 1, and a
model that solves 0 of 30 problems is not said to solve none for certain. Against a bootstrap over problems, which also
respects the dependence, it needs no random numbers, and it does not shrink to nothing at 0 and 1.

Legend: P problems.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb, sqrt

import numpy as np
from numpy.typing import ArrayLike

from math_answers.equivalence import RIGHT, votes_of
from mindgspo.types import FinishReason, Score, ScoredGroup, Verdict

_Z = 1.959963984540054  # the normal distribution's quantile at 0.975
_LARGEST_REWARD = 1e100  # squares of larger ones would overflow
_VERIFIED = (Verdict.CORRECT, Verdict.WRONG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its 95 % interval, e.g. Estimate(value=0.5, low=0.33, high=0.67)."""

    value: float
    """Figure over the problems measured."""
    low: float | None
    """Lower end of the interval over all problems like these; None if a single problem cannot say."""
    high: float | None


def share_estimate(values_P: ArrayLike, draws_per_problem: int = 1) -> Estimate:
    """Mean of one share per problem, each within 0 and 1, with Wilson's interval (see above).

    draws_per_problem: how many independent draws a problem's value is a mean of; it bounds n_eff, which by chance may
    come out larger.
    """
    values = np.asarray(values_P, np.float64)
    assert values.ndim == 1 and values.size and draws_per_problem >= 1, (values.shape, draws_per_problem)
    assert values.min() >= 0 and values.max() <= 1, "a share lies within 0 and 1"
    return wilson(float(values.mean()), effective_number(values, draws_per_problem))


def effective_number(values_P: np.ndarray, draws_per_problem: int) -> float:
    """Number of independent answers that carry as much information as the problems' values: between P and P *
    draws_per_problem."""
    num_problems, mean = values_P.size, values_P.mean()
    binomial, variance = mean * (1 - mean), values_P.var()
    if binomial == 0 or num_problems == 1:  # no spread to estimate from: one answer per problem claims the least
        return float(num_problems)
    most = float(num_problems * draws_per_problem)
    return most if variance == 0 else float(np.clip(num_problems * binomial / variance, num_problems, most))


def wilson(share: float, number: float) -> Estimate:
    """Wilson's score interval (1927) of a share among `number` independent answers."""
    weight = _Z**2 / number
    middle = (share + weight / 2) / (1 + weight)
    half = _Z * sqrt(share * (1 - share) / number + weight / (4 * number)) / (1 + weight)
    # At 0 and 1, one end equals the share, which rounding would miss.
    return Estimate(value=share, low=max(0.0, min(share, middle - half)), high=min(1.0, max(share, middle + half)))


def mean_estimate(values_P: ArrayLike) -> Estimate:
    """Mean of one number per problem without bounds, such as a reward, with mean +- 1.96 s / sqrt(P), ddof 1."""
    values = np.asarray(values_P, np.float64)
    assert values.ndim == 1 and values.size, values.shape
    mean = float(values.mean())
    if values.size == 1:
        return Estimate(value=mean, low=None, high=None)
    half = _Z * float(values.std(ddof=1)) / sqrt(values.size)
    return Estimate(value=mean, low=mean - half, high=mean + half)


def mean_at_n(num_correct_P: Sequence[int], num_samples: int) -> Estimate:
    """Share of correct samples among `num_samples` per problem."""
    return share_estimate(np.asarray(num_correct_P) / num_samples, num_samples)


def pass_at_k_estimate(num_correct_P: Sequence[int], num_samples: int, k: int) -> Estimate:
    """Mean of `pass_at_k` over problems; num_samples // k disjoint draws of k go into each."""
    return share_estimate([pass_at_k(num_samples, count, k) for count in num_correct_P], num_samples // k)


def majority_at_k_estimate(votes_P: Sequence[Sequence[int | None]], right: int, k: int) -> Estimate:
    """Mean of `majority_at_k` over problems with equally many votes."""
    return share_estimate([majority_at_k(votes, right, k) for votes in votes_P], len(votes_P[0]) // k)


def best_at_k_estimate(values_PN: ArrayLike, k: int) -> Estimate:
    """Mean of `best_at_k` over problems. N: samples."""
    return mean_estimate([best_at_k(values, k) for values in np.asarray(values_PN, np.float64).tolist()])


def change_estimate(before_P: ArrayLike, after_P: ArrayLike) -> Estimate:
    """Change of the share of solved problems between two evaluations on the same problems; True: solved.

    The two samples are not independent, so only problems whose outcome changed count. The interval is Agresti and Min's
    (2005): with half a problem added to each of the four outcomes, d +- 1.96 sqrt(c - d^2) / sqrt(P + 2), where c is
    the share of problems that changed and d the difference. It is not empty if nothing changed.
    """
    before, after = np.asarray(before_P, bool), np.asarray(after_P, bool)
    assert before.shape == after.shape and before.ndim == 1 and before.size, (before.shape, after.shape)
    number = before.size + 2.0
    gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
    changed, difference = (gained + lost + 1) / number, (gained - lost) / number
    half = _Z * sqrt(changed - difference**2) / sqrt(number)
    low, high = max(-1.0, difference - half), min(1.0, difference + half)
    return Estimate(value=(gained - lost) / before.size, low=low, high=high)


def reward_change_estimate(before_P: ArrayLike, after_P: ArrayLike) -> Estimate:
    """Change of the mean reward between two evaluations on the same problems, by the differences problem by problem."""
    return mean_estimate(np.asarray(after_P, np.float64) - np.asarray(before_P, np.float64))


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
    drawing lots would on average. 0 if there are no votes.
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


# ----- figures of a data set


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredProblem:
    """One problem with the scores of its answers; all that is kept of a `ScoredGroup` with thousands of tokens."""

    data_source: str
    scores: tuple[Score, ...]
    lengths: tuple[int, ...]
    num_cut: int

    @staticmethod
    def of(group: ScoredGroup) -> ScoredProblem:
        """lengths: in tokens. num_cut: answers that reached the longest length."""
        return ScoredProblem(
            data_source=group.prompt.data_source,
            scores=group.scores,
            lengths=tuple(response.length for response in group.responses),
            num_cut=sum(response.finish_reason is FinishReason.LENGTH for response in group.responses),
        )

    @property
    def num_correct(self) -> int:
        """Answers verified as correct. A failed verification does not count for the model."""
        return sum(score.verdict is Verdict.CORRECT for score in self.scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSummary:
    """Figures of problems with equally many answers each."""

    num_problems: int
    num_correct: int
    estimates: Mapping[str, Estimate]
    """Estimates by metric name, e.g. acc/pass@4."""
    cut: float
    """Share of answers that reached the longest length."""
    no_answer: float
    """Share of answers in which no answer was found."""
    failed: float
    """Share of answers that could not be verified."""
    mean_length: float
    """Mean length in tokens."""


def summarize_problems(
    problems: Sequence[ScoredProblem], ks: Sequence[int] = (), *, all_rewards: bool = False
) -> EvaluationSummary:
    """The figures of problems with equally many answers. ks: of pass@k, maj@k and best@k; none for greedy answers.

    all_rewards: report rewards even if they only repeat right and wrong.
    """
    size = len(problems[0].scores)
    assert all(len(one.scores) == size for one in problems), "problems with different numbers of answers"
    correct = [one.num_correct for one in problems]
    estimates = {f"acc/mean@{size}": mean_at_n(correct, size)}
    estimates |= {f"acc/pass@{k}": pass_at_k_estimate(correct, size, k) for k in ks}
    several = sorted({*ks, size} - {1})
    if size > 1:
        estimates |= _majority_votes(problems, several)
    estimates |= _rewards(problems, size, several, with_plain_ones=all_rewards)
    verdicts = [score.verdict for one in problems for score in one.scores]
    lengths = [length for one in problems for length in one.lengths]
    num_found = sum(verdict in (*_VERIFIED, Verdict.NO_ANSWER) for verdict in verdicts)
    return EvaluationSummary(
        num_problems=len(problems),
        num_correct=sum(correct),
        estimates=estimates,
        cut=sum(one.num_cut for one in problems) / len(verdicts),
        no_answer=verdicts.count(Verdict.NO_ANSWER) / len(verdicts),
        failed=1 - num_found / len(verdicts),
        mean_length=float(np.mean(lengths)),
    )


def _majority_votes(problems: Sequence[ScoredProblem], ks: Sequence[int]) -> dict[str, Estimate]:
    """Estimates of majority votes; empty if a reward function verifies answers without returning them, so that votes
    cannot be counted."""
    scores = [score for one in problems for score in one.scores]
    if any(score.verdict in _VERIFIED and score.extracted is None for score in scores):
        return {}
    votes_P = [
        votes_of([score.extracted for score in one.scores], [score.verdict is Verdict.CORRECT for score in one.scores])
        for one in problems
    ]
    return {f"acc/maj@{k}": majority_at_k_estimate(votes_P, RIGHT, k) for k in ks}


def reward_values(scores_P: Sequence[Sequence[Score]]) -> list[list[float]]:
    """The rewards of the answers to each problem; one that could not be scored has the lowest of all. Empty if none
    could, or where sums and squares would overflow."""
    known = [score.value for scores in scores_P for score in scores if score.value is not None]
    if not known or max(map(abs, known)) > _LARGEST_REWARD:
        return []
    lowest = min(known)
    return [[lowest if score.value is None else score.value for score in scores] for scores in scores_P]


def _rewards(
    problems: Sequence[ScoredProblem], size: int, ks: Sequence[int], *, with_plain_ones: bool
) -> dict[str, Estimate]:
    """Estimates of rewards.

    Empty if all right answers have one reward and all others another, because acc/mean@n and acc/pass@k then say the
    same; `with_plain_ones` asks for them all the same.
    """
    scores = [score for one in problems for score in one.scores if score.value is not None]
    kinds = {(score.verdict is Verdict.CORRECT, score.value) for score in scores}
    is_plain = len(kinds) == len({is_correct for is_correct, _ in kinds})
    values = reward_values([one.scores for one in problems])
    if not values or (is_plain and not with_plain_ones):
        return {}
    estimates = {f"reward/mean@{size}": mean_estimate(np.mean(values, axis=1))}
    return estimates | {f"reward/best@{k}": best_at_k_estimate(values, k) for k in ks}
