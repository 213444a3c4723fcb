"""The functions that value the shape of a response: length, repetition, tags, DAPO's overlong penalty."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindgspo.config.reward import LengthSection, OverlongSection, RepetitionSection
from mindgspo.errors import DataError
from mindgspo.rewards.functions.shaping import CosineLength, Overlong, Repetition, ThinkFormat, overlong_penalty
from mindgspo.rewards.verification import Candidate
from mindgspo.types import Verdict

NOT_CORRECT = (None, *(verdict for verdict in Verdict if verdict is not Verdict.CORRECT))


def candidate(text: str = "", num_tokens: int | None = None) -> Candidate:
    return Candidate(text=text, gold="", data_source="test", index=0, num_tokens=num_tokens)


# ----- length

FOUR_CORNERS = LengthSection(correct_short=1.0, correct_long=0.6, wrong_short=-1.0, wrong_long=-0.2, max_len=100)


@pytest.mark.parametrize(("num_tokens", "correct", "wrong"), [
    (0, 1.0, -1.0),
    (50, 0.8, -0.6),  # cos(pi / 2) = 0: half way
    (25, 0.6 + 0.4 * (1 + math.sqrt(0.5)) / 2, -0.2 - 0.8 * (1 + math.sqrt(0.5)) / 2), (100, 0.6, -0.2),
    (101, 0.6, -0.2),  # an unclamped cosine would climb back
    (200, 0.6, -0.2),
])  # fmt: skip
def test_length_by_hand(num_tokens: int, correct: float, wrong: float) -> None:
    length = CosineLength(FOUR_CORNERS)
    assert length.value(candidate(num_tokens=num_tokens), Verdict.CORRECT) == pytest.approx(correct, abs=1e-12)
    for verdict in NOT_CORRECT:
        assert length.value(candidate(num_tokens=num_tokens), verdict) == pytest.approx(wrong, abs=1e-12)


def test_length_ends_order_and_what_it_needs() -> None:
    length = CosineLength(
        LengthSection(correct_short=0.1, correct_long=-0.7, wrong_short=-0.3, wrong_long=0.9, max_len=7)
    )
    ends = [candidate(num_tokens=0), candidate(num_tokens=7)]
    assert [length.value(end, Verdict.CORRECT) for end in ends] == [0.1, -0.7]
    assert [length.value(end, Verdict.WRONG) for end in ends] == [-0.3, 0.9]
    length = CosineLength(LengthSection(max_len=64))
    right = [length.value(candidate(num_tokens=n), Verdict.CORRECT) for n in range(65)]
    wrong = [length.value(candidate(num_tokens=n), Verdict.WRONG) for n in range(65)]
    assert right == sorted(right, reverse=True) and len(set(right)) == 65
    assert wrong == sorted(wrong) and len(set(wrong)) == 65
    with pytest.raises(AssertionError, match="max_len"):
        CosineLength(LengthSection())
    with pytest.raises(AssertionError, match="tokens"):
        CosineLength(FOUR_CORNERS).value(candidate("text"), Verdict.CORRECT)


# ----- repetition


def repetition(text: str, size: int, factor: float = 1.0) -> float:
    return Repetition(RepetitionSection(ngram_size=size, factor=factor)).value(candidate(text), None)


@pytest.mark.parametrize(("text", "size", "expected"), [
    ("", 1, 0.0),
    ("one two three", 4, 0.0),  # no 4-gram at all
    ("one two three", 3, 0.0),
    ("a b a b a", 2, -0.5),  # ab ba ab ba: 2 of 4
    ("a b a b a", 3, -1 / 3),  # aba bab aba: 2 of 3
    ("x x x x x", 1, -0.8), ("x x x x x", 5, 0.0),
    ("The the THE", 1, -2 / 3),  # case does not hide a repetition
    ("a\nb\t a  b", 2, -1 / 3),  # white space does not either
    ("\u518d\u60f3\u518d\u60f3", 2, -1 / 3),  # four Han characters are four words
    ("\u518d\u60f3 \u518d\u60f3", 2, -1 / 3),
    ("so\u518d x so\u518d", 1, -2 / 5),  # so, one character, x, so, one character
    ("\u304b\u304b\u304b", 1, -2 / 3),  # kana
    ("\U00020000\U00020000", 1, -0.5),  # Han outside the basic plane
    ("\uff0c\uff0c \uff0c\uff0c", 1, -0.5),  # punctuation is no CJK character: two words
])  # fmt: skip
def test_repetition_by_hand(text: str, size: int, expected: float) -> None:
    assert repetition(text, size) == pytest.approx(expected, abs=1e-15)
    assert repetition(text, size, factor=3.0) == pytest.approx(3 * expected, abs=1e-15)
    assert math.copysign(1.0, repetition(text, size, factor=0.0)) == 1.0


@given(words=st.lists(st.sampled_from("abc"), max_size=40), size=st.integers(1, 45))
def test_ngrams_are_counted_as_if_each_were_written_out(words: list[str], size: int) -> None:
    ngrams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    expected = len(set(ngrams)) / len(ngrams) - 1 if ngrams else 0.0
    assert repetition(" ".join(words), size) == pytest.approx(expected, abs=1e-12)


def test_repetition_of_long_ngrams_over_a_long_text_finishes() -> None:
    """Written out, these n-grams would hold 5e9 words."""
    text = "a b " * 100_000
    assert repetition(text, 50_000) == pytest.approx(2 / 150_001 - 1)
    assert repetition(text * 2, 1) == pytest.approx(2 / 400_000 - 1)


# ----- think and answer tags


@pytest.mark.parametrize("text", [
    "<think>7 + 8 = 15</think><answer>15</answer>",
    "  \n<think>\nfirst\n\nsecond\n</think>\n\n <answer>\n15\n</answer>\n \t", "<think></think><answer></answer>",
    "7 + 8 = 15</think>\n<answer>15</answer>",  # the prompt opened the block
    "\n</think>\n\n<answer>15</answer>",
    "<think>if 3 < 4 and <b>so</b>, </ think> is no tag</think><answer>15</answer>",
    "<think>\u60f3\u4e00\u60f3</think>\u3000<answer>\u7b54\u6848</answer>",
])  # fmt: skip
def test_well_formed(text: str) -> None:
    assert ThinkFormat().value(candidate(text), None) == 1.0


@pytest.mark.parametrize("text", [
    *("", "15", "<answer>15</answer>", "<think>7 + 8</think>15", "<think>7 + 8</think><answer>15"),
    *("<think>7 + 8<answer>15</answer>", "<think>7 + 8</think>So: <answer>15</answer>"),
    *("<think>7 + 8</think><answer>15</answer>.", "Well. <think>7 + 8</think><answer>15</answer>"),
    *("<answer>15</answer><think>7 + 8</think>", "<think>7 + 8<answer>15</answer></think>"),
    "<think><think>7 + 8</think><answer>15</answer>", "<think>7</think><think>8</think><answer>15</answer>",
    "<think>7 + 8</think></think><answer>15</answer>", "<think>7 + 8</think><answer>14</answer><answer>15</answer>",
    *("<think>7 + 8</think><answer><answer>15</answer>", "<think>7 + 8</think><answer>15</answer></answer>"),
    "<think>7 + 8</think><answer>15<think></answer>",
    *("<think>as in <answer>: 7 + 8</think><answer>15</answer>", "<THINK>7 + 8</THINK><ANSWER>15</ANSWER>"),
    *("<think>7 + 8</think></answer>15<answer>", "</think></answer><answer>", "</answer></think><answer>"),
])  # fmt: skip
def test_malformed(text: str) -> None:
    assert ThinkFormat().value(candidate(text), Verdict.CORRECT) == 0.0


@given(
    thoughts=st.text(alphabet=st.characters(exclude_characters="<")),
    answer=st.text(alphabet=st.characters(exclude_characters="<")),
    gaps=st.lists(st.text(alphabet=" \n\t\r", max_size=4), min_size=3, max_size=3),
    opens=st.booleans(),
)
def test_any_content_without_tags_is_well_formed_and_loses_it_with_any_tag_more(
    thoughts: str, answer: str, gaps: list[str], opens: bool
) -> None:
    text = f"{gaps[0]}{'<think>' * opens}{thoughts}</think>{gaps[1]}<answer>{answer}</answer>{gaps[2]}"
    assert ThinkFormat().value(candidate(text), None) == 1.0
    for tag in ("<think>", "</think>", "<answer>", "</answer>"):
        assert ThinkFormat().value(candidate(text + tag), None) == 0.0


# ----- whatever the text

SHAPERS = [Repetition(RepetitionSection()), Repetition(RepetitionSection(ngram_size=1)), ThinkFormat()]


@settings(max_examples=200)
@given(
    text=st.text() | st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "\ud800", "a ", "\x00"])).map("".join)
)
def test_no_text_raises_and_values_stay_in_range(text: str) -> None:
    for shaper in SHAPERS:
        for verdict in (None, *Verdict):
            assert -1.0 <= shaper.value(candidate(text), verdict) <= 1.0


@pytest.mark.parametrize(
    "unit", ["<think>", "</think>", "<answer>", "</answer>", "<", "\n", "a ", "\u91cd", "<think></think>"]
)
def test_a_quarter_of_a_megabyte_of_it_finishes(unit: str) -> None:
    """Quadratic work (6e10 steps) would not."""
    noise = unit * (250_000 // len(unit))
    for shaper in SHAPERS:
        shaper.value(candidate(noise), None)
        shaper.value(candidate(f"<think>{noise}</think><answer>{noise}</answer>"), None)


def test_overlong_penalties_by_hand():
    lengths = [0, 15, 16, 18, 20]
    actual = overlong_penalty(lengths, max_len=20, buffer_len=5)
    np.testing.assert_allclose(actual, [0, 0, -0.2, -0.6, -1.0], rtol=1e-15)
    assert actual.dtype == np.float64
    lengths = [20, 25, 100]
    assert overlong_penalty(lengths, max_len=20, buffer_len=5).tolist() == [-1, -2, -17]
    assert overlong_penalty(lengths, max_len=20, buffer_len=5, floor=-1.0).tolist() == [-1, -1, -1]
    assert overlong_penalty(lengths, max_len=20, buffer_len=5, factor=0.5, floor=-0.5).tolist() == [-0.5] * 3
    for factor in (0.0, 1.0):
        actual = overlong_penalty(range(40), max_len=30, buffer_len=10, factor=factor)
        assert (actual <= 0).all() and not np.signbit(actual[:21]).any()
    assert overlong_penalty([0, 1, 8], max_len=8, buffer_len=8).tolist() == [0, -0.125, -1]
    assert overlong_penalty([7, 8, 9], max_len=8, buffer_len=0, floor=-1.0).tolist() == [0, 0, -1]
    assert overlong_penalty([], max_len=8, buffer_len=2).shape == (0,)


@pytest.mark.parametrize(("lengths", "settings", "message"), [
    ([3, -1], {}, "lengths: -1 at 1"), ([2.5], {}, "lengths: 2.5 at 0"), ([np.nan], {}, "lengths: nan at 0"),
    ([[1, 2]], {}, r"lengths: expected shape \[any\], got \[1, 2\]"),
    ([1], {"buffer_len": 9}, "buffer_len 9 must lie between 0 and max_len 8"),
    ([1], {"buffer_len": -1}, "buffer_len -1"), ([1], {"factor": -1.0}, "factor -1"),
    ([1], {"floor": 0.5}, "floor 0.5"), ([1], {"buffer_len": 0}, "buffer_len 0 needs a floor"),
])  # fmt: skip
def test_bad_settings_are_refused(lengths, settings, message):
    with pytest.raises(DataError, match=message):
        overlong_penalty(lengths, **{"max_len": 8, "buffer_len": 2, **settings})


# ----- the reward function


def test_one_response_by_hand_whatever_the_verdict():
    overlong = Overlong(OverlongSection(buffer_len=5, factor=0.5, max_len=20))
    values = [overlong.value(candidate(num_tokens=length), None) for length in (0, 1, 15, 16, 18, 20, 21, 10**9)]
    assert values == [0, 0, 0, -0.1, pytest.approx(-0.3), -0.5, -0.5, -0.5]
    assert all(type(value) is float for value in values)
    overlong = Overlong(OverlongSection(buffer_len=4, max_len=8))
    assert {overlong.value(candidate(num_tokens=6), verdict) for verdict in (*Verdict, None)} == {-0.5}
    with pytest.raises(AssertionError, match="max_len"):
        Overlong(OverlongSection())
    with pytest.raises(AssertionError, match="tokens"):
        Overlong(OverlongSection(max_len=5000)).value(candidate(num_tokens=None), None)


@pytest.mark.parametrize(("max_len", "buffer_len", "factor"), [(20, 5, 1.0), (20, 20, 2.5), (7, 1, 0.3), (64, 16, 0)])
def test_one_response_is_paid_as_many_are(max_len, buffer_len, factor):
    overlong = Overlong(OverlongSection(buffer_len=buffer_len, factor=factor, max_len=max_len))
    lengths = range(2 * max_len + 2)
    many = overlong_penalty(lengths, max_len=max_len, buffer_len=buffer_len, factor=factor, floor=-factor)
    assert [overlong.value(candidate(num_tokens=length), None) for length in lengths] == many.tolist()
