"""Which parts of a response are searched for its answer, and in what order.

What enters: a whole response. What leaves: passages, the most telling one first. Called by `extract`,
`choices` and `functions.math`.

The last <answer>...</answer> block that holds a word is searched first, then the text from there on, and nothing
before it: an answer that was thought of and dropped is no answer. Of a response that ends its thinking with </think>,
what follows is searched, unless it holds no digit; then the thinking is searched too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple


class Passage(NamedTuple):
    """is_block: whether `text` is the inside of an <answer> block, so that all of it is meant as the answer."""

    text: str
    is_block: bool


_ANSWER_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_THINK_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_NEXT_QUESTION = re.compile(
    r"^[ \t>*_#]{0,8}(?:question|problem|exercise|example|q|human|user|\u95ee\u9898|\u95ee|\u9898\u76ee)"
    r"[ \t*_]{0,4}[0-9]{0,4}[ \t*_.]{0,4}[:\uff1a]",
    re.IGNORECASE | re.MULTILINE,
)
_HAS_DIGIT = re.compile(r"\d")
_HAS_WORD = re.compile(r"\w")


def passages(text: str, *, from_start: bool, is_cut: bool) -> Iterator[Passage]:
    """The parts of `text` in the order in which they are searched.

    from_start: of several blocks the first counts, and what follows a new "Question:" line is another matter, as long
    as the text before it holds a digit. is_cut: a block that is not closed is unfinished, not the answer.
    """
    if from_start:
        text = _first_turn(text)
    block = _answer_block(text, from_start, is_cut)
    if block is not None:
        start, end = block
        yield Passage(text[start:end], True)
        yield Passage(text[start:], False)
        return
    after_thinking = _after_thinking(text, from_start)
    yield Passage(text if after_thinking is None else after_thinking, False)


def _first_turn(text: str) -> str:
    digit = _HAS_DIGIT.search(text)
    # The line of the first digit may itself be the question that is repeated, so the next one ends the turn.
    question = None if digit is None else _NEXT_QUESTION.search(text, digit.end())
    return text if question is None else text[: question.start()]


def _answer_block(text: str, from_start: bool, is_cut: bool) -> tuple[int, int] | None:
    """The character range inside the deciding block; a block that is never closed reaches to the end, because the
    closing tag may have been the stop string."""
    tags = list(_ANSWER_TAG.finditer(text))
    blocks = [(tag.end(), after.start()) for tag, after in pairwise(tags) if not tag[1] and after[1]]
    if tags and not tags[-1][1] and not is_cut:
        blocks.append((tags[-1].end(), len(text)))
    for start, end in blocks if from_start else reversed(blocks):
        if _HAS_WORD.search(text, start, end):
            return start, end
    return None


def _after_thinking(text: str, from_start: bool) -> str | None:
    """What follows the last </think> (from_start: the first), or None where it holds no digit."""
    ends = [match.end() for match in _THINK_END.finditer(text)]
    if not ends:
        return None
    end = ends[0] if from_start else ends[-1]
    return text[end:] if _HAS_DIGIT.search(text, end) else None
