r"""Where in a response its answer stands: the ways in which responses announce it, and which of them counts.

    HASHES        #### 72                   a line of GSM8K's worked solutions
    BOXED         \boxed{72}                nested braces allowed
    ANSWER_LINE   Answer: 72                at the start of a line, as DAPO-Math's prompt asks
    ANSWER_COLON  ... final answer: 72      anywhere else in a line; "Answer = 72", "Ans: 72", a heading "Final Answer"
    SHORT_LINE    A: 72                     at the start of a line, as question-and-answer prompts teach it
    ANSWER_IS     The answer is 72          prose
    FINAL_NUMBER  ... she sold 72 clips.    no marker at all: see `final_number`

The Chinese forms of these are read too. The response is searched from end to end, in linear time. A marker that is
followed by words instead of a value ("#### Step 1", "Answer: we compute ...") does not outvote one that states a value.
In every mode but first, an answer that is taken back ("Wait, this is wrong.") is none: what follows decides.
What `mode` does:

    strict      the last of the data set's own markers
    flexible    the last of its own; else the last of the kind that comes first in `others`, and so on
    first       of all kinds, the one that comes first: for a base model that answers and then goes on with questions
                of its own
    last        of all kinds, the one that comes last; and of "The answer is 35 + 70 = 105" the 105, where the other
                modes see a calculation and no answer

FINAL_NUMBER, where it is one of `others`, comes after all markers in every mode but strict. Mode first takes the final
number too, of the text before the next question: the first number of a solution is one of the givens. The end of a
response that was cut is no final number.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import islice
from typing import NamedTuple, TypeVar

from math_answers.final_number import final_number
from math_answers.findings import AnswerMode
from math_answers.latex_tokens import MAX_EXPRESSION_CHARS
from math_answers.quantity import (
    MAX_CONTENT_CHARS,
    before_calculation,
    box_content,
    joined_spans,
    read_quantity,
    starts_with_number,
    states_several,
)
from math_answers.text import BOX, WRONG_MARKS, Passage, boxed_spans, passages, plain, without_open_boxes

AnyItem = TypeVar("AnyItem")


class Marker(str, Enum):
    """See the module's table."""

    HASHES = "hashes"
    BOXED = "boxed"
    ANSWER_LINE = "answer_line"
    ANSWER_COLON = "answer_colon"
    SHORT_LINE = "short_line"
    ANSWER_IS = "answer_is"
    FINAL_NUMBER = "final_number"


class _Strength(Enum):
    """Strength of an occurrence. STATED: a value. VAGUE: perhaps an answer. SILENT: nothing."""

    STATED = "stated"
    VAGUE = "vague"
    SILENT = "silent"


class Occurrence(NamedTuple):
    """One marker in the text: where it begins (a box: where it ends), which it is, and the character range of what it
    announces."""

    position: int
    marker: Marker
    start: int
    end: int


MAX_OCCURRENCES = 300
"""Most occurrences of one kind that are looked at, from the end that decides: a bound on the work for a text that
consists of markers."""

