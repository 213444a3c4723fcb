r"""Values of LaTeX expressions: exact rational coefficients, everything else as canonical text.

The text is equal for equal products and sums however they were typed: -x/2, (-1/2)x and x(-1)/2; p - q and -q + p.
Nothing is multiplied out, and no root is simplified: that is the symbolic comparison's work.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from math_answers.text import word_set

PLUS_MINUS = "±"

CONSTANTS = word_set(
    "pi infty emptyset alpha beta gamma delta epsilon varepsilon zeta eta theta lambda mu nu xi rho sigma tau phi "
    "varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell hbar imath"
)
"""Commands that stand for one symbol and take no argument."""

UNKNOWNS = frozenset("abcklmnrstuvwxyz")
"""Letters that are hardly a function of themselves: x(x + 1) is a product, f(f(2)) none."""

_MIRRORED = {">": "<", "ge": "le"}
_REALS = r"+\mathbb{+R}"
_UNORDERED = frozenset(("cup", "cap", "="))
_NUMBER = r"[-+][0-9]+(?:/[0-9]+)?"
_COMMAND = re.compile(r"\\[A-Za-z]+")
_IS_NUMBER = re.compile(_NUMBER)
_IS_PERCENT = re.compile(rf"{_NUMBER} %")
_IS_NUMBER_SET = re.compile(rf"set\{{{_NUMBER}(?:; {_NUMBER})*\}}")
_IS_NUMBER_TUPLE = re.compile(rf"\+tuple[(\[]{_NUMBER}(?:; {_NUMBER})*[)\]]")
Sum = tuple["Term", ...]


class Unreadable(Exception):  # noqa: N818  (not an error: the text has no normal form)
    """The text is not an expression that can be read without guessing."""


@dataclass(frozen=True, slots=True)
class Term:
    """coefficient * factors / divisors, added or subtracted.

    sign: +1, -1, or 0 for plus-minus. coefficient: >= 0. commutes: whether the order of the factors says nothing.
    inner: the sum, of a term that is nothing but a parenthesis. both: of a tuple with one plus-minus in it, the texts
    of the two tuples that it stands for.
    """

    sign: int
    coefficient: Fraction
    factors: tuple[str, ...] = ()
    divisors: tuple[str, ...] = ()
    commutes: bool = True
    inner: Sum | None = None
    both: tuple[str, str] | None = None

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
        """Text before a script: a lone letter, number or bracket as it is, all else in parentheses."""
        if self.sign == 1 and not self.divisors:
            if len(self.factors) == 1 and self.coefficient == 1:
                return self.factors[0]
            if not self.factors and self.coefficient.denominator == 1:
                return str(self.coefficient)
        return f"({self.text})"


def sum_text(terms: Sum) -> str:
    """Canonical text of a sum."""
    return " ".join(sorted(term.text for term in terms))


def flattened_sum(terms: Sequence[Term]) -> Sum:
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


def times(product: Term | None, other: Term) -> Term:
    """`product` times `other`; None stands for a product that has no factor yet. Raises Unreadable for a plus-minus,
    which cannot be pulled out of a product."""
    if other.sign == 0:
        raise Unreadable
    if product is None:
        return other
    return Term(
        product.sign * other.sign,
        product.coefficient * other.coefficient,
        product.factors + other.factors,
        product.divisors + other.divisors,
        product.commutes and other.commutes,
    )


def over(product: Term, other: Term) -> Term:
    """`product` divided by `other`. Raises Unreadable for zero, and as `times` does."""
    if other.coefficient == 0:
        raise Unreadable
    return times(product, Term(other.sign, 1 / other.coefficient, other.divisors, other.factors, other.commutes))


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


@dataclass(frozen=True, slots=True)
class Element:
    """One answer of a list. name: canonical text of the x in "x = 5" and "x \\in ...", None without. texts: canonical;
    two of them for plus-minus. terms: the sum that it is, None where it is a relation."""

    name: str | None
    texts: tuple[str, ...]
    terms: Sum | None

    @property
    def full_texts(self) -> tuple[str, ...]:
        """texts with the name before each."""
        return self.texts if self.name is None else tuple(f"{self.name} = {text}" for text in self.texts)


def set_text(elements: Sequence[Element]) -> str:
    """Canonical text of a set: sorted, without repetitions; of one element, the element itself."""
    texts = sorted({text for element in elements for text in element.full_texts})
    return texts[0] if len(texts) == 1 else f"set{{{'; '.join(texts)}}}"


def sum_is_name(terms: Sum) -> bool:
    r"""Whether a sum is x, x_1, \theta, f(x), AB or \text{Area}: a name for what stands on the other side."""
    term = terms[0]
    if len(terms) != 1 or term.coefficient != 1 or term.divisors or term.sign != 1 or not term.factors:
        return False
    first, *others = term.factors
    if others and others[-1].startswith("("):
        if first in UNKNOWNS and re.search(rf"(?<![\\A-Za-z]){first}(?![A-Za-z])", others[-1]):
            return False
        del others[-1]
    is_word = first.startswith("text[") and not others
    if len({first, *others}) <= len(others):
        return False  # x \cdot x
    return is_word or all(map(_is_letter, (first, *others)))


def _is_letter(text: str) -> bool:
    head = text.partition("_")[0]
    return (len(head) == 1 and head.isalpha()) or head.removeprefix("\\") in CONSTANTS - {"pi", "infty", "emptyset"}


def value_element(terms: Sum, name: str | None) -> Element:
    """An answer that is a value; one plus-minus in it makes it two."""
    if len(terms) == 1 and terms[0].both is not None:
        return Element(name, terms[0].both, terms)
    unsure = [index for index, term in enumerate(terms) if term.sign == 0]
    if len(unsure) == 1 and sum_text(terms).count(PLUS_MINUS) == 1:
        index = unsure[0]
        both = [(*terms[:index], with_sign(terms[index], sign), *terms[index + 1 :]) for sign in (1, -1)]
        return Element(name, tuple(map(sum_text, both)), terms)
    return Element(name, (sum_text(terms),), terms)


def _negated(terms: Sum) -> Sum:
    return tuple(with_sign(term, -term.sign) for term in terms)


def _interval(sides: Sequence[Sum], signs: Sequence[str]) -> Element | None:
    """The interval that a < x <= b, x < b or a < x says, with x as its name; -x is turned round first. None for other
    inequalities. signs: "<" and "le"."""
    place = 1 if len(sides) == 3 else int(not sum_is_name(sides[0]) and not sum_is_name(_negated(sides[0])))
    if len(sides) > 3 or any(sum_is_name(side) for index, side in enumerate(sides) if index != place):
        return None
    if not sum_is_name(sides[place]):
        sides, signs, place = [_negated(side) for side in reversed(sides)], signs[::-1], len(sides) - 1 - place
    low = sum_text(sides[place - 1]) if place else r"-\infty"
    high = sum_text(sides[place + 1]) if place + 1 < len(sides) else r"+\infty"
    letter = sides[place][0].factors[0] if sum_is_name(sides[place]) else ""
    bounds = low + high if letter.startswith("\\") else _COMMAND.sub("", low + high)  # y is in no \infty
    if not letter or letter in bounds:
        return None
    opening = "[" if place and signs[0] == "le" else "("
    closing = "]" if place + 1 < len(sides) and signs[-1] == "le" else ")"
    return Element(sum_text(sides[place]), (f"+tuple{opening}{low}; {high}{closing}",), None)


def all_but(value: str) -> str:
    """Canonical text of the real numbers without one of them."""
    return union_text([rf"+tuple(-\infty; {value})", rf"+tuple({value}; +\infty)"])


def union_text(texts: Sequence[str]) -> str:
    """Canonical text of a union of sets."""
    return f"relation({' cup '.join(sorted(texts))})"


def relation_element(sides: Sequence[Sum], relations: Sequence[str]) -> Element:
    """a < b < c, in the direction of "less", as an interval where it is one; the sides of equations and of unions in
    alphabetical order."""
    texts = list(map(sum_text, sides))
    signs = list(relations)
    if signs == ["ne"] and sum_is_name(sides[0]):
        return Element(texts[0], (all_but(texts[1]),), None)
    if signs == ["setminus"] and texts[0] == _REALS and not texts[1].startswith("+set"):
        return Element(None, (all_but(texts[1]),), None)
    if all(sign in _MIRRORED for sign in signs):
        sides = sides[::-1]
        texts.reverse()
        signs = [_MIRRORED[sign] for sign in reversed(signs)]
    if set(signs) <= {"<", "le"}:
        interval = _interval(sides, signs)
        if interval is not None:
            return interval
    elif len(set(signs)) == 1 and signs[0] in _UNORDERED:
        texts.sort()
    chain = texts[0] + "".join(f" {sign} {text}" for sign, text in zip(signs, texts[1:], strict=True))
    return Element(None, (f"relation({chain})",), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalForm:
    """name: canonical text of the x of "x = 5", None without. body: canonical text of the rest."""

    name: str | None
    body: str

    def same_as(self, other: NormalForm) -> bool:
        """Equal bodies, and names that are equal or left out on one side."""
        return self.body == other.body and (self.name == other.name or self.name is None or other.name is None)

    @property
    def is_number(self) -> bool:
        """Whether this is one rational number."""
        return _IS_NUMBER.fullmatch(self.body) is not None

    @property
    def is_percent(self) -> bool:
        """Whether this is one rational number with a percent sign."""
        return _IS_PERCENT.fullmatch(self.body) is not None

    @property
    def is_number_set(self) -> bool:
        """Whether this is a set of at least two rational numbers."""
        return _IS_NUMBER_SET.fullmatch(self.body) is not None

    @property
    def is_number_tuple(self) -> bool:
        """Whether this is a tuple or interval of rational numbers."""
        return _IS_NUMBER_TUPLE.fullmatch(self.body) is not None
