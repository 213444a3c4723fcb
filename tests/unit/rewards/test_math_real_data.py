r"""The reward `math` on published data: graded model outputs, and the solutions of MATH-500."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from mindgspo.rewards.functions.math import Math
from mindgspo.rewards.verification import Candidate, Job, Verification
from mindgspo.types import Verdict

pytestmark = pytest.mark.shared_data


@pytest.fixture(scope="module")
def task() -> Callable:
    pytest.importorskip("math_verify", reason="the symbolic comparison needs the package math-verify")
    from mindgspo.rewards.workers.math_verify import load

    return load()


def at_once(text: str, gold: str) -> Verification | Job:
    return Math().verify(Candidate(text=text, gold=gold, data_source="math", index=0))


def verified(text: str, gold: str, task: Callable) -> Verification:
    found = at_once(text, gold)
    return found.conclude(task(found.arguments)) if isinstance(found, Job) else found


# (problem, gold, extracted) of every row where our verdict and the published label differ: none. Two things about the
# labels: the gold answer of problem 3 is the mutilated "4:30p..", and the eight responses that say "4:30 p.m." are
# labelled wrong; read as "4:30p" they are not shown to be the same, so we agree for a reason that is the data's fault.
DISAGREEMENTS: list[tuple[int, str, str]] = []


def test_boxed_answers_agree_with_their_published_labels(shared_rows, task: Callable) -> None:
    counts: Counter[tuple[bool, Verdict]] = Counter()
    disagreements = []
    for row in shared_rows("model-outputs/math_qwen25math_boxed.jsonl"):
        found = verified(row["response"], row["gold"], task)
        counts[row["correct"], found.verdict] += 1
        if row["correct"] != (found.verdict is Verdict.CORRECT):
            disagreements.append((row["problem"], row["gold"], found.extracted))
    assert disagreements == DISAGREEMENTS
    assert counts == Counter({(True, Verdict.CORRECT): 295, (False, Verdict.WRONG): 25})


def test_only_the_mutilated_gold_answer_needs_the_symbolic_comparison(shared_rows) -> None:
    jobs = Counter(
        row["gold"]
        for row in shared_rows("model-outputs/math_qwen25math_boxed.jsonl")
        if isinstance(at_once(row["response"], row["gold"]), Job)
    )
    assert jobs == Counter({"4:30p..": 8})


@pytest.mark.parametrize(
    "wrapping", ["{solution}", "The answer is ${answer}$.", "Answer: {answer}", r"\boxed{{{answer}}}"]
)
def test_every_math500_answer_equals_its_own_solution_without_algebra(shared_rows, wrapping: str) -> None:
    math500 = shared_rows("math500/math500.jsonl")
    assert len(math500) == 500
    for row in math500:
        for gold in (row["answer"], row["solution"]):
            found = at_once(wrapping.format(**row), gold)
            assert isinstance(found, Verification) and found.verdict is Verdict.CORRECT, (row["answer"], found)


def test_math500_answers_can_be_read_by_the_symbolic_comparison(shared_rows, task: Callable) -> None:
    answers = sorted({row["answer"] for row in shared_rows("math500/math500.jsonl") if not row["answer"].isdigit()})[
        ::2
    ]
    replies = [task({"answer": answer, "gold": answer}) for answer in answers]
    assert [answer for answer, reply in zip(answers, replies, strict=True) if not reply["same"]] == []


def test_answers_to_other_problems_are_not_taken_for_right(shared_rows, task: Callable) -> None:
    answers = [row["answer"].replace("x=5", "5") for row in shared_rows("math500/math500.jsonl")]
    same = [
        (answer, gold)
        for answer, gold in list(zip(answers, answers[1:] + answers[:1], strict=True))[::4]
        if verified(rf"\boxed{{{answer}}}", gold, task).verdict is Verdict.CORRECT
    ]
    assert [pair for pair in same if pair[0] != pair[1]] == []
