"""The symbolic comparison: what is the same, and that no text is ever executed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent

import pytest

from math_answers.answer_tokens import answer_tokens
from math_answers.latex_tokens import MAX_EXPRESSION_CHARS
from math_answers.symbolic_input import safe_latex


@pytest.fixture(scope="module")
def same() -> Callable[[str, str], bool]:
    """The comparison of an answer with a gold answer."""
    pytest.importorskip("math_verify", reason="the symbolic comparison needs the package math-verify")
    from math_answers.symbolic import are_symbolically_same

    return are_symbolically_same


@pytest.mark.shared_data
def test_math500_answers_can_be_read_by_the_symbolic_comparison(shared_rows, same: Callable[[str, str], bool]) -> None:
    answers = sorted({row["answer"] for row in shared_rows("math500/math500.jsonl") if not row["answer"].isdigit()})
    assert [answer for answer in answers[::2] if not same(answer, answer)] == []


EQUAL = [
    (r"2\sqrt{2}", r"\sqrt{8}"), (r"\sqrt8\text{ cm}", r"2\sqrt2"), (r"\frac{1}{\sqrt{3}}", r"\frac{\sqrt{3}}{3}"),
    ("(x+1)^2", "x^2+2x+1"), ("(a+5)(b+2)", "ab + 2a + 5b + 10"), ("2^{10}", "1024"), (r"3 \times 10^5", "300000"),
    (r"\sin^2 x + \cos^2 x", "1"), (r"\cos\frac{\pi}{4}", r"\frac{\sqrt2}{2}"), ("y+2x=0", "y=-2x"),
    (r"\frac{1+\sqrt{5}}{2}", r"\frac12 + \frac{\sqrt5}{2}"), (r"\binom{5}{2}", "10"), ("5!", "120"),
    (r"\log_{2} 8", "3"), (r"x+2\frac{1}{2}", r"x+\frac52"), ("x+2(3)", "x+6"), (r"x+\frac{4}{2}\frac{1}{2}", "x+1"),
    ("-2<x<3", "(-2,3)"), (r"-2 \le x \le 7", r"x \in [-2,7]"), (r"6.72 \times 10^{-5}", ".0000672"),
    ("1.4142136", r"\sqrt{2}"), ("x=2,y=3", "(2,3)"), ("2+2=4", "4"), ("A=2B", "A=B+B"),
]  # fmt: skip

UNEQUAL = [
    (r"2\sqrt{2}", r"2\sqrt{3}"), ("4t", "4"), ("2ab", "2"), ("x=5", "y=5"),
    ("x+2(3)", "x+5"),  # 2(3) is no mixed number
    ("2 3x", "5x"), (r"\{1,2\}", r"\{1,3\}"), (r"|a+b|+c", "|a+c+b|"), (r"x \sin y", r"y \sin x"),
    (r"6.7 \times 10^{-5}", ".0000672"),  # equal when rounded to six decimals
    ("0.0", "e^{-20}"), ("1.414", r"\sqrt{2}"), ("5 or more", "5"), ("", "5"), ("}{", "5"),
    ("x" * (MAX_EXPRESSION_CHARS + 1), "x"), (r"\text{ei", "e"), ("X+Y", "x+y"), ("2A", "2a"), ("T", "t"), ("4=5", "5"),
    ("2+2=5", "5"), (r"\sqrt{4}=5", "5"), (r"5 \text{ is wrong}", "5"), (r"5 \text{ squared}", "5"),
    (r"\pi \text{ squared}", r"\pi"), (r"\pi \text{ is not correct}", r"\pi"), (r"\textbf{(C)}\ 5", "B"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "gold", "is_same"), [*((*p, True) for p in EQUAL), *((*p, False) for p in UNEQUAL)])
def test_expressions(same: Callable[[str, str], bool], answer: str, gold: str, is_same: bool) -> None:
    assert same(answer, gold) == is_same


def test_equations_sides_that_are_no_formula_and_no_alarm(same: Callable[[str, str], bool]) -> None:
    assert same("x^2 + y^2 = 4", "4")
    assert not same("4", "x^2 + y^2 = 4")
    with ThreadPoolExecutor(1) as threads:  # signal.alarm works in the main thread only
        assert threads.submit(same, "(x+1)^2", "x^2+2x+1").result()
    assert not same("1", "}{") and not same("}{", "1")


PAYLOADS = [
    *("__import__('os').system('touch MARK')", '__import__("os").system("touch MARK")'),
    *("open('MARK','w').close()", "exec(\"open('MARK','w')\")"),
    "[c for c in ().__class__.__base__.__subclasses__()][0]",
    "(lambda: __import__('os').system('touch MARK'))()",
    "sympify('__import__(chr(111)+chr(115)).system(chr(116))')",
    *("__import__(chr(111)+chr(115)).system(chr(116)+chr(111))", "print(1)or(exit())"),
]
DISGUISES = [
    *("{}", r"\boxed{{{}}}", "${}$", r"\({}\)", r"\text{{{}}}", r"\mathrm{{{}}}", r"\operatorname{{{}}}(1)"),
    *(r"\sqrt{{{}}}", r"\frac{{1}}{{{}}}", "x_{{{}}}", "x^{{{}}}", "f({})", "1+{}", "{}=1", "x={}", r"\{{1,{}\}}"),
    *(r"\mathit{{{}}}", r"\overline{{{}}}", r"\vec{{{}}}", r"\variable{{{}}}", "answer: {}", "final answer is {}"),
    *(r"\begin{{pmatrix}}{}\end{{pmatrix}}", r"\begin{{{}}}1\end{{{}}}", r"\gcd({},2)", r"\operatorname{{gcd}}(1,{})"),
    *(r"\int {} dx", r"\lim_{{x \to {}}} x", r"\sum_{{n={}}}^{{2}} n", "{}\n1", "5{}", "'{}'", '"{}"'),
]
HOSTILE = [disguise.format(*[payload] * disguise.count("{}")) for disguise in DISGUISES for payload in PAYLOADS]


@pytest.mark.usefixtures("same")
def test_hostile_text_is_never_executed(tmp_path: Path) -> None:
    # A process of its own, because an audit hook cannot be taken off again. It sees whatever is compiled from text.
    program = dedent(
        """
        import json, sys
        from math_answers.symbolic import are_symbolically_same as same
        texts = json.load(sys.stdin)
        for warm_up in ("x+1", "1.5", "(x+1)^2", "\\\\sqrt{2}", "5!", "x=2", "(1,2)"):
            same(warm_up, "x^2+2x+1")
        events = []
        def hook(event, arguments):
            if event == "compile" and arguments[1] is not None and str(arguments[1]).startswith("<"):
                source = arguments[0]
                events.append(["compile", source.decode() if isinstance(source, bytes) else str(source)])
            elif event.startswith(("os.", "subprocess.", "socket.", "ctypes.", "shutil.")) and event != "os.listdir":
                events.append([event, repr(arguments)])
        sys.addaudithook(hook)
        replies = [same(text, text) for text in texts]
        print(json.dumps({"events": events, "replies": len(replies)}))
        """
    )
    run = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(HOSTILE), text=True, capture_output=True, cwd=tmp_path,
        check=True, env={"PYTHONPATH": str(Path(__file__).resolve().parents[1]), "PATH": ""},
    )  # fmt: skip
    seen = json.loads(run.stdout)
    assert seen["replies"] == len(HOSTILE)
    assert list(tmp_path.iterdir()) == []
    # sympy reads numbers that way; nothing but digits may be in them.
    harmless = re.compile(r"from sympy import \*|(?:Integer|Float) ?\(\s*'?[0-9.]+'?\s*\)\s*")
    assert any("Integer" in source for _, source in seen["events"]), "the hook sees what sympy compiles"
    others = [event for event in seen["events"] if event[0] != "compile" or not harmless.fullmatch(event[1])]
    assert others == []


def test_what_reaches_the_grammar_holds_no_python() -> None:
    python = re.compile(r"[\"'`@#;]|__|\w\.\w|[A-Za-z]{2,}\(")
    written = [safe_latex(answer_tokens(text)) for text in HOSTILE]
    assert [latex for latex in written if latex is not None and python.search(latex)] == []
    assert any(written)
