"""No text can raise, hang, or buy a reward by size."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mindgspo.rewards.boxed import boxed_spans
from mindgspo.rewards.gsm8k import GSM8K
from mindgspo.rewards.math_dapo import MATH_DAPO
from mindgspo.types import Verdict

PIECES = [
    *("####", "#### ", "Answer:", "answer is ", "The answer is", r"\boxed{", "}", "{", "\\"),
    *(r"\frac{", r"\text{", "$", "\ud800", "\x00", "\uff17", "\u7b54\u6848\uff1a"),
    *("72", "1,000", "-", ".", "%", "/", "=", "\n", " ", "**", "x"),
]
soup = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
NOISE_CHARS = 250_000
"""Enough that quadratic work (6e10 steps) would never finish."""


@settings(max_examples=300, deadline=None)
@given(text=soup | st.text(), gold=soup | st.text())
@example(text="#### 1/0", gold="1/0")
@example(text="\\", gold="\\")
def test_any_text_gives_a_score(text: str, gold: str) -> None:
    for verifier in (GSM8K, MATH_DAPO):
        score = verifier.score(text, gold)
        assert (score.value is None) == (score.verdict is Verdict.UNPARSEABLE_GOLD)


@settings(max_examples=100, deadline=None)
@given(before=soup, value=st.integers(-(10**9), 10**9))
def test_the_last_line_decides_whatever_stands_before(before: str, value: int) -> None:
    assert GSM8K.score(f"{before}\n#### {value}", str(value)).verdict is Verdict.CORRECT
    assert GSM8K.score(f"{before}\n#### {value}", str(value + 1)).verdict is Verdict.WRONG


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_characters="#\\:\uff1a"), max_size=200))
def test_no_marker_no_answer(text: str) -> None:
    if "answer" not in text.lower() and "\u7b54\u6848" not in text:
        assert GSM8K.score(text, "1").verdict is Verdict.NO_ANSWER


HOSTILE = [
    *("#", "####", "#### ", "#### x1 ", "\n#### x1", "Answer:", "Answer: x1\n", "answer ", "answer is "),
    *(r"\boxed{", r"\boxed{x", "{", "}", r"\boxed{}", "\\", r"\text{", r"\frac{1}"),
    *("9", "9,", "9 ", "9/", "1,000", "Answer:\n"),
    *(" ", "\n", "*", "_", "$", ".", "\uff17", "=", "is ", "<", "<<", "<|", "the answer is 1 or "),
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_repeating_it_finishes_and_hides_no_answer(unit: str) -> None:
    noise = unit * (NOISE_CHARS // len(unit))
    assert GSM8K.score("#### 1", noise).verdict in (Verdict.UNPARSEABLE_GOLD, Verdict.WRONG)
    assert GSM8K.score(f"{noise}\n\n#### 41", "41").verdict is Verdict.CORRECT
    assert MATH_DAPO.score(f"{noise}\n\nAnswer: 41", "41").verdict is Verdict.CORRECT


def test_a_megabyte_of_mixed_noise_finishes() -> None:
    noise = "".join(HOSTILE)
    noise *= 1_000_000 // len(noise)
    for verifier in (GSM8K, MATH_DAPO):
        assert verifier.score(noise, "123456789").verdict is Verdict.WRONG


def test_the_answer_is_found_before_a_megabyte_of_tail() -> None:
    tail = "\nwords without meaning" * 50_000
    assert GSM8K.score("#### 42" + tail, "42").verdict is Verdict.CORRECT
    assert MATH_DAPO.score("Answer: 42" + tail, "42").verdict is Verdict.CORRECT


def test_a_ten_thousand_digit_answer_is_wrong_not_slow() -> None:
    assert GSM8K.score("#### " + "7" * 10_000, "7").verdict is Verdict.WRONG
    assert GSM8K.score(r"\boxed{" + "7" * 10_000 + "}", "7").verdict is Verdict.WRONG


def test_boxes_close_where_their_brace_closes() -> None:
    text = r"\boxed{a{b}c} } \boxed{ \{ d} \boxed{e \boxed{f}} \boxed{g"
    assert [text[start:end] for start, end in boxed_spans(text)] == ["a{b}c", r" \{ d", "f", r"e \boxed{f}"]
