"""Exact number reading: by hand, and against Fraction itself on drawn values."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.rewards.number import MAX_DIGITS, parse_number

READABLE = {
    "72": Fraction(72),
    "-5": Fraction(-5),
    "- 5": Fraction(-5),
    "+5": Fraction(5),
    "007": Fraction(7),
    ".5": Fraction(1, 2),
    "0.125": Fraction(1, 8),
    "1,000": Fraction(1000),
    "12,345,678.90": Fraction(1234567890, 100),
    "1 000 000": Fraction(10**6),
    "50%": Fraction(1, 2),
    "12.5 %": Fraction(1, 8),
    "3/4": Fraction(3, 4),
    "-3 / 4": Fraction(-3, 4),
    "1 1/2": Fraction(3, 2),
    "-1 1/2": Fraction(-3, 2),
    r"\frac{1}{3}": Fraction(1, 3),
    r"-\dfrac{ 1 }{ 3 }": Fraction(-1, 3),
    r"\tfrac13": Fraction(1, 3),
    r"\frac{-1}{3}": Fraction(-1, 3),
    r"2\frac{1}{3}": Fraction(7, 3),
}
UNREADABLE = [
    *("", " ", "-", ".", "5 5", "1,00", "1,0000", "1,,000", "--3", "1e5", "0x10", "1/0"),
    *(
        r"\frac{1}{0}",
        "1/2/3",
        "nan",
        "inf",
        "5x",
        "x",
        r"\frac{1}",
        r"\frac{1}{x}",
        "\u0661",
        "1_000",
        "5!",
        "2^10",
    ),
]


@pytest.mark.parametrize(("text", "value"), READABLE.items())
def test_readable(text: str, value: Fraction) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize("text", UNREADABLE)
def test_unreadable(text: str) -> None:
    assert parse_number(text) is None


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


def test_absurd_sizes_are_refused() -> None:
    assert parse_number("9" * MAX_DIGITS) == 10**MAX_DIGITS - 1
    assert parse_number("9" * (MAX_DIGITS + 1)) is None
    assert parse_number("9" * 10_000) is None
    assert parse_number("1/" + "9" * 10_000) is None
    assert parse_number("1" + ",000" * 5_000) is None
    assert parse_number("0." + "0" * 1_000_000 + "1") is None
