"""Reward for multiple-choice questions with one or several right letters: 1 for exactly the right ones, else 0."""

from __future__ import annotations

from math_answers.choices import check_choice, gold_choices
from math_answers.findings import AnswerMode
from mindgspo.rewards.verification import Candidate, Verification, paid


class MultipleChoice:
    """answer: where the letters are looked for, see `math_answers.choices.find_choices`."""

    def __init__(self, answer: AnswerMode = "flexible") -> None:
        self._mode: AnswerMode = answer

    def can_read(self, gold: str) -> bool:
        r"""Whether `gold` is letters from A to J, or a solution whose last \boxed{} holds such."""
        return gold_choices(gold) is not None

    def verify(self, candidate: Candidate) -> Verification:
        """UNPARSEABLE_GOLD abstains (value None); CORRECT, WRONG and NO_ANSWER are paid."""
        return paid(check_choice(candidate.text, candidate.gold, mode=self._mode, is_cut=candidate.is_cut))
