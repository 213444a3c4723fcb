"""One row as it stands in a data source, before any tokenizer has seen it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mindgspo.tokenization import ChatMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """where: file and row for messages, e.g. "train.jsonl:17". messages: the conversation that asks.

    answer: gold answer as text, never empty. solution: worked solution ending in "#### answer", "" where the
    source has none. data_source: the name that chooses the reward. extra_info: JSON values only.
    """

    where: str
    messages: tuple[ChatMessage, ...]
    answer: str
    data_source: str
    solution: str = ""
    extra_info: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.messages and self.answer, f"{self.where}: a source row needs a question and an answer"
