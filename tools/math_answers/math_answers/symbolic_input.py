r"""Whether and how an answer is handed to the symbolic comparison: bounded in size, and of nothing but safe tokens.

`is_too_large` bounds what an expression becomes when it is evaluated, before anybody evaluates it: 9^{9^{9^9}},
(9!)!. It is a bound on the bits of the result, in one pass over spelled-out tokens. A number n has log2(n + 1) bits,
which covers sums as well as products, so that a bracket has the bits of all its parts. A power multiplies the bits of
its base by the value of its exponent; a factorial, a binomial and a sum up to n count as n. A letter or a command has
one bit.

`safe_latex` writes spelled-out tokens down again for the parser.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from math_answers.latex_tokens import BINOMIAL, FRACTION, LINE_BREAK, Token, TokenKind

MAX_BITS = 2.0**17
"""A larger result is not computed: 39,000 digits are more than any answer needs (2018! has 5,800)."""

_USES = {"^": "exponent", "_": "index", "/": "divisor"}


@dataclass(slots=True)
class _Bracket:
    """An open bracket. use: what its bits will be to the bracket around it. total: bits of its parts but the last.
    last: bits of the last, to which an exponent or a factorial may still apply. next_use: use of the part that comes
    next. num_arguments: of a fraction in it, how many are still to come."""

    use: str = "part"
    total: float = 0.0
    last: float = 0.0
    next_use: str = "part"
    num_arguments: int = 0

    def take_use(self) -> str:
        """Return the use of the part that begins here."""
        use, self.next_use = self.next_use, "part"
        if self.num_arguments:
            self.num_arguments -= 1
            use = "divisor" if self.num_arguments == 0 else use
        return use

    def add(self, use: str, bits: float) -> None:
        """Takes in a part of so many bits; an index and a divisor make nothing larger."""
        if use == "exponent":
            self.last *= _value(bits)
        elif use in ("part", "count"):
            self.total += self.last
            self.last = _value(bits) if use == "count" else bits


def is_too_large(tokens: Sequence[Token]) -> bool:
    """Whether the value of spelled-out `tokens`, or of a part of them, may have more than MAX_BITS bits."""
    brackets = [_Bracket()]
    for token in tokens:
        here = brackets[-1]
        if token.depth > 0:
            brackets.append(_Bracket(here.take_use()))
        elif token.depth < 0:
            if len(brackets) > 1:
                closed = brackets.pop()
                brackets[-1].add(closed.use, closed.total + closed.last)
        elif token.is_symbol(*_USES):
            here.next_use = _USES[token.text]
        elif token.is_symbol("!"):
            here.last *= _value(here.last)
        elif token.kind in (TokenKind.NUMBER, TokenKind.LETTER, TokenKind.COMMAND):
            here.add(here.take_use(), math.log2(float(token.text) + 1) if token.is_number else 1.0)
            if token.is_command:
                here.next_use = "count" if token.text == "binom" else "part"
                here.num_arguments = 2 if token.text == "frac" else 0
        if brackets[-1].total + brackets[-1].last > MAX_BITS:
            return True
    return False


def _value(bits: float) -> float:
    """The largest number of so many bits; far above MAX_BITS for all that are too large."""
    return 2.0 ** min(bits, 1000.0) - 1


# ----- for a symbolic parser

_SAFE_WORD = re.compile(r"[^A-Za-z]")
_SAFE_SYMBOLS = frozenset("+-*/^_=<>()[]{}|!,;:'&%") | {r"\{", r"\}", r"\|", LINE_BREAK}


def safe_latex(tokens: Sequence[Token]) -> str | None:
    """LaTeX of spelled-out `tokens` for a symbolic parser; None where one of them has no place in a formula.

    Whatever the parser does with names, these are letters only: no quotes, dots, underscores or calls survive. Products
    of numbers get their dot, because the parser takes 2(3) for the mixed number 2 + 3; so 2 3 has no place either. Nor
    has a zero after a word: "4 for 0" would be zero.
    """
    written: list[str] = []
    scripts: list[bool] = []  # per open brace, whether it is a script
    before, is_operand = None, False
    for token in tokens:
        text = _safe(token)
        if text is None or (before is not None and before.is_number and token.is_number):
            return None
        if before is not None and before.is_text and token.is_number and not token.text.strip("0."):
            return None
        if token.is_symbol("'") and (before is None or not before.is_letter):
            return None  # a quotation mark rather than the prime of f'
        is_mixed = before is not None and before.is_number and token == FRACTION
        starts = token.is_symbol("(") or token.is_number or token in (FRACTION, BINOMIAL)
        if is_operand and not is_mixed and starts:
            written.append(r"\cdot")
        written.append(text)
        is_operand = token.is_number or token.is_symbol(")")
        if token.is_symbol("{"):
            scripts.append(before is not None and before.is_symbol("^", "_"))
        elif token.is_symbol("}"):
            # Within \frac{1}{2} no number can follow, and after \log_{2} none is a factor.
            is_operand = not (scripts and scripts.pop())
        before = token
    return " ".join(text for text in written if text)


def _safe(token: Token) -> str | None:
    if token.kind is TokenKind.SYMBOL:
        if token.text == "%":
            return r"\%"
        return token.text if token.text in _SAFE_SYMBOLS else None
    if token.is_text:
        if not token.text.isascii():
            return None
        word = _SAFE_WORD.sub("", token.text)
        return rf"\text{{{word}}}" if word else ""
    return "\\" + token.text if token.is_command else token.text
