"""What a check finds, and the choices that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

AnswerMode = Literal["strict", "flexible", "first", "last"]
"""Which announcement of an answer counts: see `extract`."""

Unevaluated = Literal["refuse", "accept"]
"""Whether an answer that is left to be computed, such as 2 + 3 for 5, is wrong or compared by its value."""


class Outcome(str, Enum):
    """Result of a check. Only CORRECT and WRONG are judgements of the answer.

    NO_ANSWER: the response holds no recognisable answer. UNPARSEABLE_GOLD: the gold answer cannot be read. UNDECIDED:
    only `symbolic.are_symbolically_same` can tell.
    """

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    UNPARSEABLE_GOLD = "unparseable_gold"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found in a response.

    answer: the answer found, None where there is none or where the gold answer cannot be read. gold: of an UNDECIDED
    outcome the expression that `answer` is to be compared with, else "".
    """

    outcome: Outcome
    answer: str | None = None
    gold: str = ""


def judged(answer: str, is_correct: bool) -> Finding:
    """CORRECT or WRONG, for an answer that was found."""
    return Finding(outcome=Outcome.CORRECT if is_correct else Outcome.WRONG, answer=answer)
