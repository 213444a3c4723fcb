r"""Rewards for answers that are numbers: GSM8K, DAPO-Math-17k, and verl's own function for GSM8K."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from math_answers.extract import USUAL_MARKERS, Marker
from math_answers.findings import AnswerMode
from math_answers.numeric import check_number, is_number
from mindgspo.rewards.verification import Candidate, Verification, paid, verified
from mindgspo.types import Verdict

VERL_TAIL_CHARS = 300
"""Characters of a response, from its end, that verl looks at."""

_VERL_MARKED = re.compile(r"#### (-?[0-9.,]+)")
_VERL_NUMBER = re.compile(r"-?[0-9.,]+")


class NumericVerifier:
    """The announced answer must equal the gold answer as an exact number.

    own: the data set's own markers.
    others: further markers, the most trusted first, see `math_answers.extract.find_answer`.
    correct, wrong: reward values. A response without an answer is paid like a wrong one, but has its own verdict.
    takes_formulas: see `math_answers.numeric.check_number`.
    """

    def __init__(
        self,
        *,
        own: Sequence[Marker],
        others: Sequence[Marker] = USUAL_MARKERS,
        mode: AnswerMode,
        correct: float,
        wrong: float,
        takes_formulas: bool = False,
    ) -> None:
        self._own, self._others, self._takes_formulas = own, others, takes_formulas
        self._mode: AnswerMode = mode
        self._correct, self._wrong = correct, wrong

    def can_read(self, gold: str) -> bool:
        """Whether `gold` is a number, or a worked solution that ends in "#### 72"; with `takes_formulas`, whether it
        holds a letter or a digit."""
        return is_number(gold, takes_formulas=self._takes_formulas)

    def verify(self, candidate: Candidate) -> Verification:
        """UNPARSEABLE_GOLD abstains (value None); CORRECT, WRONG and NO_ANSWER are paid."""
        found = check_number(
            candidate.text,
            candidate.gold,
            own=self._own,
            others=self._others,
            mode=self._mode,
            is_cut=candidate.is_cut,
            takes_formulas=self._takes_formulas,
        )
        return paid(found, correct=self._correct, wrong=self._wrong)


class Gsm8k(NumericVerifier):
    r"""GSM8K and tasks in its format: 1 for the right number, else 0. The data set's own form is "#### n"; \boxed{n}
    counts as much, because that is what instruction-tuned models write."""

    def __init__(self, answer: AnswerMode = "flexible") -> None:
        super().__init__(own=(Marker.HASHES, Marker.BOXED), mode=answer, correct=1.0, wrong=0.0)


class MathDapo(NumericVerifier):
    r"""DAPO-Math-17k: +1 for the right answer, -1 otherwise (arXiv 2503.14476, eq. 7).

    The prompt asks for a line "Answer: n", the data set's own form; every answer of that data set is an integer. The
    whole response is searched, where published implementations look at the last 300 characters or at a cut box. A gold
    answer that is no number must be met by an expression that is the same without doubt; `math` looks further.
    strict_box: only the last \boxed{} counts, whatever `answer` says (verl: strict_box_verify).
    """

    def __init__(self, answer: AnswerMode = "flexible", strict_box: bool = False) -> None:
        super().__init__(
            own=(Marker.BOXED,) if strict_box else (Marker.ANSWER_LINE,),
            others=() if strict_box else USUAL_MARKERS,
            mode="strict" if strict_box else answer,
            correct=1.0,
            wrong=-1.0,
            takes_formulas=True,
        )


class VerlGsm8k:
    """verl's utils/reward_score/gsm8k.py with `method`, for comparing runs: 1 where the text that it extracts is the
    gold answer letter by letter, else 0. Verdict NO_ANSWER where it extracts nothing.

    Its blind spots are verl's own: the last 300 characters only; "72.0" and "72." are not "72"; "#### $5" and "####5"
    are no answers; with `flexible`, the full stop of the last sentence is part of its number and "1,000" keeps its
    comma. The gold answer is taken as it stands: one with thousands separators is never matched by `strict`.
    """

    def __init__(self, method: Literal["strict", "flexible"]) -> None:
        self._extract = {"strict": _after_hashes, "flexible": _last_number}[method]

    def can_read(self, gold: str) -> bool:
        """Every text can be compared with."""
        return True

    def verify(self, candidate: Candidate) -> Verification:
        """Verify here, without a worker: 300 characters take no time."""
        extracted = self._extract(candidate.text[-VERL_TAIL_CHARS:])
        if extracted is None:
            return Verification(value=0.0, verdict=Verdict.NO_ANSWER)
        return verified(extracted, extracted == candidate.gold)


def _after_hashes(tail: str) -> str | None:
    """The last "#### n"; it may be empty, from "#### ,"."""
    marked = _VERL_MARKED.findall(tail)
    return marked[-1].replace(",", "") if marked else None


def _last_number(tail: str) -> str | None:
    """The last number that is not a lone full stop. If all are, verl returns one, so that "Yes." is an answer."""
    numbers = _VERL_NUMBER.findall(tail)
    if not numbers:
        return None
    return next((number for number in reversed(numbers) if number != "."), ".")
