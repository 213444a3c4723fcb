"""The reward `math`: which answer counts, what is decided at once, and the symbolic comparison in workers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mindgspo.config import RewardSection
from mindgspo.config.reward import AnswerMode, RewardWorkersSection
from mindgspo.rewards import Scorer
from mindgspo.rewards.answers.answer_tokens import answer_tokens
from mindgspo.rewards.answers.latex_tokens import MAX_EXPRESSION_CHARS
from mindgspo.rewards.answers.symbolic_input import safe_latex
from mindgspo.rewards.functions.math import Math
from mindgspo.rewards.verification import Candidate, RewardJob, Verification
from mindgspo.types import Score, Verdict


def candidate(text: str, gold: str, *, is_cut: bool = False) -> Candidate:
    return Candidate(text=text, gold=gold, data_source="math", index=3, is_cut=is_cut)


def verdict(text: str, gold: str, mode: AnswerMode = "flexible") -> Verdict:
    found = Math(mode).verify(candidate(text, gold))
    assert isinstance(found, Verification), f"a job for {text!r}"
    assert found.value == {Verdict.CORRECT: 1.0, Verdict.UNPARSEABLE_GOLD: None}.get(found.verdict, 0.0)
    return found.verdict


CORRECT, WRONG, NO_ANSWER = Verdict.CORRECT, Verdict.WRONG, Verdict.NO_ANSWER


@pytest.mark.parametrize(("text", "gold", "flexible", "strict"), [
    (r"So \(\boxed{\frac{1}{2}}\).", r"\frac12", CORRECT, CORRECT),
    (r"\boxed{0.5}" + " and so on" * 500, r"\frac12", CORRECT, CORRECT),
    (r"\boxed{3}, no: \boxed{4}", "4", CORRECT, CORRECT), (r"\boxed{3}, no: \boxed{4}", "3", WRONG, WRONG),
    (r"\boxed{x=\boxed{4}}", "4", CORRECT, CORRECT), (r"<think>\boxed{3}</think> \boxed{4}", "4", CORRECT, CORRECT),
    (r"Answer: \frac{\pi}{2}", r"\frac\pi2", CORRECT, NO_ANSWER),
    (r"The answer is $2\sqrt{3}$.", r"2\sqrt3", CORRECT, NO_ANSWER),
    (r"The answer is $\{1,2\}$. See 3.", "2,1", CORRECT, NO_ANSWER),
    (r"The answer is $x \in [-2,7]$.", "[-2,7]", CORRECT, NO_ANSWER),
    ("The answer is $x^2+1$, which is 2 at 1.", "1+x^2", CORRECT, NO_ANSWER),
    (r"The final answer is $\pi$.", r"\pi", CORRECT, NO_ANSWER),
    ("The answer is east. It took 3 hours.", r"\text{east}", CORRECT, NO_ANSWER),
    ("The answer is in dollars. That gives 5.", "5", CORRECT, NO_ANSWER),
    ("Answer: She sold 72 clips.", "72", CORRECT, NO_ANSWER), ("The result must be 72.", "72", CORRECT, NO_ANSWER),
    (r"\boxed{5}. The answer is 6.", "6", WRONG, WRONG), ("We do not know.", "72", NO_ANSWER, NO_ANSWER),
    ("", "72", NO_ANSWER, NO_ANSWER), (r"\boxed{}", "72", NO_ANSWER, NO_ANSWER),
    (r"\boxed{72}", r"We get 70, then \boxed{71}, and finally \boxed{72}.", CORRECT, CORRECT),
    (r"\boxed{\text{(C)}}", "C", CORRECT, CORRECT), (r"\boxed{$5}", "5", CORRECT, CORRECT),
    (r"\boxed{5 \text{ or } 6}", "5", WRONG, WRONG),
])  # fmt: skip
def test_verdicts(text: str, gold: str, flexible: Verdict, strict: Verdict) -> None:
    assert verdict(text, gold) is flexible
    assert verdict(text, gold, "strict") is strict


@pytest.mark.parametrize(("text", "gold"), [
    ("The answer is not $x+1$.", "x+1"), (r"The answer is more than $\sqrt2$", r"\sqrt2"),
    ("The answer is more than $5$.", "5"), ("The answer is not $5$.", "5"), ("The answer is twice $5$", "5"),
    ("The answer is half of $5$", "5"), (r"Answer: $\pi$ is not correct", r"\pi"), (r"Answer: $\pi$? or $e$?", r"\pi"),
    ("Answer: it cannot be $5$", "5"),
])  # fmt: skip
def test_what_prose_takes_back_is_not_paid(text: str, gold: str) -> None:
    found = Math().verify(candidate(text, gold))
    assert isinstance(found, RewardJob) or found.verdict is not CORRECT
    assert not isinstance(found, RewardJob) or found.arguments["answer"] != gold  # the words go along


def test_first_last_and_cut() -> None:
    text = r"Answer: \boxed{3}. Wait: \boxed{4}"
    assert verdict(text, "3", "first") is CORRECT
    assert verdict(text, "4", "last") is CORRECT
    found = Math().verify(candidate("Then 3 + 4 = 7", "7", is_cut=True))
    assert isinstance(found, Verification) and found.verdict is NO_ANSWER


@pytest.mark.parametrize("gold", ["", "  ", "$$", r"\boxed{}", "...", "x" * 5000])
def test_a_gold_answer_without_content_abstains(gold: str) -> None:
    assert not Math().can_read(gold)
    assert verdict(r"\boxed{1}", gold) is Verdict.UNPARSEABLE_GOLD
    for other in ("72", r"\text{east}", r"\infty", "4:30", r"A solution. \boxed{x^2}", "\u662f"):
        assert Math().can_read(other)


def test_what_needs_algebra_is_a_job_of_plain_texts() -> None:
    job = Math().verify(candidate(r"Thus $\boxed{2\sqrt{2}}$.", r"It is $\boxed{\sqrt{8}}$."))
    assert isinstance(job, RewardJob) and job.task == "math_verify"
    assert job.arguments == {"answer": r"2\sqrt{2}", "gold": r"\sqrt{8}"}
    assert job.conclude(False).verdict is WRONG
    assert job.conclude(True) == Verification(value=1.0, verdict=CORRECT, extracted=r"2\sqrt{2}")


PIECES = [
    *(
        *(r"\boxed{", "}", "{", "Answer:", "The answer is ", "####", "$", r"\(", r"\)", "<answer>", "</answer>"),
        "</think>",
    ),
    *(r"\frac", r"\sqrt", r"\text{", "1", "2.5", "x", "=", ",", ".", " ", "\n", "\\", "\ud800", "\u7b54\u6848\uff1a"),
]
soup = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


@settings(max_examples=300)
@given(text=soup | st.text(), gold=soup | st.text(), mode=st.sampled_from(["strict", "flexible", "first", "last"]))
@example(text=r"\boxed{1/0}", gold="1/0", mode="flexible")
def test_any_text_gets_a_verification_or_a_job(text: str, gold: str, mode: AnswerMode) -> None:
    found = Math(mode).verify(candidate(text, gold))
    if isinstance(found, RewardJob):
        found = found.conclude(False)
    assert (found.value is None) == (found.verdict is Verdict.UNPARSEABLE_GOLD)


@pytest.mark.parametrize("unit", [
    *(r"\boxed{", r"\boxed{x}", "{", "}", "$", "$ ", r"\(", r"\frac", "Answer: x+1\n", "the answer is $x$ "),
    *("answer is ", "Answer:", "9", "1,", "x^", "(", "|", "a word ", "\n", r"\text{", "<answer>x", "=", "\\"),
])  # fmt: skip
def test_a_megabyte_of_noise_finishes(unit: str) -> None:
    noise = unit * (1_000_000 // len(unit))
    verified = (Math().verify(candidate(noise, "12345")), Math().verify(candidate(r"\boxed{1}", noise)))
    assert all(isinstance(each, Verification | RewardJob) for each in verified)


def test_an_answer_is_found_before_a_megabyte_of_tail() -> None:
    tail = "\nwords without meaning" * 50_000
    assert verdict(r"\boxed{\frac{3}{7}}" + tail, "3/7") is CORRECT
    assert verdict(r"The answer is $\{1,2\}$." + tail, "2,1") is CORRECT


def at_once(text: str, gold: str) -> Verification | RewardJob:
    return Math().verify(Candidate(text=text, gold=gold, data_source="math", index=0))


def verified(text: str, gold: str, task: Callable) -> Verification:
    found = at_once(text, gold)
    return found.conclude(task(found.arguments)) if isinstance(found, RewardJob) else found


@pytest.mark.shared_data
def test_boxed_answers_agree_with_their_published_labels(shared_rows, task: Callable) -> None:
    """Only problem 3, whose gold answer is the mutilated "4:30p..", needs the symbolic comparison. Its eight responses
    "4:30 p.m." are labelled wrong and not shown to be the same: we agree for a reason that is the data's fault."""
    counts, jobs = Counter(), Counter()
    for row in shared_rows("model-outputs/math_qwen25math_boxed.jsonl"):
        jobs[row["gold"]] += isinstance(at_once(row["response"], row["gold"]), RewardJob)
        counts[row["correct"], verified(row["response"], row["gold"], task).verdict] += 1
    assert counts == Counter({(True, Verdict.CORRECT): 295, (False, Verdict.WRONG): 25})
    assert +jobs == Counter({"4:30p..": 8})


