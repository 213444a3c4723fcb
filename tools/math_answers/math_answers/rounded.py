r"""Answers that say their value twice, exactly and rounded: "2\sqrt{2} \approx 2.83", "x = \frac{1}{3} \approx 0.33".

Which of the two is compared depends on how the other answer is written. They must agree: "\sqrt{2} \approx 72" says
nothing. For that the exact side is worked out as a float, if it holds nothing but numbers, roots, fractions, powers,
\pi, e and elementary functions. Linear in the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from math_answers.answer_tokens import answer_tokens
from math_answers.latex_tokens import Token, TokenKind
from math_answers.quantity import MAX_CONTENT_CHARS, parse_number, read_quantity
from math_answers.relations import names_a_value
from math_answers.text import plain

_ABOUT = re.compile(r"(?<!\\not)(?<!\\not )\\(?:approx(?:eq)?|simeq|thickapprox|(?:falling)?doteq)(?![A-Za-z])|[≃≈≐≒]")
_SEVERAL = re.compile(r"[,;](?![0-9]{3})|\b(?:and|or)\b")
_DECIMALS = re.compile(r"\.([0-9]+)")
_POWER_OF_TEN = re.compile(r"[0-9][eE]|10\s?\^")
_DEGREES = re.compile(r"\\circ|\\degree|°")
_MAX_DEPTH = 20


def alike(answer: str, gold: str) -> tuple[str, str]:
    """Both answers; of one that says its value twice the side that is written like the other answer. An answer whose
    sides are different values is empty."""
    wanted = (_side_like(answer, gold), _side_like(gold, answer))
    return "" if wanted[0] is None else wanted[0], gold if wanted[1] is None else wanted[1]


def _side_like(text: str, other: str) -> str | None:
    sides = [side for side in _ABOUT.split(text) if side.strip(" $=")]
    if len(sides) < 2 or len(text) > MAX_CONTENT_CHARS or _SEVERAL.search(text):
        return text
    exact, rounded = sides[0], sides[-1]
    tokens = answer_tokens(exact)
    if any(token.is_text for token in tokens):
        return text  # "not x \approx 72"
    if names_a_value(tokens):
        return rounded
    is_same = None if _DEGREES.search(exact) else _agree(tokens, rounded)
    if not is_same:
        return text if is_same is None else None
    wanted = parse_number(plain(_ABOUT.split(other)[-1]))
    return exact if wanted is None or wanted == parse_number(plain(exact)) else rounded


def _agree(exact: Sequence[Token], rounded: str) -> bool | None:
    """Whether `rounded` is the value of `exact`, or of its last side, with as many decimals as it has; None where that
    cannot be told."""
    quantity = read_quantity(rounded)
    start = max((at + 1 for at, token in enumerate(exact) if token.is_symbol("=")), default=0)
    try:
        value = _Reader(exact[start:]).read()
    except (ValueError, ArithmeticError):
        return None
    if quantity is None or not math.isfinite(value):
        return None
    decimals = _DECIMALS.search(rounded)
    digits = len(decimals[1]) if decimals is not None else 0
    unit = abs(float(quantity.value)) if _POWER_OF_TEN.search(rounded) else 1.0
    return abs(value - float(quantity.value)) < unit * 10.0**-digits


_FUNCTIONS: Mapping[str, Callable[[float], float]] = {
    **{"sin": math.sin, "cos": math.cos, "tan": math.tan, "ln": math.log, "exp": math.exp},
    **{"log": math.log10, "lg": math.log10, "arctan": math.atan, "arcsin": math.asin, "arccos": math.acos},
}
_CLOSING = {"(": ")", "{": "}", "[": "]"}


class _Reader:
    """The float that spelled-out tokens come to. Raises ValueError for anything but numbers, and ArithmeticError."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = list(reversed(tokens))
        self._depth = 0

    def read(self) -> float:
        """The value of all tokens."""
        value = self._sum()
        if self._tokens:
            raise ValueError
        return value

    def _is(self, *symbols: str) -> bool:
        return bool(self._tokens) and self._tokens[-1].is_symbol(*symbols)

    def _sum(self) -> float:
        value = self._product()
        while self._is("+", "-"):
            value += self._product()
        return value

    def _product(self) -> float:
        sign = 1.0
        while self._is("+", "-"):
            sign = -sign if self._tokens.pop().text == "-" else sign
        value = sign * self._power()
        while self._tokens and not self._is("+", "-", ")", "}", "]"):
            if self._is("/"):
                self._tokens.pop()
                value /= self._power()
            else:
                if self._is("*"):
                    self._tokens.pop()
                value *= self._power()
        return value

    def _power(self) -> float:
        value = self._atom()
        if self._is("^"):
            self._tokens.pop()
            value = math.pow(value, self._bracket("{"))
        return value

    def _bracket(self, opening: str) -> float:
        if not self._is(opening) or self._depth == _MAX_DEPTH:
            raise ValueError
        self._depth += 1
        self._tokens.pop()
        value = self._sum()
        if not self._is(_CLOSING[opening]):
            raise ValueError
        self._tokens.pop()
        self._depth -= 1
        return value

    def _atom(self) -> float:
        if self._is("(", "{"):
            return self._bracket(self._tokens[-1].text)
        if not self._tokens:
            raise ValueError
        token = self._tokens.pop()
        if token.is_number:
            return float(token.text)
        if token == Token(TokenKind.COMMAND, "pi"):
            return math.pi
        if token == Token(TokenKind.LETTER, "e"):
            return math.e
        if token.is_command and token.text == "frac":
            return self._bracket("{") / self._bracket("{")
        if token.is_command and token.text == "sqrt":
            index = self._bracket("[") if self._is("[") else 2.0
            return math.pow(self._bracket("{"), 1 / index)
        if token.is_command and token.text in _FUNCTIONS and not self._is("^", "_"):
            return _FUNCTIONS[token.text](self._power())
        raise ValueError
