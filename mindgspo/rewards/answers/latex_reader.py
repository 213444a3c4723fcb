r"""Recursive descent over LaTeX tokens to canonical text: lists, relations, sums and products.

What enters: spelled-out tokens. What leaves: `Element`s. Called by `latex`. Whatever cannot be read without guessing
(1/2x, x2, a bracket that never closes, absurd nesting) raises Unreadable: the expression has no normal form.

    elements   relation (, relation)*            sum    term (+ term)*
    relation   sum (= sum)*                      term   factor ([* /] factor)*      factor: see latex_factors
"""

from __future__ import annotations

from collections.abc import Sequence

from mindgspo.rewards.answers.latex_cursor import CLOSERS, Element, is_name
from mindgspo.rewards.answers.latex_factors import FactorReader
from mindgspo.rewards.answers.latex_terms import (
    PLUS_MINUS,
    Sum,
    Term,
    TermBuilder,
    Unreadable,
    flattened,
    sum_text,
    with_sign,
)
from mindgspo.rewards.answers.latex_tokens import Kind

_MIRRORED = {">": "<", "ge": "le"}
_UNORDERED = frozenset(("cup", "cap", "="))


class Reader(FactorReader):
    """Reads one expression."""

    def read(self) -> list[Element]:
        """All elements of the expression, to its end. Raises Unreadable."""
        elements = self._elements()
        if self._peek() is not None or not elements:
            raise Unreadable
        return elements

    def _elements(self) -> list[Element]:
        elements = []
        while self._peek() is not None and not self._is(*CLOSERS):
            if self._is(",", ";"):
                self._at += 1
                continue
            elements.append(self._element())
            if self._peek() is not None and not self._is(",", ";", *CLOSERS):
                raise Unreadable
        return elements

    def _element(self) -> Element:
        sides = [self._sum()]
        relations: list[str] = []
        while (relation := self._relation()) is not None:
            self._at += 1
            relations.append(relation)
            sides.append(self._sum())
        if not relations:
            return _of_sum(sides[0], None)
        if relations == ["in"] or set(relations) == {"="}:
            # Of "x = 2 + 3 = 5" the last side is the answer; "5 = x" says the same as "x = 5".
            turned = len(sides) == 2 and relations == ["="] and not is_name(sides[0])
            named, value = (sides[-1], sides[0]) if turned else (sides[0], sides[-1])
            if is_name(named) and not is_name(value):
                return _of_sum(value, sum_text(named))
        return _of_relation(sides, relations)

    def _sum(self) -> Sum:
        terms = [self._term()]
        while self._is("+", "-") or self._is_command("pm"):
            terms.append(self._term())
        return flattened(terms)

    def _term(self) -> Term:
        sign, is_unsure = 1, False
        while self._is("+", "-") or self._is_command("pm"):
            token = self._take()
            is_unsure = is_unsure or token.kind is Kind.COMMAND
            sign = -sign if token.text == "-" else sign
        product = TermBuilder(sign)
        self._product(product)
        return with_sign(product.done(), 0) if is_unsure else product.done()

    def _product(self, product: TermBuilder, *, up_to_operator: bool = False) -> None:
        operator = ""
        may_follow = True
        while not self._ends_term(is_empty=product.is_empty or bool(operator)):
            if self._is("*", "/"):
                if up_to_operator and not product.is_empty:
                    return
                if operator or product.is_empty:
                    raise Unreadable
                operator = self._take().text
                continue
            is_juxtaposed = not product.is_empty and not operator
            token = self._peek()
            if is_juxtaposed and (not may_follow or (token is not None and token.kind is Kind.NUMBER)):
                raise Unreadable  # 1/2x, x2, two numbers in a row
            found = self._factor(self._tokens[self._at - 1] if is_juxtaposed else None)
            if operator == "/":
                product.divide(found)
            else:
                product.multiply(found)
            may_follow = operator != "/"
            operator = ""
        if operator or product.is_empty:
            raise Unreadable


def _of_sum(terms: Sum, name: str | None) -> Element:
    """An answer that is a value; one plus-minus in it makes it two."""
    unsure = [index for index, term in enumerate(terms) if term.sign == 0]
    if len(unsure) == 1 and sum_text(terms).count(PLUS_MINUS) == 1:
        index = unsure[0]
        both = [(*terms[:index], with_sign(terms[index], sign), *terms[index + 1 :]) for sign in (1, -1)]
        return Element(name, tuple(map(sum_text, both)), terms)
    return Element(name, (sum_text(terms),), terms)


def _of_relation(sides: Sequence[Sum], relations: Sequence[str]) -> Element:
    """a < b < c, in the direction of "less"; the sides of equations and of unions in alphabetical order."""
    texts = list(map(sum_text, sides))
    signs = list(relations)
    if all(sign in _MIRRORED for sign in signs):
        texts.reverse()
        signs = [_MIRRORED[sign] for sign in reversed(signs)]
    elif len(set(signs)) == 1 and signs[0] in _UNORDERED:
        texts.sort()
    chain = texts[0] + "".join(f" {sign} {text}" for sign, text in zip(signs, texts[1:], strict=True))
    return Element(None, (f"relation({chain})",), None)
