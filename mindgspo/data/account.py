"""Account of every row (kept, truncated, or dropped for a reason) and of rows that ask the same question."""

from __future__ import annotations

import hashlib
import heapq
import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from math_answers.choices import read_choices
from math_answers.equivalence import Equivalence, compare_answers
from math_answers.quantity import parse_number
from mindgspo.data.dataset import PAGE_SIZE
from mindgspo.data.dataset_info import (
    ConflictingPrompt,
    DuplicateFacts,
    LengthFacts,
    PromptFacts,
    RepeatedPrompt,
    RowCounts,
)
from mindgspo.data.rendering import RenderedRow
from mindgspo.data.source_rows import DroppedRow
from mindgspo.errors import DataError
from mindgspo.rewards.registry import gold_is_met
from mindgspo.types import Prompt

NUM_EXAMPLES = 5

REPEATED = "prompt occurred before"
CONFLICTING = "equal prompts with different answers"


class _Row(NamedTuple):
    number: int
    where: str
    answer: str
    text: bytes


class PromptIndex:
    """All prompts seen so far, with their rows."""

    def __init__(self) -> None:
        self._rows: dict[bytes, list[_Row]] = {}

    def add(self, key: str, *, number: int, where: str, answer: str, text: str) -> None:
        """Add row `number` (its position in the source), whose prompt has the hexadecimal `key`. text: the exact
        prompt."""
        rows = self._rows.setdefault(bytes.fromhex(key), [])
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        if rows:  # most repetitions are exact: they share their memory with the first
            answer = rows[0].answer if answer == rows[0].answer else answer
            digest = rows[0].text if digest == rows[0].text else digest
        rows.append(_Row(number, where, answer, digest))

    def facts(self) -> DuplicateFacts:
        """Counts, and the first few examples in the order of the rows."""
        repeated = [rows for rows in self._rows.values() if len(rows) > 1]
        conflicting = [rows for rows in repeated if len(_answers(rows)) > 1]
        pairs = ((again, rows[0]) for rows in repeated for again in rows[1:])
        examples = map(_answers, conflicting[:NUM_EXAMPLES])
        return DuplicateFacts(
            repeated_rows=sum(len(rows) - 1 for rows in repeated),
            conflicting_prompts=len(conflicting),
            conflicting_letter_by_letter=sum(map(_conflict_in_equal_texts, conflicting)),
            repeated_examples=tuple(
                RepeatedPrompt(first=first.where, again=again.where)
                for again, first in heapq.nsmallest(NUM_EXAMPLES, pairs)
            ),
            conflicting_examples=tuple(
                ConflictingPrompt(
                    places=tuple(one.where for one in rows), answers=tuple(one.answer.strip()[:60] for one in rows)
                )
                for rows in examples
            ),
        )

    def superfluous(self) -> dict[int, str]:
        """{row number: reason} of the rows that dedup drops: all but the first of equal prompts, and all of them if
        their answers differ."""
        reasons = {}
        for rows in self._rows.values():
            if len(rows) > 1 and len(_answers(rows)) > 1:
                reasons |= {one.number: CONFLICTING for one in rows}
            else:
                reasons |= {one.number: REPEATED for one in rows[1:]}
        return reasons


def _answers(rows: list[_Row]) -> list[_Row]:
    """The first row of each different answer, at most NUM_EXAMPLES of them."""
    distinct: dict[str, _Row] = {}
    for one in rows:
        distinct.setdefault(one.answer.strip(), one)
    found: list[_Row] = []
    for text, one in distinct.items():
        if not any(_are_same(text, other.answer.strip()) for other in found):
            found.append(one)
            if len(found) == NUM_EXAMPLES:
                break
    return found


def _are_same(answer: str, other: str) -> bool:
    """Whether two texts certainly mean the same: one number, one formula typed in two ways, or one choice of
    letters."""
    number = parse_number(answer)
    if number is not None and number == parse_number(other):
        return True
    if compare_answers(answer, other) is Equivalence.SAME:
        return True
    letters = read_choices(answer)
    return letters is not None and letters == read_choices(other)


def _conflict_in_equal_texts(rows: list[_Row]) -> bool:
    """Whether already those whose prompts are the same text disagree."""
    by_text: dict[bytes, list[_Row]] = {}
    for one in rows:
        by_text.setdefault(one.text, []).append(one)
    return any(len(_answers(part)) > 1 for part in by_text.values())


OVERLONG = "longer than max_prompt_length"
UNREADABLE = "gold answer cannot be read"
UNMET = "gold answer is not met by its own repetition"

