"""No text can raise, hang, or buy a reward by size."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mindgspo.rewards.answers.text import boxed_spans
from mindgspo.rewards.functions.numeric import Gsm8k, MathDapo, NumericVerifier
from mindgspo.rewards.verification import Candidate
from mindgspo.types import Verdict

GSM8K, STRICT, MATH_DAPO = Gsm8k(), Gsm8k("strict"), MathDapo()
VERIFIERS = [*(Gsm8k(mode) for mode in ("strict", "flexible", "first", "last")), MATH_DAPO, MathDapo(strict_box=True)]


def verdict(verifier: NumericVerifier, text: str, gold: str) -> Verdict:
    return verifier.verify(Candidate(text=text, gold=gold, data_source="", index=0)).verdict


PIECES = [
    *("####", "#### ", "Answer:", "answer is ", "The answer is", r"\boxed{", "}", "{", "\\"),
    *(r"\frac{", r"\text{", "$", "\ud800", "\x00", "\uff17", "\u7b54\u6848\uff1a"),
    *(
        "72",
        "1,000",
        "-",
        ".",
        "%",
        "/",
        "=",
        "\n",
        " ",
        "**",
        "x",
        "?",
        "e5",
        "x 10^3",
        ":30",
        "\u00bd",
        " and ",
        " or ",
    ),
    *(
        "<answer>",
        "</answer>",
        "</think>",
        "A: ",
        "\n",
        "Question:",
        "because ",
        "(",
        ")",
        "#",
        "_",
        "not ",
        "*",
        "1. ",
    ),
]
soup = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
NOISE_CHARS = 250_000
"""Enough that quadratic work (6e10 steps) would never finish."""


@settings(max_examples=300)
@given(text=soup | st.text(), gold=soup | st.text(), is_cut=st.booleans())
@example(text="#### 1/0", gold="1/0", is_cut=False)
@example(text="\\", gold="\\", is_cut=False)
@example(text="1e9999", gold="1e-9999", is_cut=False)
def test_any_text_gives_a_judgement(text: str, gold: str, is_cut: bool) -> None:
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


def test_boxes_close_where_their_brace_closes() -> None:
    text = r"\boxed{a{b}c} } \boxed{ \{ d} \boxed{e \boxed{f}} \boxed{g"
    assert [text[start:end] for start, end in boxed_spans(text)] == ["a{b}c", r" \{ d", "f", r"e \boxed{f}"]
