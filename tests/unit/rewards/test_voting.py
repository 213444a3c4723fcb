"""Which answers count as the same in a majority vote."""

from __future__ import annotations

from collections import defaultdict

import pytest

from mindgspo.config import RewardSection
from mindgspo.rewards import Candidate, Scorer
from mindgspo.rewards.answers.equivalence import RIGHT, votes_of
from mindgspo.types import Verdict


def test_spellings_of_a_wrong_answer_vote_together() -> None:
    answers = ["0.5", "7", r"\frac{1}{2}", "1/2", "7.0", "7"]
    assert votes_of(answers, [False] * 6) == [1, 2, 1, 1, 2, 2]


def test_correct_answers_are_one_whatever_their_form() -> None:
    r"""Only a symbolic comparison knows that \sqrt{8} is 2\sqrt{2}; it said so, or both would not be correct."""
    assert votes_of([r"\sqrt{8}", r"2\sqrt{2}"], [True, True]) == [RIGHT, RIGHT]
    assert votes_of([r"\sqrt{8}", r"2\sqrt{2}"], [False, False]) == [1, 2], "as far as it is quick and certain"


def test_a_wrong_answer_never_votes_for_the_right_one() -> None:
    """Under reward.answer=strict, say, the same number is right in one form and not counted in another."""
    assert votes_of(["72", "72"], [True, False]) == [RIGHT, 1]


def test_nobody_votes_without_an_answer() -> None:
    assert votes_of([None, "3", None], [False, False, False]) == [None, 1, None]
    assert votes_of([], []) == []


@pytest.mark.shared_data
def test_real_groups_of_eight_answers(shared_rows) -> None:
    """40 problems of MATH with 8 answers each: right ones agree, so whoever has five right ones wins the vote."""
    rows = shared_rows("model-outputs/math_qwen25math_boxed.jsonl")
    candidates = [
        Candidate(text=row["response"], gold=row["gold"], data_source="math", index=number)
        for number, row in enumerate(rows)
    ]
    with Scorer(RewardSection(functions=("math",), weights=(1.0,))) as scorer:
        scores = scorer.score(candidates)
    groups = defaultdict(list)
    for row, score in zip(rows, scores, strict=True):
        groups[row["problem"]].append(score)
    assert len(groups) == 40
    for group in groups.values():
        are_correct = [score.verdict is Verdict.CORRECT for score in group]
        votes = votes_of([score.extracted for score in group], are_correct)
        assert [vote == RIGHT for vote in votes] == are_correct
        assert all((vote is None) == (score.extracted is None) for vote, score in zip(votes, group, strict=True))
