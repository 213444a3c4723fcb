r"""Which letters a response chooses: \boxed{ABD}, "Answer: (B)", "The answer is A and C.", and the Chinese forms.

What enters: a whole response, or a gold answer. What leaves: a set of letters. Called by `functions.multiple_choice`.
Letters are A to J, in any order, repeated or not. "A or B" chooses nothing, nor does a word that happens to be made of
such letters, as BAD in "a BAD idea".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mindgspo.config.reward_section import AnswerMode
from mindgspo.rewards.answers.boxed import boxed_spans
from mindgspo.rewards.answers.markers import Marker, content_of, occurrences
from mindgspo.rewards.answers.passages import passages
from mindgspo.rewards.answers.plain_text import plain

MAX_CHARS = 600
"""A longer box or line is no choice."""

_LETTER = r"[(\[{]{0,2}[A-J][)\]}]{0,2}"
_SEPARATORS = r"(?:[\s,;/&+|]|and\b|\u548c|\u4e0e|\u53ca|\u4ee5\u53ca){0,6}"
_LEADING_WORD = (
    r"both|options?|choices?|letters?|\u9009\u9879|\u9009\u62e9|\u6545\u9009|\u5e94\u9009|\u9009|\u7b54\u6848|\u662f"
    r"|\u4e3a"
)
_PREFIX = rf"(?i:(?:(?:{_LEADING_WORD})\s{{0,3}}:?\s{{0,3}}){{0,3}})"
_SUFFIX = r"(?i:\s{0,3}(?:options?|choices?|\u9009\u9879|\u9879|\u6b63\u786e|\u662f\u6b63\u786e\u7684){0,2})"
_LIST = rf"(?P<letters>{_LETTER}(?:{_SEPARATORS}{_LETTER}){{0,30}})"
_WHOLE = re.compile(_PREFIX + _LIST + _SUFFIX)
_HEAD = re.compile(_PREFIX + _LIST + r"(?![A-Za-z0-9])")
_LOWER_CASE = re.compile(r"\(?([a-j])\)?")
_LABEL = re.compile(r"(?<![A-Za-z0-9.])\(?([A-J])(?:[.):](?=\s|\S{2})|,(?=[\u4e00-\u9fff]))")
# What may stand behind the letters of a line; another word behind them makes "A" an article and "BAD" a word.
_AFTER_LETTERS = re.compile(
    r"\s*(?:\Z|[.;:!?(\u2014\u4e00-\u9fff]|,(?!\s?[A-J]\b)|-\s"
    r"|(?:because|since|as|is|are|which|with|given|due|options?|choices?)\b)"
)
_UNSURE = re.compile(r"\bor\b|\u6216", re.IGNORECASE)
_CLOSING = re.compile(rf"(?:\u6545\u9009|\u5e94\u9009|\u6545\u7b54\u6848\u9009)[\s:]{{0,3}}{_LIST}\Z")
_SENTENCE_END = re.compile(r"[.](?=\s|\Z)|[\u3002\uff1b\n]")

_OWN = (Marker.BOXED,)
_LINES = (Marker.ANSWER_LINE, Marker.ANSWER_COLON, Marker.ANSWER_IS, Marker.HASHES)

Choice = frozenset[str]


def read_choices(text: str) -> Choice | None:
    """The letters that a box, a block or a gold answer consists of, with or without the text of the options behind
    them; None for anything else."""
    if len(text) > MAX_CHARS:
        return None
    flat = plain(text)
    if match := _WHOLE.fullmatch(flat):
        return _letters(match)
    if match := _LOWER_CASE.fullmatch(flat):
        return frozenset(match[1].upper())
    return _labelled(flat)


def find_choices(text: str, *, mode: AnswerMode, is_cut: bool) -> tuple[str, Choice | None] | None:
    """What announces the choice and the letters in it; None where nothing does, no letters where it is unreadable.

    Boxes count; in any mode but strict also lines such as "Answer: B", and a last line of nothing but letters. What can
    be read is preferred to what cannot. An <answer> block is searched first.
    """
    unreadable: str | None = None
    for passage in passages(text, from_start=mode == "first", is_cut=is_cut):
        for content, choices in _announced(passage.text, mode, is_cut, passage.is_block):
            if choices is not None:
                return content, choices
            unreadable = unreadable or content
    return None if unreadable is None else (unreadable, None)


def _announced(text: str, mode: AnswerMode, is_cut: bool, is_block: bool) -> Iterator[tuple[str, Choice | None]]:
    """All that might be the choice, the most trusted first."""
    from_start = mode == "first"
    ranks = {"strict": [_OWN], "flexible": [_OWN, _LINES]}.get(mode, [(*_OWN, *_LINES)])
    for markers in ranks:
        for occurrence in occurrences(text, markers, from_start=from_start):
            content = content_of(text, occurrence)
            if occurrence.marker is Marker.BOXED:
                yield content, read_choices(content)
            elif (choices := _of_line(content)) is not None:
                yield content, choices
    if mode == "strict" or is_cut:
        return
    last_line = text.rstrip()[-MAX_CHARS:].rpartition("\n")[2]
    for content in (text[: MAX_CHARS + 1], last_line) if is_block else (last_line,):
        flat = plain(content)
        match = _WHOLE.fullmatch(flat) or _CLOSING.search(flat)
        if match is not None:
            yield content, _letters(match)


def _of_line(content: str) -> Choice | None:
    """The letters that a line starts with: "B. Paris", "A and C because ..."."""
    boxes = boxed_spans(content)
    if boxes:
        return read_choices(content[boxes[-1].start : boxes[-1].end])
    flat = plain(content)
    end = _SENTENCE_END.search(flat)
    sentence = flat if end is None else flat[: end.start()]
    head = _HEAD.match(sentence)
    labels = _labels(flat)
    if head is not None and not (len(labels) > 1 and len(_letters(head)) == 1):
        is_hedged = _UNSURE.match(sentence[head.end() :].lstrip(" ,")) is not None
        return _letters(head) if not is_hedged and _AFTER_LETTERS.match(sentence, head.end()) else None
    return _labelled(flat)


def _labels(flat: str) -> list[str]:
    """The labels of options that are written out, of a text that starts with one: "A) x, C) y"."""
    return _LABEL.findall(flat) if _LABEL.match(flat) else []


def _labelled(flat: str) -> Choice | None:
    labels = _labels(flat)
    return frozenset(labels) if labels and not (len(labels) > 1 and _UNSURE.search(flat)) else None


def _letters(match: re.Match[str]) -> Choice:
    without_words = re.sub(r"[a-z]+", " ", match["letters"])
    return frozenset(letter for letter in without_words if "A" <= letter <= "J")
