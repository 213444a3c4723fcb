r"""Where in a response its answer stands.

What enters: the whole response up to EOS, and which markers its data set uses. What leaves: the text that
follows the decisive marker. Called by `verify`.

    HASHES        #### 72                 a line of GSM8K's worked solutions
    BOXED         \boxed{72}              nested braces allowed
    ANSWER_LINE   Answer: 72              at the start of a line, as DAPO-Math's prompt asks
    ANSWER_COLON  ... final answer: 72    anywhere else in a line
    ANSWER_IS     The answer is 72        prose

The response is searched from end to end (a long tail after the answer costs nothing) in linear time, and
the last marker of the data set's own kind decides; other kinds count only where its own is missing. A
marker that is followed by words instead of a value ("#### Step 1", "Answer: we compute ...") does not
outvote one that states a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from mindgspo.rewards.boxed import boxed_spans
from mindgspo.rewards.plain_text import plain
from mindgspo.rewards.quantity import MAX_CONTENT_CHARS, read_quantity, starts_with_number


class Marker(str, Enum):
    """The ways in which responses announce their answer; see the module's table."""

    HASHES = "hashes"
    BOXED = "boxed"
    ANSWER_LINE = "answer_line"
    ANSWER_COLON = "answer_colon"
    ANSWER_IS = "answer_is"


class Strength(Enum):
    """How much an occurrence says. STATED: a value. VAGUE: perhaps an answer. SILENT: nothing."""

    STATED = "stated"
    VAGUE = "vague"
    SILENT = "silent"


class Occurrence(NamedTuple):
    """One marker in the text: where it begins, which it is, and the character range of what it announces."""

    position: int
    marker: Marker
    start: int
    end: int


_HASHES = re.compile(r"(?<!#)####(?!#)")
_ANSWER = re.compile(
    r"(?P<lead>^[ \t>*_#-]{0,12}(?:the )?(?:final |correct )?)?"
    r"(?P<word>answer|\u7b54\u6848)[ \t*_\"']{0,8}[:\uff1a]",
    re.IGNORECASE | re.MULTILINE,
)
_ANSWER_IS = re.compile(
    r"(?:\banswer[ \t*_]{1,4}is\b|\u7b54\u6848[\u662f\u4e3a])[ \t]{0,4}"
    r"(?:(?:therefore|thus|simply|indeed|equal to|approximately|about)\b)?[ \t:]{0,4}",
    re.IGNORECASE,
)
_HEADING = re.compile(r"\s*[0-9]{1,2}[.):]\s+[^\W\d]")
_HAS_DIGIT = re.compile(r"\d")
_HAS_WORD = re.compile(r"\w")
_LOOKAHEAD_LINES = 4


def find_answer(text: str, *, own: Sequence[Marker], others: Sequence[Marker]) -> str | None:
    """The text announced by the decisive marker, or None if `text` holds none.

    own: the data set's markers. others: markers believed only where `own` states no value. The order of
    belief: last STATED of own, last STATED of others, last VAGUE of own, last VAGUE of others.
    """
    vague = None
    for markers in (own, others):
        for occurrence in reversed(_occurrences(text, markers)):
            content = _content(text, occurrence)
            strength = _strength(text, occurrence, content)
            if strength is Strength.STATED:
                return content
            if strength is Strength.VAGUE and vague is None:
                vague = content
    return vague


def _occurrences(text: str, markers: Sequence[Marker]) -> list[Occurrence]:
    """All occurrences of `markers` in the order of their position."""
    found: list[Occurrence] = []
    if Marker.BOXED in markers:
        found += [Occurrence(span.end, Marker.BOXED, span.start, span.end) for span in boxed_spans(text)]
    if Marker.HASHES in markers:
        found += _line_markers(text, _HASHES, lambda match: Marker.HASHES)
    if Marker.ANSWER_LINE in markers or Marker.ANSWER_COLON in markers:
        found += _line_markers(text, _ANSWER, _answer_marker)
    if Marker.ANSWER_IS in markers:
        found += _line_markers(text, _ANSWER_IS, lambda match: Marker.ANSWER_IS)
    return sorted(occurrence for occurrence in found if occurrence.marker in markers)


def _answer_marker(match: re.Match[str]) -> Marker:
    return Marker.ANSWER_COLON if match["lead"] is None else Marker.ANSWER_LINE


def _line_markers(
    text: str, pattern: re.Pattern[str], marker_of: Callable[[re.Match[str]], Marker]
) -> list[Occurrence]:
    """What a marker announces ends where the next one begins: linear work however often a marker repeats."""
    matches = list(pattern.finditer(text))
    ends = [*(match.start() for match in matches[1:]), len(text)][: len(matches)]
    return [
        Occurrence(match.start(), marker_of(match), match.end(), end) for match, end in zip(matches, ends, strict=True)
    ]


def _content(text: str, occurrence: Occurrence) -> str:
    # A box is one quantity or none, so one character too many makes it unreadable; a line may go on and
    # on after its first sentence.
    limit = MAX_CONTENT_CHARS + (occurrence.marker is Marker.BOXED)
    window = text[occurrence.start : min(occurrence.end, occurrence.start + limit)]
    return window if occurrence.marker is Marker.BOXED else _line_after(window)


def _line_after(window: str) -> str:
    """The rest of the marker's line; where that is empty, the next line that starts with a number."""
    first, *following = window.split("\n", _LOOKAHEAD_LINES)
    if _HAS_WORD.search(plain(first)):
        return first
    for line in following[: _LOOKAHEAD_LINES - 1]:
        if _HAS_WORD.search(plain(line)):
            return line if starts_with_number(line) else ""
    return ""


def _strength(text: str, occurrence: Occurrence, content: str) -> Strength:
    if not _HAS_WORD.search(content):
        return Strength.SILENT
    if occurrence.marker is Marker.BOXED:
        return Strength.STATED
    if _HAS_DIGIT.search(content):
        if starts_with_number(content):
            return Strength.VAGUE if _is_heading(text, occurrence, content) else Strength.STATED
        if read_quantity(content) is not None:
            # "#### Case 1: n = 4" reads as a quantity, yet is more likely a heading.
            return Strength.VAGUE if occurrence.marker is Marker.HASHES else Strength.STATED
    if occurrence.marker in (Marker.HASHES, Marker.ANSWER_IS):
        return Strength.SILENT  # a heading, or prose such as "the answer is in dollars"
    # The prompt of DAPO-Math says "Answer: $Answer": an echo of it answers nothing.
    return Strength.SILENT if plain(content).lower().startswith("answer") else Strength.VAGUE


def _is_heading(text: str, occurrence: Occurrence, content: str) -> bool:
    """Whether this is "#### 3. Check the result" at the start of a line: a markdown heading, or nearly so."""
    starts_line = occurrence.position == 0 or text[occurrence.position - 1] == "\n"
    return occurrence.marker is Marker.HASHES and starts_line and _HEADING.match(content) is not None
