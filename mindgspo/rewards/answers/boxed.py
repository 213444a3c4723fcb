r"""All `\boxed{...}` contents of a text, nested braces included, in one linear pass.

What enters: a whole response. What leaves: spans of balanced boxes. A box that is never closed (the
response was cut) is not an answer. Called by `markers` and `quantity`.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Span(NamedTuple):
    """Half-open character range [start, end) of a box's content."""

    start: int
    end: int


# Two backslashes are what a box looks like that was escaped once too often ("\\boxed{5}" in JSON).
_BOX = r"\\{1,2}(?:boxed|fbox)\s{0,4}\{"
_FIRST_BOX = re.compile(_BOX)
# An escaped brace (\{) is one token, so that it neither opens nor closes anything.
_TOKENS = re.compile(rf"(?P<box>{_BOX})|\\.|(?P<brace>[{{}}])", re.DOTALL)


def boxed_spans(text: str) -> list[Span]:
    """Balanced boxes by the position of their closing brace; of nested boxes the outer one comes last."""
    spans: list[Span] = []
    first = _FIRST_BOX.search(text)
    if first is None:
        return spans
    open_braces: list[int | None] = []  # content start of a box, None for any other brace
    for token in _TOKENS.finditer(text, first.start()):
        if token["box"]:
            open_braces.append(token.end())
        elif token["brace"] == "{":
            open_braces.append(None)
        elif token["brace"] == "}" and open_braces:
            start = open_braces.pop()
            if start is not None:
                spans.append(Span(start, token.start()))
    return spans
