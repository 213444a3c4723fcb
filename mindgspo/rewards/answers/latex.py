r"""The normal form of a LaTeX answer: equal for answers that differ only in how they are typed.

What enters: an answer. What leaves: a `NormalForm`, or None where the text cannot be read without guessing. Called by
`equivalence`. Linear in the text.

    the same value      \frac{3}{4}, \dfrac34, 3/4, 0.75, \frac{6}{8}; 1\frac{1}{2}, 1 1/2, 3/2; -\frac{a}{2}, -a/2
    the same typing     \left( \right), \!, \, and \quad, fonts, $, x^2 and x^{2}, \cdot and nothing, full-width forms
    the same answer     x=5 and 5; x \in [0,1] and [0,1]; 5 \text{ cm}^2 and 5; 30^\circ and 30; 1,234 and 1{,}234
    the same list       1,-2 and -2 and 1 and \{1,-2\} and x=1 or x=-2: a list without brackets is a set
    two answers         1 \pm \sqrt{2} is 1+\sqrt{2}, 1-\sqrt{2}
    not the same        (1,2) and (2,1), (1,2] and (1,2), (1,234) and 1,234, 2\frac{1}{2} and 2 \cdot \frac{1}{2}

Nothing is multiplied out or simplified.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mindgspo.rewards.answers.latex_reader import Reader
from mindgspo.rewards.answers.latex_spelling import spelled_out
from mindgspo.rewards.answers.latex_terms import Unreadable
from mindgspo.rewards.answers.latex_tokens import LINE_BREAK, Token, tokens_of
from mindgspo.rewards.answers.latex_units import without_units

_NUMBER = r"[-+][0-9]+(?:/[0-9]+)?"
_IS_NUMBER = re.compile(_NUMBER)
_IS_PERCENT = re.compile(rf"{_NUMBER} %")
_IS_NUMBER_SET = re.compile(rf"set\{{{_NUMBER}(?:; {_NUMBER})*\}}")
_IS_NUMBER_TUPLE = re.compile(rf"\+tuple[(\[]{_NUMBER}(?:; {_NUMBER})*[)\]]")
_SAME_BODY = {r"+\mathbb{+R}": r"+tuple(-\infty; +\infty)"}
_EDGES = (".", ",", ";", ":", "?", "'", '"', "`", "!")
_EDGES_BEFORE = (",", ";", ":", "=", '"', "`")


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


def normal_form(text: str) -> NormalForm | None:
    """The normal form of one answer, None where there is none. Never raises."""
    return form_of_tokens(answer_tokens(text))


def answer_tokens(text: str) -> list[Token]:
    """The tokens of an answer, spelled out, without units and without punctuation at its edges."""
    tokens = tokens_of(text)
    start, end = 0, len(tokens)
    while start < end and tokens[start].is_symbol(*_EDGES_BEFORE):
        start += 1
    while end > start and tokens[end - 1].is_symbol(*_EDGES) and not _is_mathematical(tokens, end - 1):
        end -= 1
    return without_units(spelled_out(_without_repeats(tokens[start:end])))


def _without_repeats(tokens: list[Token]) -> list[Token]:
    r"""Of "3, 5, and 7" one of the two separators; nor is there a line break behind the last row of a matrix."""
    kept: list[Token] = []
    for token in tokens:
        repeats_comma = token.is_symbol(",") and bool(kept) and kept[-1].is_symbol(",")
        if kept and kept[-1].is_symbol(LINE_BREAK) and token.text.startswith("end{"):
            kept.pop()
        if not repeats_comma:
            kept.append(token)
    return kept


def form_of_tokens(tokens: list[Token]) -> NormalForm | None:
    """The normal form of what `answer_tokens` gave."""
    if not tokens:
        return None
    try:
        elements = Reader(tokens).read()
    except Unreadable:
        return None
    names = [element.name for element in elements]
    # Of "x = 1, -2" and of "x = 1 or x = -2", x is the name of all; "x = 1, y = 2" is a list of equations.
    is_shared = len(set(names)) == 1 or not any(names[1:])
    texts = {text for element in elements for text in (element.texts if is_shared else element.full_texts)}
    return NormalForm(name=names[0] if is_shared else None, body=_body(sorted(texts)))


def _body(texts: list[str]) -> str:
    """A list without brackets is a set, and a set of one is its element."""
    only = texts[0] if len(texts) == 1 else f"set{{{'; '.join(texts)}}}"
    return only.removeprefix("+") if only.startswith("+set{") else _SAME_BODY.get(only, only)


def _is_mathematical(tokens: list[Token], index: int) -> bool:
    """Whether the ! of 5! and the ' of f' belong to what stands before them."""
    return tokens[index].is_symbol("!", "'") and index > 0 and not tokens[index - 1].is_symbol("!", ".", ",")
