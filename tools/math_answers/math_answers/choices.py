r"""Answers to multiple-choice questions with one or several right letters, of which exactly the right ones are right.

The usual form is \boxed{ABD}; "Answer: (B)", "The answer is A and C." and the Chinese forms are read too.
Letters are A to J, in any order, repeated or not. "A or B" and "B is wrong" choose nothing, nor does a word that
happens to be made of such letters, as BAD in "a BAD idea". Boxes with nothing but commas or "and" between them are one
choice.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

from math_answers.extract import MAX_OCCURRENCES, Marker, Occurrence, content_of, occurrences
from math_answers.findings import AnswerMode, Finding, Outcome, judged
from math_answers.text import BOX, BoxSpan, boxed_spans, passages, plain

MAX_CHARS = 600
"""A longer box or line is no choice."""

_LETTER = r"[(\[{]{0,2}[A-J][)\]}]{0,2}"
_SEPARATORS = r"(?:[\s,;/&+|]|and\b|和|与|及|以及){0,6}"
_LEADING_WORD = r"both|options?|choices?|letters?|选项|选择|故选|应选|选|答案|是|为"
_PREFIX = rf"(?i:(?:(?:{_LEADING_WORD})\s{{0,3}}:?\s{{0,3}}){{0,3}})"
_SUFFIX = r"(?i:\s{0,3}(?:options?|choices?|(?:is|are) (?:correct|right)|选项|项|正确|是正确的){0,2})"
_LIST = rf"(?P<letters>{_LETTER}(?:{_SEPARATORS}{_LETTER}){{0,30}})"
_WHOLE = re.compile(_PREFIX + _LIST + _SUFFIX)
_HEAD = re.compile(_PREFIX + _LIST + r"(?![A-Za-z0-9])")
_LOWER_CASE = re.compile(r"\(?([a-j])\)?")
_LABEL = re.compile(r"(?<![A-Za-z0-9.])\(?([A-J])(?:[.):](?=\s|\S{2})|,(?=[\u4e00-\u9fff]))")
# What may stand after the letters of a line; another word after them makes "A" an article and "BAD" a word.
_AFTER_LETTERS = re.compile(
    r"\s*(?:\Z|[.;:!?(—\u4e00-\u9fff]|,(?!\s?[A-J]\b)|-\s"
    r"|(?:because|since|as|is|are|which|with|given|due|options?|choices?)\b)"
)
_UNSURE = re.compile(r"\bor\b|或", re.IGNORECASE)
# "B (or C)", "B, maybe C", "B? or C?", "B. No, C.": another letter takes the first one back. "B. No" is an option.
_SECOND_THOUGHT = re.compile(
    r"[\s,;.:?!()-]{0,6}(?i:(?:(?:and|but|or)\s)?(?:or|maybe|perhaps|possibly|no|wait|actually|rather)\b|或者?"
    r"|还是|也许|(?:也有?)?可能是?|不对)[\s,;.:!]{0,3}"
    rf"(?i:(?:maybe|perhaps|possibly|it is|it's|the answer is|应该?是|[是选])\s?)?{_LETTER}(?=\s?(?:\Z|[.,;:!?)]))"
)
# What "B" is said not to be; "B, not C" and its Chinese form are another matter, and "B. False" is an option.
_DENIAL = re.compile(
    r"\s?(?i:(?:options?|choices?)\s)?(?i:(?:(?:is|are|was|were|looks?|seems?|would be)"
    r"\s(?:(?:clearly|also|both|the|an?)\s)?(?:not|wrong|incorrect|false|untrue|impossible|never)|(?:is|are|was|were|can|could)n't|cannot)\b)"
    r"|\s?(?:选项|项)?(?:都|是|也)?(?:错|有误|并非|并?不(?:对|正确|成立|符合|合适|合理|是(?!\s?[A-J])))"
)
_CLOSING = re.compile(rf"(?<!不)(?:故选|应选|故答案选)择?[\s:]{{0,3}}{_LIST}{_SUFFIX}\Z")
_CORRECT_OPTION = re.compile(
    r"(?:[.;:,!?]\s|\b(?i:so|thus|hence|therefore|only),?\s)(?i:options?|choices?)\s"
    rf"{_LIST}\s(?:is|are)\s(?:correct|right)\Z"
)
# Announcements that only questions with options have; what follows is read like what follows "Answer:".
_STATED = re.compile(
    r"(?:【(?:正确)?答案】|(?:答案|本题)(?:应该?)?选择?"
    r"|正确的?选项(?:是|为)|\b(?i:(?:correct|right|best) (?:option|choice)s? (?:is|are)\b))"
)
_LINE_END = re.compile(r"[\n【]")
_MARKS = r"[\s$*.]{0,4}"
_AND = r"[,，、]|(?:[,，] ?)?(?:and|和|与|及|以及)"
_OR = r"(?:[,，] ?)?(?:or|或者?|还是)(?: maybe| perhaps| possibly)?"
_BETWEEN_BOXES = re.compile(rf"\}}{_MARKS}(?:{_AND}|(?P<hedge>{_OR})){_MARKS}{BOX}", re.IGNORECASE)
_MAX_BETWEEN = 50
_BARE_RUN = re.compile(r"[(\[{]{0,2}(?P<letters>[A-J]{2,})[)\]}]{0,2}")
_SENTENCE_END = re.compile(r"[.](?=\s|\Z)|[。；\n]")

_LINES = (Marker.ANSWER_LINE, Marker.ANSWER_COLON, Marker.ANSWER_IS, Marker.HASHES)

Choice = frozenset[str]


def check_choice(response: str, gold: str, *, mode: AnswerMode = "flexible", is_cut: bool = False) -> Finding:
    """Whether a response chooses exactly the letters of `gold`. mode, is_cut: see `find_choices`. Never raises."""
    expected = gold_choices(gold)
    if expected is None:
        return Finding(outcome=Outcome.UNPARSEABLE_GOLD)
    found = find_choices(response, mode=mode, is_cut=is_cut)
    if found is None:
        return Finding(outcome=Outcome.NO_ANSWER)
    content, choices = found
    return judged(content.strip() if choices is None else "".join(sorted(choices)), choices == expected)


def gold_choices(gold: str) -> Choice | None:
    r"""The letters of `gold`: from A to J, or a solution whose last \boxed{} holds such; None for any other text."""
    return boxed_choices(gold) if boxed_spans(gold) else read_choices(gold)


def read_choices(text: str) -> Choice | None:
    """The letters that a box, a block or a gold answer consists of, with or without the text of the options after
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
    """The announcement of the choice and the letters in it; None where nothing does, no letters where it is unreadable.

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


def boxed_choices(text: str) -> Choice | None:
    """The letters of the last box, or of the boxes that are listed up to it; None also where there is no box."""
    spans = boxed_spans(text)[-MAX_OCCURRENCES:]
    return _read_box(text, spans[-1], _lists_of_boxes(text, spans))[1] if spans else None


def _announced(text: str, mode: AnswerMode, is_cut: bool, is_block: bool) -> Iterator[tuple[str, Choice | None]]:
    """Everything that might be the choice, the most trusted first."""
    from_start = mode == "first"
    spans = boxed_spans(text)
    boxes = spans[:MAX_OCCURRENCES] if from_start else spans[-MAX_OCCURRENCES:]
    # Not the boxes that `occurrences` finds: there, what a number's box means decides which belong together.
    boxed = [Occurrence(box.end, Marker.BOXED, box.start, box.end) for box in boxes]
    lines = [] if mode == "strict" else occurrences(text, _LINES, from_start=from_start)
    lists = _lists_of_boxes(text, boxes)
    for rank in [boxed, lines] if mode in ("strict", "flexible") else [[*boxed, *lines]]:
        for occurrence in sorted(rank, reverse=not from_start):
            if occurrence.marker is Marker.BOXED:
                yield _read_box(text, BoxSpan(occurrence.start, occurrence.end), lists)
            elif (choices := _of_line(content := content_of(text, occurrence))) is not None:
                yield content, choices
    if mode == "strict":
        return
    for content in _stated(text, from_start):
        if (choices := _of_line(content)) is not None:
            yield content, choices
    if not is_cut:
        yield from _unannounced(text, is_block)


def _stated(text: str, from_start: bool) -> list[str]:
    """Texts after announcements, up to the end of their line or the next one; the decisive one first."""
    found = _STATED.finditer(text)
    matches = list(islice(found, MAX_OCCURRENCES) if from_start else deque(found, maxlen=MAX_OCCURRENCES))
    ends = [*(match.start() for match in matches[1:]), len(text)]
    contents = [
        _LINE_END.split(text[match.end() : min(end, match.end() + MAX_CHARS)], maxsplit=1)[0]
        for match, end in zip(matches, ends, strict=False)
    ]
    return contents if from_start else contents[::-1]


def _unannounced(text: str, is_block: bool) -> Iterator[tuple[str, Choice | None]]:
    """A block or a last line of nothing but letters; else a block that starts with an option."""
    block = text[: MAX_CHARS + 1]
    last_line = text.rstrip()[-MAX_CHARS:].rpartition("\n")[2]
    for content in (block, last_line) if is_block else (last_line,):
        flat = plain(content)
        match = _WHOLE.fullmatch(flat) or _CLOSING.search(flat) or _CORRECT_OPTION.search(flat)
        if match is not None and (is_block or not _is_word(flat)):
            yield content, _letters(match)
    if is_block and (choices := read_choices(block)) is not None:
        yield block, choices


def _is_word(flat: str) -> bool:
    """Whether letters that nothing announces may well be a word, as BAD; only a list has them in alphabetical order."""
    run = _BARE_RUN.fullmatch(flat)
    return run is not None and any(left >= right for left, right in pairwise(run["letters"]))


def _read_box(text: str, box: BoxSpan, lists: dict[BoxSpan, tuple[str, Choice | None]]) -> tuple[str, Choice | None]:
    content = text[box.start : min(box.end, box.start + MAX_CHARS + 1)]
    return lists.get(box) or (content, read_choices(content))


def _lists_of_boxes(text: str, boxes: Sequence[BoxSpan]) -> dict[BoxSpan, tuple[str, Choice | None]]:
    """Rows of several boxes: for each box in one, the row and its letters; empty if the boxes are alternatives."""
    lists: dict[BoxSpan, tuple[str, Choice | None]] = {}
    row: list[tuple[BoxSpan, Choice]] = []
    is_hedged = False
    for box in boxes:
        link = row and _link(text, row[-1][0], box)
        choices = read_choices(text[box.start : min(box.end, box.start + MAX_CHARS + 1)])
        if not link or choices is None:
            _add_row(lists, text, row, is_hedged)
            row, is_hedged = [], False
        elif link["hedge"]:
            is_hedged = True
        if choices is not None:
            row.append((box, choices))
    _add_row(lists, text, row, is_hedged)
    return lists


def _add_row(
    lists: dict[BoxSpan, tuple[str, Choice | None]], text: str, row: Sequence[tuple[BoxSpan, Choice]], is_hedged: bool
) -> None:
    if len(row) < 2:
        return
    content = (" or " if is_hedged else ", ").join(text[box.start : box.end] for box, _ in row)
    is_one = len({choices for _, choices in row}) == 1
    letters = None if is_hedged and not is_one else frozenset[str]().union(*(choices for _, choices in row))
    lists.update((box, (content, letters)) for box, _ in row)


def _link(text: str, box: BoxSpan, following: BoxSpan) -> re.Match[str] | None:
    """The link that makes a row of two boxes; None where they are apart, or one is within the other."""
    if not box.end < following.start <= box.end + _MAX_BETWEEN:
        return None
    return _BETWEEN_BOXES.fullmatch(text, box.end, following.start)


def _of_line(content: str) -> Choice | None:
    """The letters that a line starts with: "B. Paris", "(B) 72", "A and C because ..."."""
    if boxed_spans(content):
        return boxed_choices(content)
    flat = plain(content)
    end = _SENTENCE_END.search(flat)
    sentence = flat if end is None else flat[: end.start()]
    head = _HEAD.match(sentence)
    if head is None:
        return _labelled(flat)
    is_hedged = _UNSURE.match(sentence[head.end() :].lstrip(" ,")) or _SECOND_THOUGHT.match(flat, head.end())
    if is_hedged or _DENIAL.match(flat, head.end()):
        return None
    is_list_of_options = len(_labels(flat)) > 1 and len(_letters(head)) == 1
    if not is_list_of_options and _AFTER_LETTERS.match(sentence, head.end()):
        return _letters(head)
    return _labelled(flat)


def _labels(flat: str) -> list[str]:
    """The labels of options that are written out, of a text that starts with one: "A) x, C) y"."""
    return _LABEL.findall(flat) if _LABEL.match(flat) else []


def _labelled(flat: str) -> Choice | None:
    """The letters of a text that starts with an option, with its text after it: "B. Paris", "A) red, C) blue"."""
    labels = _labels(flat)
    if not labels or (len(labels) > 1 and _UNSURE.search(flat)):
        return None
    head = _HEAD.match(flat)
    if head is not None and (_SECOND_THOUGHT.match(flat, head.end()) or _DENIAL.match(flat, head.end())):
        return None
    return frozenset(labels)


def _letters(match: re.Match[str]) -> Choice:
    without_words = re.sub(r"[a-z]+", " ", match["letters"])
    return frozenset(letter for letter in without_words if "A" <= letter <= "J")
