r"""A number with what people write around it: "$1,000 per day.", "x = 72 clips", "\boxed{50\%}".

What enters: the content of an answer marker. What leaves: a `Quantity`, or None where the content is not
exactly one quantity. "72 or 73", "3, 4" and "5x" are not: a hedge must never be paid. Called by `extract`
and `verify`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from mindgspo.rewards.boxed import boxed_spans
from mindgspo.rewards.number import read_number_prefix
from mindgspo.rewards.plain_text import plain

MAX_CONTENT_CHARS = 600
"""A longer content is not one number."""

_LEAD_IN = re.compile(
    r"\A(?:\s*(?:rs\.?|usd|us|rmb|cny|eur|gbp|approximately|approx\.?|about|roughly|exactly|only|just"
    r"|therefore|thus|so|=|:|,)(?![a-z]))+",
    re.IGNORECASE,
)
_STATED_BEFORE = re.compile(r"[0-9].*?\.\s", re.DOTALL)  # "34. A bound was \\boxed{40}" states 34
_SENTENCE_END = re.compile(r"\.(?=\s|\Z)")
_NUMBER_START = re.compile(r"[-+]?\s?(?:\.?[0-9]|\\[dt]?frac)")
_EQUALS = re.compile(r"=|\b(?:is|are|equals|be)\b|\u662f|\u4e3a|\u7b49\u4e8e", re.IGNORECASE)
_MULTIPLIER = re.compile(r"\s*(thousand|million|billion|trillion)\b", re.IGNORECASE)
_POWERS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}

# A unit is words: no further digit (except an exponent), operator, brace or LaTeX command.
_UNIT_EXPONENT = re.compile(r"(?<=[A-Za-z])\s?(?:\^\s?\{?-?[0-9]\}?|[\u00b2\u00b3])")
_UNIT_TAIL = re.compile(r"[^0-9\\{}=+*^<>|\[\]]*")
_UNIT_HEAD = re.compile(
    r"\s*[\u00b0\u00a2%]"  # degree, cent
    r"|\s*[\u3400-\u9fff]"  # Chinese measure words need no space
    r"|\s*-?(?!(?:pi|sqrt|sin|cos|tan|log|ln|exp|xy)\b)[^\W\d_]{2,}"
    r"|\s+[mgshlLCFKVWANJ](?![^\W\d_])"  # single letters only after a space: "5 m" is metres, "5m" is algebra
    r"|\s*/\s*[^\W\d_]{2,}|\s+(?:per|a|an)\s|\s+\([^\W\d_]{2,}|\s*[,;:?]\s*[^\W\d_]{2,}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """value: exact value ("50%" is 1/2). percent: whether a percent sign was written."""

    value: Fraction
    percent: bool = False


def read_quantity(content: str) -> Quantity | None:
    """The one quantity that `content` states, or None. Linear; never raises."""
    if len(content) > MAX_CONTENT_CHARS:
        return None
    boxes = boxed_spans(content)
    if boxes and not _STATED_BEFORE.search(content, 0, boxes[0].start):
        content = content[boxes[-1].start : boxes[-1].end]
    sentence = _first_sentence_with_digit(plain(content))
    whole = _number_and_unit(sentence)
    if whole is not None:
        return whole
    *_, last_side = _EQUALS.split(sentence)
    return _number_and_unit(last_side) if last_side is not sentence else None


def starts_with_number(content: str) -> bool:
    """Whether a number, readable or absurd, is the first thing in `content`, markup and "about" aside."""
    return _NUMBER_START.match(_after_lead_in(plain(content[:MAX_CONTENT_CHARS]))) is not None


def same_quantity(answer: Quantity, gold: Quantity) -> bool:
    """Equal values; a percent sign written on one side only may be a mere unit ("50%" for a gold of 50)."""
    if answer.value == gold.value:
        return True
    if answer.percent == gold.percent:
        return False
    with_sign, without = (answer, gold) if answer.percent else (gold, answer)
    return with_sign.value * 100 == without.value


def _first_sentence_with_digit(text: str) -> str:
    """`text` up to the first full stop after its first digit; a decimal point is no full stop."""
    digit = re.search(r"[0-9]", text)
    if digit is None:
        return text
    end = _SENTENCE_END.search(text, digit.end())
    return text if end is None else text[: end.start()].rstrip(" \"'*_.,;:")


def _after_lead_in(text: str) -> str:
    lead_in = _LEAD_IN.match(text)
    return (text[lead_in.end() :] if lead_in else text).lstrip()


def _number_and_unit(text: str) -> Quantity | None:
    number = read_number_prefix(_after_lead_in(text))
    if number is None:
        return None
    value, rest = number.value, number.rest
    if multiplier := _MULTIPLIER.match(rest):
        value, rest = value * 10 ** _POWERS[multiplier.group(1).lower()], rest[multiplier.end() :]
    return Quantity(value=value, percent=number.percent) if _is_unit(rest) else None


def _is_unit(rest: str) -> bool:
    """Whether the text after a number is nothing, or words that measure or explain it."""
    rest = _UNIT_EXPONENT.sub("", rest)
    return not rest.strip() or bool(_UNIT_HEAD.match(rest) and _UNIT_TAIL.fullmatch(rest))
