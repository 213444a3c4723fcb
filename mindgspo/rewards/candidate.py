"""One response as the reward room sees it.

Made by the trainer from a `Prompt` and a `Response`, and by the command `mindgspo reward score` from a line of a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """text: the response up to its EOS. gold, data_source, extra_info: of the data row. index: the row's number, for
    messages. num_tokens: length of the response in tokens, None where nobody tokenized it (a file of texts). is_cut:
    whether the response reached the longest length without an EOS."""

    text: str
    gold: str
    data_source: str
    index: int
    num_tokens: int | None = None
    is_cut: bool = False
    extra_info: Mapping[str, object] = field(default_factory=dict)
