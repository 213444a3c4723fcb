"""Rows that ask the same, and what becomes of them.

What enters: rows one after the other, each with a key that is equal for equal prompts. What leaves: how often that
happened, and for dedup the rows that go. Called by `account`. The published DAPO-Math-17k repeats every prompt 100
times, and a few prompts of it occur with different answers: whichever is right, one of them trains noise.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from typing import NamedTuple

from mindgspo.data.dataset_info import ConflictingPrompt, DuplicateFacts, RepeatedPrompt
from mindgspo.rewards.answers.number import parse_number

NUM_EXAMPLES = 5

REPEATED = "prompt occurred before"
CONFLICTING = "equal prompts with different answers"


class _Occurrence(NamedTuple):
    number: int
    where: str
    answer: str
    text: bytes


class PromptIndex:
    """All prompts seen so far, with their rows."""

    def __init__(self) -> None:
        self._occurrences: dict[bytes, list[_Occurrence]] = {}

    def add(self, key: str, *, number: int, where: str, answer: str, text: str) -> None:
        """Take in the row `number` (its position in the source), whose prompt has the hexadecimal `key`. text: the
        prompt letter by letter."""
        occurrence = _Occurrence(number, where, answer, hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
        self._occurrences.setdefault(bytes.fromhex(key), []).append(occurrence)

    def facts(self) -> DuplicateFacts:
        """Counts, and the first few examples in the order of the rows."""
        groups = self._groups()
        conflicting = [group for group in groups if _answers(group) > 1]
        repeated = sorted((again, group[0]) for group in groups for again in group[1:])
        return DuplicateFacts(
            repeated_rows=len(repeated),
            conflicting_prompts=len(conflicting),
            conflicting_letter_by_letter=sum(_conflict_in_equal_texts(group) for group in conflicting),
            repeated_examples=tuple(
                RepeatedPrompt(first=first.where, again=again.where) for again, first in repeated[:NUM_EXAMPLES]
            ),
            conflicting_examples=tuple(_example(group) for group in conflicting[:NUM_EXAMPLES]),
        )

    def superfluous(self) -> dict[int, str]:
        """Row number -> reason, of the rows that dedup drops: all but the first of equal prompts, and every one of
        those whose answers differ."""
        reasons = {}
        for group in self._groups():
            if _answers(group) > 1:
                reasons |= {one.number: CONFLICTING for one in group}
            else:
                reasons |= {one.number: REPEATED for one in group[1:]}
        return reasons

    def _groups(self) -> list[list[_Occurrence]]:
        return [group for group in self._occurrences.values() if len(group) > 1]


def _meaning(answer: str) -> str | Fraction:
    """Equal for equal answers: the number where it is one, else the text."""
    number = parse_number(answer)
    return answer.strip() if number is None else number


def _answers(group: list[_Occurrence]) -> int:
    return len({_meaning(one.answer) for one in group})


def _conflict_in_equal_texts(group: list[_Occurrence]) -> bool:
    """Whether already those whose prompts are the same text disagree."""
    texts = {one.text for one in group}
    return any(_answers([one for one in group if one.text == text]) > 1 for text in texts)


def _example(group: list[_Occurrence]) -> ConflictingPrompt:
    """One place per different answer."""
    first = {}
    for one in group:
        first.setdefault(_meaning(one.answer), one)
    shown = list(first.values())[:NUM_EXAMPLES]
    return ConflictingPrompt(
        places=tuple(one.where for one in shown), answers=tuple(one.answer.strip()[:60] for one in shown)
    )
