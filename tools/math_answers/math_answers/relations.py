r"""Equations within an answer: which side is a name, which one the value, and what is left to be solved.

A name says what a problem asks for and leaves nothing to be solved: f^{-1}(x) = 2x + 3, \frac{dy}{dx} = 2x, P(A|B) =
\frac14. 2x, x^2, |x| and \log_2 x are none: an equation for one of them still has to be solved for x. Of |a| and |z|
the value may be asked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from math_answers.answer_tokens import tokens_of_pair
from math_answers.latex_tokens import TRIGONOMETRIC, Token, TokenKind
from math_answers.latex_values import CONSTANTS, UNKNOWNS
from math_answers.quantity import contradict
from math_answers.text import word_set

_NAME_ACCENTS = (
    "angle measuredangle sphericalangle triangle overline overrightarrow vec hat bar widehat widetilde tilde dot ddot "
    "mathbb mathcal mathfrak mathscr"
)
# What a token is to the patterns below: x an unknown, f a function, b another letter, A a capital one, d a
# differential, g a Greek letter, S a sigma, v an accent, w a word, o a composition, F a fraction, D \det and others.
_NAME_SHAPES = {
    **dict.fromkeys("xytkmns", "x"), **dict.fromkeys("fgh", "f"), **dict.fromkeys("ei", "n"), "d": "d",
    **dict.fromkeys(CONSTANTS - {"pi", "infty", "emptyset"}, "g"), "nabla": "g", "sigma": "S", "partial": "d",
    "circ": "o",
    **dict.fromkeys(_NAME_ACCENTS.split(), "v"), **dict.fromkeys(("cup", "cap", "setminus"), "*"),
    "top": "A", "frac": "F",
    **dict.fromkeys(("det", "dim", "deg", "arg", "ker", "Pr", "Re", "Im"), "D"), "1": "1", r"\|": "|",
    **dict.fromkeys(("[", r"\{"), "("), **dict.fromkeys(("]", r"\}"), ")"),
}  # fmt: skip
_OF_KIND = {TokenKind.NUMBER: "n", TokenKind.TEXT: "w", TokenKind.COMMAND: "?"}
_SHAPED_SYMBOLS = frozenset("(){}|_^'+-*/,.;:=<>")

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
    return _NAME.fullmatch(_name_shape(side)) is not None


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
    return _SUM_OF_NAMES.fullmatch(_name_shape(side)) is not None


def _name_shape(side: Sequence[Token]) -> str:
    if len(side) > 1 and side[0].text in UNKNOWNS and side[1].text in ("(", "*", side[0].text) and side[0] in side[1:]:
        return "?"  # x(x + 1), xx
    shape = "".join(map(_name_shape_of, side)).removeprefix(".")
    for pattern, reduced in _REDUCTIONS:
        while (smaller := pattern.sub(reduced, shape)) != shape:
            shape = smaller
    return shape


def _name_shape_of(token: Token) -> str:
    if token.kind is TokenKind.SYMBOL:
        return _NAME_SHAPES.get(token.text, token.text if token.text in _SHAPED_SYMBOLS else "?")
    if token.is_letter:
        return _NAME_SHAPES.get(token.text, "A" if token.text.isupper() else "b")
    return "w" if token.is_text else _NAME_SHAPES.get(token.text, _OF_KIND[token.kind])


def head_recurs(name: Sequence[Token], value: Sequence[Token]) -> bool:
    """Whether the value is said by means of what is named, as in a_n = 2a_{n-1} and x = 2x - 5. A derivative may be."""
    is_single = len(name) == 1 or name[1].is_symbol("_", "(", "^")
    return is_single and name[0].is_letter and name[0] in value


# ----- sides of equations


# ----- answers that hand the question back

_OPERATIONS = word_set("sum prod int iint oint lim gcd lcm det lceil lfloor max min begin{vmatrix} bmod pmod mod")
_OF_FUNCTIONS = frozenset(("int", "iint", "oint", "lim", "derivative", "sum", "prod"))
_OF_INTEGERS = frozenset(("lfloor", "lceil", "gcd", "lcm", "bmod", "pmod", "mod"))
_RELATIONS = word_set("= < > le ge ne in equiv approx")
_ACCENTS = "angle measuredangle overline overrightarrow vec hat bar triangle widehat mathbf mathcal mathbb"
_NAMING = (CONSTANTS - {"pi", "infty", "emptyset"}) | frozenset(_ACCENTS.split())
_NAME_SYMBOLS = ("(", ")", "[", "]", "{", "}", ",", "_", "'")
NUMBER_LETTERS = frozenset("ei")
Side = list[Token]


def is_to_be_solved(answer: Sequence[Token], gold: Sequence[Token]) -> bool:
    """Whether `answer` has a relation that is not solved where `gold` is: sides that are neither names nor constants,
    or a name that is also on the other side."""
    return all(map(_is_plain, elements_of(gold))) and any(map(_is_unsolved, elements_of(answer)))


def contradicts_itself(tokens: Sequence[Token]) -> bool:
    """Whether an equation has sides that are different numbers, as x = 71 = 72 has."""
    return len(tokens) > 2 and any(
        relations <= {"=", "approx"} and contradict(["".join(token.text for token in side) for side in sides])
        for sides, relations in elements_of(tokens)
        if relations
    )


def operations_in(tokens: Sequence[Token]) -> set[str]:
    named = (TokenKind.COMMAND, TokenKind.TEXT)
    found = {token.text.lower() for token in tokens if token.kind in named and token.text.lower() in _OPERATIONS}
    return found | {"derivative"} if _DERIVATIVE in "".join(token.text for token in tokens) else found


def values_of_pair(answer: str, gold: str) -> list[list[Token]]:
    r"""The tokens of both, without a name that only one of them has, as in f'(x) = 2x and 2x, or that both have."""
    pair = [_stated_value(_with_both_signs(tokens)) for tokens in tokens_of_pair(answer, gold)]
    named = [_named_values(tokens) for tokens in pair]
    (name, value), (gold_name, gold_value) = named
    if name == gold_name and name:
        return [value, gold_value]
    if _is_calculation(pair[1]) and not _has_relation(pair[0]):
        return [pair[0], elements_of(pair[1])[0][0][-1]]
    if name and not gold_name and not _has_relation(pair[1]):
        return [value, pair[1]]
    return [pair[0], gold_value] if gold_name and not name and not _has_relation(pair[0]) else pair


