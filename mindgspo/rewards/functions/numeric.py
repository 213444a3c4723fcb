r"""Rewards for answers that are numbers: GSM8K, DAPO-Math-17k, and verl's own function for GSM8K."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from mindgspo.config.reward import AnswerMode
from mindgspo.rewards.answers.equivalence import Equivalence, compare_answers
from mindgspo.rewards.answers.extract import USUAL_MARKERS, Marker, find_answer
from mindgspo.rewards.answers.quantity import MAX_CONTENT_CHARS, Quantity, read_quantity, same_quantity, unboxed
from mindgspo.rewards.answers.rounded import alike
from mindgspo.rewards.answers.text import plain, same_text
from mindgspo.rewards.verification import Candidate, Verification, verified
from mindgspo.types import Verdict

VERL_TAIL_CHARS = 300
"""Characters of a response, from its end, that verl looks at."""

_VERL_MARKED = re.compile(r"#### (-?[0-9.,]+)")
_VERL_NUMBER = re.compile(r"-?[0-9.,]+")


class NumericVerifier:
    """The announced answer must equal the gold answer as an exact number.

    own: the data set's own markers.
    others: further markers, the most trusted first, see `extract.find_answer`.
    correct, wrong: reward values. A response without an answer is paid like a wrong one, but has its own verdict.
    """

    def __init__(
        self,
        *,
        own: Sequence[Marker],
        others: Sequence[Marker] = USUAL_MARKERS,
        mode: AnswerMode,
        correct: float,
        wrong: float,
    ) -> None:
        self._own, self._others, self._mode = own, others, mode
        self._correct, self._wrong = correct, wrong

    def can_read(self, gold: str) -> bool:
        """Whether `gold` is a number, or a worked solution that ends in "#### 72"."""
        return _gold_quantity(gold) is not None

    def verify(self, candidate: Candidate) -> Verification:
        """UNPARSEABLE_GOLD abstains (value None); CORRECT, WRONG and NO_ANSWER are paid."""
        if not self.can_read(candidate.gold):
            return Verification(value=None, verdict=Verdict.UNPARSEABLE_GOLD)
        announced = find_answer(
            candidate.text, own=self._own, others=self._others, mode=self._mode, is_cut=candidate.is_cut
        )
        if announced is None:
            return Verification(value=self._wrong, verdict=Verdict.NO_ANSWER)
        is_correct = self._is_correct(announced.text, candidate.gold)
        return verified(plain(announced.text), is_correct, correct=self._correct, wrong=self._wrong)

    def _is_correct(self, announced: str, gold: str) -> bool:
        answer, expected = read_quantity(announced), _gold_quantity(gold)
        return answer is not None and expected is not None and same_quantity(answer, expected)


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
        )

    def can_read(self, gold: str) -> bool:
        """Whether `gold` holds a letter or a digit."""
        return any(character.isalnum() for character in plain(gold[:MAX_CONTENT_CHARS]))

    def _is_correct(self, announced: str, gold: str) -> bool:
        if _gold_quantity(gold) is not None:
            return super()._is_correct(announced, gold)
        answer, expected = unboxed(announced), unboxed(gold)
        if same_text(answer, expected):
            return True
        return compare_answers(*alike(plain(answer), plain(expected))) is Equivalence.SAME


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


def _gold_quantity(gold: str) -> Quantity | None:
    """The gold answer's value, None where it is no number; a worked solution ending in "#### 72" is read too."""
    announced = find_answer(gold, own=(Marker.HASHES,), others=(), mode="strict")
    return read_quantity(gold if announced is None else announced.text)


def _after_hashes(tail: str) -> str | None:
    """The last "#### n"; it may be empty, from "#### ,"."""
    marked = _VERL_MARKED.findall(tail)
    return marked[-1].replace(",", "") if marked else None


def _last_number(tail: str) -> str | None:
    """The last number that is not a lone full stop. Where all are, verl returns one, so that "Yes." is an answer."""
    numbers = _VERL_NUMBER.findall(tail)
    if not numbers:
        return None
    return next((number for number in reversed(numbers) if number != "."), ".")
