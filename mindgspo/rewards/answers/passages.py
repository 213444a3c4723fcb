"""Which parts of a response are searched for its answer, and in what order.

What enters: a whole response. What leaves: passages, the most telling one first. Called by `extract`,
`choices` and `functions.math`.

Thinking is no answer: of a response with </think> only what follows is searched, even if that is nothing, and of one
that starts with a <think> that is never closed nothing is. Of what remains, the last <answer>...</answer> block that
holds a word is searched first, then the text from there on, and nothing before it: an answer that was dropped is no
answer. A block of placeholder words ("<answer> answer here </answer>", "<answer> and </answer>") only talks about tags.
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
_THINK_TAG = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_OPENS_THINKING = re.compile(r"\s*<think(?:ing)?>", re.IGNORECASE)
_NEXT_QUESTION = re.compile(
    r"^[ \t>*_#]{0,8}(?:question|problem|exercise|example|q|human|user|\u95ee\u9898|\u95ee|\u9898\u76ee)"
    r"[ \t*_]{0,4}[0-9]{0,4}[ \t*_.]{0,4}[:\uff1a]",
    re.IGNORECASE | re.MULTILINE,
)
_HAS_DIGIT = re.compile(r"\d")
_PLACEHOLDERS = {"and", "or", "your", "my", "the", "a", "final", "answer", "here", "goes", "tag", "tags", "block"}
_MAX_WORDS = 20
_WORD = re.compile(r"\w+")


def passages(text: str, *, from_start: bool, is_cut: bool) -> Iterator[Passage]:
    """The parts of `text` in the order in which they are searched.

    from_start: of several blocks the first counts, and what follows a new "Question:" line is another matter, as long
    as the text before it holds a digit. is_cut: a block that is not closed is unfinished, not the answer.
    """
    tag = _THINK_TAG.search(text) if from_start else None
    if tag is not None and (tag[1] or not text[: tag.start()].strip()):
        text = _first_turn(_after_thinking(text, from_start))  # the thinking may itself repeat the question
    else:
        text = _after_thinking(_first_turn(text) if from_start else text, from_start)
    if not text:
        return
    block = _answer_block(text, from_start, is_cut)
    if block is not None:
        start, end = block
        yield Passage(text[start:end], True)
        yield Passage(text[start:], False)
        return
    yield Passage(text, False)


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
        words = {word[0].lower() for word, _ in zip(_WORD.finditer(text, start, end), range(_MAX_WORDS), strict=False)}
        if words - _PLACEHOLDERS:
            return start, end
    return None


def _after_thinking(text: str, from_start: bool) -> str:
    """What follows the last </think> (from_start: the first); empty where thinking is still going on."""
    ends = [tag.end() for tag in _THINK_TAG.finditer(text) if tag[1]]
    if ends:
        text = text[ends[0] if from_start else ends[-1] :]
    return "" if _OPENS_THINKING.match(text) else text
