"""Which announcement each mode believes, and numbers read exactly."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from math_answers.extract import USUAL_MARKERS, Marker, find_answer
from math_answers.final_number import final_number
from math_answers.findings import AnswerMode
from math_answers.quantity import MAX_DIGITS, Quantity, number_places, parse_number, read_quantity
from math_answers.text import boxed_spans


def found(text: str, mode: AnswerMode = "flexible", own: tuple[Marker, ...] = (Marker.HASHES,)) -> str | None:
    found = find_answer(text, own=own, others=USUAL_MARKERS, mode=mode)
    return None if found is None else found.text


# All kinds at once, in no order of rank.
EVERY_KIND = "The answer is 6.\nAnswer: 3\n\\boxed{1}\nA: 5\nI say, answer: 4\n#### 2\nSo there are 7 clips."


def test_which_marker_each_mode_believes() -> None:
    assert found(EVERY_KIND) == " 2"
    assert found(EVERY_KIND, own=(Marker.ANSWER_LINE,)) == " 3"
    left = EVERY_KIND.replace("#### 2\n", "")
    for marker_line, answer in (
        ("\\boxed{1}\n", "1"), ("Answer: 3\n", " 3"), ("I say, answer: 4\n", " 4"), ("A: 5\n", " 5"),
        ("The answer is 6.\n", "6."), ("", "7"),
    ):  # fmt: skip
        assert found(left) == answer
        left = left.replace(marker_line, "", 1)
    assert found(EVERY_KIND, "strict") == " 2"
    assert found(EVERY_KIND.replace("#### 2\n", ""), "strict") is None
    assert found(EVERY_KIND, "first") == "6."
    assert found(EVERY_KIND, "last") == " 2"
    assert found("48 clips.\nSo 72 clips.", "first") == found("48 clips.\nSo 72 clips.", "last") == "72"
    own = (Marker.HASHES, Marker.BOXED)
    assert found(r"#### 1 " "\n" r"\boxed{2}", own=own) == "2"
    assert found("\\boxed{2}\n#### 1", own=own) == " 1"


FINAL_NUMBERS = {
    "48 in April and 24 in May make 72 in all": "72", "She has 72 clips.\n\nStep 3: done": "72", "2. Add up\n": None,
    "1. Eggs: 16\n2. Sold: 9": "9", "x_1 = 5 and x_2 = x_1": "5", "72 it is, not 73": "72",
    "5 feet and 10 inches": "5 feet and 10 inches", "$48 and $24": "48 and 24", "3.": "3", "0.5": "0.5", ".5": ".5",
    "between 5-10": "5-10", "Total - 72": "72", "down by -72": "-72", "She reads 8 * 3 = 24 pages in 3 days": "24",
    "2 * 4 = 8, so 24 in 3 days": "3", "He keeps 9 of them because 10 is too many": "9",
    "He keeps 9 because 20 - 11 = 9": "9", "So **72** clips over 3 months": "72", "Is it 72?": None,
    "So it is 72. Is that 1 of your options?": "72", "*72* clips": "72",
    "\u4e00\u5171\uff17\uff12\u4e2a\u3002": "72\u4e2a", "no number": None, "": None,
}  # fmt: skip


@pytest.mark.parametrize(("text", "number"), FINAL_NUMBERS.items())
def test_final_number(text: str, number: str | None) -> None:
    assert final_number(text) == number


READABLE = {
    "72": Fraction(72), "-5": Fraction(-5), "- 5": Fraction(-5), "+5": Fraction(5), "007": Fraction(7),
    ".5": Fraction(1, 2), "0.125": Fraction(1, 8), "1,000": Fraction(1000), "12,345,678.90": Fraction(1234567890, 100),
    "1 000 000": Fraction(10**6), "50%": Fraction(1, 2), "12.5 %": Fraction(1, 8), "3/4": Fraction(3, 4),
    "-3 / 4": Fraction(-3, 4), "1 1/2": Fraction(3, 2), "-1 1/2": Fraction(-3, 2), r"\frac{1}{3}": Fraction(1, 3),
    r"-\dfrac{ 1 }{ 3 }": Fraction(-1, 3), r"\tfrac13": Fraction(1, 3), r"\frac{-1}{3}": Fraction(-1, 3),
    r"2\frac{1}{3}": Fraction(7, 3), "1 and 1/2": Fraction(3, 2), "50 percent": Fraction(1, 2), "1e5": Fraction(10**5),
    "1.5e3": Fraction(1500), "-1.5E-3": Fraction(-15, 10**4), "1.5 x 10^3": Fraction(1500),
    "1.5*10^{3}": Fraction(1500), r"1.5 \times 10^{-3}": Fraction(15, 10**4), r"2 \cdot 10^4": Fraction(20_000),
    "1.5\u00d710\u00b3": Fraction(1500), "1.5\u00d710\u207b\u00b3": Fraction(15, 10**4), "1,500e2": Fraction(150_000),
}  # fmt: skip
UNREADABLE = [
    *("", " ", "-", ".", "5 5", "1,00", "1,0000", "1,,000", "--3", "0x10", "1/0"),
    *(r"\frac{1}{0}", "1/2/3", "nan", "inf", "5x", "x", r"\frac{1}", r"\frac{1}{x}", "\u0661", "1_000", "5!", "2^10"),
    *("1e", "1e5x", "1e1.5", "1e101", "1e9999", "1e99999", "1 x 11^2", "1.5 x 10^", "4:30", "1/2/2024"),
]


@pytest.mark.parametrize(("text", "value"), [*READABLE.items(), *dict.fromkeys(UNREADABLE).items()])
def test_one_number(text: str, value: Fraction | None) -> None:
    assert parse_number(text) == value


@given(st.integers(min_value=-(10**30), max_value=10**30))
def test_integers_with_and_without_separators(value: int) -> None:
    assert parse_number(str(value)) == value
    assert parse_number(f"{value:,}") == value


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12, places=6))
def test_decimals_are_exact(value: object) -> None:
    assert parse_number(f"{value:f}") == Fraction(str(value))


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**9))
def test_fractions_in_both_notations(top: int, bottom: int) -> None:
    assert parse_number(f"{top}/{bottom}") == Fraction(top, bottom)
    assert parse_number(rf"\frac{{{top}}}{{{bottom}}}") == Fraction(top, bottom)


@given(st.integers(-(10**9), 10**9), st.integers(-MAX_DIGITS, MAX_DIGITS))
def test_scientific_notation_is_exact(value: int, power: int) -> None:
    expected = value * Fraction(10) ** power
    assert parse_number(f"{value}e{power}") == expected
    assert parse_number(rf"{value} \times 10^{{{power}}}") == expected


PLACES = {
    "48 + 24 = 72": ["48", "24", "72"], "1,000 and .5, 3/4; 50% of 1.5e3.": ["1,000", ".5", "3/4", "50%", "1.5e3"],
    r"2\frac{1}{2} or \frac{x}{2}": [r"2\frac{1}{2}", r"\frac", "2"], "4:30, 1/0": ["4", "30", "1/0"],
    "7" * 500: ["7" * 500], "none": [],
}  # fmt: skip


@pytest.mark.parametrize(("line", "literals"), PLACES.items())
def test_number_places(line: str, literals: list[str]) -> None:
    assert [line[start:end] for start, end in number_places(line)] == literals


@given(st.text(alphabet="0123456789.,/ e^x{}\\frac%$-"))
def test_number_places_do_not_overlap_and_miss_no_digit(line: str) -> None:
    places = number_places(line)
    assert all(start < end for start, end in places)
    assert all(end <= start for (_, end), (start, _) in pairwise(places))
    covered = {position for start, end in places for position in range(start, end)}
    assert all(position in covered for position, character in enumerate(line) if character.isdigit())


QUANTITIES = {
    "72 clips": Fraction(72), "$1,000 per day.": Fraction(1000), "5 dollars and 50 cents": Fraction(11, 2),
    "2 and a half hours": Fraction(5, 2), "1 and a half million": Fraction(1_500_000),
    "2 hundred thousand": Fraction(200_000), "$70k": Fraction(70_000), "3\u4e07\u5143": Fraction(30_000),
    "2\u00bd cups": Fraction(5, 2), "72 (48 + 24 = 72)": Fraction(72), "72 = x": Fraction(72), "(72)": Fraction(72),
    "72 cm^2": Fraction(72),
}  # fmt: skip
NO_QUANTITIES = [
    *("72 or 73", "2 hours and 5 minutes", "5 feet 10", "4:30 pm", "5x", "$70k$", "48 + 24", "2**10", "(1, 2)")
]


@pytest.mark.parametrize(("text", "value"), [*QUANTITIES.items(), *dict.fromkeys(NO_QUANTITIES).items()])
def test_a_number_with_what_stands_around_it(text: str, value: Fraction | None) -> None:
    assert read_quantity(text) == (None if value is None else Quantity(value=value))


def test_absurd_sizes_are_refused() -> None:
    nines = "9" * MAX_DIGITS
    assert parse_number(nines) == 10**MAX_DIGITS - 1
    for text in (nines + "9", "9" * 10_000, "1/" + "9" * 10_000, "1" + ",000" * 5_000, "0." + "0" * 1_000_000 + "1"):
        assert parse_number(text) is None


def test_boxes_close_where_their_brace_closes() -> None:
    text = r"\boxed{a{b}c} } \boxed{ \{ d} \boxed{e \boxed{f}} \boxed{g"
    assert [text[start:end] for start, end in boxed_spans(text)] == ["a{b}c", r" \{ d", "f", r"e \boxed{f}"]