_PLUS_MINUS, _COMMA = Token(TokenKind.COMMAND, "pm"), Token(TokenKind.SYMBOL, ",")


def _with_both_signs(tokens: list[Token]) -> list[Token]:
    r"""x = \frac{1 \pm \sqrt5}{2} as two equations; tuples and sets with a \pm, and what has two, as they are."""
    if _PLUS_MINUS not in tokens:
        return tokens
    result: list[Token] = []
    for sides, relations in elements_of(tokens):
        if not relations <= {"="}:
            return tokens
        element = [token for side in sides for token in (Token(TokenKind.SYMBOL, "="), *side)][1:]
        at = element.index(_PLUS_MINUS) if element.count(_PLUS_MINUS) == 1 else 0
        is_one = element[at : at + 1] == [_PLUS_MINUS] and not any(
            token.is_symbol("(", "[", r"\{") for token in element[:at]
        )
        for sign in "+-" if is_one else "":
            result += [_COMMA, *element[:at], Token(TokenKind.SYMBOL, sign), *element[at + 1 :]]
        result += [] if is_one else [_COMMA, *element]
    return result[1:]


def _is_calculation(tokens: Sequence[Token]) -> bool:
    r"""Whether this is one equation of numbers, such as \binom{10}{3} = 120."""
    if not any(token.text == "=" for token in tokens):
        return False
    (sides, relations), *others = elements_of(tokens)
    return not others and relations == {"="} and all(map(_is_constant, sides))


def _has_relation(tokens: Sequence[Token]) -> bool:
    return any(relations for _, relations in elements_of(tokens))


