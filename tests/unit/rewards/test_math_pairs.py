r"""Pairs of expressions that `math` takes for the same or for different, whichever of them is the gold answer; the
symbolic comparison runs in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mindgspo.rewards.functions.math import Math
from mindgspo.rewards.verification import Candidate, Job
from mindgspo.rewards.workers.math_verify import load
from mindgspo.types import Verdict

CASES = Path(__file__).parents[3] / ".." / "shared" / "cases" / "rewards"


@pytest.fixture(scope="module")
def task() -> Callable:
    pytest.importorskip("math_verify", reason="the symbolic comparison needs the package math-verify")
    return load()


def is_paid(text: str, gold: str, task: Callable) -> bool:
    found = Math().verify(Candidate(text=text, gold=gold, data_source="math", index=0))
    return (found.conclude(task(found.arguments)) if isinstance(found, Job) else found).verdict is Verdict.CORRECT


# Values that no tolerance may blur: tiny, huge, close to each other, alone or in lists, intervals, matrices.
DIFFERENT_VALUES = [
    ("e^{-50}", "e^{-51}"), ("10^{-20}", "10^{-21}"), (r"\frac{1}{6^{24}}", r"\frac{5}{6^{24}}"),
    (r"\frac{3^{100}}{2^{100}}", r"\frac{3^{101}}{2^{100}}"), ("1-2^{-2024}", "1-2^{-2025}"),
    (r"\frac{1}{20!}", r"\frac{1}{21!}"), (r"\frac{50!}{52!}", r"\frac{49!}{52!}"),
    (r"\frac{2024!}{1012!}", r"\frac{2024!}{1011!}"), (r"\frac{\pi}{10^{20}}", r"\frac{\pi}{10^{21}}"),
    ("(e^{-50},1)", "(e^{-51},1)"), (r"\{e^{-50}, 2\}", r"\{e^{-51}, 2\}"), ("[e^{-50}, 2]", "[e^{-51}, 2]"),
    (r"e^{-50}, \sqrt2", r"e^{-51}, \sqrt2"), ("x + 2^{-100}", "x + 2^{-101}"), ("10^{-20}x", "10^{-21}x"),
    (r"\begin{pmatrix} e^{-50} \\ \pi \end{pmatrix}", r"\begin{pmatrix} e^{-51} \\ \pi \end{pmatrix}"),
    ("x < 10^{-20}", "x < 10^{-21}"), ("y = 2^{-80}x", "y = 2^{-81}x"), (r"\sqrt{10^{200}+1}", "10^{100}"),
    (r"\sin(10^{-20})", r"\sin(10^{-21})"), (r"\sin(x+10^{-20})", r"\sin x"), (r"\ln(1+10^{-20})", "10^{-20}"),
    ("e^{-50}i", "e^{-51}i"), ("1+e^{-40}", "1"), (r"\sqrt{2}\cdot 10^{-18}", r"\sqrt{3}\cdot 10^{-18}"),
    ("0.333333x", r"\frac{x}{3}"), ("1.414", r"\sqrt2"),
]  # fmt: skip
SAME_VALUES = [
    (r"\frac{1}{6^{24}}", "6^{-24}"), (r"\frac{50!}{52!}", r"\frac{1}{51 \cdot 52}"), ("e^{-50}", r"\frac{1}{e^{50}}"),
    (r"\frac{\pi}{10^{20}}", r"10^{-20}\pi"), ("1-2^{-2024}", r"\frac{2^{2024}-1}{2^{2024}}"), ("2^{100}", "4^{50}"),
    (r"\left(\frac{3}{2}\right)^{100}", r"\frac{3^{100}}{2^{100}}"), (r"\sqrt{3+2\sqrt2}x", r"(1+\sqrt2)x"),
    ("(e^{-50},1)", r"(\frac{1}{e^{50}},1)"), (r"0.5\sqrt2", r"\frac{\sqrt2}{2}"), ("0.5x+0.25", r"\frac{2x+1}{4}"),
    (r"50\%,25\%", "50,25"), (r"\frac{\sqrt[3]{4}}{2}", "2^{-1/3}"), ("1.414214", r"\sqrt2"),
]  # fmt: skip

# Roots, logarithms and unknown powers of letters: equal where both sides say that the letters are positive.
POSITIVE_LETTERS = [
    (r"\frac{\sqrt{2h}}{\sqrt g}", r"\sqrt{\frac{2h}{g}}"), (r"\sqrt{a}\sqrt{b}", r"\sqrt{ab}"),
    (r"\ln a+\ln b", r"\ln(ab)"), ("(ab)^n", "a^n b^n"), (r"\ln a - \ln b", r"\ln\frac{a}{b}"),
    (r"\log_2 x + \log_2 y", r"\log_2(xy)"), (r"2\ln a + \ln b", r"\ln(a^2b)"), (r"n\ln a", r"\ln a^n"),
    (r"\ln\sqrt{ab}", r"\frac12(\ln a+\ln b)"), (r"\sqrt[3]{ab}", r"\sqrt[3]{a}\sqrt[3]{b}"), ("(a^m)^n", "a^{mn}"),
    (r"\sqrt{a^3}", r"a\sqrt{a}"), (r"\sqrt{50x^3y}", r"5x\sqrt{2xy}"), (r"x^{\frac12}y^{\frac12}", r"\sqrt{xy}"),
    (r"\ln(x+1)+\ln(x-1)", r"\ln(x^2-1)"), (r"\ln\left|\frac{x-1}{x+1}\right|", r"\ln|x-1|-\ln|x+1|"),
    (r"v = \sqrt{2gh}", r"v = \sqrt{2}\sqrt{g}\sqrt{h}"), (r"(\sqrt{ab}, 1)", r"(\sqrt a \sqrt b, 1)"),
    (r"2\pi\sqrt{\frac{m}{k}}", r"\frac{2\pi\sqrt{m}}{\sqrt{k}}"), (r"\ln x^2", r"2\ln|x|"), (r"\sqrt{x^2}", "|x|"),
    (r"\frac{\sqrt{x}}{\sqrt{x}+\sqrt{y}}", r"\frac{x-\sqrt{xy}}{x-y}"),
]  # fmt: skip
UNKNOWN_SIGNS = [
    (r"\sqrt{a^2}", "a"), (r"\sqrt{a^2b}", r"a\sqrt{b}"), (r"\sqrt{(x-1)^2x}", r"(x-1)\sqrt{x}"),
    (r"\ln x^2", r"2\ln x"), (r"\sqrt{x^2y^2}", "xy"), (r"\sqrt{1-2x+x^2}", "1-x"), (r"\sqrt{\sin^2 x}", r"\sin x"),
    (r"\ln a+\ln b", r"\ln(a+b)"), (r"\sqrt{a}+\sqrt{b}", r"\sqrt{a+b}"), (r"\ln(ab)", r"\ln a \ln b"),
    (r"\frac{\sqrt{2h}}{\sqrt g}", r"\sqrt{\frac{2g}{h}}"), ("(ab)^n", "a b^n"), ("a^{m}a^{n}", "a^{mn}"),
    (r"\ln a", r"\log a"), (r"\sqrt[3]{ab}", r"\sqrt{ab}"), (r"\ln\frac ab", r"\frac{\ln a}{\ln b}"),
]  # fmt: skip

SAME = [*SAME_VALUES, *POSITIVE_LETTERS]
DIFFERENT = [*DIFFERENT_VALUES, *UNKNOWN_SIGNS]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_whichever_is_the_gold_answer(task: Callable, one: str, other: str) -> None:
    assert is_paid(rf"\boxed{{{one}}}", other, task) and is_paid(rf"\boxed{{{other}}}", one, task)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_whichever_is_the_gold_answer(task: Callable, one: str, other: str) -> None:
    assert not is_paid(rf"\boxed{{{one}}}", other, task) and not is_paid(rf"\boxed{{{other}}}", one, task)


@pytest.mark.parametrize("name", [
    "01_tiny_values", "08_roots_and_logs_of_letters",
])  # fmt: skip
def test_the_cases_beside_the_project(task: Callable, name: str) -> None:
    path = CASES / f"{name}.math.jsonl"
    if not path.is_file():
        pytest.skip(f"needs the shared cases, absent at {CASES}")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [row for row in rows if is_paid(row["response"], row["gold"], task) != row["correct"]] == []
