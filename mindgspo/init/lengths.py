"""Limits for the lengths of prompts and responses, chosen from rows that were tokenized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mindgspo.data.benchmarks import INSTRUCTIONS
from mindgspo.data.dataset_info import PromptFacts
from mindgspo.data.rendering import RenderedRow, render_row
from mindgspo.data.source_rows import DroppedRow, SourceRow
from mindgspo.errors import ConfigError
from mindgspo.tokenization import Tokenizer

MULTIPLE = {"CPU": 32, "Ascend": 128}
"""To which rows are rounded up, so that few graphs are compiled."""
# Without worked solutions, the length of responses is unknown.
_USUAL = {"CPU": 128, "Ascend": 2048}
_ROOM = 4  # models write more than people
_OUTLIER = 2  # beyond this multiple of the 95 % quantile, a prompt is left out instead of making every row that long
_SUFFIX_ROOM = 2  # times the longest of our own, where the user is to write one
_MOST_LEFT_OUT = 0.1
_NO_LIMIT = 1 << 24  # tokens; lengths are measured before there is a limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths of prompts and responses, in tokens."""

    prompt: int
    """Limit of a prompt."""
    response: int
    """Limit of a response."""
    room: int | None
    """Part of `prompt` that is kept for a suffix that the user is to write; None if there is none to write."""
    prompts: tuple[int, ...]
    """Lengths of the measured prompts, ascending."""
    solutions: tuple[int, ...]
    """Lengths of their worked solutions, ascending; empty if too few have one."""

    @property
    def text(self) -> str:
        """The quantiles and what follows from them, for a person."""
        longer = sum(length > self.prompt for length in self.prompts)
        left_out = "" if self.room is None else f" ({self.room} of them for data.instruction_suffix)"
        left_out += f", {longer} of {len(self.prompts)} longer ones left out" if longer else ""
        why = f"worked solutions {_quantiles(self.solutions)}" if self.solutions else "no worked solutions to measure"
        return (
            f"prompts {_quantiles(self.prompts)} tokens (median / 95 % / longest), up to {self.prompt}{left_out}; "
            f"responses up to {self.response}: {why}"
        )


def measure(
    rows: Sequence[SourceRow], instruction: str | None, tokenizer: Tokenizer, *, device: str, positions: int
) -> Lengths:
    """instruction: put after each question; None: the user is to write one. positions: the model's positions, for
    prompt and response together. Raises ConfigError if prompts leave too little room for responses."""
    facts = PromptFacts(
        system_prompt=None,
        instruction_prefix="",
        instruction_suffix=instruction or "",
        max_prompt_length=_NO_LIMIT,
        truncation="error",
    )
    prompts = sorted(_length(render_row(row, facts, tokenizer)) for row in rows)
    solutions = sorted(len(tokenizer.encode(row.solution)) for row in rows if row.solution)
    solutions = solutions if 2 * len(solutions) >= len(rows) else []
    multiple = MULTIPLE[device]
    longest = _longest(prompts)
    room = None
    if instruction is None:
        room = _SUFFIX_ROOM * max(len(tokenizer.encode(text)) for text in INSTRUCTIONS.values())
    prompt = min(_rounded(longest + (room or 0), multiple), positions // 2)
    if room is not None:
        room = min(room, max(prompt - longest, 0))
    left_out = sum(length > prompt for length in prompts)
    if left_out > _MOST_LEFT_OUT * len(prompts):
        raise ConfigError(
            f"{left_out} of {len(prompts)} prompts are longer than {prompt} tokens, half of the model's {positions} "
            "positions; give a model for longer texts, or shorter questions"
        )
    wanted = _ROOM * min(_longest(solutions), _quantile(solutions, 0.99)) if solutions else _USUAL[device]
    response = min(_rounded(wanted, multiple), positions - prompt)
    return Lengths(prompt=prompt, response=response, room=room, prompts=tuple(prompts), solutions=tuple(solutions))


def _longest(lengths: Sequence[int]) -> int:
    """The largest value that is no outlier. Outliers are not judged by the maximum itself, which is the quantile if
    there are few rows."""
    return max(length for length in lengths if length <= _OUTLIER * _quantile(lengths[:-1] or lengths, 0.95))


def _length(row: RenderedRow | DroppedRow) -> int:
    assert isinstance(row, RenderedRow), "rows without an answer were left out before"
    return row.full_length


def _quantile(lengths: Sequence[int], share: float) -> int:
    """The smallest length that so large a share of them does not exceed."""
    return int(np.quantile(lengths, share, method="inverted_cdf"))


def _quantiles(ascending: Sequence[int]) -> str:
    return f"{_quantile(ascending, 0.5)} / {_quantile(ascending, 0.95)} / {ascending[-1]}"


def _rounded(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple
