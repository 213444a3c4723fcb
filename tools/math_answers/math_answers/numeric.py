r"""Answers that are numbers, as in GSM8K and DAPO-Math-17k: is the one of a response the gold answer, exactly?"""

from __future__ import annotations

from collections.abc import Sequence

from math_answers.equivalence import Equivalence, compare_answers
from math_answers.extract import USUAL_MARKERS, Marker, find_answer
from math_answers.findings import AnswerMode, Finding, Outcome, judged
from math_answers.quantity import MAX_CONTENT_CHARS, Quantity, read_quantity, same_quantity, unboxed
from math_answers.rounded import alike
from math_answers.text import plain, same_text


def check_number(
    response: str,
    gold: str,
    *,
    own: Sequence[Marker] = (Marker.HASHES, Marker.BOXED),
    others: Sequence[Marker] = USUAL_MARKERS,
    mode: AnswerMode = "flexible",
    is_cut: bool = False,
    takes_formulas: bool = False,
) -> Finding:
    """Whether the answer that a response announces is the number `gold`, or the one of a worked solution that ends in
    "#### 72". own, others, mode, is_cut: see `extract.find_answer`. takes_formulas: a gold answer that is no number is
    met by an expression that is the same without doubt; otherwise it is UNPARSEABLE_GOLD. Never raises.
    """
    if not is_number(gold, takes_formulas=takes_formulas):
        return Finding(outcome=Outcome.UNPARSEABLE_GOLD)
    announced = find_answer(response, own=own, others=others, mode=mode, is_cut=is_cut)
    if announced is None:
        return Finding(outcome=Outcome.NO_ANSWER)
    return judged(plain(announced.text), _is_correct(announced.text, gold))


def is_number(gold: str, *, takes_formulas: bool = False) -> bool:
    """Whether `gold` can be compared with: a number, or a worked solution that ends in "#### 72". takes_formulas:
    whatever holds a letter or a digit."""
    if takes_formulas:
        return any(character.isalnum() for character in plain(gold[:MAX_CONTENT_CHARS]))
    return _gold_quantity(gold) is not None


def _is_correct(announced: str, gold: str) -> bool:
    expected = _gold_quantity(gold)
    if expected is not None:
        quantity = read_quantity(announced)
        return quantity is not None and same_quantity(quantity, expected)
    answer, formula = unboxed(announced), unboxed(gold)
    if same_text(answer, formula):
        return True
    return compare_answers(*alike(plain(answer), plain(formula))) is Equivalence.SAME


def _gold_quantity(gold: str) -> Quantity | None:
    """The gold answer's value, None where it is no number; a worked solution ending in "#### 72" is read too."""
    announced = find_answer(gold, own=(Marker.HASHES,), others=(), mode="strict")
    return read_quantity(gold if announced is None else announced.text)
