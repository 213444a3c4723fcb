r"""Exact reading of one number literal.

What enters: text that starts with a number, already stripped of markup. What leaves: a
`fractions.Fraction`, so that 72, 72.0, 1,000/2 and \frac{1}{2} compare exactly and no float rounding is
ever part of a verdict. Called by `quantity`. Literals with more than `MAX_DIGITS` digits are refused, not
computed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 100
"""Longest number read. Gold answers have a dozen digits at most; int() is quadratic in the length."""

MAX_LITERAL_CHARS = 400
"""Longest literal looked at, separators and LaTeX included."""

# Grouped digits need exactly three digits per group: "1,000" is a number, "1,00" and "1, 2" are not.
_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]{1,3}(?: [0-9]{3})+(?![0-9])|[0-9]+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.[0-9]+)?|\.[0-9]+)"
_LATEX_ARGUMENT = rf"(?:\{{\s*([-+]?\s?{_DECIMAL})\s*\}}|([0-9]))"
_LATEX_FRACTION = rf"\\[dt]?frac\s*{_LATEX_ARGUMENT}\s*{_LATEX_ARGUMENT}"

_SIGN = re.compile(r"([-+]?)\s?")
_WHOLE_AND_LATEX = re.compile(rf"([0-9]+)?\s*{_LATEX_FRACTION}")
_WHOLE_AND_SLASH = re.compile(r"([0-9]+)\s+([0-9]+)/([0-9]+)(?![0-9.,/])")
_SLASH = re.compile(rf"({_DECIMAL})\s*/\s*({_DECIMAL})(?!\s*/\s*[0-9])")
_PLAIN = re.compile(_DECIMAL)
_PERCENT = re.compile(r"\s*%")


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberPrefix:
    """A number at the start of a text.

    value: exact value, percent already divided by 100. percent: whether a percent sign was written.
    rest: the text after it.
    """

    value: Fraction
    percent: bool
    rest: str


def parse_number(text: str) -> Fraction | None:
    r"""Exact value of a text that is one number and nothing else, or None.

    Integers, decimals, thousands separators, a sign, percent ("50%" is 1/2), fractions a/b, mixed numbers
    "1 1/2", \frac{a}{b} and its variants. None for anything else, a zero denominator or an absurd size.
    """
    found = read_number_prefix(text.strip())
    return found.value if found is not None and not found.rest.strip() else None


def read_number_prefix(text: str) -> NumberPrefix | None:
    """The number that `text` starts with, or None if it does not start with one."""
    head = text[:MAX_LITERAL_CHARS]
    sign = _SIGN.match(head)
    assert sign is not None, "the sign pattern matches the empty text"
    read = _magnitude(head, sign.end())
    if read is None:
        return None
    value, end = read
    percent = _PERCENT.match(head, end)
    if percent is not None:
        value, end = value / 100, percent.end()
    return NumberPrefix(value=-value if sign.group(1) == "-" else value, percent=percent is not None, rest=text[end:])


def _magnitude(head: str, start: int) -> tuple[Fraction, int] | None:
    """Value and end of the unsigned number at `start`; the longest notation that fits wins."""
    if match := _WHOLE_AND_LATEX.match(head, start):
        whole, top_braced, top_digit, bottom_braced, bottom_digit = match.groups()
        parts = (whole or "0", top_braced or top_digit, bottom_braced or bottom_digit)
    elif match := _WHOLE_AND_SLASH.match(head, start):
        parts = match.groups()
    elif match := _SLASH.match(head, start):
        parts = ("0", *match.groups())
    elif match := _PLAIN.match(head, start):
        parts = (match.group(), "0", "1")
    else:
        return None
    whole_value, top, bottom = (_decimal(part) for part in parts)
    if whole_value is None or top is None or bottom is None or bottom == 0:
        return None
    return whole_value + top / bottom, match.end()


def _decimal(literal: str) -> Fraction | None:
    """Exact value of sign, digits, separators and at most one decimal point; None beyond MAX_DIGITS."""
    compact = re.sub(r"[,\s]", "", literal)
    return Fraction(compact) if len(compact) <= MAX_DIGITS else None
