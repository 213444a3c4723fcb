r"""The normal form of a LaTeX answer: equal for answers that differ only in how they are typed.

    the same value      \frac{3}{4}, \dfrac34, 3/4, 0.75, \frac{6}{8}; 1\frac{1}{2}, 1 1/2, 3/2; -\frac{a}{2}, -a/2
    the same typing     \left( \right), \!, \, and \quad, fonts, $, x^2 and x^{2}, \cdot and nothing, full-width forms
    the same answer     x=5 and 5; x \in [0,1] and [0,1]; 5 \text{ cm}^2 and 5; 30^\circ and 30; 1,234 and 1{,}234
    the same list       1,-2 and -2 and 1 and \{1,-2\} and x=1 or x=-2: a list without brackets is a set
    two answers         1 \pm \sqrt{2} is 1+\sqrt{2}, 1-\sqrt{2}; (\pm 1, 0) is (1,0), (-1,0)
    the same interval   x > 5, -x < -5, \{x \mid x > 5\} and (5,\infty); x < 1 \text{ or } x > 2 and a union; x \ne 2
    not the same        (1,2) and (2,1), (1,2] and (1,2), (1,234) and 1,234, 2\frac{1}{2} and 2 \cdot \frac{1}{2}

Nothing is multiplied out or simplified. The reader is a recursive descent, linear in the text:

    elements   relation (, relation)*            sum    term (+ term)*
    relation   sum (= sum)*                      term   factor ([* /] factor)*
    factor     number, letter, bracket, fraction, root, matrix or function, and the scripts after it

Whatever cannot be read without guessing (1/2x, x2, a bracket that never closes, absurd nesting) has no normal form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from math_answers.answer_tokens import answer_tokens
from math_answers.latex_tokens import LINE_BREAK, Token, TokenKind
from math_answers.latex_values import (
    CONSTANTS,
    PLUS_MINUS,
    Element,
    NormalForm,
    Sum,
    Term,
    Unreadable,
    as_factor,
    factor,
    flattened_sum,
    number,
    over,
    parenthesis,
    relation_element,
    set_text,
    sum_is_name,
    sum_text,
    times,
    union_text,
    value_element,
    with_sign,
)
from math_answers.quantity import MAX_DIGITS
from math_answers.relations import head_recurs
from math_answers.text import word_set

_CLOSERS = (")", "]", r"\}", "}")
_RELATION_COMMANDS = word_set(
    "le ge ne in notin approx equiv cup cap setminus subset subseteq to rightarrow Rightarrow implies mapsto sim cong "
    "parallel perp wedge vee land lor iff Leftrightarrow"
)
_RELATION_SYMBOLS = frozenset("=<>:")
_MAX_DEPTH = 30
"""Brackets within brackets."""

_CLOSING = {"(": (")", "]"), "[": (")", "]"), r"\{": (r"\}",)}  # (3, 4] is an interval
_MATRICES = {"pmatrix": "matrix", "vmatrix": "determinant"}


def _set(elements: Sequence[Element]) -> Term:
    """A set; of one element, the element itself."""
    if not elements:
        return factor(r"\emptyset")
    is_one = len(elements) == 1 and elements[0].texts != ("+\\emptyset",)
    if is_one and elements[0].terms is not None and len(elements[0].texts) == 1:
        return as_factor(elements[0].terms)
    return factor(set_text(elements), commutes=False)


_SAME_BODY = dict.fromkeys((r"+\mathbb{+R}", "+R"), r"+tuple(-\infty; +\infty)")  # also \mathbf{R}


class _Reader:
    """Reads one expression. Methods that read raise Unreadable; the position is then meaningless."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._in_bars = False
        self._depth = 0

    def _peek(self, ahead: int = 0) -> Token | None:
        index = self._at + ahead
        return self._tokens[index] if index < len(self._tokens) else None

    def _is(self, *symbols: str, ahead: int = 0) -> bool:
        token = self._peek(ahead)
        return token is not None and token.is_symbol(*symbols)

    def _is_command(self, name: str) -> bool:
        return self._peek() == Token(TokenKind.COMMAND, name)

    def _take(self) -> Token:
        token = self._peek()
        if token is None:
            raise Unreadable
        self._at += 1
        return token

    def _expect(self, *symbols: str) -> str:
        if not self._is(*symbols):
            raise Unreadable
        return self._take().text

    def _relation(self) -> str | None:
        """The relation that comes next, if it is one."""
        token = self._peek()
        if token is None:
            return None
        known = {TokenKind.COMMAND: _RELATION_COMMANDS, TokenKind.SYMBOL: _RELATION_SYMBOLS}.get(
            token.kind, frozenset()
        )
        return token.text if token.text in known else None

    def _ends_term(self, *, is_empty: bool) -> bool:
        """Whether the product that is being read ends here. is_empty: whether it has no factor yet."""
        token = self._peek()
        if token is None or self._relation() is not None or self._is_command("pm"):
            return True
        if token.is_command:
            return token.text.startswith("end{")
        if token.is_symbol("|"):  # after an operator or an opening it opens, otherwise it closes
            return self._in_bars and not is_empty
        return token.is_symbol("+", "-", ",", ";", "&", LINE_BREAK, *_CLOSERS)

    # -- lists, relations, sums, products --------------------------------------------------------------------------

    def read(self) -> list[Element]:
        """All elements of the expression, to its end. Raises Unreadable."""
        elements = self._elements()
        if self._peek() is not None or not elements:
            raise Unreadable
        return elements

    def _elements(self) -> list[Element]:
        elements = []
        while self._peek() is not None and not self._is(*_CLOSERS):
            if self._is(",", ";"):
                self._at += 1
                continue
            elements.append(self._element())
            if self._peek() is not None and not self._is(",", ";", *_CLOSERS):
                raise Unreadable
        return elements

    def _element(self) -> Element:
        start = self._at
        sides = [self._sum()]
        name_end = self._at
        relations: list[str] = []
        while (relation := self._relation()) is not None:
            self._at += 1
            relations.append(relation)
            sides.append(self._sum())
        if not relations:
            return value_element(sides[0], None)
        if relations[0] == "in" and set(relations[1:]) == {"cup"} and sum_is_name(sides[0]):
            return replace(relation_element(sides[1:], relations[1:]), name=sum_text(sides[0]))
        if relations == ["in"] or set(relations) == {"="}:
            # Of "x = 2 + 3 = 5" the last side is the answer; "5 = x" says the same as "x = 5".
            turned = len(sides) == 2 and relations == ["="] and not sum_is_name(sides[0])
            named, value = (sides[-1], sides[0]) if turned else (sides[0], sides[-1])
            name, others = self._tokens[start:name_end], self._tokens[name_end : self._at]
            is_in_braces = name[0].is_symbol("[", r"\{")  # the whole or the other part of x
            recurs = named is sides[0] and (is_in_braces or head_recurs(name, others))
            if sum_is_name(named) and not sum_is_name(value) and not recurs:
                return value_element(value, sum_text(named))
        return relation_element(sides, relations)

    def _sum(self) -> Sum:
        terms = [self._term()]
        while self._is("+", "-") or self._is_command("pm"):
            terms.append(self._term())
        return flattened_sum(terms)

    def _term(self) -> Term:
        sign, is_unsure = 1, False
        while self._is("+", "-") or self._is_command("pm"):
            token = self._take()
            is_unsure = is_unsure or token.is_command
            sign = -sign if token.text == "-" else sign
        product = self._product()
        if is_unsure:
            return with_sign(product, 0)
        return product if sign > 0 else replace(product, sign=-product.sign, both=None)

    def _product(self, *, up_to_operator: bool = False) -> Term:
        product: Term | None = None
        operator = ""
        may_follow = True
        while not self._ends_term(is_empty=product is None or bool(operator)):
            if self._is("*", "/"):
                if up_to_operator and product is not None:
                    return product
                if operator or product is None:
                    raise Unreadable
                operator = self._take().text
                continue
            is_juxtaposed = product is not None and not operator
            token = self._peek()
            if is_juxtaposed and (not may_follow or (token is not None and token.is_number)):
                raise Unreadable  # 1/2x, x2, two numbers in a row
            found = self._factor(self._tokens[self._at - 1] if is_juxtaposed else None)
            product = over(product, found) if operator == "/" and product is not None else times(product, found)
            may_follow = operator != "/"
            operator = ""
        if operator or product is None:
            raise Unreadable
        return product

    # -- factors -------------------------------------------------------------------------------------------------

    def _factor(self, follows: Token | None) -> Term:
        """One factor. follows: the token right before it, None after an operator or at the start of a term."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
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
        if token.is_number:
            return self._number(token.text)
        if token.is_letter:
            return factor(token.text)
        if token.is_text:
            return factor(f"text[{' '.join(token.text.lower().split())}]", commutes=False)
        if token.is_command:
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
        letter = self._letter_of_condition() if opening == r"\{" else None
        elements = self._elements()
        self._in_bars = bars
        closing = self._expect(*_CLOSING[opening])
        if letter is not None:
            if any(element.name not in (None, f"+{letter}") for element in elements):
                raise Unreadable  # \{x \mid y > 5\}
            return factor(_joined(elements).body.removeprefix("+"), commutes=False)
        if opening == r"\{":
            return _set(elements)
        if len(elements) == 1 and opening + closing in ("()", "[]"):
            terms = elements[0].terms
            if terms is None:
                raise Unreadable  # a relation in parentheses
            # f(x), \sin(x) and x(2) are left alone; so is what an exponent refers to.
            is_argument = follows is not None and follows.kind in (TokenKind.LETTER, TokenKind.TEXT)
            is_base = self._is("^", "_", "!", "'")
            return parenthesis(terms) if is_argument or is_base else as_factor(terms)
        choices = [element.full_texts for element in elements]
        text, first, second = (
            f"tuple{opening}{'; '.join(parts)}{closing}"
            for parts in (
                map(f" {PLUS_MINUS} ".join, choices),
                [each[0] for each in choices],
                [each[-1] for each in choices],
            )
        )
        is_one_choice = sum(map(len, choices)) == len(choices) + 1
        return replace(factor(text, commutes=False), both=(f"+{first}", f"+{second}") if is_one_choice else None)

    def _letter_of_condition(self) -> str | None:
        r"""Reads the head of \{x \mid ...\} or \{x \in \mathbb{R} : ...\}, if it comes next."""
        for domain in ([], ["in", "mathbb", "{", "R", "}"], ["in", "R"]):
            ahead = self._tokens[self._at : self._at + len(domain) + 2]
            *between, bar = [token.text for token in ahead[1:]] or [""]
            if between == domain and bar in ("|", ":") and ahead[0].is_letter:
                self._at += len(ahead)
                return ahead[0].text
        return None

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
        parts = []
        for _ in range(2):
            self._expect("{")
            parts.append(as_factor(self._enclosed_sum()))
            self._expect("}")
        return over(times(None, parts[0]), parts[1])

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
        if self._is("("):
            argument = times(None, self._bracket(self._take().text, None))  # and no further: \sin(x)y is not \sin(xy)
            if self._is("^"):
                raise Unreadable  # \sin(x)^2
        else:
            argument = self._product(up_to_operator=True)
            if self._is("*", "/"):
                raise Unreadable  # \sin x/2
        return factor(f"{text}[{argument.text}]", commutes=False)


def normal_form(text: str) -> NormalForm | None:
    """The normal form of one answer, None where there is none. Never raises."""
    return form_of_tokens(answer_tokens(text))


def form_of_tokens(tokens: list[Token]) -> NormalForm | None:
    """The normal form of what `answer_tokens` gave."""
    if not tokens:
        return None
    try:
        elements = _Reader(tokens).read()
    except Unreadable:
        return None
    return _joined(elements)


def _joined(elements: Sequence[Element]) -> NormalForm:
    """The form of a list. Inequalities for one name are a union of intervals."""
    names = [element.name for element in elements]
    # Of "x = 1, -2" and of "x = 1 or x = -2", x is the name of all; "x = 1, y = 2" is a list of equations.
    is_shared = len(set(names)) == 1 or not any(names[1:])
    texts = {text for element in elements for text in (element.texts if is_shared else element.full_texts)}
    are_intervals = len(set(names)) == 1 and all(
        element.terms is None and text.startswith("+tuple") for element in elements for text in element.texts
    )
    body = union_text(sorted(texts)) if are_intervals and len(texts) > 1 else _body(sorted(texts))
    return NormalForm(name=names[0] if is_shared and names else None, body=body)


def _body(texts: list[str]) -> str:
    """A list without brackets is a set, and a set of one is its element."""
    only = texts[0] if len(texts) == 1 else f"set{{{'; '.join(texts)}}}"
    return only.removeprefix("+") if only.startswith(("+set{", "+relation(")) else _SAME_BODY.get(only, only)
