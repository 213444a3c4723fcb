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
from mindgspo.rewards.verification import Candidate, RewardJob, Verifier
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
    return (found.conclude(task(found.arguments)) if isinstance(found, RewardJob) else found).verdict


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

# Check marks, boxes at the end of a proof, emoji.
MARKS = [
    *rows("gdm", "72", "Answer: 72 \u2705", "#### 72 \u2713", "Answer: 72 \u25a1", "Answer: 72 \u220e",
        "#### 72 \u25a0",
        "The answer is 72 \U0001f389.", "The answer is 72 \U0001f60a. Well done!", "Answer: $72$ \u2714\ufe0f",
        "#### 72 \U0001f44d\U0001f3fd", "So she sold 72 clips \u2705", "<answer>72 \u2b50</answer>",
        "72 \u2705\n\nWell done.",
        "Answer: \u2705 72", "Answer: 72 clips \U0001f38a\U0001f38a"),
    *rows("gdm", "72", r"Answer: 72 \checkmark", r"\boxed{72 \quad \checkmark}", r"\boxed{72}\ \square",
        "Answer: 72 Q.E.D.",
        r"The answer is $72$. $\blacksquare$", r"Answer: 72 \hfill \blacksquare", r"\boxed{72} \qed", "Answer: 72 QED"),
    *rows("m", "x^2+1", r"\boxed{x^2+1 \checkmark}", "Answer: $x^2+1$ \u2705", "So it is $x^2+1$ \u25a1"),
    *rows("md", "1,-2", "$\\boxed{1}$ \u2705 and $\\boxed{-2}$ \u2705"),
    *rows("c", "B", "Answer: B \u2705", "B \u2713", "The answer is B \u2714\ufe0f.", "\\boxed{B \u2705}",
        "Answer: (B) \U0001f389",
        r"Answer: B \checkmark", "<answer>B \u2705</answer>", "\u7b54\u6848\uff1aB \u2705"),
]  # fmt: skip
NO_MARKS = [
    *rows("gdm", "72", "Answer: 72 \u274c", "#### 72 \u2717", "So she sold 72 \u274c", "\\boxed{72} \u274c",
        "Answer: 72 \u2753",
        "Answer: 72 \u2705 73", "Answer: 71 \u2705 72", "Answer: 7 \u2705 2", r"\boxed{72 \square 3}",
        "Answer: 72 \u2795 1",
        "Answer: 72 \U0001f44e", "Answer: 72 \u27a1 73"),
    *rows("gdm", "72735", "Answer: 72 \u2705 735", "Answer: 72 \u2705\u2705 735"),
    *rows("c", "B", "Answer: B \u274c", "B \u274c", "Answer: A \u2705"),
]  # fmt: skip

