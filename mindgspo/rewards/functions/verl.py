"""The reward of verl for GSM8K, as it is: for comparing runs, not for use.

What enters: a response and its row's gold answer. What leaves: a `Judgement`. Called by the scorer. Its blind spots are
verl's own: the last 300 characters only; "72.0" and "72." are not "72"; "#### $5" and "####5" are no answers; with
`flexible`, the full stop of the last sentence is part of its number and "1,000" keeps its comma.
"""

from __future__ import annotations

import re
from typing import Literal

from mindgspo.rewards.candidate import Candidate
from mindgspo.rewards.judgement import MAX_EXTRACTED_CHARS, Judgement, Reply
from mindgspo.types import Verdict

TAIL_CHARS = 300
"""How much of a response verl looks at."""


_MARKED = re.compile(r"#### (-?[0-9.,]+)")
_NUMBER = re.compile(r"-?[0-9.,]+")


class VerlGsm8k:
    """verl's utils/reward_score/gsm8k.py with `method`: 1 where the text that it extracts is the gold answer letter by
    letter, else 0. Verdict NO_ANSWER where it extracts nothing.

    The gold answer is taken as it stands: verl's data preparation, like the format gsm8k here, writes it without
    thousands separators, and a gold answer that has them is never matched by `strict`.
    """

    def __init__(self, method: Literal["strict", "flexible"]) -> None:
        self._extract = {"strict": _after_hashes, "flexible": _last_number}[method]

    def can_read(self, gold: str) -> bool:
        """Every text can be compared with."""
        return True

    def judge(self, candidate: Candidate) -> Judgement:
        """At once: 300 characters are quick work."""
        extracted = self._extract(candidate.text[-TAIL_CHARS:])
        if extracted is None:
            return Judgement(value=0.0, verdict=Verdict.NO_ANSWER)
        is_correct = extracted == candidate.gold
        return Judgement(
            value=float(is_correct),
            verdict=Verdict.CORRECT if is_correct else Verdict.WRONG,
            extracted=extracted[:MAX_EXTRACTED_CHARS],
        )

    def conclude(self, candidate: Candidate, reply: Reply) -> Judgement:
        """Never called."""
        raise AssertionError("verl's functions give no jobs")


def _after_hashes(tail: str) -> str | None:
    """The last "#### n"; it may be empty, from "#### ,"."""
    marked = _MARKED.findall(tail)
    return marked[-1].replace(",", "") if marked else None


def _last_number(tail: str) -> str | None:
    """The last number that is not a lone full stop. Where all are, verl returns one, so that "Yes." is an answer."""
    numbers = _NUMBER.findall(tail)
    if not numbers:
        return None
    return next((number for number in reversed(numbers) if number != "."), ".")