@pytest.mark.shared_data
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


@pytest.mark.shared_data
def test_math500_answers_can_be_read_by_the_symbolic_comparison(shared_rows, task: Callable) -> None:
    answers = sorted({row["answer"] for row in shared_rows("math500/math500.jsonl") if not row["answer"].isdigit()})[
        ::2
    ]
    replies = [task({"answer": answer, "gold": answer}) for answer in answers]
    assert [answer for answer, reply in zip(answers, replies, strict=True) if not reply] == []


@pytest.mark.shared_data
def test_answers_to_other_problems_are_not_taken_for_right(shared_rows, task: Callable) -> None:
    answers = [row["answer"].replace("x=5", "5") for row in shared_rows("math500/math500.jsonl")]
    same = [
        (answer, gold)
        for answer, gold in list(zip(answers, answers[1:] + answers[:1], strict=True))[::4]
        if verified(rf"\boxed{{{answer}}}", gold, task).verdict is Verdict.CORRECT
    ]
    assert [pair for pair in same if pair[0] != pair[1]] == []


@pytest.fixture
def same(task: Callable) -> Callable[[str, str], bool]:
    return lambda answer, gold: task({"answer": answer, "gold": gold})


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


@pytest.mark.usefixtures("task")
def test_hostile_text_is_never_executed(tmp_path: Path) -> None:
    # A process of its own, because an audit hook cannot be taken off again. It sees whatever is compiled from text.
    program = dedent(
        """
        import json, sys
        from mindgspo.rewards.workers.math_verify import are_symbolically_same as task
        texts = json.load(sys.stdin)
        for warm_up in ("x+1", "1.5", "(x+1)^2", "\\\\sqrt{2}", "5!", "x=2", "(1,2)"):
            task({"answer": warm_up, "gold": "x^2+2x+1"})
        events = []
        def hook(event, arguments):
            if event == "compile" and arguments[1] is not None and str(arguments[1]).startswith("<"):
                source = arguments[0]
                events.append(["compile", source.decode() if isinstance(source, bytes) else str(source)])
            elif event.startswith(("os.", "subprocess.", "socket.", "ctypes.", "shutil.")) and event != "os.listdir":
                events.append([event, repr(arguments)])
        sys.addaudithook(hook)
        replies = [task({"answer": text, "gold": text}) for text in texts]
        print(json.dumps({"events": events, "replies": len(replies)}))
        """
    )
    run = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(HOSTILE), text=True, capture_output=True, cwd=tmp_path,
        check=True, env={"PYTHONPATH": str(Path(__file__).resolve().parents[3]), "PATH": ""},
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


