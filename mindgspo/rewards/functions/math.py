"""Reward for MATH and tasks in its format: 1 for an answer equivalent to the gold answer, else 0.

Numbers, and answers that differ from the gold answer only in how they are typed, are decided at once; what remains is
compared symbolically in a worker process.
"""

from __future__ import annotations

from functools import partial

from math_answers.expressions import check_expression, is_expression
from math_answers.findings import AnswerMode, Outcome, Unevaluated
from mindgspo.rewards.verification import (
    MAX_EXTRACTED_CHARS,
    Candidate,
    JSONValue,
    RewardJob,
    Verification,
    paid,
    verified,
)
from mindgspo.types import Verdict

TASK = "math_verify"


class Math:
    """Verifier of MATH. answer: see `math_answers.extract`. unevaluated: see `math_answers.findings`."""

    def __init__(self, answer: AnswerMode = "flexible", unevaluated: Unevaluated = "refuse") -> None:
        self._mode: AnswerMode = answer
        self._unevaluated: Unevaluated = unevaluated

    def can_read(self, gold: str) -> bool:
        r"""Whether `gold` is an answer: an expression or a few words, or a solution whose last \boxed{} holds one."""
        return is_expression(gold)

    def verify(self, candidate: Candidate) -> Verification | RewardJob:
        """UNPARSEABLE_GOLD abstains (value None); CORRECT, WRONG and NO_ANSWER are paid. Returns a job if only a
        symbolic comparison can decide."""
        found = check_expression(
            candidate.text,
            candidate.gold,
            mode=self._mode,
            unevaluated=self._unevaluated,
            is_cut=candidate.is_cut,
        )
        if found.outcome is not Outcome.UNDECIDED:
            return paid(found)
        assert found.answer is not None, found
        return RewardJob(
            task=TASK,
            arguments={"answer": found.answer, "gold": found.gold},
            conclude=partial(_compared, found.answer),
            when_late=Verification(value=0.0, verdict=Verdict.TIMEOUT, extracted=found.answer[:MAX_EXTRACTED_CHARS]),
            without_response={"answer": "1", "gold": found.gold},
        )


def _compared(answer: str, value: JSONValue) -> Verification:
    """The symbolic comparison's result. A gold answer that it cannot read is one that only another way of typing can
    equal, and the normal forms have already said that the answer is none: WRONG, not an abstention, because otherwise
    only correct responses to such a row would count."""
    assert isinstance(value, bool), f"{TASK} replied {value!r}"
    return verified(answer, value)
