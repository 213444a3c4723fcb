r"""Tokens with all braces in place, and written down again for a symbolic parser.

What enters: tokens. What leaves: tokens with the braces that TeX lets one leave out (\frac12, \sqrt2, x^2), or LaTeX
that is safe to hand to a parser. Called by `latex`, `equivalence` and the math-verify task.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mindgspo.rewards.answers.latex_tokens import LINE_BREAK, Kind, Token

_ARGUMENTS = {"frac": 2, "binom": 2, "sqrt": 1}
_OPEN, _CLOSE = Token(Kind.SYMBOL, "{"), Token(Kind.SYMBOL, "}")


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
            if token.kind is Kind.COMMAND and token.text in _ARGUMENTS:  # x^\frac12
                levels.append(_Level(added=True))
                result.append(_OPEN)
                _owe(levels[-1], token)
                result.append(token)
            else:
                result += [_OPEN, *_argument(token, pending, level.one_digit), _CLOSE]
        elif level.owed and not level.one_digit and token.is_symbol("("):
            level.owed = 0
            levels.append(_Level(parentheses=1))
            result.append(_OPEN)
        elif level.parentheses == 1 and token.is_symbol(")"):
            levels.pop()
            result.append(_CLOSE)
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
        while levels[-1].added and not levels[-1].owed:
            result.append(_CLOSE)
            levels.pop()
    return result


def _owe(level: _Level, token: Token) -> None:
    """Notes how many arguments follow `token`."""
    takes_script = token.is_symbol("^", "_")
    level.owed = _ARGUMENTS.get(token.text, 0) if token.kind is Kind.COMMAND else int(takes_script)
    level.one_digit = token.kind is Kind.COMMAND and token.text != "sqrt"


def _argument(token: Token, pending: list[Token], one_digit: bool) -> list[Token]:
    if one_digit and token.kind is Kind.NUMBER and token.text[0] != "." and len(token.text) > 1:
        pending.append(Token(Kind.NUMBER, token.text[1:]))
        return [Token(Kind.NUMBER, token.text[0])]
    if token.is_symbol("-", "+") and pending and pending[-1].kind is Kind.NUMBER:
        return [token, pending.pop()]  # 10^-3, which nobody means as 10^{-}3
    return [token]


_SAFE_WORD = re.compile(r"[^A-Za-z]")
_SAFE_SYMBOLS = frozenset("+-*/^_=<>()[]{}|!,;:'&%") | {r"\{", r"\}", r"\|", LINE_BREAK}


def safe_latex(tokens: Sequence[Token]) -> str | None:
    """LaTeX of spelled-out `tokens` for a symbolic parser; None where one of them has no place in a formula.

    Whatever the parser does with names, these are letters only: no quotes, dots, underscores or calls survive. Products
    of numbers get their dot, because the parser takes 2(3) for the mixed number 2 + 3; so 2 3 has no place either.
    """
    written: list[str] = []
    scripts: list[bool] = []  # per open brace, whether it is a script
    before, is_operand = None, False
    for token in tokens:
        text = _safe(token)
        if text is None or (before is not None and before.kind is token.kind is Kind.NUMBER):
            return None
        if token.is_symbol("'") and (before is None or before.kind is not Kind.LETTER):
            return None  # a quotation mark rather than the prime of f'
        is_mixed = before is not None and before.kind is Kind.NUMBER and token == _FRACTION
        if is_operand and not is_mixed and (token.is_symbol("(") or token.kind is Kind.NUMBER or token == _FRACTION):
            written.append(r"\cdot")
        written.append(text)
        is_operand = token.kind is Kind.NUMBER or token.is_symbol(")")
        if token.is_symbol("{"):
            scripts.append(before is not None and before.is_symbol("^", "_"))
        elif token.is_symbol("}"):
            # Within \frac{1}{2} no number can follow, and behind \log_{2} none is a factor.
            is_operand = not (scripts and scripts.pop())
        before = token
    return " ".join(text for text in written if text)


_FRACTION = Token(Kind.COMMAND, "frac")


def _safe(token: Token) -> str | None:
    if token.kind is Kind.SYMBOL:
        if token.text == "%":
            return r"\%"
        return token.text if token.text in _SAFE_SYMBOLS else None
    if token.kind is Kind.TEXT:
        if not token.text.isascii():
            return None
        word = _SAFE_WORD.sub("", token.text)
        return rf"\text{{{word}}}" if word else ""
    return "\\" + token.text if token.kind is Kind.COMMAND else token.text
