"""Rows that ask the same, and what becomes of them.

What enters: rows one after the other, each with a key that is equal for equal prompts. What leaves: how often that
happened, and for dedup the rows that go. Called by `account`. The published DAPO-Math-17k repeats every prompt 100
times, and a few prompts of it occur with different answers: whichever is right, one of them trains noise.
"""

from __future__ import annotations

import hashlib
import heapq
from typing import NamedTuple

from mindgspo.data.dataset_info import ConflictingPrompt, DuplicateFacts, RepeatedPrompt
from mindgspo.rewards.answers.equivalence import Comparison, compare
from mindgspo.rewards.answers.quantity import parse_number
from mindgspo.rewards.functions.multiple_choice import read_choices

NUM_EXAMPLES = 5

REPEATED = "prompt occurred before"
CONFLICTING = "equal prompts with different answers"


class _Occurrence(NamedTuple):
    number: int
    where: str
    answer: str
    text: bytes


class _Group(NamedTuple):
    """The rows of one prompt. answers: one row per different answer, the first few."""

    rows: list[_Occurrence]
    answers: list[_Occurrence]

    @property
    def is_conflict(self) -> bool:
        return len(self.answers) > 1


class PromptIndex:
    """All prompts seen so far, with their rows."""

    def __init__(self) -> None:
        self._occurrences: dict[bytes, list[_Occurrence]] = {}
        self._groups: list[_Group] | None = None

    def add(self, key: str, *, number: int, where: str, answer: str, text: str) -> None:
        """Take in the row `number` (its position in the source), whose prompt has the hexadecimal `key`. text: the
        prompt letter by letter."""
        self._groups = None
        group = self._occurrences.setdefault(bytes.fromhex(key), [])
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        if group:  # most repetitions are exact: they share their memory with the first
            answer = group[0].answer if answer == group[0].answer else answer
            digest = group[0].text if digest == group[0].text else digest
        group.append(_Occurrence(number, where, answer, digest))

    def facts(self) -> DuplicateFacts:
        """Counts, and the first few examples in the order of the rows."""
        groups = self._repeated()
        conflicting = [group for group in groups if group.is_conflict]
        pairs = ((again, group.rows[0]) for group in groups for again in group.rows[1:])
        return DuplicateFacts(
            repeated_rows=sum(len(group.rows) - 1 for group in groups),
            conflicting_prompts=len(conflicting),
            conflicting_letter_by_letter=sum(_conflict_in_equal_texts(group.rows) for group in conflicting),
            repeated_examples=tuple(
                RepeatedPrompt(first=first.where, again=again.where)
                for again, first in heapq.nsmallest(NUM_EXAMPLES, pairs)
            ),
            conflicting_examples=tuple(_example(group) for group in conflicting[:NUM_EXAMPLES]),
        )

    def superfluous(self) -> dict[int, str]:
        """Row number -> reason, of the rows that dedup drops: all but the first of equal prompts, and every one of
        those whose answers differ."""
        reasons = {}
        for group in self._repeated():
            if group.is_conflict:
                reasons |= {one.number: CONFLICTING for one in group.rows}
            else:
                reasons |= {one.number: REPEATED for one in group.rows[1:]}
        return reasons

    def _repeated(self) -> list[_Group]:
        if self._groups is None:
            self._groups = [_Group(rows, _answers(rows)) for rows in self._occurrences.values() if len(rows) > 1]
        return self._groups


def _answers(rows: list[_Occurrence]) -> list[_Occurrence]:
    """The first row of each different answer, at most NUM_EXAMPLES of them."""
    distinct: dict[str, _Occurrence] = {}
    for one in rows:
        distinct.setdefault(one.answer.strip(), one)
    found: list[_Occurrence] = []
    for text, one in distinct.items():
        if not any(_are_same(text, other.answer.strip()) for other in found):
            found.append(one)
            if len(found) == NUM_EXAMPLES:
                break
    return found


def _are_same(answer: str, other: str) -> bool:
    """Whether two texts surely mean the same: one number, one formula typed in two ways, or one choice of letters."""
    number = parse_number(answer)
    if number is not None and number == parse_number(other):
        return True
    if compare(answer, other) is Comparison.SAME:
        return True
    letters = read_choices(answer)
    return letters is not None and letters == read_choices(other)


def _conflict_in_equal_texts(rows: list[_Occurrence]) -> bool:
    """Whether already those whose prompts are the same text disagree."""
    by_text: dict[bytes, list[_Occurrence]] = {}
    for one in rows:
        by_text.setdefault(one.text, []).append(one)
    return any(len(_answers(part)) > 1 for part in by_text.values())


def _example(group: _Group) -> ConflictingPrompt:
    """One place per different answer."""
    return ConflictingPrompt(
        places=tuple(one.where for one in group.answers),
        answers=tuple(one.answer.strip()[:60] for one in group.answers),
    )