# Words around a number.
WORDS = [
    *rows("gdm", "72", "The answer is 72, in total, so the farmer earns that much.", "Answer: 72, hope it helps",
        "The answer is 72 clips, altogether.", "The answer is 72, and we are done.", "Answer: 72 (in total)",
        "#### Rs. 72",
        "Answer: 72 of them", r"\boxed{72 \text{ (in total)}}", r"\boxed{\text{Rs. } 72}", "Answer: approx. 72",
        "Answer: 72 \u2014 the total", "Answer: 72: the number of clips", "Answer: 72 in all", "Answer: 72 USD",
        "Answer: 72 per day, on average", r"\boxed{72\ (\text{clips})}", "Answer: 72 miles/hour, on average",
        "\u7b54\u6848\uff1a72\uff0c\u603b\u5171", "The answer is 72, not 71.", "#### 72, not 71",
        "The answer is $72$, not $71$.", "Answer: 72, rather than 71 as I had.", r"\boxed{72}, not 71.",
        r"\boxed{72}. It is not \boxed{71}.", "\u7b54\u6848\uff1a72\uff0c\u800c\u4e0d\u662f71"),
    *((functions, answer, gold) for functions, gold in (("gdm", "9 (apples)"), ("gdm", "9 (sq. inches)"), ("gdm",
        "Rs. 9"),
        ("gdm", "9 (t-shirts)"), ("gdm", "9 (cut-outs of Christmas trees)"), ("gdm", "9, in total"), ("gdm", "9 (men)"))
        for answer in (r"\boxed{9}", r"\boxed{9 apples}", "Answer: 9")),
    *rows("m", "4.5e33", r"\boxed{4.5\times10^{33} \text{ erg}}", "Answer: 4.5 \u00d7 10^33 erg"), *rows("m", "6.02e23",
        r"\boxed{6.02 \times 10^{23} \text{ mol}^{-1}}"),
    *rows("m", r"4.5\times10^{33} \text{ erg}", r"\boxed{4.5e33}", r"\boxed{45 \times 10^{32}}"),
    *rows("m", r"2\sqrt{2} \text{ (cm)}", r"\boxed{2\sqrt{2}}"), *rows("gm", "3/4 (hours)", r"\boxed{\frac{3}{4}}"),
    *rows("gdm", "72", "Answer: 72 in April and May together", "The answer is 72 \u2013 that's all.",
        "The answer is 72, QED",
        "Answer: 72 (\u2713)", "Answer: 72 \U0001f1eb\U0001f1f7"),
    *rows("gm", "5 (times)", r"\boxed{5}"), *rows("gm", "1/2 (cup)", r"\boxed{1/2}"), *rows("gm", "9 (cm^2)",
        r"\boxed{9}"), *rows("gm", "9(apples)",
        r"\boxed{9}"),
]  # fmt: skip
NO_WORDS = [
    *rows("m", "72", "Answer: 72, x", "Answer: 72, maybe", "Answer: 72, or so", "Answer: 72, if n is even",
        "Answer: 72ab",
        r"\boxed{72 (xyz)}", r"\boxed{72(x)}", r"\boxed{72, theta}", r"\boxed{72 i}", r"\boxed{72 a}",
        r"\boxed{72 in base 8}",
        r"\boxed{(72, apples)}", r"\boxed{72 (wrong)}", r"\boxed{72 (not 73)}", r"\boxed{72, \pi}", r"\boxed{x, 72}",
        r"\boxed{72, negative}", r"\boxed{72 ab/c}", r"\boxed{72 (mod 5)}"),
    *rows("gdm", "72", "The answer is 71, not 72.", "Answer: 72, not", "Answer: 72, not 72",
        "The answer is 72, or not.",
        "Answer: 71, rather than 72", "The answer is not 71, not 72.", "The answer is $71$, not $72$.",
        r"\boxed{71}. Not \boxed{72}?", r"It isn't \boxed{72}, so \boxed{71}.", "\u7b54\u6848\uff1a\u4e0d\u662f72",
        "Answer: 72? No.", "Answer: 72? or 71", "Answer: 72... actually 71", "Answer: 72 is too large",
        "Answer: 72 lakh",
        "\u7b54\u6848\uff1a\u8d85\u8fc772", "\u7b54\u6848\uff1a71\uff0c\u4e0d\u662f72"),
    *rows("m", "72xyz", r"\boxed{72}"), *rows("m", "4.5e33", r"\boxed{4.5\times10^{32} \text{ erg}}", r"\boxed{4.5}"),
    *rows("gdm", "72", r"\boxed{72(xyzw)}", r"\boxed{72 (x^2)}", r"\boxed{72 x's}"), *rows("m", "72",
        r"\boxed{72 cup x}", "Answer: 72 (theta)"),
]  # fmt: skip

