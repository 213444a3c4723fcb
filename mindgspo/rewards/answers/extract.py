r"""Where in a response its answer stands.

What enters: the whole response up to EOS, and which markers its data set uses. What leaves: the text that
the decisive marker announces. Called by the judges. The markers are listed in `markers`, the parts of a response that
are searched in `passages`.

The response is searched from end to end (a long tail after the answer costs nothing) in linear time. A marker that is
followed by words instead of a value ("#### Step 1", "Answer: we compute ...") does not outvote one that states a
value. What `mode` does (reward.answer in the configuration):

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
from collections.abc import Sequence

from mindgspo.config.reward import AnswerMode
from mindgspo.rewards.answers.final_number import final_number
from mindgspo.rewards.answers.markers import Marker, Occurrence, Strength, content_of, occurrences, strength_of
from mindgspo.rewards.answers.passages import Passage, passages
from mindgspo.rewards.answers.plain_text import plain
from mindgspo.rewards.answers.quantity import (
    MAX_CONTENT_CHARS,
    before_calculation,
    hedged_spans,
    read_quantity,
    states_several,
)

_HAS_DIGIT = re.compile(r"\d")
_STATES_SOMETHING = re.compile(r"\d|[-\\+*/=^(]|\A\W*\w{1,3}\W*\Z")
_REFUSES = re.compile(
    r"(?:none|no|not|nothing|unknown|undefined|undetermined|unclear|impossible|infinite|infinity|cannot|can't|never"
    r"|there (?:is|are) no|it (?:is|does|can)\s?(?:not|impossible|unknown|n't)|i (?:do not|don't|cannot|can't))\b"
    r"|\u4e0d|\u65e0|\u6ca1\u6709|\u672a\u77e5",
    re.IGNORECASE,
)
_COMPARES = re.compile(r"[<>\u2264\u2265\u2260]|\\(?:leq?|geq?|neq?|lt|gt)(?:slant)?(?![A-Za-z])")

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


def find_answer(
    text: str, *, own: Sequence[Marker], others: Sequence[Marker], mode: AnswerMode, is_cut: bool = False
) -> str | None:
    """The text of the answer, or None if `text` holds none.

    own: the data set's markers, of equal rank. others: further ones, the most trusted first; those of `own` may be
    among them. is_cut: whether the response reached the longest length without an EOS.
    A value that is stated is preferred to words behind a marker. Never raises.
    """
    ranks = _ranks(own, others, mode)
    takes_number = Marker.FINAL_NUMBER in others and mode != "strict" and not is_cut
    words: str | None = None
    for passage in passages(text, from_start=mode == "first", is_cut=is_cut):
        answer = _answer_in(passage, ranks, mode, takes_number)
        if answer is None:
            continue
        if not passage.is_block or _STATES_SOMETHING.search(answer):
            return answer
        # Words in a block ("see below") are the answer unless a marker behind the block says more.
        words, takes_number = answer, False
    return words


def _ranks(own: Sequence[Marker], others: Sequence[Marker], mode: AnswerMode) -> list[Sequence[Marker]]:
    """Kinds of markers that are believed before the next ones; within a rank position decides."""
    if mode == "strict":
        return [own]
    rest = [marker for marker in others if marker not in own and marker is not Marker.FINAL_NUMBER]
    return [own, *([marker] for marker in rest)] if mode == "flexible" else [[*own, *rest]]


def _answer_in(passage: Passage, ranks: Sequence[Sequence[Marker]], mode: AnswerMode, takes_number: bool) -> str | None:
    text = passage.text
    vague: tuple[Occurrence, str] | None = None
    # A box that is one of several alternatives announces all of them.
    has_boxes = any(Marker.BOXED in markers for markers in ranks)
    boxes = hedged_spans(text) if has_boxes else []
    firsts, lasts = {span.start: span for span in boxes}, {span.end: span for span in boxes}
    for markers in ranks:
        for occurrence in occurrences(text, markers, from_start=mode == "first"):
            if occurrence.marker is Marker.BOXED:
                span = firsts.get(occurrence.start) or lasts.get(occurrence.end)
                occurrence = occurrence if span is None else occurrence._replace(start=span.start, end=span.end)
            content = content_of(text, occurrence)
            if occurrence.marker is Marker.ANSWER_IS and mode != "last":
                content = before_calculation(content)
            strength = strength_of(text, occurrence, content)
            if strength is Strength.STATED:
                return content
            if strength is Strength.VAGUE and vague is None:
                vague = (occurrence, content)
    if vague is not None:
        # Words behind a marker, as in "Answer: She sold 72 clips.": the number is looked for in and behind them.
        occurrence, content = vague
        number = _number_in_words(text[occurrence.start :], content) if takes_number else None
        return number if number is not None and read_quantity(number) is not None else content
    if passage.is_block:
        return None if mode == "strict" else _whole_block(text, takes_number)
    return final_number(text) if takes_number else None


def _number_in_words(text: str, line: str) -> str | None:
    """The number in a line of words behind a marker, with which `text` starts; of a line without any, the number
    behind it. None where the line refuses to answer, bounds the answer or offers several."""
    words = plain(line)
    if _REFUSES.match(words) or _COMPARES.search(words) or states_several(words):
        return None
    return final_number(line if _HAS_DIGIT.search(line) else text)


def _whole_block(text: str, takes_number: bool) -> str:
    """A block without a marker: a value ("72", "x + 1"), or a sentence that ends in one."""
    if read_quantity(text) is None and takes_number:
        number = final_number(text)
        if number is not None and read_quantity(number) is not None:
            return number
    return text.strip()[: MAX_CONTENT_CHARS + 1]
