"""What the answers to a data set's problems come to.

What enters: `ScoredGroup`s. What leaves: `Figures`: estimates under the names that a run's metrics have, and what says
whether they can be trusted. Called by `measure` and, in training, by `evaluate`.

    acc/mean@n      share of correct answers; of greedy ones (n = 1), or of n samples per problem
    acc/pass@k      probability that one of k samples is correct
    acc/maj@n       share of problems whose most frequent answer is correct; equally frequent ones are drawn by lot
    reward/mean@n   mean reward, and
    reward/best@n   the highest reward among a problem's n samples; both only where rewards say more than right or
                    wrong. A failed judgement counts as the lowest reward there is
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mindgspo.metrics.evaluation_statistics import (
    Estimate,
    majority_is_right,
    mean_at_n,
    mean_estimate,
    pass_at_k_estimate,
    share_estimate,
)
from mindgspo.rewards.answers.voting import RIGHT, votes_of
from mindgspo.types import FinishReason, Score, ScoredGroup, Verdict

_LARGEST_REWARD = 1e100
_JUDGED = (Verdict.CORRECT, Verdict.WRONG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One problem with the scores of its answers; what is kept of a `ScoredGroup` of thousands of tokens."""

    data_source: str
    scores: tuple[Score, ...]
    lengths: tuple[int, ...]
    num_cut: int

    @staticmethod
    def of(group: ScoredGroup) -> Answered:
        """lengths: in tokens. num_cut: answers that reached the longest length."""
        return Answered(
            data_source=group.prompt.data_source,
            scores=group.scores,
            lengths=tuple(response.length for response in group.responses),
            num_cut=sum(response.finish_reason is FinishReason.LENGTH for response in group.responses),
        )

    @property
    def num_correct(self) -> int:
        """Answers judged correct. A judgement that failed says nothing for the model."""
        return sum(score.verdict is Verdict.CORRECT for score in self.scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """estimates: by name. cut, no_answer, failed: shares of the answers that reached the longest length, in which no
    answer was found, and that could not be judged. mean_length: in tokens."""

    num_problems: int
    num_correct: int
    estimates: Mapping[str, Estimate]
    cut: float
    no_answer: float
    failed: float
    mean_length: float


def figures_of(answered: Sequence[Answered], pass_at_k: Sequence[int] = ()) -> Figures:
    """The figures of problems with equally many answers. pass_at_k: for which k; none for greedy answers."""
    size = len(answered[0].scores)
    assert all(len(one.scores) == size for one in answered), "problems with different numbers of answers"
    correct = [one.num_correct for one in answered]
    estimates = {f"acc/mean@{size}": mean_at_n(correct, size)}
    estimates |= {f"acc/pass@{k}": pass_at_k_estimate(correct, size, k) for k in pass_at_k}
    if size > 1:
        estimates |= _vote(answered, size)
    estimates |= _rewards(answered, size)
    verdicts = [score.verdict for one in answered for score in one.scores]
    lengths = [length for one in answered for length in one.lengths]
    num_found = sum(verdict in (*_JUDGED, Verdict.NO_ANSWER) for verdict in verdicts)
    return Figures(
        num_problems=len(answered),
        num_correct=sum(correct),
        estimates=estimates,
        cut=sum(one.num_cut for one in answered) / len(verdicts),
        no_answer=verdicts.count(Verdict.NO_ANSWER) / len(verdicts),
        failed=1 - num_found / len(verdicts),
        mean_length=float(np.mean(lengths)),
    )


def _vote(answered: Sequence[Answered], size: int) -> dict[str, Estimate]:
    """Nothing where a reward function judges answers without saying what they are: then nobody knows who voted for
    what."""
    scores = [score for one in answered for score in one.scores]
    if any(score.verdict in _JUDGED and score.extracted is None for score in scores):
        return {}
    shares = []
    for one in answered:
        votes = votes_of(
            [score.extracted for score in one.scores], [score.verdict is Verdict.CORRECT for score in one.scores]
        )
        shares.append(majority_is_right(votes, RIGHT))
    return {f"acc/maj@{size}": share_estimate(shares)}


def _rewards(answered: Sequence[Answered], size: int) -> dict[str, Estimate]:
    """Nothing where all right answers have one reward and all others one: acc/mean@n and acc/pass@n say as much."""
    scores = [score for one in answered for score in one.scores if score.value is not None]
    kinds = {(score.verdict is Verdict.CORRECT, score.value) for score in scores}
    if len(kinds) == len({is_correct for is_correct, _ in kinds}):
        return {}
    lowest = min(value for _, value in kinds)
    values = [[lowest if score.value is None else score.value for score in one.scores] for one in answered]
    if np.abs(values).max() > _LARGEST_REWARD:  # sums and squares would overflow
        return {}
    mean = {f"reward/mean@{size}": mean_estimate(np.mean(values, axis=1))}
    return mean if size == 1 else mean | {f"reward/best@{size}": mean_estimate(np.max(values, axis=1))}