# Rounded values.
ABOUT = [
    *rows("gdm", "72", r"\boxed{\approx 72}", r"\boxed{\simeq 72}", r"\boxed{\sim 72}", r"\boxed{\cong 72}",
        r"\boxed{\doteq 72}",
        r"\boxed{x \approx 72}", r"The answer is $\approx 72$.", "Answer: \u2248 72", "#### \u2252 72",
        r"\boxed{71.6 \approx 72}"),
    *rows("m", r"$\approx 17.10 \mathrm{ft}$", r"\boxed{17.10 \mathrm{ft}}", r"\boxed{17.1}", "Answer: 17.1 ft"),
    *rows("gdm", r"\approx 17.1", r"\boxed{17.1}", r"\boxed{\simeq 17.10}"), *rows("m", r"$\approx 1.47$ miles/s",
        r"\boxed{1.47}"),
    *rows("m", r"2\sqrt{2}", r"\boxed{2\sqrt{2} \approx 2.83}", r"\boxed{x = \sqrt{8} \approx 2.83}"),
    *rows("m", r"\frac{\pi}{2} \approx 1.57", r"\boxed{\frac{\pi}{2}}", r"\boxed{1.57}", r"\boxed{\approx 1.57}"),
    *rows("m", r"\log_2 3", r"\boxed{1.5849625}"), *rows("m", r"\emptyset", r"\boxed{\{\}}"),
    *rows("m", r"\frac{1}{3}", r"\boxed{\frac{1}{3} \approx 0.33}"), *rows("m", "2.83",
        r"\boxed{2\sqrt{2} \approx 2.83}"),
    *rows("m", r"x \approx 1.2, y \approx 3.4", r"\boxed{x = 1.2, y = 3.4}"),
    *rows("m", r"$\approx(-\infty,-12.1) \cup(12.1, \infty)$", r"\boxed{(-\infty,-12.1) \cup(12.1, \infty)}"),
    *rows("m", "9.42", r"\boxed{S = 3\pi \approx 9.42 \text{ cm}^2}", r"\boxed{\frac{6\pi}{2} \approx 9.42}"),
    *rows("m", "0.69", r"\boxed{\ln(2) \approx 0.69}", r"\boxed{1-e^{-1.171} \approx 0.69}",
        r"\boxed{f(2) \approx 0.69}"),
    *rows("m", r"3.14\times 10^8", r"\boxed{\pi \cdot 10^8 \approx 3.14 \times 10^8}"), *rows("m", "5",
        r"\boxed{\sqrt[3]{125} \approx 5}"),
]  # fmt: skip
NOT_ABOUT = [
    *rows("gdm", "72", r"\boxed{\approx 73}", r"\boxed{\approx 72, 73}", r"\boxed{\not\approx 72}",
        r"\boxed{71 \approx 72}",
        r"\boxed{72 \approx 73}", r"\boxed{\approx 7.2}"),
    *rows("m", r"2\sqrt{2}", r"\boxed{3\sqrt{2} \approx 2.83}", r"\boxed{\approx 2.83}",
        r"\boxed{2\sqrt{2}, \approx 2.83, 5}"),
    *rows("m", "1/3", r"\boxed{\approx 0.33}"),
    *rows("m", "72.5", r"\boxed{\sqrt{2} \approx 72.5}", r"\boxed{not $\approx 72.5$}",
        r"\boxed{\text{never} \approx 72.5}"),
    *rows("m", r"3\pi", r"\boxed{3\pi \approx 8.42}", r"\boxed{4\pi \approx 9.42}"), *rows("m", "72",
        r"\boxed{\pi \approx 72}"),
    *rows("m", "2500", r"\boxed{not $P=\frac{5000}{2} \approx 2500$}", r"\boxed{x^2 \approx 2500}"),
]  # fmt: skip