GoldCheck = Callable[[str, str], "bool | None"]
"""(data_source, gold answer) -> whether its reward function can read it; None: no function is known for the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The fate of every row of a source."""

    reasons: dict[int, str]
    """{row number in the source: why it is dropped}."""
    counts: RowCounts
    duplicates: DuplicateFacts
    lengths: LengthFacts
    unchecked: tuple[str, ...]
    """Data sources whose gold answers no function is known to read, in the order of their first rows."""

    def prompts(self, rows: Iterable[RenderedRow | DroppedRow]) -> Iterator[Prompt]:
        """The prompts that are kept, numbered from 0 on. Raises DataError for a row too big for the file."""
        index = 0
        for number, row in enumerate(rows):
            if number not in self.reasons:
                assert isinstance(row, RenderedRow), "a row without an answer has a reason"
                prompt = row.as_prompt(index)
                _check_size(prompt, row.where)
                yield prompt
                index += 1

    def dropped(self, rows: Iterable[RenderedRow | DroppedRow]) -> Iterator[DroppedRow]:
        """The others."""
        for number, row in enumerate(rows):
            if number in self.reasons:
                yield DroppedRow(where=row.where, reason=self.reasons[number], answer=row.answer)


def judge_rows(
    rows: Iterable[RenderedRow | DroppedRow], facts: PromptFacts, *, label: str, dedup: bool, is_readable: GoldCheck
) -> Account:
    """Check every row. The first reason that applies counts: no answer, an unreadable one, one that its own repetition
    does not match, length, dedup.

    Raises DataError for overlong prompts under truncation "error", and where no row is left. label: the source's name.
    """
    reasons: dict[int, str] = {}
    index = PromptIndex()
    overlong: list[str] = []
    unchecked: dict[str, None] = {}
    lengths, full_lengths = array("l"), array("l")
    nulled: dict[int, Sequence[str]] = {}
    for number, row in enumerate(rows):
        lengths.append(0 if isinstance(row, DroppedRow) else row.ids.size)
        full_lengths.append(0 if isinstance(row, DroppedRow) else row.full_length)
        if isinstance(row, DroppedRow):
            reasons[number] = row.reason
            continue
        if row.nulled:
            nulled[number] = row.nulled
        readable = is_readable(row.data_source, row.answer)
        if readable is None:
            unchecked[row.data_source] = None
        if readable is False:
            reasons[number] = UNREADABLE
        elif gold_is_met(row.data_source, row.answer) is False:
            reasons[number] = UNMET
        elif row.ids.size > facts.max_prompt_length:
            reasons[number] = OVERLONG
            overlong.append(f"{row.where} with {row.full_length} tokens")
        else:
            index.add(row.prompt_key, number=number, where=row.where, answer=row.answer, text=row.text)
    longest = max(full_lengths, default=0)
    if overlong and facts.truncation == "error":
        raise DataError(
            f"{label}: {len(overlong)} of {len(lengths)} prompts are longer than data.max_prompt_length = "
            f"{facts.max_prompt_length}, the first one {overlong[0]}. Raise the limit to {longest}, or set "
            "data.truncation to left, right, middle or drop (of `data prepare`: --max-prompt-length, --truncation)"
        )
    if dedup:
        reasons |= index.superfluous()
    if len(reasons) == len(lengths):
        counts = ", ".join(f"{number}: {reason}" for reason, number in Counter(reasons.values()).items())
        why = f"all {len(reasons)} rows are dropped ({counts}; the longest prompt has {longest} tokens)"
        raise DataError(f"{label}: {why if reasons else 'no rows'}, so the data set would be empty")
    kept = [number for number in range(len(lengths)) if number not in reasons]
    cut = sum(lengths[number] < full_lengths[number] for number in kept)
    return Account(
        reasons=reasons,
        counts=RowCounts(
            rows_in=len(lengths),
            rows_out=len(kept),
            truncated={facts.truncation: cut} if cut else {},
            dropped=dict(Counter(reasons[number] for number in sorted(reasons))),
            nulled=dict(Counter(kind for number in kept for kind in nulled.get(number, ()))),
        ),
        duplicates=index.facts(),
        unchecked=tuple(unchecked),
        lengths=LengthFacts(
            min=min(lengths[number] for number in kept),
            mean=sum(lengths[number] for number in kept) / len(kept),
            max=max(lengths[number] for number in kept),
            max_before_truncation=longest,
        ),
    )


def _check_size(prompt: Prompt, where: str) -> None:
    size = prompt.ids.nbytes + sum(
        len(text.encode())
        for text in (prompt.text, prompt.answer, prompt.solution, json.dumps(dict(prompt.extra_info)))
    )
    if size > PAGE_SIZE // 2:
        raise DataError(f"{where}: the row takes {size} bytes; a MindRecord row holds at most {PAGE_SIZE // 2} here")
