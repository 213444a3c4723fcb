r"""Which left sides are names for what stands on the right: f^{-1}(x) = 2x + 3, \frac{dy}{dx} = 2x, P(A|B) = \frac14.

A name says what a problem asks for and leaves nothing to be solved. 2x, x^2, |x| and \log_2 x are none: an equation for
one of them still has to be solved for x. Of |a| and |z| the value may be asked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from mindgspo.rewards.answers.latex_tokens import TRIGONOMETRIC, Token, TokenKind
from mindgspo.rewards.answers.latex_values import CONSTANTS, UNKNOWNS

_ACCENTS = (
    "angle measuredangle sphericalangle triangle overline overrightarrow vec hat bar widehat widetilde tilde dot ddot "
    "mathbb mathcal mathfrak mathscr"
)
# What a token is to the patterns below: x an unknown, f a function, b another letter, A a capital one, d a
# differential, g a Greek letter, S a sigma, v an accent, w a word, o a composition, F a fraction, D \det and others.
_SHAPES = {
    **dict.fromkeys("xytkmns", "x"), **dict.fromkeys("fgh", "f"), **dict.fromkeys("ei", "n"), "d": "d",
    **dict.fromkeys(CONSTANTS - {"pi", "infty", "emptyset"}, "g"), "nabla": "g", "sigma": "S", "partial": "d",
    "circ": "o",
    **dict.fromkeys(_ACCENTS.split(), "v"), **dict.fromkeys(("cup", "cap", "setminus"), "*"), "top": "A", "frac": "F",
    **dict.fromkeys(("det", "dim", "deg", "arg", "ker", "Pr", "Re", "Im"), "D"), "1": "1", r"\|": "|",
    **dict.fromkeys(("[", r"\{"), "("), **dict.fromkeys(("]", r"\}"), ")"),
}  # fmt: skip
_OF_KIND = {TokenKind.NUMBER: "n", TokenKind.TEXT: "w", TokenKind.COMMAND: "?"}
_SYMBOLS = frozenset("(){}|_^'+-*/,.;:=<>")

_REDUCTIONS = (
    (re.compile(r"_\{[^{}]*\}"), ""),  # indices
    (re.compile(r"v(?:\{[^{}]*\}|[1n]|[xbfAdgSw]+)"), "V"),
    (re.compile(r"\((?:[fA](?:[-+*/o]?[fA])+|[xbf](?:o[xbf])+|F\{[fA]\}\{[fA]\})\)(?=\()"), "f"),  # (f + g)(x)
    (re.compile(r"(?<=[xbfAdgwSVPD'}])\([^()]*\)"), "P"),  # arguments, and \^{(4)} below
    (re.compile(r"(?<=\^\{)\([^()]*\)(?=\})"), "P"),
)
_LETTER = r"[xbfAdgSVw]'*"
_TIMES = rf"(?:{_LETTER}(?:(?<=[fAw'])\^\{{(?:-1|A|\*)\}}|\^\{{P\}})?P*)"
_TERM = rf"n?{_LETTER}P*"
_NAME = re.compile(
    rf"D?{_TIMES}(?:[o*]?{_TIMES})*|DP|S\^\{{n\}}"
    rf"|F\{{d(?:\^\{{n\}})?(?:{_LETTER}P*)?\}}\{{(?:d(?:\^\{{n\}})?{_LETTER}(?:\^\{{n\}})?)+\}}(?:{_LETTER}P*)?\|?P*"
    rf"|d{_LETTER}P*/d{_LETTER}|\|{{1,2}}(?:A+|b|n?V|w|{_TERM}(?:[-+*]{_TERM})+|[bAV]P)\|{{1,2}}"
    r"|F\{[xbfAV]+\}\{[xbfAV]+\}|A+/A+"
)

_SUM_OF_NAMES = re.compile(rf"(?:{_LETTER}P*)+(?:[-+](?:{_LETTER}P*)+)*")


def names_a_value(side: Sequence[Token]) -> bool:
    """Whether all of `side`, the spelled-out tokens of a side of an equation, is a name."""
    return _NAME.fullmatch(_shape(side)) is not None


def is_asked_for(side: Sequence[Token]) -> bool:
    r"""m + n, x_1 + x_2, \cos A and \tan(\alpha + \beta), for which problems ask: their value states itself, unlike
    that of 2x, x^2 or \sin x."""
    if side and side[0].text in TRIGONOMETRIC:
        depth = 0
        for before, token in pairwise((Token(TokenKind.SYMBOL, "+"), *side)):
            depth += token.is_symbol("(") - token.is_symbol(")")
            is_unknown = token.is_letter and token.text.islower()
            adds = depth == 0 and before.is_symbol("+", "-")
            if is_unknown or (adds and token.text not in TRIGONOMETRIC):
                return False
        return True
    return _SUM_OF_NAMES.fullmatch(_shape(side)) is not None


def _shape(side: Sequence[Token]) -> str:
    if len(side) > 1 and side[0].text in UNKNOWNS and side[1].text in ("(", "*", side[0].text) and side[0] in side[1:]:
        return "?"  # x(x + 1), xx
    shape = "".join(map(_shape_of, side)).removeprefix(".")
    for pattern, reduced in _REDUCTIONS:
        while (smaller := pattern.sub(reduced, shape)) != shape:
            shape = smaller
    return shape


def _shape_of(token: Token) -> str:
    if token.kind is TokenKind.SYMBOL:
        return _SHAPES.get(token.text, token.text if token.text in _SYMBOLS else "?")
    if token.is_letter:
        return _SHAPES.get(token.text, "A" if token.text.isupper() else "b")
    return "w" if token.is_text else _SHAPES.get(token.text, _OF_KIND[token.kind])


def head_recurs(name: Sequence[Token], value: Sequence[Token]) -> bool:
    """Whether the value is said by means of what is named, as in a_n = 2a_{n-1} and x = 2x - 5. A derivative may be."""
    is_single = len(name) == 1 or name[1].is_symbol("_", "(", "^")
    return is_single and name[0].is_letter and name[0] in value