# Gold answers in prose, and other golds that the two readers took for different things.
VERBATIM = [
    *((functions, f"So it is \\boxed{{{gold}}}.", gold) for functions, gold in (
        ("dm", "Solution is: $k=4$."), ("dm", "The mode is $x=0$."), ("dm",
        "No. It is not closed under scalar multiplication."),
        ("dm", r"domain: $\mathbb{R}^{2}$, range: $[-1, \infty)$"), ("dm", r"$\max$ at $x=2$, min at $x=4$"), ("dm",
        "Mrs. Hilt"),
        ("dm", "$P\\left(N_{2}=6\\right)=e^{-2 / 3}$\n$y_{2}=1$"), ("dm", r"\left(a^{2}\right)^{5}=a^{10}3"), ("dm",
        "9:03:36 a.m."),
        ("dm", r"$5^{\prime} 10.1^{\prime \prime}$"), ("dm", r"C. 1-\mathrm{i}"), ("dm",
        "One row " + "of words " * 95))),
    *((functions, text, "Solution is: $k=4$.") for functions, text in (("dm", "Answer: Solution is:  $k=4$"),
        ("m", r"\boxed{4}"), ("m", r"\boxed{k=4}"), ("dm", "<answer>\nSolution is: $k=4$.\n</answer>"))),
    *rows("m", r"domain: $\mathbb{R}^{2}$, range: $[-1, \infty)$",
        r"\boxed{domain: $\mathbb{R}^2$, range: $[-1,\infty)$}"),
    *rows("m", "72", r"\boxed{72 because 8 \cdot 9}", r"\boxed{72. Since $8 \cdot 9 = 72$.}", r"\boxed{72. So it is.}"),
]  # fmt: skip
NOT_VERBATIM = [
    *rows("m", "Solution is: $k=4$.", r"\boxed{Solution is: $k=4$. Solution is: $k=5$.}", r"\boxed{k=4, k=5}",
        r"\boxed{4 or 5}",
        r"\boxed{Solution is: $k=5$., Solution is: $k=4$.}", r"\boxed{Solution is: $k=4$., 5}",
        r"\boxed{Solution is not: $k=4$.}",
        r"\boxed{Solution is: $k=4$.} and \boxed{Solution is: $k=5$.}"),
    *rows("dm", r"domain: $\mathbb{R}^{2}$, range: $[-1, \infty)$", r"\boxed{\mathbb{R}^2}",
        r"\boxed{domain: $\mathbb{R}^{2}$}"),
    *rows("m", "k=4", r"\boxed{Solution is: $k=4$., Solution is: $k=5$.}", r"\boxed{$k=4$ and then $k=5$}"),
    *rows("m", r"\mathbb{R}^2", r"\boxed{domain: $\mathbb{R}^{2}$, range: $[0, \infty)$}"),
    *rows("dm", ".5", r"\boxed{5}", r"\boxed{5.}"), *rows("m", "The sum is $6$.", r"\boxed{2 \cdot 3}",
        r"\boxed{The sum is $2 \cdot 3$.}"),
    *rows("m", "No: $2 < 3$ fails", r"\boxed{2 < 3}"), *rows("m", "It is not $5$.", r"\boxed{5}"),
    *rows("m", "Yes.", r"\boxed{Yes. or $17$}"), *rows("m", "72", r"\boxed{72. Or 73.}", r"\boxed{$72$, 73}"),
]  # fmt: skip

PAID = [*LISTS, *MARKS, *WORDS, *ABOUT, *VERBATIM]
REFUSED = [*NO_LISTS, *NO_MARKS, *NO_WORDS, *NOT_ABOUT, *NOT_VERBATIM]


@pytest.mark.parametrize(("functions", "text", "gold"), PAID)
def test_right_answers_are_paid(task: Callable, functions: str, text: str, gold: str) -> None:
    assert [verdict(function, text, gold, task) for function in functions] == [Verdict.CORRECT] * len(functions)


@pytest.mark.parametrize(("functions", "text", "gold"), REFUSED)
def test_other_answers_are_not(task: Callable, functions: str, text: str, gold: str) -> None:
    for function in functions:
        assert verdict(function, text, gold, task) in (Verdict.WRONG, Verdict.NO_ANSWER), function


@pytest.mark.parametrize(("name", "functions"), [
    ("02_joined_boxes.math", "m"), ("03_trailing_symbol", "gdm"), ("03_trailing_symbol.multiple_choice", "c"),
    ("04_words_behind_number.math", "gdm"), ("05_approximately.math", "m"), ("09_gold_verbatim.math", "m"),
    ("10_unit_and_e_notation.math", "m"), ("16_gold_with_unit_in_brackets.math", "gm"),
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


@pytest.mark.parametrize("unit", [
    "72 \u2705", "\u2705", r"72 \checkmark ", "\\hfill", "Q. ", r"\approx", r"\(\approx 1", "1 (a ", "1, a",
        r"\boxed{1} and "
])  # fmt: skip
def test_a_megabyte_of_marks_and_words_finishes(unit: str) -> None:
    noise = unit * (200_000 // len(unit))
    for function in "gdmc":
        for text, gold in ((noise, "12345"), (r"\boxed{1}", noise)):
            VERIFIERS[function].verify(Candidate(text=text, gold=gold, data_source="", index=0))
