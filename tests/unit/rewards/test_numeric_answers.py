"""Numbers read exactly, the modes of the search, answer blocks, thinking, and text made to break any of it."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from math_answers.extract import MAX_OCCURRENCES
from math_answers.findings import AnswerMode
from mindgspo.rewards.functions.math import Math
from mindgspo.rewards.functions.multiple_choice import MultipleChoice
from mindgspo.rewards.functions.numeric import Gsm8k, MathDapo
from mindgspo.rewards.verification import Candidate, Verification, Verifier
from mindgspo.types import Verdict

C, W, N, U = Verdict.CORRECT, Verdict.WRONG, Verdict.NO_ANSWER, Verdict.UNPARSEABLE_GOLD


def verdict(verifier: Verifier, text: str, gold: str) -> Verdict:
    return verifier.verify(Candidate(text=text, gold=gold, data_source="", index=0)).verdict


def verified(text: str, gold: str = "72", *, mode: AnswerMode = "flexible", is_cut: bool = False) -> Verification:
    return Gsm8k(mode).verify(Candidate(text=text, gold=gold, data_source="", index=0, is_cut=is_cut))


RUN_ON = "{answer}\n\nQuestion: Tom has 3 apples and eats 2. How many are left?\n{more}"


@pytest.mark.parametrize(("answer", "more"), [
    ("So she sold 72 clips.", "Answer: 1"), ("The answer is 72.", "The answer is 1."), ("A: 72", "A: 1"),
    ("#### 72", "3 - 2 = 1\n#### 1"), ("She sold 48 + 24 = 72 clips.", "So 1 apple is left."),
])  # fmt: skip
def test_mode_first_is_for_a_model_that_goes_on_with_questions_of_its_own(answer: str, more: str) -> None:
    text = RUN_ON.format(answer=answer, more=more)
    assert verified(text, mode="first").verdict is C
    assert verified(text, mode="flexible").verdict is W
    assert verified(text, mode="last").verdict is W


def test_mode_first_and_questions() -> None:
    assert verified("Question: She sold 48 and then 24 clips. How many?\nAnswer: 72", mode="first").verdict is C
    assert verified("Let us see.\nQuestion: She sold 48, then 24.\nAnswer: 72", mode="first").verdict is C
    thinking = "The 3 parts.\nQuestion: how many?</think>\nShe sold 72.\n\nQuestion: and 5?\nAnswer: 5"
    assert verified(thinking, mode="first").verdict is C
    assert verified("<think>" + thinking, mode="first").verdict is C
    assert verified("72 clips\n\nQuestion: and 5?\n<think>Well.</think> 5", mode="first").verdict is C


@pytest.mark.parametrize("mode", ["strict", "flexible", "first", "last"])
def test_an_answer_block_is_searched_first_and_nothing_before_it_is_believed(mode: AnswerMode) -> None:
    assert verified(r"<think>\boxed{71}</think><answer>\boxed{72}</answer>", mode=mode).verdict is C
    assert verified(r"<think>\boxed{72}</think><answer>\boxed{71}</answer>", mode=mode).verdict is W
    assert verified(r"<think>\boxed{72}</think><answer>71</answer>", mode=mode).verdict is (
        N if mode == "strict" else W
    )
    assert verified(r"<answer>#### 72</answer> An upper bound is \boxed{80}.", mode=mode).verdict is C
    assert verified("<ANSWER>\n#### 72\n</ANSWER>", mode=mode).verdict is C


def test_which_block_decides_and_what_is_none() -> None:
    text = "<answer>71</answer> No. <answer>72</answer>"
    assert verified(text).extracted == "72"
    assert verified(text, mode="first").extracted == "71"
    assert verified("#### 72\n<answer> </answer>").verdict is C
    assert verified("I shall put it in <answer> tags: <answer>72</answer>").verdict is C
    assert verified("<answer>72 clips</answer>\n#### 72", mode="strict").verdict is C
    quoted = "<think>The format is <answer>72</answer>, but I get 73.</think>\n\nThe answer is \\boxed{73}."
    assert verified(quoted).verdict is W
    assert verified(quoted, "73").verdict is C
    assert verified(r"<think>I must reply with <answer> answer here </answer>.</think> \boxed{72}").verdict is C
    assert verified("I will use <answer> answer here </answer> tags.\n\n#### 72").verdict is C
    assert verified("I put it between <answer> and </answer>. She sold 72.").verdict is C
    assert verified("<answer>see below</answer>\n#### 72").verdict is C
    assert verified("<answer>see below</answer>\nShe sold 72.").verdict is W


def test_what_follows_the_thinking_decides() -> None:
    assert verified("<think>\\boxed{71}? No.</think>\nShe sold 72 clips.").verdict is C
    assert verified("<think>\\boxed{72}? No.</think>\nShe sold 71 clips.").verdict is W
    assert verified("<think>\\boxed{72}? No.</think>\nShe sold 71 clips.", mode="strict").verdict is N
    assert verdict(MultipleChoice(), "<think>I think \\boxed{B}</think>\n\nAnswer: C", "C") is C
    assert verdict(Math(), "<think>..\\boxed{5}</think>\n\nThe answer is $\\pi$.", r"\pi") is C


@pytest.mark.parametrize("text", [
    r"<think>\boxed{72}</think>" "\n\nI don't know.", "<think>So it is \\boxed{72}.</think>\nSee above.",
    r"<think>\boxed{72}</think>",
    r"It is \boxed{72}</think> ",  # the prompt opened the block
    r"<think>It is \boxed{72}, I will check", "\n<think>She sold 72.\n#### 72",
    r"<think>\boxed{71}</think> <think>\boxed{72}",
])  # fmt: skip
@pytest.mark.parametrize("mode", ["strict", "flexible", "first", "last"])
def test_thinking_alone_is_no_answer(text: str, mode: AnswerMode) -> None:
    assert verified(text, mode=mode).verdict is N
    assert verified(text, mode=mode, is_cut=True).verdict is N


NOT_PAID_34 = [
    "Answer: x = 33 or x = 34", r"\boxed{x = 33 \text{ or } x = 34}", "Answer: n is 33 or n is 34",
    "The answer is x = 33 or x = 34.",
    "#### x = 33 or x = 34",
    "Answer: The maximum is 35 and the minimum is 34", r"\boxed{a=5, b=34}",
    "#### a=5, b=34",
    "Answer: $n^2 = 34$", "Answer: $2x=34$", r"\boxed{33} or \boxed{34}", r"\boxed{34} or \boxed{33}",
    r"$\boxed{33}$ or $\boxed{34}$", r"\boxed{33} \text{ or } \boxed{34}", r"Answer: \boxed{33} or \boxed{34}",
    "\\boxed{33} \u6216 \\boxed{34}", "Answer: None of the above (34 is too large)",
    "Answer: unknown\n\nWe have 34 cases.", "Answer: there is no solution.\n\nWe have 34 cases.", r"Answer: $n \le 34$",
    "Answer: n < 34", "The answer is not equal to 34.", "The answer cannot be 34.", "It is never 34.",
    "I don't think it is 34.", "So 34 is wrong.", "\u4e0d\u53ef\u80fd\u662f34", "She sold three fewer than 34.",
    "5 more than 34", "the square root of 34", "So x > 34", "32; 33; 34", "32 | 33 | 34", "from 30 to 34",
    *(
        f"{marker}34{words}"
        for marker in ("#### ", "Answer: ")
        for words in (
            *(" is wrong", " is incorrect.", " or thirty-five", " squared", " minus twelve", " divided by seven"),
            *(" does not work", " in base five", " lakh", " thousands", " dollars and fifty cents"),
            *("\u5343\u5143", "\u767e"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("verifier", [Gsm8k(), Gsm8k("first"), Gsm8k("last"), MathDapo()])
@pytest.mark.parametrize("text", NOT_PAID_34)
def test_hedges_denials_and_other_quantities_are_not_paid(verifier: Verifier, text: str) -> None:
    assert verdict(verifier, text, "34") in (W, N)


PAID = [
    ("Answer: $m=3$, $n=31$, so $m+n=34$", "34"), ("Answer: The sum of 3 and 31 is 34", "34"),
    (r"\boxed{0.5} or \boxed{\frac{1}{2}}", "0.5"), ("The answer is negative 72.", "-72"), ("#### minus 72", "-72"),
    ("\u7b54\u6848\u662f\u8d1f72", "-72"), (r"So $-\boxed{34}$", "-34"), (r"Answer: $-\boxed{34}$", "-34"),
    ("Answer: $-(34)$", "-34"),
    (r"- \boxed{34}", "34"),  # an item of a list
    (r"40 - 6 = 34-\boxed{34}", "34"), ("#### 3\u5343", "3000"), ("#### 3\u5343\u514b", "3"),
    ("#### 72 more clips", "72"), ("#### 72 is the answer", "72"), ("#### 72 times", "72"),
    ("#### 72 (48 in April and 24 in May)", "72"),
    ("The answer is 72, because she sold 48 in April and 24 in May.", "72"), ("Answer: 72 = 48 + 24", "72"),
    ("The price rose from 70 to 72.", "72"),
]  # fmt: skip


@pytest.mark.parametrize("verifier", [Gsm8k(), Gsm8k("first"), Gsm8k("last"), MathDapo()])
@pytest.mark.parametrize(("text", "gold"), PAID)
def test_signs_units_and_explanations_are_read(verifier: Verifier, text: str, gold: str) -> None:
    assert verdict(verifier, text, gold) is C
    if gold.startswith("-"):
        assert verdict(verifier, text, gold[1:]) is W


def test_cut_ends_words_behind_markers_and_too_many_of_them() -> None:
    text = "48 / 2 = 24, and 48 + 24 = 72"
    assert verified(text).verdict is C
    assert verified(text, is_cut=True).verdict is N
    assert verified("#### 72\nTo check: 48", is_cut=True).verdict is C
    assert verified("Answer: she sold 72", is_cut=True).verdict is W
    assert verified("<answer>She sold 72", is_cut=True).verdict is N
    assert verified("<answer>72</answer> and", is_cut=True).verdict is C
    assert verified("Answer: Natalia sold 72 clips.").verdict is C
    assert verified("Answer: we add up.\n48 + 24 = 72").verdict is C
    assert verified("It could be 72. Answer: there is no solution").verdict is W
    assert verified("She sold 72.\n\u7b54\uff1a\u4e0d\u77e5\u9053").verdict is W
    headings = "\n#### Step" * MAX_OCCURRENCES
    assert verified("#### 72" + headings[: -len("\n#### Step")], mode="strict").verdict is C
    assert verified("#### 72" + headings, mode="strict").verdict is N


@pytest.mark.parametrize(("text", "gold", "expected"), [
    ("Answer: $x+1$.", "x + 1", C), (r"Answer: $\boxed{x+1}$", "x+1", C), ("<answer>x + 1</answer>", "x+1", C),
    (r"Answer: \frac{\sqrt{2}}{2}", r"\frac{\sqrt{2}}{2}", C), ("Answer: x+2", "x+1", W), ("Answer: 5", "x+1", W),
    (r"Answer: $\sqrt{8}$", r"2\sqrt{2}", W),  # `math` would ask a worker
    ("Answer: 5", "?!", U),
])  # fmt: skip
def test_math_dapo_compares_texts(text: str, gold: str, expected: Verdict) -> None:
    assert verdict(MathDapo(), text, gold) is expected


@pytest.mark.parametrize("mode", ["strict", "flexible", "first", "last"])
def test_math_dapo_may_look_at_the_last_box(mode: AnswerMode) -> None:
    assert verdict(MathDapo(mode, strict_box=True), r"Answer: 34 \boxed{33} \boxed{34} 35", "34") is C
    assert verdict(MathDapo(mode, strict_box=True), "Answer: 34", "34") is N


def test_can_read_and_what_is_extracted() -> None:
    for gold in ("72", "$1,000", "1/2", r"\frac{1}{2}", "She sold 72.\n#### 72", "50%", "1e3"):
        assert Gsm8k().can_read(gold) and MathDapo().can_read(gold)
    for gold in ("", "seventy-two", "72 or 73", "x + 1", "4:30", "9" * 1000):
        assert not Gsm8k().can_read(gold)
    assert MathDapo().can_read("x + 1")
    assert not MathDapo().can_read("") and not MathDapo().can_read("\n$$ \\[")
    assert verified("#### **$1,000** per day.", "1000").extracted == "1,000 per day"
    assert verified(r"\boxed{\text{yes}}", "1").extracted == "yes"
    assert verified("So she has 72 clips.").extracted == "72"
    assert len(verified(r"\boxed{" + "y" * 5000 + "}", "1").extracted or "") == 200


GSM8K, STRICT, MATH_DAPO = Gsm8k(), Gsm8k("strict"), MathDapo()
VERIFIERS = [*(Gsm8k(mode) for mode in ("strict", "flexible", "first", "last")), MATH_DAPO, MathDapo(strict_box=True)]


PIECES = [
    *("####", "#### ", "Answer:", "answer is ", "The answer is", r"\boxed{", "}", "{", "\\"),
    *(r"\frac{", r"\text{", "$", "\ud800", "\x00", "\uff17", "\u7b54\u6848\uff1a"),
    *("72", "1,000", "-", ".", "%", "/", "=", "\n", " ", "**", "x", "?", "e5", "x 10^3", ":30", "\u00bd"),
    *(" and ", " or "),
    *("<answer>", "</answer>", "</think>", "A: ", "\n", "Question:", "because ", "(", ")", "#", "_", "not "),
    *("*", "1. "),
]
soup = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
NOISE_CHARS = 250_000
"""Enough that quadratic work (6e10 steps) would never finish."""


@settings(max_examples=300)
@given(text=soup | st.text(), gold=soup | st.text(), is_cut=st.booleans())
@example(text="#### 1/0", gold="1/0", is_cut=False)
@example(text="\\", gold="\\", is_cut=False)
@example(text="1e9999", gold="1e-9999", is_cut=False)
def test_any_text_gives_a_verification(text: str, gold: str, is_cut: bool) -> None:
    for verifier in VERIFIERS:
        candidate = Candidate(text=text, gold=gold, data_source="", index=0, is_cut=is_cut)
        verification = verifier.verify(candidate)
        assert (verification.value is None) == (verification.verdict is Verdict.UNPARSEABLE_GOLD)
        assert verifier.can_read(gold) == (verification.verdict is not Verdict.UNPARSEABLE_GOLD)


@settings(max_examples=100)
@given(before=soup, value=st.integers(-(10**9), 10**9))
def test_the_last_line_decides_whatever_stands_before(before: str, value: int) -> None:
    before = before.replace("answer>", "").replace("think>", "")
    for verifier in (GSM8K, STRICT):
        assert verdict(verifier, f"{before}\n#### {value}", str(value)) is Verdict.CORRECT
        assert verdict(verifier, f"{before}\n#### {value}", str(value + 1)) is Verdict.WRONG


@settings(max_examples=100)
@given(text=st.text(alphabet=st.characters(exclude_characters="#\\:\uff1a"), max_size=200))
def test_no_marker_no_answer_in_mode_strict_and_no_digit_no_answer_in_any(text: str) -> None:
    if "answer" not in text.lower() and "\u7b54\u6848" not in text:
        assert verdict(STRICT, text, "1") is Verdict.NO_ANSWER
        without_digits = "".join(character for character in text if not character.isnumeric())
        assert verdict(GSM8K, without_digits, "1") is Verdict.NO_ANSWER


@settings(max_examples=100)
@given(
    prose=st.lists(st.sampled_from(["48", "24 ", "+", "=", "So", "she ", "clips ", "3 ", "\n"])).map("".join),
    value=st.integers(0, 10**9),
)
def test_the_final_number_is_the_last_line_s(prose: str, value: int) -> None:
    assert verdict(GSM8K, f"{prose}\nIn total she sold {value} clips.", str(value)) is Verdict.CORRECT
    assert verdict(GSM8K, f"{prose}\nIn total she sold {value} clips.", str(value + 1)) is Verdict.WRONG


HOSTILE = [
    *("#", "####", "#### ", "#### x1 ", "\n#### x1", "Answer:", "Answer: x1\n", "answer ", "answer is "),
    *(r"\boxed{", r"\boxed{x", "{", "}", r"\boxed{}", "\\", r"\text{", r"\frac{1}"),
    *("9", "9,", "9 ", "9/", "1,000", "Answer:\n"),
    *(" ", "\n", "*", "_", "$", ".", "\uff17", "=", "is ", "<", "<<", "<|", "the answer is 1 or "),
    *("</think>", "<answer> ", "Question:\n", "Question: 1\n", "A: x\n", "answer to a ", "\u7b54\u6848"),
    *("1? ", "1?\n", "x1\n", "not 1. ", "**1 or 2** ", "1+", "(1+1) ", "= 1 ", "because 1 ", "1.5e", "1 x 10^", "3:"),
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_repeating_it_finishes_and_hides_no_answer(unit: str) -> None:
    noise = unit * (NOISE_CHARS // len(unit))
    assert verdict(GSM8K, "#### 1", noise) in (Verdict.UNPARSEABLE_GOLD, Verdict.WRONG)
    for verifier in VERIFIERS:
        verdict(verifier, noise, "123456789")
        verdict(verifier, "#### 1", noise)
    assert verdict(STRICT, f"{noise}\n\n#### 41", "41") is Verdict.CORRECT
    assert verdict(GSM8K, f"{noise}\n\n#### 41", "41") is Verdict.CORRECT
    assert verdict(MATH_DAPO, f"{noise}\n\nAnswer: 41", "41") is Verdict.CORRECT


def test_a_megabyte_of_mixed_noise_finishes() -> None:
    noise = "".join(HOSTILE)
    noise *= 1_000_000 // len(noise)
    for verifier in VERIFIERS:
        assert verdict(verifier, noise, "123456789") in (Verdict.WRONG, Verdict.NO_ANSWER)