_LINE_START = r"^[ \t>*_#-]{0,12}"
_HASHES = re.compile(r"(?<!#)####(?!#)")
_ANSWER = re.compile(
    rf"(?P<lead>{_LINE_START}(?:\\[a-z]{{4,6}}\{{)?"
    r"(?:(?:so|thus|hence|therefore),? )?(?:the |my |our )?(?:final |correct )?(?:所以|因此|故)?(?:最终|最后|正确)?)?"
    r"(?P<word>\bans(?:wer)?\b\.?|答案)[ \t*_\"'})]{0,8}(?:\([^()\n]{1,40}\)[ \t*_]{0,4})?"
    r"(?:(?P<colon>[:：])|=|(?(lead)[ \t]{0,4}$|(?!)))",
    re.IGNORECASE | re.MULTILINE,
)
_SHORT_LINE = re.compile(rf"{_LINE_START}(?:A|答)[ \t*_]{{0,4}}[:：]", re.MULTILINE)
_SECOND_OPTION = re.compile(rf"{_LINE_START}B[ \t*_]{{0,4}}[:：.)]", re.MULTILINE)
_ANSWER_IS = re.compile(
    r"(?:\banswer(?: to [^\n.:=]{1,60}?)?[ \t*_]{1,4}(?:is|was|will be|would be|should be|must be|equals|comes to)\b"
    r"|答案(?:应该|应|就)?(?:是|为|等于))[ \t]{0,4}"
    r"(?:(?:therefore|thus|simply|indeed|equal to|approximately|about)\b)?[ \t:：]{0,4}",
    re.IGNORECASE,
)
_HEADING = re.compile(r"\s*[0-9]{1,2}[.):]\s+[^\W\d]")
_HAS_DIGIT = re.compile(r"\d")
_HAS_WORD = re.compile(r"\w")
_HAS_VALUE = re.compile(r"[\w∞∅]|\\\{\s*\\\}")
# "\sqrt{34}", "(1, 2)" and "x + 1" are values that are not numbers; "We compute ..." is none.
_FORMULA_START = re.compile(r"-?\\[A-Za-z{|]|[(\[{|](?![A-Za-z]{2})|-?[A-Za-z](?:[-+*/^_(=]|\s[-+*/^=]\s|\s*\Z)")
_LOOKAHEAD_LINES = 4


def occurrences(text: str, markers: Sequence[Marker], *, from_start: bool) -> list[Occurrence]:
    """Occurrences of `markers`, the decisive one first: by position, from the start or from the end of the text.

    Not more than MAX_OCCURRENCES of each kind, those nearest to the decisive end. FINAL_NUMBER is not looked for.
    """
    found: list[Occurrence] = []
    if Marker.BOXED in markers:
        boxes = _nearest(boxed_spans(text), from_start)
        found += [Occurrence(span.end, Marker.BOXED, span.start, span.end) for span in boxes]
    if Marker.HASHES in markers and "####" in text:
        found += _in_lines(text, _HASHES, lambda match: Marker.HASHES, from_start)
    if (Marker.ANSWER_LINE in markers or Marker.ANSWER_COLON in markers) and _speaks_of_answers(text):
        found += _in_lines(text, _ANSWER, _answer_marker, from_start)
    if Marker.SHORT_LINE in markers:
        lines = _in_lines(text, _SHORT_LINE, lambda match: Marker.SHORT_LINE, from_start)
        found += lines if lines and _SECOND_OPTION.search(text) is None else []
    if Marker.ANSWER_IS in markers and _speaks_of_answers(text):
        found += _in_lines(text, _ANSWER_IS, lambda match: Marker.ANSWER_IS, from_start)
    return sorted((one for one in found if one.marker in markers), reverse=not from_start)


def content_of(text: str, occurrence: Occurrence) -> str:
    """Text that `occurrence` announces: all of a box, else the line, without the end of "72, not 71"; bounded."""
    if occurrence.marker is Marker.BOXED:
        # A box is one answer or none, so one character too many makes it unreadable; a line may go on and on
        # after its first sentence.
        return box_content(text, occurrence.start, min(occurrence.end, occurrence.start + MAX_EXPRESSION_CHARS + 1))
    line = _line_after(text[occurrence.start : min(occurrence.end, occurrence.start + MAX_CONTENT_CHARS)])
    denied = _CONTRAST.search(line)
    return line if denied is None or denied[1] in line[: denied.start()] else line[: denied.start()]


_CONTRAST = re.compile(
    r"(?<=[\w$)}*])(?:,?\s\(?(?:and )?(?:not|rather than|instead of)\s|[,，]\s?而?(?:不是|非))"
    r"\s?\$?(-?[0-9][0-9.,/]{0,20}|[^$\n]{1,40}(?=\$))\$?(?:\s[A-Za-z']{1,15}){0,8}\)?[.!。]?\s*\Z",
    re.IGNORECASE,
)


