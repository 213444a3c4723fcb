"""The report's table of held-out problems: what the policy answered in the first and in the last evaluation.

What enters: lines of validation.jsonl. What leaves: rows for the template, which escapes all text. Called by `report`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mindgspo.metrics.run_folder import RunRecord

MOST_PROBLEMS = 6
"""Per set; validation.jsonl has the others."""
MOST_CHARS = 2_000

_Record = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The greedy answer to a problem, and how many of its samples are correct."""

    verdict: str
    extracted: object
    length: object
    is_cut: bool
    response: str
    num_correct: int
    num_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutProblem:
    """A problem with its answers; first, last: None where that evaluation has none."""

    set_name: str
    prompt: str
    gold: str
    first: Answer | None
    last: Answer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutTable:
    """steps: of the evaluations that are shown, one or two."""

    steps: tuple[object, ...]
    problems: tuple[HeldOutProblem, ...]


def held_out_table(run: RunRecord) -> HeldOutTable | None:
    """None where no answers were written down."""
    evaluations = [_by_problem(lines) for lines in (run.first_validation, run.last_validation) if lines]
    if not evaluations:
        return None
    problems: list[HeldOutProblem] = []
    shown: dict[object, int] = {}
    for key, lines in evaluations[-1].items():
        shown[key[0]] = shown.get(key[0], 0) + 1
        if shown[key[0]] <= MOST_PROBLEMS:
            before = evaluations[0].get(key, ()) if len(evaluations) > 1 else ()
            problems.append(_problem(lines, _answer(before), _answer(lines)))
    steps = tuple(lines[0].get("step") for lines in (run.first_validation, run.last_validation) if lines)
    return HeldOutTable(steps=steps, problems=tuple(problems))


def _by_problem(lines: Sequence[_Record]) -> dict[tuple[object, object], list[_Record]]:
    found: dict[tuple[object, object], list[_Record]] = {}
    for line in lines:
        found.setdefault((line.get("set"), line.get("prompt_index")), []).append(line)
    return found


def _problem(lines: Sequence[_Record], first: Answer | None, last: Answer | None) -> HeldOutProblem:
    return HeldOutProblem(
        set_name=str(lines[0].get("set")),
        prompt=_shortened(lines[0].get("prompt")),
        gold=_shortened(lines[0].get("answer")),
        first=first,
        last=last,
    )


def _answer(lines: Sequence[_Record]) -> Answer | None:
    """A warm-up's two evaluations share a step: the later line of an answer counts."""
    greedy = [line for line in lines if line.get("sample") == "greedy"]
    if not greedy:
        return None
    samples = {line.get("sample"): line for line in lines if line.get("sample") != "greedy"}
    return Answer(
        verdict=str(greedy[-1].get("verdict")),
        extracted=greedy[-1].get("extracted"),
        length=greedy[-1].get("length"),
        is_cut=greedy[-1].get("finish_reason") == "length",
        response=_shortened(greedy[-1].get("response")),
        num_correct=sum(line.get("verdict") == "correct" for line in samples.values()),
        num_samples=len(samples),
    )


def _shortened(text: object) -> str:
    text = "" if text is None else str(text)
    hidden = len(text) - MOST_CHARS
    return text if hidden <= 0 else f"{text[:MOST_CHARS]}\n[... {hidden:,} more characters in validation.jsonl]"
