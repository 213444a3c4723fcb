"""Products and sums as `latex` reads them: exact rational coefficients, everything else as canonical text.

What enters: factors one by one. What leaves: text that is equal for equal products and sums however they were typed:
-x/2, (-1/2)x and x(-1)/2; p - q and -q + p. Nothing is multiplied out, and no root is simplified: that is the symbolic
comparison's work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

PLUS_MINUS = "\u00b1"

Sum = tuple["Term", ...]


class Unreadable(Exception):  # noqa: N818  (not an error: the text has no normal form)
    """The text is not an expression that can be read without guessing."""


@dataclass(frozen=True, slots=True)
class Term:
    """coefficient * factors / divisors, added or subtracted.

    sign: +1, -1, or 0 for plus-minus. coefficient: >= 0. commutes: whether the order of the factors says nothing.
    inner: the sum, of a term that is nothing but a parenthesis.
    """

    sign: int
    coefficient: Fraction
    factors: tuple[str, ...] = ()
    divisors: tuple[str, ...] = ()
    commutes: bool = True
    inner: Sum | None = None

    @property
    def value(self) -> Fraction | None:
        """The number that this is, if it is one."""
        return self.sign * self.coefficient if self.sign and not self.factors and not self.divisors else None

    @property
    def text(self) -> str:
        """Canonical text."""
        # "CAB" may be an order of things and not a product, so plain letters stay as they were typed.
        may_sort = self.commutes and not all(len(factor) == 1 for factor in self.factors)
        factors = sorted(self.factors) if may_sort else self.factors
        divided = f" / {' '.join(sorted(self.divisors))}" if self.divisors else ""
        shows_number = self.coefficient != 1 or not self.factors
        number = f"{self.coefficient} " if shows_number else ""
        sign = {1: "+", -1: "-", 0: PLUS_MINUS}[self.sign]
        return f"{sign}{number}{' '.join(factors)}{divided}".rstrip()

    @property
    def base_text(self) -> str:
        """What a script is written behind: a lone letter, number or bracket as it is, all else in parentheses."""
        if self.sign == 1 and not self.divisors:
            if len(self.factors) == 1 and self.coefficient == 1:
                return self.factors[0]
            if not self.factors and self.coefficient.denominator == 1:
                return str(self.coefficient)
        return f"({self.text})"


def sum_text(terms: Sum) -> str:
    """Canonical text of a sum."""
    return " ".join(sorted(term.text for term in terms))


def sum_value(terms: Sum) -> Fraction | None:
    """The number that a sum of one term is, if it is one."""
    return terms[0].value if len(terms) == 1 else None


def flattened(terms: Sequence[Term]) -> Sum:
    """a - (b - c) as a - b + c."""
    result: list[Term] = []
    for term in terms:
        if term.inner is None or term.sign == 0 or any(part.sign == 0 for part in term.inner):
            result.append(term)
        else:
            result += [with_sign(part, part.sign * term.sign) for part in term.inner]
    return tuple(result)


def with_sign(term: Term, sign: int) -> Term:
    """The same product with another sign."""
    inner = term.inner if sign == term.sign else None
    return Term(sign, term.coefficient, term.factors, term.divisors, term.commutes, inner)


@dataclass(slots=True)
class TermBuilder:
    """A product that grows factor by factor."""

    sign: int
    coefficient: Fraction = Fraction(1)
    factors: list[str] = field(default_factory=list)
    divisors: list[str] = field(default_factory=list)
    commutes: bool = True
    inner: Sum | None = None
    is_empty: bool = True

    def multiply(self, other: Term) -> None:
        """Times `other`, whose plus-minus cannot be pulled out of a product."""
        self._take_sign(other)
        self.coefficient *= other.coefficient
        self.factors += other.factors
        self.divisors += other.divisors
        self._note(other)

    def divide(self, other: Term) -> None:
        """By `other`. Raises Unreadable for zero."""
        if other.coefficient == 0:
            raise Unreadable
        self._take_sign(other)
        self.coefficient /= other.coefficient
        self.factors += other.divisors
        self.divisors += other.factors
        self._note(other)

    def _take_sign(self, other: Term) -> None:
        if other.sign == 0:
            raise Unreadable
        self.sign *= other.sign

    def _note(self, other: Term) -> None:
        self.commutes = self.commutes and other.commutes
        self.inner = other.inner if self.is_empty and other.inner is not None else None
        self.is_empty = False

    def done(self) -> Term:
        """The product."""
        return Term(self.sign, self.coefficient, tuple(self.factors), tuple(self.divisors), self.commutes, self.inner)


def factor(text: str, *, commutes: bool = True) -> Term:
    """A product of one factor that is no number."""
    return Term(1, Fraction(1), (text,), commutes=commutes)


def number(value: Fraction) -> Term:
    """A product of nothing but a number."""
    return Term(-1 if value < 0 else 1, abs(value))


def as_factor(terms: Sum) -> Term:
    """A sum in parentheses: the product itself if it is just one, else one factor."""
    if len(terms) == 1 and terms[0].sign:
        return terms[0]
    return parenthesis(terms)


def parenthesis(terms: Sum) -> Term:
    """A sum in parentheses that stay, even around a single letter."""
    return Term(1, Fraction(1), (f"({sum_text(terms)})",), inner=terms)
