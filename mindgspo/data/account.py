"""What becomes of every row while the prompts stream by: kept, truncated, or dropped for a reason.

What enters: an open source. What leaves: prompts, then counts and lengths for dataset.json.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mindgspo.data.dataset_info import LengthFacts, PromptFacts, RowCounts
from mindgspo.data.mindrecord import PAGE_SIZE
from mindgspo.data.prompts import render_prompt
from mindgspo.data.sources import Source
from mindgspo.errors import DataError
from mindgspo.tokenization import Tokenizer
from mindgspo.types import Prompt

OVERLONG = "longer than max_prompt_length"


class RowAccount:
    """Counts what becomes of every row while the prompts stream through."""

    def __init__(self, facts: PromptFacts) -> None:
        self._facts = facts
        self._rows_in = 0
        self._rows_out = 0
        self._truncated: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._tokens = 0
        self._shortest = 0
        self._longest = 0
        self._longest_before = 0
        self._overlong: list[str] = []

    def prompts(self, opened: Source, tokenizer: Tokenizer) -> Iterator[Prompt]:
        """The prompts that are kept, numbered from 0 on."""
        for row in opened.rows():
            rendered = render_prompt(row, self._facts, tokenizer)
            self._rows_in += 1
            self._longest_before = max(self._longest_before, rendered.full_length)
            if rendered.ids.size > self._facts.max_prompt_length:
                self._overlong.append(f"{row.where} with {rendered.full_length} tokens")
                self._dropped[OVERLONG] += 1
                continue
            if rendered.is_truncated:
                self._truncated[self._facts.truncation] += 1
            prompt = rendered.as_prompt(self._rows_out, row)
            _check_size(prompt, row.where)
            self._count(rendered.ids.size)
            yield prompt

    def _count(self, length: int) -> None:
        self._rows_out += 1
        self._tokens += length
        self._shortest = min(self._shortest or length, length)
        self._longest = max(self._longest, length)

    def check(self, opened: Source) -> None:
        """Raise DataError for overlong prompts under "error", and for a data set without rows."""
        limit = self._facts.max_prompt_length
        if self._overlong and self._facts.truncation == "error":
            raise DataError(
                f"{opened.label}: {len(self._overlong)} of {self._rows_in} prompts are longer than "
                f"data.max_prompt_length = {limit}, the first one {self._overlong[0]}. Raise the limit to "
                f"{self._longest_before}, or set data.truncation to left, right, middle or drop"
            )
        if not self._rows_in:
            raise DataError(f"{opened.label}: no rows, so the data set would be empty")
        if not self._rows_out:
            raise DataError(
                f"{opened.label}: all {self._rows_in} prompts are longer than data.max_prompt_length = "
                f"{limit} (the longest has {self._longest_before} tokens), so the data set would be empty"
            )

    def counts(self) -> RowCounts:
        assert self._rows_in == self._rows_out + self._dropped.total(), "a row is unaccounted for"
        return RowCounts(
            rows_in=self._rows_in,
            rows_out=self._rows_out,
            truncated=dict(self._truncated),
            dropped=dict(self._dropped),
        )

    def length_facts(self) -> LengthFacts:
        return LengthFacts(
            min=self._shortest,
            mean=self._tokens / self._rows_out,
            max=self._longest,
            max_before_truncation=self._longest_before,
        )


def _check_size(prompt: Prompt, where: str) -> None:
    size = prompt.ids.nbytes + sum(
        len(text.encode()) for text in (prompt.text, prompt.answer, prompt.solution, str(prompt.extra_info))
    )
    if size > PAGE_SIZE // 2:
        raise DataError(f"{where}: the row takes {size} bytes; a MindRecord row holds at most {PAGE_SIZE // 2} here")
