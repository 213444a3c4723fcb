"""A user's own function, with verl's signature: in a file that only the workers open, or an object of this process."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mindgspo.rewards.verification import MAX_EXTRACTED_CHARS, Candidate, JSONValue, RewardJob, Verification
from mindgspo.types import Verdict

MAX_SHOWN = 80
_MEANINGFUL_KEYS = frozenset({"score", "acc", "verdict", "pred"})
_VERDICTS = frozenset(verdict.value for verdict in Verdict)
_ABSTAINING = frozenset({Verdict.UNPARSEABLE_GOLD, Verdict.TIMEOUT, Verdict.ERROR})
_EXPECTED = "expected a finite number, a dict with a finite number 'score', or None to leave the response out"
ABSTAINED = "abstained: the function returned None as its score"


class FromFile:
    """A verifier that calls a user's function (data_source, solution_str, ground_truth, extra_info), like verl. task:
    the name by which the pool knows the function.

    The function may return a number (True and False are 1 and 0), None to abstain, or a dict:

    score: the number, or None to abstain.
    acc: True, False, 1 or 0 for a right or wrong answer.
    verdict: a name of `Verdict`, if acc is absent; those that say nothing about the answer (unparseable_gold, timeout,
        error) abstain.
    pred: the answer that was found.

    Other numbers in it are logged. With neither acc nor verdict, a score above 0 counts as correct and any other as
    wrong.
    """

    def __init__(self, task: str) -> None:
        self._task = task

    def can_read(self, gold: str) -> bool:
        """Always True: what an answer may be, only the file knows."""
        return True

    def verify(self, candidate: Candidate) -> RewardJob:
        """The job, for a worker that has loaded the file, or for the object."""
        return RewardJob(
            task=self._task,
            arguments={
                "data_source": candidate.data_source,
                "solution_str": candidate.text,
                "ground_truth": candidate.gold,
                "extra_info": dict(candidate.extra_info),
            },
            conclude=conclude,
        )


def conclude(value: JSONValue) -> Verification:
    """The verification in a function's value; without a value, but with a message, if it is not a reward or
    abstains."""
    problem = _problem_of(value)
    if problem is not None:
        return Verification(value=None, verdict=Verdict.ERROR, message=problem)
    fields = value if isinstance(value, dict) else {"score": value}
    score = _number(fields["score"])
    verdict = Verdict.ERROR if score is None else _verdict(fields, score)
    message = ABSTAINED if score is None else ""
    if verdict in (Verdict.TIMEOUT, Verdict.ERROR) and not message:
        message = f"the function itself gave the verdict {verdict.value!r}"
    pred = fields.get("pred")
    numbers = {key: _number(item) for key, item in fields.items() if key not in _MEANINGFUL_KEYS}
    return Verification(
        value=None if verdict in _ABSTAINING else score,
        verdict=verdict,
        extracted=None if pred is None else str(pred)[:MAX_EXTRACTED_CHARS],
        extras={key: number for key, number in numbers.items() if number is not None},
        message=message,
    )


def _problem_of(value: JSONValue) -> str | None:
    """Problem of a function's value, in one line; None if it is a reward or abstains."""
    if isinstance(value, dict):
        if "score" not in value:
            return f"returned a dict with the keys {_shown(list(value))}; {_EXPECTED}"
        score = value["score"]
        return None if score is None or _number(score) is not None else f"returned 'score' {_shown(score)}; {_EXPECTED}"
    return None if value is None or _number(value) is not None else f"returned {_shown(value)}; {_EXPECTED}"


def _number(value: JSONValue) -> float | None:
    """`value` as a finite float, None if it is none."""
    if not isinstance(value, (bool, int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _verdict(fields: Mapping[str, JSONValue], score: float) -> Verdict:
    accuracy, verdict = fields.get("acc"), fields.get("verdict")
    if isinstance(accuracy, (bool, int, float)) and accuracy in (0, 1):
        return Verdict.CORRECT if accuracy else Verdict.WRONG
    if isinstance(verdict, str) and verdict in _VERDICTS:
        return Verdict(verdict)
    return Verdict.CORRECT if score > 0 else Verdict.WRONG


def _shown(value: JSONValue) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({type(value).__name__})"
