r"""Exact reading of number literals.

What enters: text already stripped of markup. What leaves: `fractions.Fraction`s, so that 72, 72.0, 1,000/2, 1.5e3 and
\frac{1}{2} compare exactly and no float rounding is ever part of a verdict; or the places of all literals in a line.
Called by `quantity` and `final_number`. Literals with more than `MAX_DIGITS` digits are refused, not computed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 100
"""Longest number read, and largest power of ten. Gold answers have a dozen digits at most; int() is quadratic in the
length."""

MAX_LITERAL_CHARS = 400
"""Longest literal looked at, separators and LaTeX included."""

# Grouped digits need exactly three digits per group: "1,000" is a number, "1,00" and "1, 2" are not.
_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]{1,3}(?: [0-9]{3})+(?![0-9])|[0-9]+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.[0-9]+)?|\.[0-9]+)"
_LATEX_ARGUMENT = rf"(?:\{{\s*([-+]?\s?{_DECIMAL})\s*\}}|([0-9]))"
_LATEX_FRACTION = rf"\\[dt]?frac\s*{_LATEX_ARGUMENT}\s*{_LATEX_ARGUMENT}"

# Superscript 2, 3, 1, then 0 and 4 to 9: what an exponent looks like that was typed as characters.
_SUPERSCRIPTS = "\u00b2\u00b3\u00b9\u2070\u2074\u2075\u2076\u2077\u2078\u2079"
_TO_DIGITS = str.maketrans(_SUPERSCRIPTS + "\u207b", "2310456789-")
_TIMES_TEN = r"\s?(?:[*xX\u00d7\u00b7\u22c5]|\\times(?![A-Za-z])|\\cdot(?![A-Za-z]))\s{0,4}10"
_POWER = rf"(?:\^\s?(?:\{{\s?([-+]?[0-9]{{1,4}})\s?\}}|([-+]?[0-9]{{1,4}}))|([{_SUPERSCRIPTS}\u207b]{{1,5}}))"

_SIGN = re.compile(r"([-+]?)\s?")
_WHOLE_AND_LATEX = re.compile(rf"([0-9]+)?\s*{_LATEX_FRACTION}")
_WHOLE_AND_SLASH = re.compile(r"([0-9]+)\s+(?:and\s+)?([0-9]+)/([0-9]+)(?![0-9.,/])")
_SLASH = re.compile(rf"({_DECIMAL})\s*/\s*({_DECIMAL})(?!\s*/\s*[0-9])")
_SCIENTIFIC = re.compile(rf"({_DECIMAL})(?:[eE]([-+]?[0-9]{{1,4}})(?![0-9A-Za-z]|\.[0-9])|{_TIMES_TEN}{_POWER})")
_PLAIN = re.compile(_DECIMAL)
_PERCENT = re.compile(r"\s*%|\s+per\s?cent\b", re.IGNORECASE)

_START = re.compile(r"\\[dt]?frac(?![A-Za-z])|\.?[0-9]")
_RUN = re.compile(r"\\[dt]?frac|[0-9.,]+")
_AT_END = re.compile(r"[.,]+\Z")


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

    Integers, decimals, thousands separators, a sign, percent ("50%" is 1/2), fractions a/b, mixed numbers "1 1/2",
    \frac{a}{b} and its variants, scientific notation (1.5e3, 1.5 x 10^3, 1.5 \times 10^{3}). None for anything else,
    a zero denominator or an absurd size.
    """
    found = read_number_prefix(text.strip())
    return found.value if found is not None and not found.rest.strip() else None


def read_number_prefix(text: str) -> NumberPrefix | None:
    """The number that `text` starts with, or None if it does not start with one."""
    head = text[:MAX_LITERAL_CHARS]
    sign = _SIGN.match(head)
    assert sign is not None, "the sign pattern matches the empty text"
    literal = _literal(head, sign.end())
    value = _value(literal.parts) if literal is not None else None
    if literal is None or value is None:
        return None
    percent = _PERCENT.match(head, literal.end)
    end = literal.end if percent is None else percent.end()
    value = value if percent is None else value / 100
    return NumberPrefix(value=-value if sign.group(1) == "-" else value, percent=percent is not None, rest=text[end:])


def number_places(line: str) -> list[tuple[int, int]]:
    """[start, end) of every unsigned literal in `line`, percent signs included, readable or not; none overlap.

    The work is linear for a line whose digit runs are short, and at most that times the longest run.
    """
    places = []
    start = _START.search(line)
    while start is not None:
        literal = _literal(line, start.start())
        end = literal.end if literal is not None else 0
        run = _RUN.match(line, start.start())
        if literal is None and run is not None:
            trailing = _AT_END.search(run.group())
            end = run.end() - (len(trailing.group()) if trailing else 0)
        end = max(end, start.end())
        percent = _PERCENT.match(line, end)
        end = end if percent is None else percent.end()
        places.append((start.start(), end))
        start = _START.search(line, end)
    return places


@dataclass(frozen=True, slots=True, kw_only=True)
class _Literal:
    """parts: whole number, numerator, denominator and power of ten, as written. end: where the literal ends."""

    parts: tuple[str, str, str, str]
    end: int


def _literal(head: str, start: int) -> _Literal | None:
    """The unsigned literal at `start`; the longest notation that fits wins."""
    if match := _WHOLE_AND_LATEX.match(head, start):
        whole, top_braced, top_digit, bottom_braced, bottom_digit = match.groups()
        parts = (whole or "0", top_braced or top_digit, bottom_braced or bottom_digit, "0")
    elif match := _WHOLE_AND_SLASH.match(head, start):
        parts = (match[1], match[2], match[3], "0")
    elif match := _SCIENTIFIC.match(head, start):
        power = match[2] or match[3] or match[4] or match[5].translate(_TO_DIGITS)
        parts = (match[1], "0", "1", power)
    elif match := _SLASH.match(head, start):
        parts = ("0", match[1], match[2], "0")
    elif match := _PLAIN.match(head, start):
        parts = (match.group(), "0", "1", "0")
    else:
        return None
    return _Literal(parts=parts, end=match.end())


def _value(parts: tuple[str, str, str, str]) -> Fraction | None:
    whole, top, bottom = (_decimal(part) for part in parts[:3])
    if whole is None or top is None or bottom is None or bottom == 0:
        return None
    power = _power(parts[3])
    return None if power is None else (whole + top / bottom) * power


def _decimal(literal: str) -> Fraction | None:
    """Exact value of sign, digits, separators and at most one decimal point; None beyond MAX_DIGITS."""
    compact = re.sub(r"[,\s]", "", literal)
    return Fraction(compact) if len(compact) <= MAX_DIGITS else None


def _power(exponent: str) -> Fraction | None:
    """10 to the power of a short literal; None for one that is no integer or beyond MAX_DIGITS."""
    digits = exponent.lstrip("+-")
    if not digits.isdigit() or len(exponent) - len(digits) > 1 or int(digits) > MAX_DIGITS:
        return None
    power = Fraction(10) ** int(digits)
    return 1 / power if exponent.startswith("-") else power
