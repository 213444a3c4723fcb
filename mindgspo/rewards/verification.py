"""A response to score, the result of a reward function, and the two kinds of functions.

A `Verifier` compares the answer with the gold answer. It returns a `Verification` if it can decide in linear time, else
a `RewardJob` for a worker process. A `Shaper` scores the form of the response: tags, length, repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, Union

from math_answers.findings import Finding, Outcome
from mindgspo.types import Episode, Verdict

MAX_EXTRACTED_CHARS = 200
"""Most characters of an answer that are kept in the sample record."""

JSONValue = Union[None, bool, int, float, str, "list[JSONValue]", "dict[str, JSONValue]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One response to score, e.g. Candidate(text="#### 72", gold="72", data_source="gsm8k", index=0)."""

    text: str
    """Response up to its EOS."""
    gold: str
    """Gold answer of the row."""
    data_source: str
    index: int
    """Number of the row, for messages."""
    num_tokens: int | None = None
    """Length of the response in tokens, None if it was not tokenized (a file of texts)."""
    is_cut: bool = False
    """Whether the response reached the longest length without an EOS."""
    extra_info: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the row, for users' functions."""
    episode: Episode | None = None
    """The turns and the environment's judgement, where an environment took part; `text` is then the last turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Result of a reward function for one response."""

    value: float | None
    """Reward before weighting; None abstains (ERROR, UNPARSEABLE_GOLD, most of TIMEOUT)."""
    verdict: Verdict
    extracted: str | None = None
    """Answer that was found, at most MAX_EXTRACTED_CHARS."""
    extras: Mapping[str, float] = field(default_factory=dict)
    """Further numbers of a user's function; they are logged only."""
    message: str = ""
    """Why the function failed, "" where it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJob:
    """Work for a worker process."""

    task: str
    """ "math_verify", "/absolute/path/file.py:function" for a user's function, or that after "environment:" for a
    user's environment."""
    arguments: Mapping[str, object]
    """JSON values only, because they cross a pipe; never code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardJob(WorkerJob):
    """Work whose value is a verification."""

    conclude: Callable[[JSONValue], Verification] = field(compare=False)
    """Turns the value that the task returned into a verification."""
    when_late: Verification | None = None
    """Verification if time runs out although `without_response` is quick; None: running out of time is a failure."""
    without_response: Mapping[str, object] = field(default_factory=dict)
    """Arguments that ask the same of the row alone."""


class JobOutcome(str, Enum):
    """End of a job. FAILED: the task raised. DIED: its process ended (crash, out of memory, os._exit)."""

    DONE = "done"
    FAILED = "failed"
    TIMEOUT = "timeout"
    DIED = "died"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Reply of a worker to a job."""

    outcome: JobOutcome
    value: JSONValue = None
    """Value that the task of a DONE job returned."""
    message: str = ""
    """One line on the error; for a DONE job, on the parts of its value that were ignored."""


class Verifier(Protocol):
    """Compares a response's answer with its row's gold answer. Never raises on any text."""

    def can_read(self, gold: str) -> bool:
        """Whether `gold` is an answer to this function; a row where it is not can only abstain."""
        ...

    def verify(self, candidate: Candidate) -> Verification | RewardJob:
        """The verification, or the job that is needed for it."""
        ...


class Shaper(Protocol):
    """Values the shape of a response. Never raises on any text."""

    def value(self, candidate: Candidate, verdict: Verdict | None) -> float:
        """The value before weighting. verdict: of the first verifier, None if there is none."""
        ...


def verified(answer: str, is_correct: bool, *, correct: float = 1.0, wrong: float = 0.0) -> Verification:
    """CORRECT or WRONG with its value, for an answer that was found."""
    return Verification(
        value=correct if is_correct else wrong,
        verdict=Verdict.CORRECT if is_correct else Verdict.WRONG,
        extracted=answer[:MAX_EXTRACTED_CHARS],
    )


def paid(found: Finding, *, correct: float = 1.0, wrong: float = 0.0) -> Verification:
    """The verification of a check's verdict, with its value: None if the gold answer cannot be read."""
    values = {Outcome.CORRECT: correct, Outcome.UNPARSEABLE_GOLD: None}
    return Verification(
        value=values.get(found.outcome, wrong),
        verdict=Verdict(found.outcome.value),
        extracted=None if found.answer is None else found.answer[:MAX_EXTRACTED_CHARS],
    )
