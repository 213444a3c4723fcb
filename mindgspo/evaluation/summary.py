"""Summarises the answers to a data set's problems: estimates under the metric names of a run, and what says whether
they can be trusted.

    acc/mean@n      share of correct answers; of greedy ones (n = 1), or of n samples per problem
    acc/pass@k      probability that one of k samples is correct
    acc/maj@k       share of problems whose most frequent answer among k samples is correct; ties are drawn by lot
    reward/mean@n   mean reward
    reward/best@k   the highest reward among k samples of a problem; a failed verification counts as the lowest reward

Estimates of k samples are expectations over all ways of taking k from the n that were drawn; maj and best are given for
k = n, too, and not for k = 1, where they are the mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mindgspo.evaluation.estimates import (
    Estimate,
    best_at_k_estimate,
    majority_at_k_estimate,
    mean_at_n,
    mean_estimate,
    pass_at_k_estimate,
)
from mindgspo.rewards.answers.equivalence import RIGHT, votes_of
from mindgspo.types import FinishReason, Score, ScoredGroup, Verdict

_LARGEST_REWARD = 1e100
_VERIFIED = (Verdict.CORRECT, Verdict.WRONG)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredProblem:
    """One problem with the scores of its answers; what is kept of a `ScoredGroup` of thousands of tokens."""

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
    """estimates: by name. cut, no_answer, failed: shares of the answers that reached the longest length, in which no
    answer was found, and that could not be verified. mean_length: in tokens."""

    num_problems: int
    num_correct: int
    estimates: Mapping[str, Estimate]
    cut: float
    no_answer: float
    failed: float
    mean_length: float


def summarize(
    problems: Sequence[ScoredProblem], ks: Sequence[int] = (), *, all_rewards: bool = False
) -> EvaluationSummary:
    """The figures of problems with equally many answers. ks: of pass@k, maj@k and best@k; none for greedy answers.

    all_rewards: figures of rewards also where these say no more than right or wrong.
    """
    size = len(problems[0].scores)
    assert all(len(one.scores) == size for one in problems), "problems with different numbers of answers"
    correct = [one.num_correct for one in problems]
    estimates = {f"acc/mean@{size}": mean_at_n(correct, size)}
    estimates |= {f"acc/pass@{k}": pass_at_k_estimate(correct, size, k) for k in ks}
    several = sorted({*ks, size} - {1})
    if size > 1:
        estimates |= _vote(problems, several)
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


def _vote(problems: Sequence[ScoredProblem], ks: Sequence[int]) -> dict[str, Estimate]:
    """Nothing where a reward function verifies answers without saying what they are: then nobody knows who voted for
    what."""
    scores = [score for one in problems for score in one.scores]
    if any(score.verdict in _VERIFIED and score.extracted is None for score in scores):
        return {}
    votes_P = [
        votes_of([score.extracted for score in one.scores], [score.verdict is Verdict.CORRECT for score in one.scores])
        for one in problems
    ]
    return {f"acc/maj@{k}": majority_at_k_estimate(votes_P, RIGHT, k) for k in ks}


def reward_values(scores_P: Sequence[Sequence[Score]]) -> list[list[float]]:
    """The rewards of the answers to each problem; one that could not be scored has the lowest of all. Empty where none
    could, or where sums and squares would overflow."""
    known = [score.value for scores in scores_P for score in scores if score.value is not None]
    if not known or max(map(abs, known)) > _LARGEST_REWARD:
        return []
    lowest = min(known)
    return [[lowest if score.value is None else score.value for score in scores] for scores in scores_P]


def _rewards(
    problems: Sequence[ScoredProblem], size: int, ks: Sequence[int], *, with_plain_ones: bool
) -> dict[str, Estimate]:
    """Nothing where all right answers have one reward and all others one, unless these are asked for: acc/mean@n and
    acc/pass@k say as much."""
    scores = [score for one in problems for score in one.scores if score.value is not None]
    kinds = {(score.verdict is Verdict.CORRECT, score.value) for score in scores}
    is_plain = len(kinds) == len({is_correct for is_correct, _ in kinds})
    values = reward_values([one.scores for one in problems])
    if not values or (is_plain and not with_plain_ones):
        return {}
    estimates = {f"reward/mean@{size}": mean_estimate(np.mean(values, axis=1))}
    return estimates | {f"reward/best@{k}": best_at_k_estimate(values, k) for k in ks}