def _strength_of(text: str, occurrence: Occurrence, content: str) -> _Strength:
    """Strength of `content`, which `occurrence` announces in `text`."""
    if not _HAS_VALUE.search(content):
        return _Strength.SILENT
    if occurrence.marker is Marker.BOXED:
        return _Strength.STATED
    if _HAS_DIGIT.search(content):
        if occurrence.marker is Marker.SHORT_LINE:
            return _Strength.STATED if read_quantity(content) is not None else _Strength.VAGUE
        if starts_with_number(content):
            return _Strength.VAGUE if _is_heading(text, occurrence, content) else _Strength.STATED
        if read_quantity(content) is not None:
            # "#### Case 1: n = 4" reads as a quantity, yet is more likely a heading.
            return _Strength.VAGUE if occurrence.marker is Marker.HASHES else _Strength.STATED
        if states_several(plain(content)):
            return _Strength.VAGUE
        if _BOUNDED.match(plain(content)):
            return _Strength.STATED  # a bound, which is no number
    return _strength_without_number(occurrence.marker, plain(content))


def _strength_without_number(marker: Marker, content: str) -> _Strength:
    if marker is Marker.HASHES:
        return _Strength.SILENT  # a heading
    if _FORMULA_START.match(content):
        return _Strength.STATED
    if marker is Marker.ANSWER_IS:
        return _Strength.SILENT  # prose such as "the answer is in dollars"
    # The prompt of DAPO-Math says "Answer: $Answer": an echo of it answers nothing.
    return _Strength.SILENT if content.lower().startswith("answer") else _Strength.VAGUE


def _speaks_of_answers(text: str) -> bool:
    """Whether a search for the word can find anything; looking for a plain string is much quicker."""
    return "ans" in text.lower() or "答案" in text


def _in_lines(
    text: str, pattern: re.Pattern[str], marker_of: Callable[[re.Match[str]], Marker], from_start: bool
) -> list[Occurrence]:
    """Occurrences of a pattern; each announces the text up to the next one."""
    matches = list(_nearest(pattern.finditer(text), from_start))
    ends = [*(match.start() for match in matches[1:]), len(text)][: len(matches)]
    return [
        Occurrence(match.start(), marker_of(match), match.end(), end) for match, end in zip(matches, ends, strict=True)
    ]


def _nearest(items: Iterable[AnyItem], from_start: bool) -> Iterable[AnyItem]:
    """The MAX_OCCURRENCES items at the decisive end, in their order."""
    return islice(items, MAX_OCCURRENCES) if from_start else deque(items, maxlen=MAX_OCCURRENCES)


def _answer_marker(match: re.Match[str]) -> Marker:
    is_abbreviated = match["word"].lower().startswith("ans") and not match["word"].lower().startswith("answer")
    is_line = match["lead"] is not None and match["colon"] is not None and not is_abbreviated
    return Marker.ANSWER_LINE if is_line else Marker.ANSWER_COLON


def _line_after(window: str) -> str:
    """The rest of the marker's line; where that is empty, the next line that starts with a number."""
    first, *following = window.split("\n", _LOOKAHEAD_LINES)
    if _HAS_WORD.search(plain(first)):
        return first.rstrip(" \t\r!*_")
    for line in following[: _LOOKAHEAD_LINES - 1]:
        if _HAS_WORD.search(plain(line)):
            return line if starts_with_number(line) else ""
    return ""


def _is_heading(text: str, occurrence: Occurrence, content: str) -> bool:
    """Whether this is "#### 3. Check the result" at the start of a line: a markdown heading, or nearly so."""
    starts_line = occurrence.position == 0 or text[occurrence.position - 1] == "\n"
    return occurrence.marker is Marker.HASHES and starts_line and _HEADING.match(content) is not None


