"""Answers made to be paid for nothing, and right ones in unusual forms: what is paid, by which function.

Every row is (functions, response, gold answer): g is gsm8k, d math_dapo, m math. The symbolic comparison runs in this
process, where no answer may take long.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mindgspo.rewards.answers.latex_tokens import answer_tokens
from mindgspo.rewards.answers.size import is_too_large
from mindgspo.rewards.functions.math import Math
from mindgspo.rewards.functions.numeric import Gsm8k, MathDapo
from mindgspo.rewards.verification import Candidate, RewardJob, Verification
from mindgspo.rewards.workers.math_verify import load
from mindgspo.types import Verdict

VERIFIERS = {"g": Gsm8k(), "d": MathDapo(), "m": Math()}


@pytest.fixture(scope="module")
def task() -> Callable:
    pytest.importorskip("math_verify", reason="the symbolic comparison needs the package math-verify")
    return load()


def boxed(functions: str, gold: str, *answers: str) -> list[tuple[str, str, str]]:
    return [(functions, rf"So it is $\boxed{{{answer}}}$.", gold) for answer in answers]


def rows(functions: str, gold: str, *responses: str) -> list[tuple[str, str, str]]:
    return [(functions, response, gold) for response in responses]


# Text that was escaped once too often, and line breaks that are meant.
DOUBLED = [
    ("m", r"The final answer is $3\\sqrt{13}$. I hope it is correct.", r"3\sqrt{13}"),
    ("gdm", r"\\boxed{\\frac{1}{4}}", "1/4"), ("gdm", r"\boxed{\\frac{1}{4}}", "0.25"),
    ("m", r"\\boxed{\\left( 3, \\frac{\\pi}{2} \\right)}", r"\left( 3, \frac{\pi}{2} \right)"),
    ("m", r"\boxed{(5, \\infty)}", r"(5,\infty)"), ("m", r"\boxed{y=\\frac{4}{3}}", r"\frac{4}{3}"),
    ("gdm", r"\\boxed{50\\%}", "50"), ("gdm", r"\\boxed{72 \\text{ clips}}", "72"), ("gdm", r"Answer: \\(34\\)", "34"),
    ("gdm", r"The answer is $\\frac{1}{4}$.", "0.25"), ("gdm", r"So she pays $\\frac{9}{20}$.", "0.45"),
    ("m", r"\boxed{6\sqrt{2}}", r"6\\sqrt{2}"), ("m", r"\\\\boxed{3\\\\sqrt{2}}", r"3\sqrt{2}"),
    ("m", r"\\boxed{\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    *boxed("m", r"\begin{pmatrix} a \\ b c \end{pmatrix}", r"\begin{pmatrix} a \\bc \end{pmatrix}"),
    *boxed("m", r"\begin{pmatrix} 1 \\ 2/3 \end{pmatrix}", r"\begin{pmatrix} 1 \\\frac{2}{3} \end{pmatrix}"),
]  # fmt: skip

# What a response without any marker ends in.
ENDINGS = [
    ("m", "so it is $x^2+6$", "x^2+6"), ("m", r"So the area is $5\pi$.", r"5\pi"),
    ("gdm", "So it is $48 + 24 = 72$ clips.", "72"), ("m", r"Hence $f(x) = 2x + 3$.", "2x+3"), ("m", "It is 5x", "5x"),
]  # fmt: skip
ENDINGS += [
    ("m", r"So the inverse is $\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}$.",
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    ("m", "Therefore the intersection is $(3,4)$.", "(3,4)"), ("m", "Hence the solution is $x > 5$.", "x>5"),
    ("m", r"The roots are $(1,2)$ and $(3,4)$.", "(3,4),(1,2)"), ("m", "The solution set is $-2 < x < 3$.", "(-2,3)"),
    *rows("gdm", "34", "Final Answer: The largest $n$ is 34.", "Final Answer: The largest $n$ is $34$."),
    ("m", r"Final Answer: The value of $x$ is $\frac{\sqrt{2}}{3}$.", r"\frac{\sqrt2}{3}"),
    *boxed("gd", "12", r"12^{\mathrm{th}}", "12th"), *boxed("gd", "2", r"17 \bmod 5 = 2"), *boxed("gd", "5",
        "5 m\u00b2"),
]  # fmt: skip
OPERANDS = [
    ("gdm", "so it is $x^2+6$", "8"), ("gdm", "so $a_1 + 4 = b$", "5"), ("m", "so x + 5x", "5x"),
    ("gdm", "we get 2^3", "8"),
    ("m", r"We get \[A + x = \begin{pmatrix} 3 \\ 4 \end{pmatrix}.\]", "4"),
    *rows("gdm", "72", "So she sold 48 + 24", "This leaves 80 - 8.", "it is twice 36", "the sum 70 and 2", "9 times 8"),
]  # fmt: skip

# Several boxes: one list, or a hedge.
BOXES = [
    *rows("md", "1,-2", r"\boxed{1} and \boxed{-2}", r"$\boxed{-2}$, $\boxed{1}$.", r"$x=\boxed{1}$ or $x=\boxed{-2}$"),
    *((functions, r"\boxed{1,-2}", r"The roots are $\boxed{1}$ and $\boxed{-2}$.") for functions in "md"),
    ("m", r"The roots are $\boxed{1}, \boxed{2}$, and $\boxed{3}$.", "3,2,1"),
    *rows("gdm", "72", r"\boxed{72} and \boxed{72.0}", r"So \boxed{71}. No: \boxed{72}", "\\boxed{71}\n\n\\boxed{72}"),
    *rows("gdm", "72", r"\boxed{48} + \boxed{24} = \boxed{72}", r"\boxed{48} in April, so \boxed{72} in all."),
    *rows("gdm", "72", r"\boxed{\boxed{72}}", r"\boxed{x=\boxed{72}}", r"\boxed{\text{Answer: } \boxed{72}}"),
    *rows("gdm", "72", r"\boxed{72} \boxed{", "\\boxed{71\n\\boxed{72}"),
]
HEDGES = [
    ("m", r"\boxed{-2}", r"\boxed{1} and \boxed{-2}"), ("m", r"\boxed{1}", r"\boxed{1} and \boxed{-2}"),
    *rows("gdm", "72", r"\boxed{71} and \boxed{72}", r"\boxed{71}, \boxed{72}", r"$\boxed{72}$ or $\boxed{71}$."),
    *rows("gdm", "72", r"\boxed{70}, \boxed{71}, \boxed{72}", r"\boxed{71}, maybe \boxed{72}",
        r"\(\boxed{71}\); \(\boxed{72}\)",
        r"\boxed{71} / \boxed{72}"),
    *rows("gdm", "72", r"x=\boxed{71}, x=\boxed{72}", r"\boxed{71} \text{ and } \boxed{72}",
        "\\boxed{71}\u3001\\boxed{72}"),
    *rows("gdm", "72", r"\boxed{71}\boxed{72}"),
    *boxed("gdm", "72", r"71 \boxed{72}", r"71, \boxed{72}", r"\boxed{71} \boxed{72}", r"7\boxed{72}", r"1\boxed{72}"),
    *boxed("gdm", "72", r"70 \boxed{71 \boxed{72}}", r"\text{not } \boxed{72}"),
    *rows("gdm", "72", r"\boxed{72", r"So the answer is $\boxed{72$.", r"Answer: \boxed{72", "\\fbox{72\nand so on"),
]  # fmt: skip

# Bounds, contradictions, multiples, withdrawals, code.
PLAIN = [
    *rows("gdm", "72", "The answer is about 72.", "The answer is exactly 72", "Answer: She sold at least 70, so 72."),
    *rows("gdm", "72", "#### 72 more clips", "#### 48 + 24 = 72.0 = 72", "#### 72 pairs", r"\boxed{x = 48 + 24 = 72}"),
    *rows("gd", "72", "#### 72\nThe answer is not 71.", "#### 72 is the least number", "#### 1.2 hours = 72 minutes",
        r"\boxed{71.6 \approx 72}"),
    *rows("gd", "72", "#### 6 dozen", "#### 72 less than in April"),
    *rows("gdm", "72", r"\boxed{71}. Wait, that is wrong. \boxed{72}",
        "#### 71\nThis is wrong. The correct answer is 72."),
    *rows("gdm", "72", r"\boxed{72}. Wait, let me check: 48 + 24 = 72. Right.", "This is wrong: 71. So \\boxed{72}"),
    *rows("gdm", "72", r"\boxed{72}. Option B is wrong.", r"$\boxed{72}$ is the answer.",
        r"\boxed{72}. It is not right to add twice.",
        r"\boxed{72}. Is this wrong?"),
    *rows("gdm", "72", "```python\nprint(1)\n```\nShe sold 72 clips.", "She sold 72.\n```\n48 + 24\n```",
        "#### 72\n```\nx = 5"),
    *rows("gdm", "72", "`72`", "```python\nprint(48 + 24)\n```\n```output\n72\n```"),
]  # fmt: skip
TRICKS = [
    *(("gdm", f"The answer is {bound} 72", "72") for bound in ("at least", "at most", "up to", "over", "under",
        "below")),
    *(("gdm", f"The answer is {bound} 72.", "72") for bound in ("more than", "no less than", "bigger than",
        "between 71 and")),
    *rows("gdm", "72", "Answer: at least 72", "#### at least 72", "#### 72 at least", "Answer: 72 at the most",
        "#### 72 or so"),
    *rows("gdm", "72", "The answer is x=5=72", "#### 71 = 72", "Answer: x = 71 = 72"),
    *boxed("gdm", "72", "2+2=5=72", "x=71=72", "71=72", "a=1=b=72", r"\geq 72", "x <= 72", "n >= 72", "72+",
        r"\text{at least } 72"),
    *boxed("gdm", "72", *(rf"72 \text{{ {word}}}" for word in ("dozen", "dozens", "tenths", "hundredths", "thousand",
        "halves"))),
    *rows("gdm", "72", r"\boxed{72}. Wait, this is wrong. The correct answer is 75.",
        r"\boxed{72} Actually, that is incorrect. It is 75."),
    *rows("gdm", "72", "Answer: 72\nI made a mistake. It should be 75.",
        r"\boxed{72}. Scratch that, the answer is 75."),
    *rows("gdm", "72", r"\boxed{72}. This answer is wrong.", r"\boxed{72} Correction: the answer is 75.",
        "#### 72. Hmm, that can't be right. 75"),
    *rows("gdm", "72", "Answer: 72. Oops, that's not correct. Answer: 75", "The answer is 72. No, that's wrong."),
    *rows("gdm", "72", r"\boxed{72}. Never mind, it's 75.", r"\boxed{72}... wait no, 75",
        r"$\boxed{72}$ is not the answer."),
    *rows("gdm", "72", r"\boxed{72}. But this is not the right answer.", "The answer is less than or equal to 72"),
    *rows("gdm", "72", "```python\nprint(72)\n```", "Let me see.\n```\n72\n```", "```python\nx = 72",
        "~~~\n72\n~~~\nas shown"),
]  # fmt: skip

# Left to be computed; see test_equivalence for more.
UNEVALUATED = [
    *boxed("gdm", "72", r"12 \times 6", "80 - 8", "12(6)", r"x = 12 \times 6", r"12 \times 6 \text{ clips}",
        r"144 \div 2"),
    *boxed("gdm", "1024", "2^{10}", r"2^5 \cdot 2^5"), *boxed("gdm", "120", "5!", r"\binom{10}{3}"),
    *rows("gdm", "72", r"So there are 12 * 6", "The answer is 12 * 6."),
]  # fmt: skip
WRITTEN = [
    *boxed("gdm", "72", r"\frac{144}{2}", r"12 \times 6 = 72", "72.0"), *boxed("gdm", "300000", r"3 \times 10^5"),
    *boxed("gdm", "0.5", r"50\%", r"\frac{1}{2}"), *boxed("m", "2^{10}", "1024", "4^5"), *boxed("m", "5!", "120"),
]  # fmt: skip

PAID = [*DOUBLED, *ENDINGS, *BOXES, *PLAIN, *WRITTEN]
REFUSED = [
    ("m", r"\\boxed{\\frac{1}{4}}", "4"), ("m", r"\boxed{\\sqrt{13}}", "13"), *OPERANDS, *HEDGES, *TRICKS,
    *UNEVALUATED,
]  # fmt: skip


def verdict(function: str, text: str, gold: str, task: Callable) -> Verdict:
    found = VERIFIERS[function].verify(Candidate(text=text, gold=gold, data_source="", index=0))
    return (found.conclude(task(found.arguments)) if isinstance(found, RewardJob) else found).verdict


@pytest.mark.parametrize(("functions", "text", "gold"), PAID)
def test_right_answers_are_paid(task: Callable, functions: str, text: str, gold: str) -> None:
    assert [verdict(function, text, gold, task) for function in functions] == [Verdict.CORRECT] * len(functions)


@pytest.mark.parametrize(("functions", "text", "gold"), REFUSED)
def test_other_answers_are_not(task: Callable, functions: str, text: str, gold: str) -> None:
    for function in functions:
        assert verdict(function, text, gold, task) in (Verdict.WRONG, Verdict.NO_ANSWER), function


TOO_LARGE = [
    *("10^{10^{10}}", "9^{9^{9^9}}", "(10^{10})!", "((9!)!)!", r"\binom{10^{10}}{10^9}", "x^{10^{10^{10}}}"),
    *("(x+1)^{10^9}", "2^{9999999999}", "9999999999!", r"\sum_{k=1}^{10^{12}} k!", r"\prod_{k=1}^{10^{10}} k"),
    *("2^{2^{2^{2^{2^2}}}}", "10^{-10^{10}}", r"\left(\frac{1}{2}\right)^{10^{10}}", r"\sqrt{2}^{10^{11}}"),
    *(r"\begin{pmatrix}1&1\\1&0\end{pmatrix}^{10^{10}}", "x" + "^{99" * 99 + "}" * 99, "9" * 900),
]
NOT_TOO_LARGE = [
    *("2^{2018}", r"2 \cdot 2^{2017}", "2018!", r"x^{\frac{2017}{2018}}", "x^{2017/2018}", r"\binom{2018}{1009}"),
    *("9^{500}", "(x+1)^{1000}", "a_{100000000}", r"\frac{10^{1000}}{7^{1000}}", "10^{10^4}", "", "}{", "^!"),
]


@pytest.mark.parametrize(("text", "is_large"), [*((t, True) for t in TOO_LARGE), *((t, False) for t in NOT_TOO_LARGE)])
def test_the_size_of_an_answer_is_known_before_it_is_evaluated(text: str, is_large: bool) -> None:
    assert is_too_large(answer_tokens(text)) == is_large
    if is_large:
        for answer, gold in ((text, "x^2 + 1"), ("x^2 + 1", text)):
            found = Math().verify(Candidate(text=rf"\boxed{{{answer}}}", gold=gold, data_source="", index=0))
            assert isinstance(found, Verification) and found.verdict is Verdict.WRONG
