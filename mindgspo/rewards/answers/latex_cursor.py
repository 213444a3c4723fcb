"""A place in a list of LaTeX tokens, and what the readers of factors and of whole expressions share about it.

Called by `latex_factors` and `latex_reader`, which are one recursive descent in two files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mindgspo.rewards.answers.latex_terms import Sum, Unreadable
from mindgspo.rewards.answers.latex_tokens import LINE_BREAK, Kind, Token

CLOSERS = (")", "]", r"\}", "}")

_CONSTANTS = (
    "pi infty emptyset alpha beta gamma delta epsilon varepsilon zeta eta theta lambda mu nu xi rho sigma tau phi "
    "varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell hbar imath"
)
CONSTANTS = frozenset(_CONSTANTS.split())
"""Commands that stand for one symbol and take no argument."""

_RELATIONS = (
    "le ge ne in notin approx equiv cup cap setminus subset subseteq to rightarrow Rightarrow implies mapsto sim "
    "cong parallel perp wedge vee land lor iff Leftrightarrow"
)
RELATION_COMMANDS = frozenset(_RELATIONS.split())
_RELATION_SYMBOLS = frozenset("=<>:")


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


class Cursor:
    """Tokens and a position. Methods that read raise Unreadable; the position is then meaningless."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._in_bars = False

    def _peek(self, ahead: int = 0) -> Token | None:
        index = self._at + ahead
        return self._tokens[index] if index < len(self._tokens) else None

    def _is(self, *symbols: str, ahead: int = 0) -> bool:
        token = self._peek(ahead)
        return token is not None and token.is_symbol(*symbols)

    def _is_command(self, name: str) -> bool:
        return self._peek() == Token(Kind.COMMAND, name)

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
        known = {Kind.COMMAND: RELATION_COMMANDS, Kind.SYMBOL: _RELATION_SYMBOLS}.get(token.kind, frozenset())
        return token.text if token.text in known else None

    def _ends_term(self, *, is_empty: bool) -> bool:
        """Whether the product that is being read ends here. is_empty: whether it has no factor yet."""
        token = self._peek()
        if token is None or self._relation() is not None or self._is_command("pm"):
            return True
        if token.kind is Kind.COMMAND:
            return token.text.startswith("end{")
        if token.is_symbol("|"):  # after an operator or an opening it opens, otherwise it closes
            return self._in_bars and not is_empty
        return token.is_symbol("+", "-", ",", ";", "&", LINE_BREAK, *CLOSERS)


def set_text(elements: Sequence[Element]) -> str:
    """Canonical text of a set: sorted, without repetitions; of one element, the element itself."""
    texts = sorted({text for element in elements for text in element.full_texts})
    return texts[0] if len(texts) == 1 else f"set{{{'; '.join(texts)}}}"


def is_name(terms: Sum) -> bool:
    r"""Whether a sum is x, x_1, \theta, f(x), AB or \text{Area}: a name for what stands on the other side."""
    term = terms[0]
    if len(terms) != 1 or term.coefficient != 1 or term.divisors or term.sign != 1 or not term.factors:
        return False
    first, *others = term.factors
    if others and others[-1].startswith("("):
        del others[-1]
    is_word = first.startswith("text[") and not others
    return is_word or all(map(_is_letter, (first, *others)))


def _is_letter(text: str) -> bool:
    head = text.partition("_")[0]
    return (len(head) == 1 and head.isalpha()) or head.removeprefix("\\") in CONSTANTS - {"pi", "infty", "emptyset"}
