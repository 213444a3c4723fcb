r"""How large an expression becomes when it is evaluated, bounded before anybody evaluates it: 9^{9^{9^9}}, (9!)!.

A bound on the bits of the result, in one pass over spelled-out tokens. A number n has log2(n + 1) bits, which covers
sums as well as products, so that a bracket has the bits of all its parts. A power multiplies the bits of its base by
the value of its exponent; a factorial, a binomial and a sum up to n count as n. A letter or a command has one bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mindgspo.rewards.answers.latex_tokens import Token, TokenKind

MAX_BITS = 2.0**17
"""A larger result is not computed: 39,000 digits are more than any answer needs (2018! has 5,800)."""

_OPENING, _CLOSING = ("{", "(", "[", r"\{"), ("}", ")", "]", r"\}")
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
        """What the part that begins here is used for."""
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
        if token.is_symbol(*_OPENING):
            brackets.append(_Bracket(here.take_use()))
        elif token.is_symbol(*_CLOSING):
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
