"""What one reward function says, and the two kinds of functions.

A `Judge` compares the answer with the gold answer. What it can decide quickly, in linear time, it says at once as a
`Judgement`; what it cannot, it hands over as a `Job` for a worker process, and concludes from the worker's reply. A
`Shaper` looks at the shape of the response: tags, length, repetition. Called by `scorer`; made by `registry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, Union

from mindgspo.rewards.candidate import Candidate
from mindgspo.types import Verdict

MAX_EXTRACTED_CHARS = 200
"""How much of an answer is kept in the sample record."""

JSONValue = Union[None, bool, int, float, str, "list[JSONValue]", "dict[str, JSONValue]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """value: reward before weighting; None abstains (TIMEOUT, ERROR, UNPARSEABLE_GOLD). extracted: the answer that was
    found, at most MAX_EXTRACTED_CHARS. extras: further numbers that a user's function reports; they are logged only.
    message: why a function failed, "" where it did not."""

    value: float | None
    verdict: Verdict
    extracted: str | None = None
    extras: Mapping[str, float] = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work for a child process. task: "math_verify", or "/absolute/path/file.py:function" for a user's function.
    arguments: JSON values only, because that is what crosses the pipe; never code."""

    task: str
    arguments: Mapping[str, JSONValue]


class Outcome(str, Enum):
    """How a job ended. FAILED: the task raised. DIED: its process ended (crash, out of memory, os._exit)."""

    DONE = "done"
    FAILED = "failed"
    TIMEOUT = "timeout"
    DIED = "died"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """value: what the task returned, of a DONE job. message: one line that says what went wrong, of the others."""

    outcome: Outcome
    value: JSONValue = None
    message: str = ""


class Judge(Protocol):
    """Compares a response's answer with its row's gold answer. Never raises on any text."""

    def can_read(self, gold: str) -> bool:
        """Whether `gold` is an answer to this function; a row where it is not can only abstain."""

    def judge(self, candidate: Candidate) -> Judgement | Job:
        """The judgement, or the job that is needed for it."""

    def conclude(self, candidate: Candidate, reply: Reply) -> Judgement:
        """The judgement after the reply (outcome DONE) to the job that `judge` gave for this candidate."""


class Shaper(Protocol):
    """Values the shape of a response. Never raises on any text."""

    def value(self, candidate: Candidate, verdict: Verdict | None) -> float:
        """The value before weighting. verdict: of the function that judges the answer, None if there is none."""