_STATES_SOMETHING = re.compile(r"\d|[-\\+*/=^(]|\A\W*\w{1,3}\W*\Z")
_REFUSES = re.compile(
    r"(?:none|no|not|nothing|unknown|undefined|undetermined|unclear|impossible|infinite|infinity|cannot|can't|never"
    r"|there (?:is|are) no|it (?:is|does|can)\s?(?:not|impossible|unknown|n't)|i (?:do not|don't|cannot|can't))\b"
    r"|不|无|没有|未知",
    re.IGNORECASE,
)
_BOUND = (
    r"(?:at (?:least|most)|up to|over|under|above|below|beyond"
    r"|(?:more|less|fewer|greater|larger|bigger|smaller|higher|lower) than(?: or equal to)?"
    r"|超过|不超过|[大小少多低高]于|不到|不足)\W{0,3}"
)
_BOUND_BEFORE = re.compile(rf"\b{_BOUND}\Z", re.IGNORECASE)
_BOUNDED = re.compile(rf"(?:an? number |no |not )?{_BOUND}[0-9]", re.IGNORECASE)
_COMPARES = re.compile(r"[<>≤≥≠]|\\(?:leq?|geq?|neq?|lt|gt)(?:slant)?(?![A-Za-z])")

USUAL_MARKERS: tuple[Marker, ...] = (
    Marker.BOXED,
    Marker.HASHES,
    Marker.ANSWER_LINE,
    Marker.ANSWER_COLON,
    Marker.SHORT_LINE,
    Marker.ANSWER_IS,
    Marker.FINAL_NUMBER,
)
"""All kinds in the order in which mode flexible believes them; a data set's own come before."""


class Announced(NamedTuple):
    """The text of an answer. is_box: whether it is the content of a box, all of which is meant as the answer."""

    text: str
    is_box: bool = False


def find_answer(
    text: str,
    *,
    own: Sequence[Marker] = (Marker.HASHES, Marker.BOXED),
    others: Sequence[Marker] = USUAL_MARKERS,
    mode: AnswerMode = "flexible",
    is_cut: bool = False,
    ending: Callable[[str], str | None] = final_number,
) -> Announced | None:
    """The answer, or None if `text` holds none.

    own: the data set's markers, of equal rank. others: further ones, the most trusted first; those of `own` may be
    among them. is_cut: whether the response reached the longest length without an EOS. ending: what a text without any
    marker ends in, where FINAL_NUMBER is among the others.
    A value that is stated is preferred to words after a marker. Never raises.
    """
    ranks = _ranks(own, others, mode)
    takes_number = Marker.FINAL_NUMBER in others and mode != "strict" and not is_cut
    words: Announced | None = None
    for passage in passages(text, from_start=mode == "first", is_cut=is_cut):
        answer = _answer_in(passage, ranks, mode, ending if takes_number else None)
        if answer is None:
            continue
        if not passage.is_block or _STATES_SOMETHING.search(answer.text):
            return answer
        # Words in a block ("see below") are the answer unless a marker after the block says more.
        words, takes_number = answer, False
    return words


def _ranks(own: Sequence[Marker], others: Sequence[Marker], mode: AnswerMode) -> list[Sequence[Marker]]:
    """Kinds of markers that are believed before the next ones; within a rank position decides."""
    if mode == "strict":
        return [own]
    rest = [marker for marker in others if marker not in own and marker is not Marker.FINAL_NUMBER]
    return [own, *([marker] for marker in rest)] if mode == "flexible" else [[*own, *rest]]


def _answer_in(
    passage: Passage, ranks: Sequence[Sequence[Marker]], mode: AnswerMode, ending: Callable[[str], str | None] | None
) -> Announced | None:
    text = without_open_boxes(passage.text)
    vague: tuple[Occurrence, str] | None = None
    # A box that is one of several alternatives announces all of them.
    has_boxes = any(Marker.BOXED in markers for markers in ranks)
    boxes = joined_spans(text) if has_boxes else []
    firsts, lasts = {span.start: span for span in boxes}, {span.end: span for span in boxes}
    for markers in ranks:
        for occurrence in occurrences(text, markers, from_start=mode == "first"):
            if occurrence.marker is Marker.BOXED:
                span = firsts.get(occurrence.start) or lasts.get(occurrence.end)
                occurrence = occurrence if span is None else occurrence._replace(start=span.start, end=span.end)
                if _DENIED_BOX.search(text, max(0, occurrence.start - _MAX_DENIAL), occurrence.start):
                    continue
            content = content_of(text, occurrence)
            if occurrence.marker is Marker.ANSWER_IS and mode != "last":
                content = before_calculation(content)
            strength = _strength_of(text, occurrence, content)
            if strength is _Strength.STATED:
                taken_back = None if mode == "first" else withdrawal(text, occurrence)
                if taken_back is None:
                    return Announced(content, occurrence.marker is Marker.BOXED)
                rest = Passage(text[taken_back.end() :], is_block=False)
                return _answer_in(rest, ranks, mode, ending) if rest.text else None
            if strength is _Strength.VAGUE and vague is None:
                vague = (occurrence, content)
    if vague is not None:
        # Words after a marker, as in "Answer: She sold 72 clips.": the number is looked for in and after them.
        occurrence, content = vague
        number = _number_in_words(text[occurrence.start :], content) if ending else None
        return Announced(number if number is not None and read_quantity(number) is not None else content)
    if passage.is_block:
        return None if mode == "strict" else Announced(_whole_block(text, takes_number=ending is not None))
    number = ending(text) if ending else None
    return None if number is None else Announced(number)


