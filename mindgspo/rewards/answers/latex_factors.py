r"""Factors of a product: numbers, letters, brackets, fractions, roots, matrices, functions, and scripts behind them.

What enters: tokens, from `latex_reader`, which reads the sums within. What leaves: `Term`s. Whatever would have to be
guessed raises Unreadable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction

from mindgspo.rewards.answers.latex_cursor import CONSTANTS, Cursor, Element, set_text
from mindgspo.rewards.answers.latex_terms import (
    PLUS_MINUS,
    Sum,
    Term,
    TermBuilder,
    Unreadable,
    as_factor,
    factor,
    number,
    parenthesis,
    sum_text,
)
from mindgspo.rewards.answers.latex_tokens import LINE_BREAK, Kind, Token
from mindgspo.rewards.answers.number import MAX_DIGITS

MAX_DEPTH = 30
"""Brackets within brackets."""

_CLOSING = {"(": (")", "]"), "[": (")", "]"), r"\{": (r"\}",)}  # (3, 4] is an interval
_MATRICES = {"pmatrix": "matrix", "vmatrix": "determinant"}


class FactorReader(Cursor, ABC):
    """The half of the recursive descent below products."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        super().__init__(tokens)
        self._depth = 0

    @abstractmethod
    def _elements(self) -> list[Element]:
        """Reads up to a closing bracket or the end."""

    @abstractmethod
    def _sum(self) -> Sum:
        """Reads up to a relation, a separator, a closing bracket or the end."""

    @abstractmethod
    def _product(self, product: TermBuilder, *, up_to_operator: bool = False) -> None:
        """Reads factors into `product`, up to the end of the term, or up to the first * or /."""

    def _factor(self, follows: Token | None) -> Term:
        """One factor. follows: the token right before it, None after an operator or at the start of a term."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable
        found = self._with_postfixes(self._atom(follows))
        self._depth -= 1
        return found

    def _with_postfixes(self, base: Term) -> Term:
        while self._is("^", "_", "!", "'", "%"):
            mark = self._take().text
            if mark == "%":
                return Term(base.sign, base.coefficient, (*base.factors, "%"), base.divisors)
            script = f"{{{self._group()}}}" if mark in ("^", "_") else ""
            base = factor(f"{base.base_text}{mark}{script}", commutes=base.commutes)
        return base

    def _atom(self, follows: Token | None) -> Term:
        token = self._take()
        if token.kind is Kind.NUMBER:
            return self._number(token.text)
        if token.kind is Kind.LETTER:
            return factor(token.text)
        if token.kind is Kind.TEXT:
            return factor(f"text[{' '.join(token.text.lower().split())}]", commutes=False)
        if token.kind is Kind.COMMAND:
            return self._command(token.text)
        if token.text in _CLOSING:
            return self._bracket(token.text, follows)
        if token.text == "{":
            terms = self._enclosed_sum()
            self._expect("}")
            return as_factor(terms)
        if token.text == "|":
            return self._absolute_value()
        raise Unreadable

    # -- numbers --------------------------------------------------------------------------------------------------

    def _number(self, literal: str) -> Term:
        if len(literal) > MAX_DIGITS:
            return factor(f"number[{literal.lstrip('0')}]")
        value = Fraction(literal)
        return number(value if "." in literal else value + self._fraction_of_mixed_number())

    def _fraction_of_mixed_number(self) -> Fraction:
        r"""Reads the 1/2 of 3\frac{1}{2} or 3 1/2, if that comes next."""
        ahead = [token.text for token in self._tokens[self._at : self._at + 7]]
        if self._is_command("frac") and len(ahead) == 7 and ahead[1] + ahead[3] + ahead[4] + ahead[6] == "{}{}":
            top, bottom, length = ahead[2], ahead[5], 7
        elif self._is("/", ahead=1) and len(ahead) > 2:
            top, bottom, length = ahead[0], ahead[2], 3
        else:
            return Fraction(0)
        is_fraction = top.isdigit() and bottom.isdigit() and len(top + bottom) <= MAX_DIGITS and int(bottom) > 0
        self._at += length if is_fraction else 0
        return Fraction(int(top), int(bottom)) if is_fraction else Fraction(0)

    # -- brackets -------------------------------------------------------------------------------------------------

    def _group(self) -> str:
        """The canonical text of a sum in braces."""
        self._expect("{")
        terms = self._enclosed_sum()
        self._expect("}")
        return sum_text(terms)

    def _enclosed_sum(self) -> Sum:
        bars, self._in_bars = self._in_bars, False
        terms = self._sum()
        self._in_bars = bars
        return terms

    def _absolute_value(self) -> Term:
        bars, self._in_bars = self._in_bars, True
        text = sum_text(self._sum())
        self._in_bars = bars
        self._expect("|")
        return factor(f"|{text}|")

    def _bracket(self, opening: str, follows: Token | None) -> Term:
        bars, self._in_bars = self._in_bars, False
        elements = self._elements()
        self._in_bars = bars
        closing = self._expect(*_CLOSING[opening])
        if opening == r"\{":
            return _set(elements)
        if len(elements) == 1 and opening + closing in ("()", "[]"):
            terms = elements[0].terms
            if terms is None:
                raise Unreadable  # a relation in parentheses
            # f(x), \sin(x) and x(2) are left alone; so is what an exponent refers to.
            is_argument = follows is not None and follows.kind in (Kind.LETTER, Kind.TEXT)
            is_base = self._is("^", "_", "!", "'")
            return parenthesis(terms) if is_argument or is_base else as_factor(terms)
        parts = [f" {PLUS_MINUS} ".join(element.full_texts) for element in elements]
        return factor(f"tuple{opening}{'; '.join(parts)}{closing}", commutes=False)

    # -- commands -------------------------------------------------------------------------------------------------

    def _command(self, name: str) -> Term:
        if name == "frac":
            return self._fraction()
        if name == "sqrt":
            return self._root()
        if name in CONSTANTS:
            return factor(f"\\{name}")
        if name.startswith("begin{"):
            return self._matrix(name[6:-1])
        if name.startswith("end{"):
            raise Unreadable
        return self._other(name)

    def _fraction(self) -> Term:
        quotient = TermBuilder(1)
        for take in (quotient.multiply, quotient.divide):
            self._expect("{")
            take(as_factor(self._enclosed_sum()))
            self._expect("}")
        return quotient.done()

    def _root(self) -> Term:
        index = ""
        if self._is("["):
            self._at += 1
            index = sum_text(self._enclosed_sum())
            self._expect("]")
        return factor(f"root[{index}]{{{self._group()}}}")

    def _matrix(self, environment: str) -> Term:
        if environment not in _MATRICES:
            raise Unreadable
        end = f"end{{{environment}}}"
        rows: list[str] = []
        cells: list[str] = []
        while not (self._is_command(end) and not cells):
            cells.append(sum_text(self._enclosed_sum()))
            if self._is("&"):
                self._at += 1
                continue
            rows.append(" & ".join(cells))
            cells = []
            if not self._is_command(end):
                self._expect(LINE_BREAK)
        self._at += 1
        return factor(f"{_MATRICES[environment]}[{' // '.join(rows)}]", commutes=False)

    def _other(self, name: str) -> Term:
        r"""A function, an accent, anything unknown: it takes all that follows without an operator, as \sin 2x does."""
        text = f"\\{name}"
        while self._is("{", "^", "_", "'"):
            mark = "" if self._is("{") else self._take().text
            text += mark if mark == "'" else f"{mark}{{{self._group()}}}"
        if self._ends_term(is_empty=False) or self._is("*", "/"):
            return factor(text, commutes=False)
        argument = TermBuilder(1)
        if self._is("("):
            argument.multiply(self._bracket(self._take().text, None))  # and no further: \sin(x)y is not \sin(xy)
            if self._is("^"):
                raise Unreadable  # \sin(x)^2
        else:
            self._product(argument, up_to_operator=True)
            if self._is("*", "/"):
                raise Unreadable  # \sin x/2
        return factor(f"{text}[{argument.done().text}]", commutes=False)


def _set(elements: Sequence[Element]) -> Term:
    """A set; of one element, the element itself."""
    if not elements:
        return factor(r"\emptyset")
    if len(elements) == 1 and elements[0].terms is not None and len(elements[0].texts) == 1:
        return as_factor(elements[0].terms)
    return factor(set_text(elements), commutes=False)
