r"""The tokens of an answer in one spelling: braces that TeX lets one leave out, angles in one unit, no units.

`answer_tokens` writes the braces of \frac12, \sqrt2 and x^2, and drops units after a value (5 \text{ cm}^2,
\sqrt{2} \text{ m/s}). A unit that differs is not noticed, as with plain numbers: the question names it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from math_answers.latex_tokens import (
    CLOSE,
    DEGREE,
    FRACTION,
    LINE_BREAK,
    OPEN,
    SHORT_UNITS,
    TRIGONOMETRIC,
    Token,
    TokenKind,
    tokens_of,
)
from math_answers.text import word_set

# ----- braces that were left out

_ARGUMENTS = {"frac": 2, "binom": 2, "sqrt": 1}


@dataclass(slots=True)
class _Level:
    """An open brace. owed: arguments still to come. one_digit: whether each takes one digit only. added: whether the
    brace was not typed, so that it closes as soon as nothing is owed any more. parentheses: how many are open, of a
    brace that stands for a parenthesis."""

    owed: int = 0
    one_digit: bool = False
    added: bool = False
    parentheses: int = 0


def spelled_out(tokens: Sequence[Token]) -> list[Token]:
    r"""`tokens` with braces around every argument of \frac, \binom, \sqrt, ^ and _ that is typed without.

    \frac12 takes one digit per argument, as TeX does; \sqrt13, x^10 and 5_12 take the whole number, and \sqrt(x) and
    2^(x) the parenthesis, as their writers mean it.
    """
    pending = list(reversed(tokens))
    result: list[Token] = []
    levels = [_Level()]
    while pending:
        token = pending.pop()
        level = levels[-1]
        if level.owed and not token.is_symbol("{", "}", "(", "["):
            level.owed -= 1
            if token.is_command and token.text in _ARGUMENTS:  # x^\frac12
                levels.append(_Level(added=True))
                result.append(OPEN)
                _owe(levels[-1], token)
                result.append(token)
            else:
                result += [OPEN, *_argument(token, pending, level.one_digit), CLOSE]
        elif level.owed and not level.one_digit and token.is_symbol("("):
            level.owed = 0
            levels.append(_Level(parentheses=1))
            result.append(OPEN)
        elif level.parentheses == 1 and token.is_symbol(")"):
            levels.pop()
            result.append(CLOSE)
        else:
            result.append(token)
            if level.parentheses:
                level.parentheses += token.is_symbol("(") - token.is_symbol(")")
            if token.is_symbol("{"):
                level.owed = max(level.owed - 1, 0)
                levels.append(_Level())
            elif token.is_symbol("}") and len(levels) > 1:
                levels.pop()
            else:
                _owe(level, token)
                if token.is_symbol("^") and len(result) > 1 and result[-2].text in TRIGONOMETRIC:
                    level.one_digit = True  # \sin^220^\circ
        while levels[-1].added and not levels[-1].owed:
            result.append(CLOSE)
            levels.pop()
    return result


def _owe(level: _Level, token: Token) -> None:
    """Notes how many arguments follow `token`."""
    takes_script = token.is_symbol("^", "_")
    level.owed = _ARGUMENTS.get(token.text, 0) if token.is_command else int(takes_script)
    level.one_digit = token.is_command and token.text != "sqrt"


def _argument(token: Token, pending: list[Token], one_digit: bool) -> list[Token]:
    if one_digit and token.is_number and token.text[0] != "." and len(token.text) > 1:
        pending.append(Token(TokenKind.NUMBER, token.text[1:]))
        return [Token(TokenKind.NUMBER, token.text[0])]
    if token.is_symbol("-", "+") and pending and pending[-1].is_number:
        return [token, pending.pop()]  # 10^-3, which nobody means as 10^{-}3
    return [token]


_MAY_BE_DEGREES = re.compile(r"[°º˚度]|circ|deg|\^[\s{]{0,3}o", re.IGNORECASE)
_DEGREE_WORDS = frozenset(("degree", "degrees", "deg", "度"))


# ----- angles

_ARGUMENT_ENDS = ("+", "-", ",", ";", "=", "<", ">", ":", "&", LINE_BREAK)
_WRITTEN_ANGLE = re.compile(
    r"(?P<whole>[0-9]{0,9}(?:\.[0-9]{1,20})?)(?:frac\{(?P<top>[0-9]{1,20})\}\{(?P<bottom>0{0,9}[1-9][0-9]{0,9})\})?"
)


def _with_angles(tokens: Sequence[Token], *, in_radians: bool) -> list[Token]:
    r"""`tokens` without degree signs: within the argument of a sine and its kin radians, as in \sin\frac{7\pi}{18},
    elsewhere the number of degrees, unless `in_radians`."""
    result: list[Token] = []
    in_function = [False]  # per open bracket
    was_sign = False
    for token in tokens:
        is_word = token.is_text and token.text.lower() in _DEGREE_WORDS
        if token.text == DEGREE or (is_word and result and _ends_value(result[-1])):
            if result and not was_sign and (in_function[-1] or in_radians):
                start = _start_of_value(result)
                result[start:] = _radians(result[start:])
            was_sign = True
            continue
        was_sign = False
        if token.is_command and token.text in TRIGONOMETRIC:
            in_function[-1] = True
        elif token.depth > 0:
            in_function.append(in_function[-1])
        elif token.depth < 0:
            in_function = in_function[:-1] or [False]
        elif token.is_symbol(*_ARGUMENT_ENDS) and not (result and result[-1].text in TRIGONOMETRIC):
            in_function[-1] = False
        result.append(token)
    return result


def _start_of_value(tokens: Sequence[Token]) -> int:
    """Where the last value starts: a bracket, a fraction with the number before it, or the last token."""
    start = _opening_of(tokens, len(tokens) - 1)
    if start > 3 and tokens[start].is_symbol("{") and tokens[start - 1].is_symbol("}"):
        top = _opening_of(tokens, start - 1)
        if top and tokens[top - 1] == FRACTION:
            return top - 1 - (top > 1 and tokens[top - 2].is_number)
    return start


def _opening_of(tokens: Sequence[Token], end: int) -> int:
    depth = 0
    for at in range(end, -1, -1):
        depth -= tokens[at].depth
        if depth <= 0:
            return at
    return 0


def _radians(degrees: list[Token]) -> list[Token]:
    half_turn = "180"
    written = _WRITTEN_ANGLE.fullmatch("".join(token.text for token in degrees))
    if written is not None:
        value = Fraction(written["whole"] or 0) + Fraction(int(written["top"] or 0), int(written["bottom"] or 1))
        angle = value / 180
        if angle == 0:
            return degrees
        degrees = [Token(TokenKind.NUMBER, str(angle.numerator))] if angle.numerator > 1 else []
        half_turn = str(angle.denominator)
    return [
        FRACTION,
        OPEN,
        *degrees,
        Token(TokenKind.COMMAND, "pi"),
        CLOSE,
        OPEN,
        Token(TokenKind.NUMBER, half_turn),
        CLOSE,
    ]


# ----- units

# Words that say more than a unit does.
_VOWEL = re.compile(r"[aeiou]|[^\x00-\x7f]")  # xyzw is a product
_DENIALS = frozenset(("wrong", "incorrect", "false", "maybe", "cannot"))
_POWERS = frozenset(("squared", "cubed"))
_TELLING_WORDS = word_set(
    "or and not if no when for with base mod remainder hundred thousand million billion trillion dozen hundreds "
    "thousands millions dozens tenths hundredths thousandths halves doubled tripled halved am pm a.m p.m a.m. p.m. is "
    "are times plus minus over to than least most less more lakh lakhs crore crores factorial"
)
_TELLING_CHARACTERS = frozenset("或不十百千万亿半")  # or, not, ten, hundred, ..., half
_ELEMENT_ENDS = (",", ";", "&", LINE_BREAK, ")", "]", r"\}", "}")
_VALUE_ENDS = (")", "]", r"\}", "}", "%", "!", "|")


def _without_units(tokens: Sequence[Token]) -> list[Token]:
    """`tokens` without the units."""
    result: list[Token] = []
    at = 0
    has_quantity = False  # "an ellipse" is no number of ellipses
    while at < len(tokens):
        length = _unit_length(tokens, at) if has_quantity and _ends_value(result[-1]) else 0
        if not length:
            result.append(tokens[at])
            has_quantity = has_quantity or tokens[at].kind in (TokenKind.NUMBER, TokenKind.COMMAND)
        at += max(length, 1)
    return result


def denies(text: str, *, is_first: bool) -> bool:
    """Whether words after a value say that it is another one or none. is_first: whether they stand right after it,
    as those of "5 squared" do and those of "5 cm squared" do not."""
    words = text.lower().split()
    return bool(_DENIALS & set(words)) or (is_first and bool(words) and words[0] in _POWERS)


def _ends_value(token: Token) -> bool:
    return token.kind in (TokenKind.NUMBER, TokenKind.LETTER, TokenKind.COMMAND) or token.is_symbol(*_VALUE_ENDS)


def _unit_length(tokens: Sequence[Token], start: int) -> int:
    """Number of tokens from `start` on that are the unit at the end of an element; 0 if there is none."""
    at = start
    if tokens[start].is_symbol("("):  # (hours)
        end = next((i for i in range(start + 1, len(tokens)) if not tokens[i].is_text), start)
        inside = _unit_length(tokens[:end], start + 1) if end > start + 1 and tokens[end].is_symbol(")") else 0
        are_words = all(token.text in SHORT_UNITS or _VOWEL.search(token.text) for token in tokens[start + 1 : end])
        return inside + 2 if inside and are_words else 0
    while at < len(tokens):
        token = tokens[at]
        if token.is_text:
            if _TELLING_WORDS & set(token.text.lower().split()) or _TELLING_CHARACTERS & set(token.text):
                return 0
            if denies(token.text, is_first=at == start):
                return 0
            at += 1
        elif at > start and token.is_symbol("^") and (length := _script_length(tokens, at + 1)):
            at += 1 + length
        elif at > start and token.is_symbol("/", "*", "."):
            at += 1
        else:
            break
    ends = at == len(tokens) or tokens[at].is_symbol(*_ELEMENT_ENDS)
    return at - start if ends else 0


def _script_length(tokens: Sequence[Token], at: int) -> int:
    """Tokens of {2} or {-1} at `at`; 0 if there is neither."""
    texts = [token.text for token in tokens[at : at + 4]]
    length = 4 if texts[1:2] == ["-"] else 3
    return length if texts[:1] == ["{"] and texts[length - 1 : length] == ["}"] else 0


# ----- an answer

_EDGES = (".", ",", ";", ":", "?", "'", '"', "`", "!")
_EDGES_BEFORE = (",", ";", ":", "=", '"', "`")
_ABOUT = (Token(TokenKind.COMMAND, "sim"), Token(TokenKind.COMMAND, "thicksim"), Token(TokenKind.COMMAND, "cong"))


def answer_tokens(text: str, *, in_radians: bool = False) -> list[Token]:
    """The tokens of an answer, spelled out, without units and without punctuation at its edges.

    in_radians: whether degrees that stand outside a function are written as multiples of pi, too.
    """
    tokens = tokens_of(text)
    start, end = 0, len(tokens)
    while start < end and (tokens[start].is_symbol(*_EDGES_BEFORE) or tokens[start] in _ABOUT):
        start += 1
    while end > start and tokens[end - 1].is_symbol(*_EDGES) and not _is_mathematical(tokens, end - 1):
        end -= 1
    spelled = spelled_out(_without_repeats(tokens[start:end]))
    has_degrees = _MAY_BE_DEGREES.search(text) is not None
    return _without_units(_with_angles(spelled, in_radians=in_radians) if has_degrees else spelled)


def tokens_of_pair(answer: str, gold: str) -> list[list[Token]]:
    r"""`answer_tokens` of both; of an angle in degrees and one in multiples of \pi both in radians."""
    pair = [answer_tokens(answer), answer_tokens(gold)]
    if not (_MAY_BE_DEGREES.search(answer) or _MAY_BE_DEGREES.search(gold)):
        return pair
    have_pi = [any(token.text == "pi" for token in tokens) for tokens in pair]
    if have_pi[0] != have_pi[1]:
        turned = [answer_tokens(text, in_radians=True) for text in (answer, gold)]
        have_degrees = [tokens != others for tokens, others in zip(turned, pair, strict=True)]
        if have_degrees == [not has_pi for has_pi in have_pi]:
            return turned
    return pair


def _without_repeats(tokens: list[Token]) -> list[Token]:
    r"""`tokens` with one of the two separators of "3, 5, and 7", and no line break after the last row of a matrix."""
    kept: list[Token] = []
    for token in tokens:
        repeats_comma = token.is_symbol(",") and bool(kept) and kept[-1].is_symbol(",")
        if kept and kept[-1].is_symbol(LINE_BREAK) and token.text.startswith("end{"):
            kept.pop()
        if not repeats_comma:
            kept.append(token)
    return kept


def _is_mathematical(tokens: list[Token], index: int) -> bool:
    """Whether the ! of 5! and the ' of f' belong to what stands before them."""
    return tokens[index].is_symbol("!", "'") and index > 0 and not tokens[index - 1].is_symbol("!", ".", ",")
