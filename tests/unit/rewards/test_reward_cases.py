"""Responses with the verdicts that a careful reader gives, by function and mode, and verl's functions by hand.

The cases stand in tests/data/rewards: responses.yaml has what is paid and what is refused, modes.yaml the verdict of
every mode side by side. verl's two show what they miss; below, they do what verl does, its mistakes included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from math_answers.answer_tokens import answer_tokens
from math_answers.equivalence import Equivalence, compare_answers
from math_answers.symbolic_input import is_too_large
from mindgspo.rewards.functions.math import Math
from mindgspo.rewards.functions.multiple_choice import MultipleChoice
from mindgspo.rewards.functions.numeric import Gsm8k, MathDapo, VerlGsm8k
from mindgspo.rewards.verification import Candidate, RewardJob, Verification, Verifier
from mindgspo.types import Verdict

DATA = Path(__file__).parents[2] / "data" / "rewards"
SHARED = Path(__file__).parents[3] / ".." / "shared" / "cases" / "rewards"
C, W, N, U = Verdict.CORRECT, Verdict.WRONG, Verdict.NO_ANSWER, Verdict.UNPARSEABLE_GOLD
LONG = {
    "<tail>": "\nThis is a long tail without any marker. " * 50,
    "<noise>": "words without meaning, " * 45_000,
    "<sevens>": "7" * 10_000,
    "<words>": " very many clips" * 100,
}
VERIFIERS: dict[str, Verifier] = {
    "gsm8k": Gsm8k(), "math_dapo": MathDapo(), "math": Math(), "multiple_choice": MultipleChoice(),
    **{f"gsm8k {mode}": Gsm8k(mode) for mode in ("strict", "flexible", "first", "last")},
    "math_dapo strict": MathDapo("strict"), "math_dapo flexible": MathDapo(),
    "math_dapo box": MathDapo(strict_box=True),
    "verl_strict": VerlGsm8k("strict"), "verl_flexible": VerlGsm8k("flexible"),
}  # fmt: skip


def read_cases(name: str) -> list | dict:
    return yaml.load((DATA / name).read_text(encoding="utf-8"), yaml.CSafeLoader)


def verification(function: str, text: str, gold: str) -> Verification | RewardJob:
    return VERIFIERS[function].verify(Candidate(text=text, gold=gold, data_source="", index=0))


@pytest.fixture
def verdict(task: Callable) -> Callable[[str, str, str], Verdict]:
    def judged(function: str, text: str, gold: str) -> Verdict:
        found = verification(function, text, gold)
        return (found.conclude(task(found.arguments)) if isinstance(found, RewardJob) else found).verdict

    return judged


@pytest.mark.parametrize("case", read_cases("modes.yaml"), ids=lambda case: ascii(case["response"])[1:40])
def test_modes(case: dict) -> None:
    text, gold = case.pop("response"), case.pop("gold")
    for short, long in LONG.items():
        text = text.replace(short, long)
    for name, functions in case.items():
        for function in functions:
            found = verification(function, text, gold)
            wrong = -1.0 if function.startswith("math_dapo") else 0.0
            assert found.verdict is Verdict(name), function
            assert found.value == {C: 1.0, W: wrong, N: wrong, U: None}[found.verdict]
            assert (found.extracted is None) == (found.verdict in (N, U))


@pytest.mark.parametrize(("text", "gold", "value", "verdict", "extracted"), [
    (r"\boxed{DBA}", "A, B, D", 1.0, C, "ABD"), (r"\boxed{AB}", "ABD", 0.0, W, "AB"),
    (r"\boxed{ Paris }", "B", 0.0, W, "Paris"), ("We do not know.", "B", 0.0, N, None),
    (r"\boxed{B}", "Paris", None, U, None), (rf"\boxed{{{'x' * 300}}}", "B", 0.0, W, "x" * 200),
])  # fmt: skip
def test_what_letters_are_paid(
    text: str, gold: str, value: float | None, verdict: Verdict, extracted: str | None
) -> None:
    expected = Verification(value=value, verdict=verdict, extracted=extracted)
    assert verification("multiple_choice", text, gold) == expected
    assert MultipleChoice().can_read(gold) == (verdict is not U)


TOPICS: Mapping[str, Mapping[str, Sequence]] = read_cases("responses.yaml")


@pytest.mark.parametrize("topic", TOPICS)
def test_what_is_paid_and_what_is_refused(topic: str, verdict: Callable) -> None:
    wrong = [
        (function, text, gold, found)
        for kind, rows in TOPICS[topic].items()
        for functions, text, gold in rows
        for function in functions.split()
        if (found := verdict(function, text, gold)) not in ((C,) if kind == "paid" else (W, N))
    ]
    assert wrong == []


@pytest.mark.parametrize(("number", "functions"), [
    *(("01", "math"), ("02", "math"), ("03", "gsm8k math_dapo math"), ("04", "gsm8k math_dapo math"), ("05", "math")),
    *(("06", "math"), ("07", "math"), ("08", "math"), ("09", "math"), ("10", "math"), ("12", "math"), ("13", "math")),
    ("16", "gsm8k math"),
])  # fmt: skip
def test_the_cases_beside_the_project(number: str, functions: str, verdict: Callable) -> None:
    if not SHARED.is_dir():
        pytest.skip(f"needs the shared cases, absent at {SHARED}")
    for path in (path for path in SHARED.glob(f"{number}_*.jsonl") if "prepare" not in path.name):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            for function in ["multiple_choice"] if "choice" in path.name else functions.split():
                found = verdict(function, row["response"], row["gold"])
                assert (found is C) == row["correct"], (function, row)


@pytest.mark.parametrize("unit", [
    "72 \u2705", "\u2705", r"72 \checkmark ", "\\hfill", "Q. ", r"\approx", r"\(\approx 1", "1 (a ", "1, a",
    r"\boxed{1} and ",
])  # fmt: skip
def test_a_megabyte_of_marks_and_words_finishes(unit: str) -> None:
    noise = unit * (200_000 // len(unit))
    for function in ("gsm8k", "math_dapo", "math", "multiple_choice"):
        for text, gold in ((noise, "12345"), (r"\boxed{1}", noise)):
            verification(function, text, gold)


@pytest.mark.parametrize("unit", [
    *("\u00b0", "x\u00b0", r"(\sin ", r"\sin 1^\circ", "C_{1", "10C", "1'", "0.\\dot1", r"\color{"),
])  # fmt: skip
def test_a_text_full_of_notation_is_read(unit: str) -> None:
    assert isinstance(compare_answers(unit * (999 // len(unit)), r"\pi"), Equivalence)
    nested = "(" * 120 + "x" + r"^\circ)" * 120
    assert compare_answers(rf"\sin {nested}", r"\pi") is not Equivalence.SAME


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
            found = verification("math", rf"\boxed{{{answer}}}", gold)
            assert isinstance(found, Verification) and found.verdict is Verdict.WRONG


# (response, gold, what `strict` extracts and says, what `flexible` extracts and says)
CASES = [
    ("The sum is 72.\n#### 72", "72", "72", C, "72", C), ("#### 71", "72", "71", W, "71", W),
    ("#### -7", "-7", "-7", C, "-7", C),
    ("#### 71 or rather #### 72", "72", "72", C, "72", C),  # the last one
    ("#### 72 #### seven", "72", "72", C, "72", C),
    # Equal numbers that are other strings.
    ("#### 72.0", "72", "72.0", W, "72.0", W), ("#### 72.", "72", "72.", W, "72.", W),
    ("#### 072", "72", "072", W, "072", W),
    ("#### 1,000", "1000", "1000", C, "1,000", W),  # only `strict` removes commas
    ("#### 1,000", "1,000", "1000", W, "1,000", C), ("#### 1000", "1,000", "1000", W, "1000", W),
    # Forms that are not seen.
    ("#### $1,000", "1000", None, N, "1,000", W), ("#### $72", "72", None, N, "72", C),
    ("####72", "72", None, N, "72", C), ("####  72", "72", None, N, "72", C), ("#### **72**", "72", None, N, "72", C),
    (r"\boxed{72}", "72", None, N, "72", C), ("The answer is 72", "72", None, N, "72", C),
    ("The answer is 72.", "72", None, N, "72.", W),  # the full stop belongs to the number
    ("Answer: 72 .", "72", None, N, "72", C),  # a lone one does not count
    ("72 (about 3 hours)", "72", None, N, "3", W), ("x = 1/2", "1/2", None, N, "2", W), ("5-3", "-3", None, N, "-3", C),
    ("#### \uff17\uff12", "72", None, N, None, N),  # full-width digits are none
    # Nothing, or next to nothing.
    ("", "72", None, N, None, N), ("no idea", "72", None, N, None, N),
    ("Yes.", "72", None, N, ".", W),  # a full stop is an answer where there is no number
    ("Yes, no", "72", None, N, ",", W),  # and so is a comma
    ("72 Yes, no", "72", None, N, ",", W), ("#### ,", "72", "", W, ",", W), ("#### .", ".", ".", C, ".", C),
    # 300 characters.
    ("#### 72" + " " * 293, "72", "72", C, "72", C),
    ("#### 72" + " " * 294, "72", None, N, "72", C),  # the first # is cut off
    ("#### 72" + " " * 298, "72", None, N, "72", C), ("#### 72" + " " * 299, "72", None, N, "2", W),
    ("#### 72" + " " * 300, "72", None, N, None, N), ("#### 72" + "x" * 2000 + "#### 5", "72", "5", W, "5", W),
]  # fmt: skip


@pytest.mark.parametrize(("text", "gold", "strict", "strict_says", "flexible", "flexible_says"), CASES)
def test_by_hand(
    text: str, gold: str, strict: str | None, strict_says: Verdict, flexible: str | None, flexible_says: Verdict
) -> None:
    for function, extracted, verdict in (("strict", strict, strict_says), ("flexible", flexible, flexible_says)):
        expected = Verification(value=float(verdict is C), verdict=verdict, extracted=extracted)
        assert verification(f"verl_{function}", text, gold) == expected


PIECES = ["#### ", "72", "1,000", "-", ".", ",", " ", "\n", "$", "x", "\ud800", "\u0663", "and so on " * 20]
soup = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@settings(max_examples=300)
@given(text=soup | st.text(), gold=soup | st.text(max_size=5))
def test_every_text_has_a_verdict_and_only_its_last_300_characters_count(text: str, gold: str) -> None:
    for function in ("verl_strict", "verl_flexible"):
        assert VERIFIERS[function].can_read(gold)
        found = verification(function, text, gold)
        assert (found.verdict is N) == (found.extracted is None)
        assert (found.verdict is C) == (found.value == 1.0) == (found.extracted == gold)
        tail = "y" * 300 + text[-300:]
        assert verification(function, f"#### 5 {tail}", gold).verdict is verification(function, tail, gold).verdict


def test_what_is_kept_of_an_answer_is_short() -> None:
    digits = "7" * 290
    found = verification("verl_strict", f"#### {digits}", digits)
    assert (found.verdict, found.extracted) == (C, digits[:200])
