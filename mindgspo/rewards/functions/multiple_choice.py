r"""Reward for multiple-choice questions with one or several right letters: 1 for exactly the right ones, else 0.

The data set's own form is \boxed{ABD}, in an <answer> block or not; part of the right letters is wrong, as is one too
many.
"""

from __future__ import annotations

from mindgspo.config.reward import AnswerMode
from mindgspo.rewards.answers.boxed import boxed_spans
from mindgspo.rewards.answers.choices import Choice, boxed_choices, find_choices, read_choices
from mindgspo.rewards.candidate import Candidate
from mindgspo.rewards.judgement import MAX_EXTRACTED_CHARS, Judgement, Reply
from mindgspo.types import Verdict

_CORRECT, _WRONG = 1.0, 0.0


class MultipleChoice:
    """A `judgement.Judge`. answer: where the letters are looked for, see `answers.choices` and `answers.extract`."""

    def __init__(self, answer: AnswerMode = "flexible") -> None:
        self._mode: AnswerMode = answer

    def can_read(self, gold: str) -> bool:
        r"""Whether `gold` is letters from A to J, or a solution whose last \boxed{} holds such."""
        return _gold_choices(gold) is not None

    def judge(self, candidate: Candidate) -> Judgement:
        """UNPARSEABLE_GOLD abstains (value None); CORRECT, WRONG and NO_ANSWER are paid."""
        gold = _gold_choices(candidate.gold)
        if gold is None:
            return Judgement(value=None, verdict=Verdict.UNPARSEABLE_GOLD)
        found = find_choices(candidate.text, mode=self._mode, is_cut=candidate.is_cut)
        if found is None:
            return Judgement(value=_WRONG, verdict=Verdict.NO_ANSWER)
        content, choices = found
        is_correct = choices == gold
        return Judgement(
            value=_CORRECT if is_correct else _WRONG,
            verdict=Verdict.CORRECT if is_correct else Verdict.WRONG,
            extracted=content.strip()[:MAX_EXTRACTED_CHARS] if choices is None else "".join(sorted(choices)),
        )

    def conclude(self, candidate: Candidate, reply: Reply) -> Judgement:
        """Never called: `judge` gives no job."""
        raise AssertionError(f"row {candidate.index}: multiple_choice gives no job, got a reply {reply}")


def _gold_choices(gold: str) -> Choice | None:
    return boxed_choices(gold) if boxed_spans(gold) else read_choices(gold)
