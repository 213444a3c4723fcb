"""What becomes of every row: kept, truncated, or dropped for a reason.

What enters: the rendered rows of a source, in order. What leaves: `Account`, by which prepare writes the data set.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from mindgspo.data.dataset_info import DuplicateFacts, LengthFacts, PromptFacts, RowCounts
from mindgspo.data.duplicates import PromptIndex
from mindgspo.data.mindrecord import PAGE_SIZE
from mindgspo.data.prompts import RenderedRow
from mindgspo.data.source_row import DroppedRow
from mindgspo.errors import DataError
from mindgspo.types import Prompt

OVERLONG = "longer than max_prompt_length"
UNREADABLE = "gold answer cannot be read"

GoldCheck = Callable[[str, str], "bool | None"]
"""(data_source, gold answer) -> whether its reward function can read it; None: no function is known for the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """reasons: row number in the source -> why it is dropped. counts, duplicates, lengths: as in dataset.json.
    unchecked: data sources whose gold answers nothing was known to read, in the order of their first rows."""

    reasons: dict[int, str]
    counts: RowCounts
    duplicates: DuplicateFacts
    lengths: LengthFacts
    unchecked: tuple[str, ...]

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


def take_account(
    rows: Iterable[RenderedRow | DroppedRow], facts: PromptFacts, *, label: str, dedup: bool, is_readable: GoldCheck
) -> Account:
    """Judge every row. The first reason that applies counts: no answer, an unreadable one, length, dedup.

    Raises DataError for overlong prompts under truncation "error", and where no row is left. label: the source's name.
    """
    reasons: dict[int, str] = {}
    index = PromptIndex()
    overlong: list[str] = []
    unchecked: dict[str, None] = {}
    lengths, full_lengths = array("l"), array("l")
    for number, row in enumerate(rows):
        lengths.append(0 if isinstance(row, DroppedRow) else row.ids.size)
        full_lengths.append(0 if isinstance(row, DroppedRow) else row.full_length)
        if isinstance(row, DroppedRow):
            reasons[number] = row.reason
            continue
        readable = is_readable(row.data_source, row.answer)
        if readable is None:
            unchecked[row.data_source] = None
        if readable is False:
            reasons[number] = UNREADABLE
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
        raise DataError(f"{label}: {_why_empty(reasons, facts, longest)}, so the data set would be empty")
    kept = [number for number in range(len(lengths)) if number not in reasons]
    cut = sum(lengths[number] < full_lengths[number] for number in kept)
    return Account(
        reasons=reasons,
        counts=RowCounts(
            rows_in=len(lengths),
            rows_out=len(kept),
            truncated={facts.truncation: cut} if cut else {},
            dropped=dict(Counter(reasons[number] for number in sorted(reasons))),
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


def _why_empty(reasons: dict[int, str], facts: PromptFacts, longest: int) -> str:
    if not reasons:
        return "no rows"
    counts = Counter(reasons.values())
    if set(counts) == {OVERLONG}:
        return (
            f"all {len(reasons)} prompts are longer than data.max_prompt_length = {facts.max_prompt_length} (the "
            f"longest has {longest} tokens)"
        )
    return f"all {len(reasons)} rows are dropped ({', '.join(f'{n}: {reason}' for reason, n in counts.items())})"


def _check_size(prompt: Prompt, where: str) -> None:
    size = prompt.ids.nbytes + sum(
        len(text.encode())
        for text in (prompt.text, prompt.answer, prompt.solution, json.dumps(dict(prompt.extra_info)))
    )
    if size > PAGE_SIZE // 2:
        raise DataError(f"{where}: the row takes {size} bytes; a MindRecord row holds at most {PAGE_SIZE // 2} here")