_WITHDRAWAL = re.compile(
    r"\b(?:(?:this|that|it|(?:the )?above|(?:my|the|this|that) (?:\w+ )?(?:answer|result|value|solution))\s"
    r"(?:is|was|seems|looks)|(?:that|this|it)['’]s)\s(?:\w+\s)?(?:wrong|incorrect|a mistake|an error"
    r"|not (?:right|correct))(?! (?:to|that|for)\b)"
    r"|(?:is|was)n['’]t (?:right|correct)\b|\b(?:can['’]t|cannot|can not) be (?:right|correct)\b"
    r"|\bI (?:have )?(?:just )?made an? (?:\w+ )?(?:mistake|error)\b|\bcorrection\s?:"
    r"|\bI was wrong\b|\bnever mind\b|\boops\b|\bwait,? no\b|\bno,? wait\b|\bnot the (?:right|correct) answer\b"
    r"|(?:\.\.\.|…)\s?(?:actually|no|wait)\b"
    r"|\b(?:right|correct) answer (?:is|was) (?:actually|in fact|rather|instead)\b"
    r"|\b(?:scratch|disregard|ignore) (?:that|this|the above|my)\b|答案错|算错了|更正",
    re.IGNORECASE,
)


_DENIED_BEHIND = re.compile(
    rf"[}}\s$*)\\\]]{{0,8}}(?:[{WRONG_MARKS}]|(?:is|was)(?:n['’]t|\snot|\s(?:wrong|incorrect))\b)", re.IGNORECASE
)


_MAX_DENIAL = 30
_DENIED_BOX = re.compile(
    rf"(?:\b(?:not|never|rather than|instead of|cannot be)|n['’]t(?: be)?|不是)[\s$*]{{0,3}}{BOX}\Z",
    re.IGNORECASE,
)


def withdrawal(text: str, occurrence: Occurrence) -> re.Match[str] | None:
    """Where an answer is taken back by what follows it: "Wait, this is wrong. ..."; None where it is not."""
    if occurrence.marker is not Marker.BOXED:
        return _WITHDRAWAL.search(text, occurrence.start)
    return _DENIED_BEHIND.match(text, occurrence.end) or _WITHDRAWAL.search(text, occurrence.end)


def _number_in_words(text: str, line: str) -> str | None:
    """The number in a line of words after a marker, with which `text` starts; of a line without any, the number
    after it. None where the line refuses to answer, bounds the answer or offers several."""
    words = plain(line)
    if _REFUSES.match(words) or _COMPARES.search(words) or states_several(words):
        return None
    number = final_number(line if _HAS_DIGIT.search(line) else text)
    return None if number is None or _BOUND_BEFORE.search(words.rpartition(number)[0]) else number


def _whole_block(text: str, *, takes_number: bool) -> str:
    """A block without a marker: a value ("72", "x + 1"), or a sentence that ends in one."""
    if read_quantity(text) is None and takes_number:
        number = final_number(text)
        if number is not None and read_quantity(number) is not None:
            return number
    return text.strip()[: MAX_CONTENT_CHARS + 1]
