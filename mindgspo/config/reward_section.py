"""The `reward` section: which functions judge a response, and in what workers the slow ones run.

What enters: plain values from `config.load`. What leaves: a frozen `RewardSection`. The names of the functions stand
here, so that a misspelt one is refused before any other room is opened; what they do is in `rewards`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from mindgspo.config.section import Section

AnswerMode = Literal["strict", "flexible", "first", "last"]

AUTO = "auto"
"""Stands for the function that fits a row's data_source."""

JUDGES: Mapping[str, str] = {
    "gsm8k": "1 for the right number, else 0",
    "math_dapo": "+1 for the right answer, else -1, as in DAPO",
    "math": "1 for an equivalent expression, else 0",
    "multiple_choice": "1 for exactly the right letters, else 0",
    "verl_strict": "as verl's gsm8k with method strict, its blind spots included",
    "verl_flexible": "as verl's gsm8k with method flexible, its blind spots included",
}
"""Functions that compare with the gold answer and give a verdict."""

SHAPERS: Mapping[str, str] = {
    "format": "1 for <think>...</think><answer>...</answer>, else 0",
    "length": "short right answers and long wrong ones are paid more",
    "overlong": "a penalty near the longest length, as in DAPO",
    "repetition": "a penalty on repeated word sequences",
}
"""Functions that look at the shape of a response and give no verdict."""

WITH_TOKENS = ("length", "overlong")
"""Functions that need the length of a response in tokens."""


class FileFunction(NamedTuple):
    """A user's own function: `name` in the Python file `path`."""

    path: Path
    name: str

    @property
    def label(self) -> str:
        """The name under which its values are logged."""
        return f"{self.path.stem}.{self.name}"

    @property
    def task(self) -> str:
        """The name by which worker processes know it."""
        return f"{self.path}:{self.name}"


def file_function(text: str) -> FileFunction | None:
    """ "folder/file.py:compute_score" taken apart; None for anything else, which must be a name of the tables."""
    path, colon, name = text.rpartition(":")
    return FileFunction(Path(path), name) if colon and path.endswith(".py") else None


def function_label(text: str) -> str:
    """The name under which a function of `reward.functions` is logged."""
    file = file_function(text)
    return text if file is None else file.label


class MathDapoSection(Section):
    """Settings of `math_dapo`."""

    strict_box: bool = False
    r"""Only the last \boxed{} counts, instead of the line "Answer: n" (verl: strict_box_verify)."""


class OverlongSection(Section):
    """Settings of `overlong` (DAPO, arXiv 2503.14476, eq. 13)."""

    buffer_len: int = Field(default=4096, ge=1)
    """Tokens before max_len within which the penalty grows from 0 to factor (verl: overlong_buffer.len)."""
    factor: float = Field(default=1.0, ge=0)
    """Largest penalty (verl: overlong_buffer.penalty_factor)."""
    max_len: int | None = Field(default=None, ge=1)
    """Response length in tokens at which it is reached. None: rollout.max_new_tokens."""


class LengthSection(Section):
    """Settings of `length`: a cosine from the value of an empty response to that of one of max_len tokens
    (the cosine reward of arXiv 2502.03373)."""

    correct_short: float = 0.0
    """Value of a correct response of no length."""
    correct_long: float = -0.5
    """Value of a correct response of max_len tokens."""
    wrong_short: float = -0.5
    """Value of a response of no length that is not correct."""
    wrong_long: float = 0.0
    """Value of a response of max_len tokens that is not correct: thinking longer is not punished twice."""
    max_len: int | None = Field(default=None, ge=1)
    """Length in tokens at which the cosine ends. None: rollout.max_new_tokens."""


class RepetitionSection(Section):
    """Settings of `repetition` (the n-gram penalty of arXiv 2502.03373)."""

    ngram_size: int = Field(default=20, ge=1)
    """Words in a row that are compared; a CJK character is a word."""
    factor: float = Field(default=1.0, ge=0)
    """The penalty of a response in which every n-gram is a repetition."""


class RewardWorkersSection(Section):
    """Child processes in which symbolic comparison and your own functions run."""

    count: int = Field(default=2, ge=1)
    """Children; they start when the first response needs one."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Wall-clock seconds one response may take; then its child is killed and the response is left out as timeout."""
    startup_timeout_s: float = Field(default=120.0, gt=0)
    """Wall-clock seconds a child may take for its imports, those of your file included."""
    memory_mb: int = Field(default=4096, ge=256)
    """Memory a child may take (MiB); a response that needs more is left out as error."""


class RewardSection(Section):
    """Which reward functions judge a response."""

    functions: tuple[str, ...] = Field(default=(AUTO,), min_length=1)
    """Names: gsm8k, math_dapo, math, multiple_choice, verl_strict, verl_flexible, format, length, overlong, repetition;
    your own path/to/file.py:function, the path from this file's folder; auto: by each row's data_source
    (MindRLHF: verifier_function). The first that judges the answer gives the verdict."""
    weights: tuple[float, ...] | None = Field(default=None, min_length=1)
    """One weight per function, in the same order; the reward is the weighted sum (MindRLHF: verifier_weight). None: 1
    each."""
    answer: AnswerMode = "flexible"
    """Where the answer is looked for. strict: only in the form that the data set asks for. flexible: there first, then
    in other usual forms, the final number last. first, last: the first or last of all forms that states a value."""
    math_dapo: MathDapoSection = MathDapoSection()
    """Settings of the function math_dapo."""
    overlong: OverlongSection = OverlongSection()
    """Settings of the function overlong (verl: overlong_buffer)."""
    length: LengthSection = LengthSection()
    """Settings of the function length."""
    repetition: RepetitionSection = RepetitionSection()
    """Settings of the function repetition."""
    workers: RewardWorkersSection = RewardWorkersSection()
    """Child processes for whatever may take long."""

    @property
    def resolved_weights(self) -> tuple[float, ...]:
        """One weight per function, also where none are set."""
        return self.weights or (1.0,) * len(self.functions)
