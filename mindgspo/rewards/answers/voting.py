r"""Which answers to one problem are the same, for a majority vote.

What enters: the answers that were found in the samples of one problem, and which of them were judged correct. What
leaves: a number per sample, equal for equal answers. Called by evaluation.

Correct answers equal the gold answer, hence each other, also where only a symbolic comparison could tell. Wrong answers
are compared by `equivalence`: 0.5, 1/2 and \frac{1}{2} are one answer, 2\sqrt{2} and \sqrt{8} two, because nothing is
worked out here. A wrong answer thus loses a few votes to its own spellings.
"""

from __future__ import annotations

from collections.abc import Sequence

from mindgspo.rewards.answers.equivalence import Comparison, compare

RIGHT = 0
"""The number of the gold answer."""


def votes_of(answers: Sequence[str | None], are_correct: Sequence[bool]) -> list[int | None]:
    """RIGHT for a correct answer, 1, 2, ... for wrong ones in the order in which they come, None without an answer.

    A wrong answer counts as the first that it equals.
    """
    wrong: list[str] = []
    number_of: dict[str, int] = {}
    votes: list[int | None] = []
    for answer, is_correct in zip(answers, are_correct, strict=True):
        if is_correct:
            votes.append(RIGHT)
            continue
        if answer is None:
            votes.append(None)
            continue
        if answer not in number_of:
            number_of[answer] = _place(answer, wrong)
        votes.append(number_of[answer])
    return votes


def _place(answer: str, wrong: list[str]) -> int:
    """The number of `answer` among the wrong ones, to which it is added if it equals none."""
    for number, other in enumerate(wrong, start=1):
        if compare(answer, other) is Comparison.SAME:
            return number
    wrong.append(answer)
    return len(wrong)
