r"""Units behind a value: 5 \text{ cm}^2, \sqrt{2} \text{ m/s}, 3, 5 \text{ apples}.

What enters: spelled-out tokens. What leaves: the tokens without the words that end an element of the answer. Called by
`latex`. A unit that differs is not noticed, as with plain numbers: the question names it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mindgspo.rewards.answers.latex_tokens import LINE_BREAK, Kind, Token

# Words that say more than a unit does.
_WORDS = (
    "or and not if no when for with base mod remainder hundred thousand million billion trillion dozen am pm a.m p.m "
    "a.m. p.m. is are times plus minus over to than least most less more"
)
_DENIALS = frozenset(("wrong", "incorrect", "false", "maybe", "cannot"))
_POWERS = frozenset(("squared", "cubed"))
_TELLING_WORDS = frozenset(_WORDS.split())
_TELLING_CHARACTERS = frozenset("\u6216\u4e0d\u5341\u767e\u5343\u4e07\u4ebf\u534a")  # or, not, ten, hundred, ..., half
_ELEMENT_ENDS = (",", ";", "&", LINE_BREAK, ")", "]", r"\}", "}")
_VALUE_ENDS = (")", "]", r"\}", "}", "%", "!", "|")


def without_units(tokens: Sequence[Token]) -> list[Token]:
    """`tokens` without the units."""
    result: list[Token] = []
    at = 0
    has_quantity = False  # "an ellipse" is no number of ellipses
    while at < len(tokens):
        length = _unit_length(tokens, at) if has_quantity and _ends_value(result[-1]) else 0
        if not length:
            result.append(tokens[at])
            has_quantity = has_quantity or tokens[at].kind in (Kind.NUMBER, Kind.COMMAND)
        at += max(length, 1)
    return result


def denies(text: str, *, is_first: bool) -> bool:
    """Whether words behind a value say that it is another one or none. is_first: whether they stand right behind it,
    as those of "5 squared" do and those of "5 cm squared" do not."""
    words = text.lower().split()
    return bool(_DENIALS & set(words)) or (is_first and bool(words) and words[0] in _POWERS)


def _ends_value(token: Token) -> bool:
    return token.kind in (Kind.NUMBER, Kind.LETTER, Kind.COMMAND) or token.is_symbol(*_VALUE_ENDS)


def _unit_length(tokens: Sequence[Token], start: int) -> int:
    """How many tokens from `start` on are the unit that ends an element; 0 if there is none."""
    at = start
    while at < len(tokens):
        token = tokens[at]
        if token.kind is Kind.TEXT:
            if _TELLING_WORDS & set(token.text.lower().split()) or _TELLING_CHARACTERS & set(token.text):
                return 0
            if denies(token.text, is_first=at == start):
                return 0
            at += 1
        elif at > start and token.is_symbol("^") and [each.text for each in tokens[at + 1 : at + 4 : 2]] == ["{", "}"]:
            at += 4
        elif at > start and token.is_symbol("/", "*", "."):
            at += 1
        else:
            break
    ends = at == len(tokens) or tokens[at].is_symbol(*_ELEMENT_ENDS)
    return at - start if ends else 0