@pytest.fixture(scope="module")
def scorer(task: Callable) -> Iterator[Scorer]:
    section = RewardWorkersSection(count=2, timeout_s=2.0)
    with Scorer(RewardSection(functions=("math",), workers=section)) as scorer:
        yield scorer


def scored(scorer: Scorer, *pairs: tuple[str, str]) -> list[Score]:
    return scorer.score(
        [Candidate(text=text, gold=gold, data_source="math", index=i) for i, (text, gold) in enumerate(pairs)]
    )


def test_an_answer_too_slow_to_compare_is_paid_as_wrong_and_its_neighbours_are_scored(scorer: Scorer) -> None:
    right, wrong = (r"\boxed{(x+1)^2}", "x^2+2x+1"), (r"\boxed{(x+1)^2}", "x^2+2x+2")
    scores = scored(scorer, right, wrong, (r"\boxed{(x+1)^{20000}}", "x^2+1"), right, wrong)
    assert [score.verdict.value for score in scores] == ["correct", "wrong", "timeout", "correct", "wrong"]
    assert scores[2].value == 0.0 and "within 2 s" in scores[2].message
    again = scored(scorer, right, wrong)
    assert [score.verdict for score in again] == [Verdict.CORRECT, Verdict.WRONG]


def test_numbers_of_ten_thousand_digits_are_scored(scorer: Scorer) -> None:
    number = "7" * 10_000
    scores = scored(
        scorer, (rf"\boxed{{{number}}}", "7"), (rf"\boxed{{{number} + x}}", "x + 1"),
        (rf"\boxed{{\frac{{{number}}}{{{number}1}}}}", r"\frac{1}{10}"),
        (rf"\boxed{{{number[:90]}x}}", f"x \\cdot {number[:90]}"), (r"\boxed{7}", number),
    )  # fmt: skip
    assert [score.verdict.value for score in scores[:3]] == ["wrong"] * 3
    assert scores[3].verdict is Verdict.CORRECT
    assert scores[4].verdict is Verdict.UNPARSEABLE_GOLD


@pytest.mark.parametrize("unit", ["(a+)+$", "((", r"\frac{", "x^", r"\sqrt{\sqrt{", "1,", "a=", "|", r"\left("])
def test_texts_made_to_backtrack_are_scored(scorer: Scorer, unit: str) -> None:
    noise = unit * (100_000 // len(unit))
    short = unit * 100
    scores = scored(scorer, (rf"\boxed{{{noise}}}", "x^2+1"), (rf"\boxed{{{short}}}", "x^2+1"), (noise, noise[:500]))
    assert len(scores) == 3
    assert all(score.verdict in set(Verdict) for score in scores)
    assert scored(scorer, (r"\boxed{1+x^2}", "x^2+1"))[0].verdict is Verdict.CORRECT