def _named_values(tokens: list[Token]) -> tuple[list[Token], list[Token]]:
    """The name and the values of f(1) = 3; f(1) = 3, f(1) = 5; f(1) = 3, 5. No name and `tokens` for any other."""
    if not any(token.text == "=" for token in tokens) or contradicts_itself(tokens):
        return [], tokens
    name: list[Token] = []
    values: list[Token] = []
    for sides, relations in elements_of(tokens):
        if relations == {"="}:
            is_turned = len(sides) == 2 and not names_a_value(sides[0]) and names_a_value(sides[1])
            own, value = (sides[1], sides[0]) if is_turned else (sides[0], sides[-1])
            if (values and own != name) or not names_a_value(own) or head_recurs(own, value):
                return [], tokens
            name = own
        else:
            value = sides[0]
            if relations or not name:
                return [], tokens
        values += [Token(TokenKind.SYMBOL, ","), *value] if values else value
    return name, values


def _stated_value(tokens: list[Token]) -> list[Token]:
    r"""The last side of \lim a_n = 1 and 17 \bmod 5 = 2, which state what an operation comes to; all of any other."""
    if not any(token.text == "=" for token in tokens):
        return tokens
    elements = elements_of(tokens)
    sides, relations = elements[0]
    operations = operations_in(sides[0])
    if len(elements) > 1 or relations != {"="} or not operations:
        return tokens
    if operations & _OF_FUNCTIONS or (
        _is_constant(sides[-1]) and not (operations & _OF_INTEGERS and any(map(_is_unknown, sides[0])))
    ):
        return sides[-1]
    return tokens


def _is_unknown(token: Token) -> bool:
    return token.is_letter and token.text in "xyzt"


_DERIVATIVE = "frac{d}{d"


def value_sides(sides: list[Side], relations: set[str]) -> list[Side]:
    """The last side of an equation, the first where the last is a name; all sides of an inequality."""
    if not relations <= {"=", "approx", "in", "equiv"}:
        return sides
    return [sides[0] if len(sides) > 1 and _is_name(sides[-1]) else sides[-1]]


def elements_of(tokens: Sequence[Token]) -> list[tuple[list[Side], set[str]]]:
    """The sides and the relations of each element of a list; what brackets enclose is left whole."""
    elements: list[tuple[list[Side], set[str]]] = [([[]], set())]
    depth = 0
    for token in tokens:
        depth += token.depth
        sides, relations = elements[-1]
        if depth == 0 and token.is_symbol(",", ";"):
            elements.append(([[]], set()))
        elif depth == 0 and token.kind in (TokenKind.SYMBOL, TokenKind.COMMAND) and token.text in _RELATIONS:
            relations.add(token.text)
            sides.append([])
        else:
            sides[-1].append(token)
    return elements


def _is_plain(element: tuple[list[Side], set[str]]) -> bool:
    """Whether this is a value, an interval, or a relation of names and constants."""
    sides, _ = element
    return len(sides) == 1 or all(_is_name(side) or _is_constant(side) for side in sides)


def _is_unsolved(element: tuple[list[Side], set[str]]) -> bool:
    if _is_plain(element):
        return False
    sides, relations = element
    if relations == {"="} and is_asked_for(sides[0]) and all(map(_is_constant, sides[1:])):
        return False
    if relations != {"="} or not _is_name(sides[0]):
        return True
    # y = 2x + 3 gives y, x = 2x - 5 does not give x. Of AB = 2 BC, B is no name.
    name = sides[0][0]
    is_single = len(sides[0]) == 1 or sides[0][1].is_symbol("_", "(")
    return is_single and any(name in side for side in sides[1:])


def _is_name(side: Side) -> bool:
    r"""x, x_1, f(2), AB, \angle ABC, (x, y), words."""
    if side and (side[0].is_symbol("[", r"\{") or side[0] in side[1:2]):
        return False  # the whole or the other part of x, and xx
    depth = 0
    has_name = False
    for before, token in pairwise((None, *side)):
        assert token is not None
        depth += token.is_symbol("(", "{") - token.is_symbol(")", "}")
        is_negative = token.is_symbol("-") and before is not None and before.is_symbol("(", ",", "{")
        if token.is_letter or token.is_text or token.text in _NAMING:
            has_name = True
        elif not (token.is_symbol(*_NAME_SYMBOLS) or (depth > 0 and (token.is_number or is_negative))):
            return False
    return has_name


def _is_constant(side: Side) -> bool:
    r"""Whether no variable is in it; \pi, e and i are none."""
    letters = {token.text for token in side if token.is_letter}
    return bool(side) and letters <= NUMBER_LETTERS and not any(token.text in _NAMING for token in side)
