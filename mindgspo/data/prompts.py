"""From a source row to the ids of its prompt: chat rendering, tokenizing, truncation.

What enters: a `SourceRow`. What leaves: a `RenderedRow`. Called for every row, in the process of
prepare or in its workers, and by `mindgspo check`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mindgspo.data.dataset_info import PromptFacts
from mindgspo.data.source_row import SourceRow
from mindgspo.errors import DataError
from mindgspo.tokenization import ChatMessage, Tokenizer
from mindgspo.types import Int32Array, Prompt

if TYPE_CHECKING:
    from mindgspo.config.data import DataSection, DataSourceSection


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedRow:
    """A row that states an answer, tokenized.

    where: file and row. prompt_key: equal for rows that ask the same. full_length: tokens before truncation.
    ids: int32 [L], after it; text: what they stand for. The others as in `Prompt`.
    """

    where: str
    prompt_key: str
    full_length: int
    ids: Int32Array
    text: str
    answer: str
    data_source: str
    solution: str
    extra_info: Mapping[str, object]

    def as_prompt(self, index: int) -> Prompt:
        """The prompt that becomes row `index` of the data set."""
        return Prompt(
            index=index,
            ids=self.ids,
            text=self.text,
            answer=self.answer,
            data_source=self.data_source,
            solution=self.solution,
            extra_info=self.extra_info,
        )


def _middle(ids: list[int], limit: int) -> list[int]:
    """The first half and the last half; the last is the longer one where the limit is odd (as in verl)."""
    head = limit // 2
    return ids[:head] + ids[len(ids) - (limit - head) :]


# A policy is named after the side that is cut away (verl's words).
CUTS: Mapping[str, Callable[[list[int], int], list[int]]] = {
    "left": lambda ids, limit: ids[-limit:],
    "right": lambda ids, limit: ids[:limit],
    "middle": _middle,
}


# Their prompts say already how the answer is to be written.
FORMATS_WITH_INSTRUCTION = ("verl", "dapo")


def prompt_facts(source: DataSourceSection, data: DataSection) -> PromptFacts:
    """The prompt settings as they take effect on the rows of `source`."""
    has_own = source.format in FORMATS_WITH_INSTRUCTION
    return PromptFacts(
        system_prompt=data.system_prompt,
        instruction_prefix="" if has_own else data.instruction_prefix,
        instruction_suffix="" if has_own else data.instruction_suffix,
        max_prompt_length=data.max_prompt_length,
        truncation=data.truncation,
    )


def conversation(row: SourceRow, facts: PromptFacts) -> list[ChatMessage]:
    """The messages of a row's chat.

    Prefix and suffix are put around the last one; the system prompt goes in front unless the row brings its own.
    """
    last = row.messages[-1]
    messages = [
        *row.messages[:-1],
        {"role": last["role"], "content": facts.instruction_prefix + last["content"] + facts.instruction_suffix},
    ]
    if facts.system_prompt is not None and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": facts.system_prompt})
    return messages


def render_row(row: SourceRow, facts: PromptFacts, tokenizer: Tokenizer) -> RenderedRow:
    """Tokenize a row; a longer prompt is cut where `facts.truncation` names a side, else returned whole.

    Raises DataError for a prompt without any token, TokenizerError where the chat template fails.
    """
    text = tokenizer.render_chat(conversation(row, facts), add_generation_prompt=True)
    ids = tokenizer.encode(text)
    if not ids:
        raise DataError(f"{row.where}: the chat template of {tokenizer.name} made an empty prompt of it")
    full_length = len(ids)
    if full_length > facts.max_prompt_length and facts.truncation in CUTS:
        ids = CUTS[facts.truncation](ids, facts.max_prompt_length)
        text = tokenizer.decode(ids)
    return RenderedRow(
        where=row.where,
        prompt_key=row.prompt_key,
        full_length=full_length,
        ids=np.array(ids, dtype=np.int32),
        text=text,
        answer=row.answer,
        data_source=row.data_source,
        solution=row.solution,
        extra_info=row.extra_info,
    )
