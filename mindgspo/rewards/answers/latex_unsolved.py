r"""Answers that hand the question back: \gcd(12,18) for 6, x + 3 = 8 for 5, |x| < 2 for (-2,2).

What enters: spelled-out tokens of an answer and of the gold answer. What leaves: whether the answer still has to be
worked out. Called by `equivalence`, because a symbolic comparison would do that work. Linear in the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from mindgspo.rewards.answers.latex_cursor import CONSTANTS
from mindgspo.rewards.answers.latex_tokens import Kind, Token

_OPERATION_NAMES = "sum prod int iint oint lim gcd lcm det lceil lfloor max min begin{vmatrix}"
_OPERATIONS = frozenset(_OPERATION_NAMES.split())
_RELATION_NAMES = "= < > le ge ne in equiv approx"
_RELATIONS = frozenset(_RELATION_NAMES.split())
_ACCENTS = "angle measuredangle overline overrightarrow vec hat bar triangle widehat mathbf mathcal mathbb"
_NAMING = (CONSTANTS - {"pi", "infty", "emptyset"}) | frozenset(_ACCENTS.split())
_TRIGONOMETRIC = frozenset(("cos", "sin", "tan", "cot", "sec", "csc"))
_NAME_SYMBOLS = ("(", ")", "[", "]", "{", "}", ",", "_", "'")
_NUMBER_LETTERS = frozenset("ei")
_Side = list[Token]
_OPENING, _CLOSING = ("(", "[", "{", r"\{"), (")", "]", "}", r"\}")


def is_unsolved(answer: Sequence[Token], gold: Sequence[Token]) -> bool:
    """Whether `answer` has an operation that `gold` lacks, or a relation that is not solved where `gold` is: sides that
    are neither names nor constants, or a name that is also on the other side."""
    if _operations(answer) - _operations(gold):
        return True
    return all(map(_is_plain, _elements(gold))) and any(map(_is_to_be_solved, _elements(answer)))


def _operations(tokens: Sequence[Token]) -> set[str]:
    named = (Kind.COMMAND, Kind.TEXT)
    return {token.text.lower() for token in tokens if token.kind in named and token.text.lower() in _OPERATIONS}


def _elements(tokens: Sequence[Token]) -> list[tuple[list[_Side], set[str]]]:
    """The sides and the relations of each element of a list; what brackets enclose is left whole."""
    elements: list[tuple[list[_Side], set[str]]] = [([[]], set())]
    depth = 0
    for token in tokens:
        depth += token.is_symbol(*_OPENING) - token.is_symbol(*_CLOSING)
        sides, relations = elements[-1]
        if depth == 0 and token.is_symbol(",", ";"):
            elements.append(([[]], set()))
        elif depth == 0 and token.kind in (Kind.SYMBOL, Kind.COMMAND) and token.text in _RELATIONS:
            relations.add(token.text)
            sides.append([])
        else:
            sides[-1].append(token)
    return elements


def _is_plain(element: tuple[list[_Side], set[str]]) -> bool:
    """Whether this is a value, an interval, or a relation of names and constants."""
    sides, _ = element
    return len(sides) == 1 or all(_is_name(side) or _is_constant(side) for side in sides)


def _is_to_be_solved(element: tuple[list[_Side], set[str]]) -> bool:
    if _is_plain(element):
        return False
    sides, relations = element
    if relations == {"="} and _is_asked_for(sides[0]) and all(map(_is_constant, sides[1:])):
        return False
    if relations != {"="} or not _is_name(sides[0]):
        return True
    # y = 2x + 3 gives y, x = 2x - 5 does not give x. Of AB = 2 BC, B is no name.
    name = sides[0][0]
    is_single = len(sides[0]) == 1 or sides[0][1].is_symbol("_", "(")
    return is_single and any(name in side for side in sides[1:])


def _is_asked_for(side: _Side) -> bool:
    r"""m + n and \cos A, for which problems ask: their value states itself, unlike that of 2x or x^2."""
    if side and side[0].text in _TRIGONOMETRIC:
        return not any(token.is_symbol("+", "-") for token in side)
    return all(
        token.is_symbol("+", "-") if place % 2 else token.kind is Kind.LETTER for place, token in enumerate(side)
    )


def _is_name(side: _Side) -> bool:
    r"""x, x_1, f(2), AB, \angle ABC, (x, y), words."""
    depth = 0
    has_name = False
    for before, token in pairwise((None, *side)):
        assert token is not None
        depth += token.is_symbol("(", "{") - token.is_symbol(")", "}")
        is_negative = token.is_symbol("-") and before is not None and before.is_symbol("(", ",", "{")
        if token.kind is Kind.LETTER or token.kind is Kind.TEXT or token.text in _NAMING:
            has_name = True
        elif not (token.is_symbol(*_NAME_SYMBOLS) or (depth > 0 and (token.kind is Kind.NUMBER or is_negative))):
            return False
    return has_name


def _is_constant(side: _Side) -> bool:
    r"""Whether no variable is in it; \pi, e and i are none."""
    letters = {token.text for token in side if token.kind is Kind.LETTER}
    return bool(side) and letters <= _NUMBER_LETTERS and not any(token.text in _NAMING for token in side)
