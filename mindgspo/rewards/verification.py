"""A response to score, what a reward function says about it, and the two kinds of functions.

A `Verifier` compares the answer with the gold answer. What it can decide in linear time it says at once as a
`Verification`; the rest it hands over as a `RewardJob` for a worker process. A `Shaper` values the shape of the
response: tags, length, repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, Union

from mindgspo.types import Verdict

MAX_EXTRACTED_CHARS = 200
"""How much of an answer is kept in the sample record."""

JSONValue = Union[None, bool, int, float, str, "list[JSONValue]", "dict[str, JSONValue]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One response to score.

    text: the response up to its EOS. gold, data_source, extra_info: of the data row. index: the row's number, for
    messages. num_tokens: length of the response in tokens, None where nobody tokenized it (a file of texts). is_cut:
    whether the response reached the longest length without an EOS.
    """

    text: str
    gold: str
    data_source: str
    index: int
    num_tokens: int | None = None
    is_cut: bool = False
    extra_info: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """value: reward before weighting; None abstains (ERROR, UNPARSEABLE_GOLD, most of TIMEOUT). extracted: the
    answer that was found, at most MAX_EXTRACTED_CHARS. extras: further numbers that a user's function reports; they are
    logged only. message: why a function failed, "" where it did not."""

    value: float | None
    verdict: Verdict
    extracted: str | None = None
    extras: Mapping[str, float] = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardJob:
    """Work for a worker process. task: "math_verify", or "/absolute/path/file.py:function" for a user's function.
    arguments: JSON values only, because that is what crosses the pipe; never code. conclude: what the value that the
    task returned says about the candidate. when_late: what it is where time ran out, if `without_response` is quick,
    which asks the same of the row alone; None: time that ran out is the function's failure."""

    task: str
    arguments: Mapping[str, JSONValue]
    conclude: Callable[[JSONValue], Verification] = field(compare=False)
    when_late: Verification | None = None
    without_response: Mapping[str, JSONValue] = field(default_factory=dict)


class JobOutcome(str, Enum):
    """How a job ended. FAILED: the task raised. DIED: its process ended (crash, out of memory, os._exit)."""

    DONE = "done"
    FAILED = "failed"
    TIMEOUT = "timeout"
    DIED = "died"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """value: what the task returned, of a DONE job. message: one line that says what went wrong; of a DONE job, what
    was left out of its value."""

    outcome: JobOutcome
    value: JSONValue = None
    message: str = ""


class Verifier(Protocol):
    """Compares a response's answer with its row's gold answer. Never raises on any text."""

    def can_read(self, gold: str) -> bool:
        """Whether `gold` is an answer to this function; a row where it is not can only abstain."""

    def verify(self, candidate: Candidate) -> Verification | RewardJob:
        """The verification, or the job that is needed for it."""


class Shaper(Protocol):
    """Values the shape of a response. Never raises on any text."""

    def value(self, candidate: Candidate, verdict: Verdict | None) -> float:
        """The value before weighting. verdict: of the first verifier, None if there is none."""


def verified(answer: str, is_correct: bool, *, correct: float = 1.0, wrong: float = 0.0) -> Verification:
    """CORRECT or WRONG with its value, for an answer that was found."""
    return Verification(
        value=correct if is_correct else wrong,
        verdict=Verdict.CORRECT if is_correct else Verdict.WRONG,
        extracted=answer[:MAX_EXTRACTED_CHARS],
    )
