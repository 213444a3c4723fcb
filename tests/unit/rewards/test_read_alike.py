r"""Gold answers and responses as people write them: lists in several boxes, marks and words behind a value, rounded
values, golds in prose. Every row is (functions, response, gold answer): g is gsm8k, d math_dapo, m math, c multiple
choice; the symbolic comparison runs in this process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mindgspo.rewards.functions.math import Math
from mindgspo.rewards.functions.multiple_choice import MultipleChoice
from mindgspo.rewards.functions.numeric import Gsm8k, MathDapo
from mindgspo.rewards.verification import Candidate, Job, Verifier
from mindgspo.rewards.workers.math_verify import load
from mindgspo.types import Verdict

VERIFIERS: dict[str, Verifier] = {"g": Gsm8k(), "d": MathDapo(), "m": Math(), "c": MultipleChoice()}
CASES = Path(__file__).parents[3] / ".." / "shared" / "cases" / "rewards"


@pytest.fixture(scope="module")
def task() -> Callable:
    pytest.importorskip("math_verify", reason="the symbolic comparison needs the package math-verify")
    return load()


def verdict(function: str, text: str, gold: str, task: Callable) -> Verdict:
    found = VERIFIERS[function].verify(Candidate(text=text, gold=gold, data_source="", index=0))
    return (found.conclude(task(found.arguments)) if isinstance(found, Job) else found).verdict


def rows(functions: str, gold: str, *responses: str) -> list[tuple[str, str, str]]:
    return [(functions, response, gold) for response in responses]


# Boxes that are one list; what is within their braces has braces too.
LISTS = [
    *rows("md", r"\frac{1}{2}, -2", r"Roots: $\boxed{\frac{1}{2}}$ and $\boxed{-2}$.",
        r"$x=\boxed{\frac{1}{2}}$ or $x=\boxed{-2}$", r"\boxed{\frac12} \text{ and } \boxed{-2}"),
    *rows("md", r"2^{10}, 3", r"$\boxed{2^{10}}$ or $\boxed{3}$", r"$\boxed{3}$, $\boxed{2^{10}}$"),
    *rows("md", r"\sqrt{2}, -\sqrt{2}", r"$\boxed{\sqrt{2}}, \boxed{-\sqrt{2}}$"),
    *rows("m", r"It is $\boxed{\frac{1}{3}}$, $\boxed{x^{2}}$ and $\boxed{\{1\}}$.", r"\boxed{\frac13, x^2, \{1\}}"),
    *rows("m", r"$\boxed{\frac{1}{2}}$ and $\boxed{\frac{1}{3}}$", r"$\boxed{\frac{1}{3}}; \boxed{\frac{1}{2}}$"),
]  # fmt: skip
NO_LISTS = [
    *rows("md", r"\frac{1}{2}", r"$\boxed{\frac{1}{2}}$ and $\boxed{-2}$", r"$\boxed{\frac{1}{2}}$ or $\boxed{2^{3}}$"),
    *rows("md", "-2", r"$\boxed{\frac{1}{2}}$ and $\boxed{-2}$", r"$\boxed{x^{2}}$, $\boxed{-2}$"),
]  # fmt: skip

PAID = [*LISTS]
REFUSED = [*NO_LISTS]


@pytest.mark.parametrize(("functions", "text", "gold"), PAID)
def test_right_answers_are_paid(task: Callable, functions: str, text: str, gold: str) -> None:
    assert [verdict(function, text, gold, task) for function in functions] == [Verdict.CORRECT] * len(functions)


@pytest.mark.parametrize(("functions", "text", "gold"), REFUSED)
def test_other_answers_are_not(task: Callable, functions: str, text: str, gold: str) -> None:
    for function in functions:
        assert verdict(function, text, gold, task) in (Verdict.WRONG, Verdict.NO_ANSWER), function


@pytest.mark.parametrize(("name", "functions"), [
    ("02_joined_boxes.math", "m"),
])  # fmt: skip
def test_the_cases_beside_the_project(task: Callable, name: str, functions: str) -> None:
    path = CASES / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip(f"needs the shared cases, absent at {CASES}")
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for function in functions:
            found = verdict(function, row["response"], row["gold"], task)
            assert (found is Verdict.CORRECT) == row["correct"], (function, row)
