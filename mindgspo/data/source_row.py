"""One row as it stands in a data source, before any tokenizer has seen it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from mindgspo.tokenization import ChatMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    r"""where: file and row for messages, e.g. "train.jsonl:17". messages: the conversation that asks.

    answer: gold answer as text, never empty. solution: worked solution that ends in the answer ("#### 72", \boxed{72}),
    "" where the source has none. data_source: the name that chooses the reward. extra_info: JSON values only.
    """

    where: str
    messages: tuple[ChatMessage, ...]
    answer: str
    data_source: str
    solution: str = ""
    extra_info: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.messages and self.answer, f"{self.where}: a source row needs a question and an answer"

    @property
    def prompt_key(self) -> str:
        """The same for two rows that ask the same: roles and words are equal, whitespace does not count."""
        words = [(message["role"], " ".join(message["content"].split())) for message in self.messages]
        return hashlib.blake2b(json.dumps(words).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedRow:
    """A row that is left out. reason: counted in dataset.json. answer: what its gold answer says, as far as known."""

    where: str
    reason: str
    answer: str
