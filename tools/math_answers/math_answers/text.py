r"""Reading the text of a response: markup off, boxes found, thinking left out. Every search is linear in the text.

`plain` takes markdown, LaTeX spacing and wrappers, currency signs, tags and full-width forms off a line. `boxed_spans`
finds all \boxed{...} contents, nested braces included; a box that is never closed (the response was cut) is no answer.

`passages` says which parts of a response are searched for its answer. Thinking is no answer: of a response with
</think> only what follows is searched, even if that is nothing, and of one that starts with a <think> that is never
closed nothing is. Of what remains, the last <answer>...</answer> block that holds a word is searched first, then the
text from there on, and nothing before it: an answer that was dropped is no answer. A block of placeholder words
("<answer> answer here </answer>", "<answer> and </answer>") only talks about tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

# Full-width ASCII (U+FF01..U+FF5E) is what Chinese input methods produce. NFKC is not used: it would turn the
# exponent of "5 m^2" written as one character into the digit 2.
WIDTHS_AND_DASHES: dict[int, str] = {0xFF01 + offset: chr(0x21 + offset) for offset in range(0x5E)}
"""Full-width forms, kinds of white space and of dashes -> their ASCII forms."""
WIDTHS_AND_DASHES |= dict.fromkeys((0x00A0, 0x2007, 0x2009, 0x200A, 0x202F, 0x3000), " ")
WIDTHS_AND_DASHES |= dict.fromkeys((0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF), "")
WIDTHS_AND_DASHES |= str.maketrans(dict.fromkeys("‐‑‒–−﹣", "-"))
_FRACTIONS = "1/4 1/2 3/4 1/7 1/9 1/10 1/3 2/3 1/5 2/5 3/5 4/5 1/6 5/6 1/8 3/8 5/8 7/8"
_CHARACTERS: dict[int, str] = WIDTHS_AND_DASHES | str.maketrans(
    {
        **dict.fromkeys("“”„", '"'), **dict.fromkeys("‘’", "'"), **dict.fromkeys("⁄∕", "/"),
        **{"。": ". ", "｡": ". ", "、": ","},
        **dict.fromkeys("∼≃≅≈≐≒", "="),  # about
        **dict.fromkeys(("£", "¥", "￥", *map(chr, range(0x20A0, 0x20C0))), "$"),
        **{sign: f" {value}" for sign, value in zip("¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞", _FRACTIONS.split(), strict=True)},
    }
)  # fmt: skip

SIZES = r"tiny|(?:script|footnote|normal)size|small|[lL]arge|LARGE|[hH]uge"
COLOUR = r"(?:fcolorbox\{[^{}]{0,30}\}|(?:text|math)?color(?:box)?)(?:\[[A-Za-z]{0,9}\])?\{[^{}]{0,30}\}"
"""Commands of LaTeX, without backslash, that change how an answer looks; that of a colour takes its name."""

# Check marks, stars, boxes at the end of a proof, emoji; no arrows, operators, question marks, numbers in circles.
_EMOJI = (
    "\u2600-\u2611\u2613-\u26d3\u26d5-\u2714\u2719-\u274b❍\u274f-\u2752\u2757-\u2775⭐⭕\ufe0e\ufe0f"
    "\U0001f1e6-\U0001f1ff\U0001f300-\U0001f44d\U0001f44f-\U0001f51e\U0001f525-\U0001f5f3\U0001f5fa-\U0001f644\U0001f646-\U0001f6aa"
    "\U0001f6ac-\U0001f6ff\U0001f7e0-\U0001f7eb\U0001f900-\U0001faff∎\u25a0-\u25b1\u25c6-\u25d9◯\u25fb-\u25fe⬛⬜⬤"
)
WRONG_MARKS = "❌❎☒✗✘⛔\U0001f6ab\U0001f44e"
"""Crosses and the like, for a pattern: what stands before them is said to be wrong."""
_SIGNS = (
    r"\\(?:checkmark|tick|cmark|ding\{5[12]\}|bigstar|(?:black)?(?:square|lozenge)|Box|QED|qed(?:symbol|here)?)"
    r"(?![A-Za-z])|(?<![A-Za-z])Q\.\s?E\.\s?D\b\.?"
)
_SIGN = rf"(?:[{_EMOJI}]|{_SIGNS})"
_MARKS = re.compile(
    rf"(?:\\hfill[ \t]{{0,4}})?(?:(?:{_SIGN}|\({_SIGN}+\)|\[{_SIGN}+\])(?:[ \t]|\\[,;:! ]|\\q?quad|\\hfill){{0,4}})+"
)
# Plain strings are found much quicker: one of these is in every sign.
_NAMES = r"checkmark \cmark \tick \ding bigstar \square blacksquare lozenge \Box \qed \QED Q."
_PARTS_OF_SIGNS = tuple(_NAMES.split())
_HAS_EMOJI = re.compile(f"[{_EMOJI}]")
_OPERAND_BEFORE = re.compile(r"[\w)}\]][ $]{0,3}\Z")
_OPERAND_AFTER = re.compile(r"[ $]{0,3}-?\s?(?:[0-9(+*/^=]|\.[0-9]|\\[A-Za-z]|[b-zA-HJ-Z](?![A-Za-z]))")

_REMOVED = re.compile(
    r"<<[^<>]*>>"  # GSM8K's calculator notes
    r"|</?[A-Za-z][\w-]{0,20}>|<\|[^|<>]{0,30}\|>"  # tags and special tokens typed as text
    rf"|\\(?:left|right|displaystyle|limits|bf|rm|{SIZES}|!)(?![A-Za-z])|\\{COLOUR}(?!\s*\{{)|`"
)
_NEGATIVE_MONEY = re.compile(r"-\\?\$(?=[0-9.])")
_SHORT_MONEY = re.compile(r"(\$\s?[0-9][0-9.,]{0,20})([kKMB])(?![\w$])")  # not $70k$, which is algebra
_SHORT_FORMS = {"k": " thousand", "K": " thousand", "M": " million", "B": " billion"}
_POWER = re.compile(r"(?<=[0-9)])\s?\*\*\s?(?=[0-9])")
_SPACED = re.compile(r"\*\*|__|\\?\$|\\[,;: ()\[\]]|~|\\q?quad(?![A-Za-z])")
_FONTS = r"text(?:bf|it|rm|tt|sf)?|math(?:rm|bf|it|tt|sf)|underline|mbox|emph"
_WRAPPER = re.compile(rf"\\(?:{_FONTS}|boxed|fbox|{COLOUR})\s*\{{([^{{}}]*)\}}")
_WRAPPER_OPENING = re.compile(rf"\\(?:{_FONTS}|boxed|fbox)\s*\{{")
_TH = r"(?:st|nd|rd|th)"
_WRAPPED_TH = rf"\\(?:text|mathrm|textrm|mbox)\s?\{{\s?{_TH}\s?\}}"
ORDINAL = re.compile(rf"(?<=[0-9])(?:\^\s?\{{\s?(?:{_WRAPPED_TH}|{_TH})\s?\}}|\^?{_WRAPPED_TH}|{_TH}(?![A-Za-z]))")
"""The end of 12th, 12^{\\mathrm{th}} and the like."""
_APPROXIMATELY = re.compile(
    r"\\(?:approx(?:eq)?|simeq|equiv|(?:thick)?sim|thickapprox|cong|(?:falling)?doteq)(?![A-Za-z])"
)
_DEGREES = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degrees?(?![A-Za-z])")
# "48 minus 24" is a difference; "is negative 72" a sign.
_SIGN_WORD = re.compile(
    r"(\A\s{0,4}|\b(?:is|be|equals)\s|[:=#]\s?)(?:negative|minus)\s{1,2}(?=\$?\.?[0-9])", re.IGNORECASE
)
_CHINESE_MINUS = re.compile(r"(?<!正)负\s?(?=[0-9])")
_MARKUP_CHARACTERS = re.compile(r"[\\*_`$<~{}]")


# "\\\\frac" is "\\frac" that was escaped once too often; in an environment two backslashes end a row.
_DOUBLED = re.compile(r"\\{2,}(?=[A-Za-z{}%$#&|,;:!()\[\]])")
_DOUBLED_ENVIRONMENT = re.compile(r"\\\\begin\s?\{")


def single_backslashes(text: str) -> str:
    """An answer that was escaped once too often, as it was meant."""
    if "\\\\" not in text:
        return text
    if "\\begin" not in text:
        return _DOUBLED.sub(r"\\", text)
    return text.replace("\\\\", "\\") if _DOUBLED_ENVIRONMENT.search(text) else text


def ascii_forms(text: str) -> str:
    """`text` with full-width digits and punctuation, typographic minus signs and the like in their ASCII forms."""
    return text if text.isascii() else text.translate(_CHARACTERS)


def without_marks(text: str) -> str:
    r"""`text` without symbols that say nothing: "72 \checkmark", check marks, emoji. One between two operands stays:
    nobody knows what it stands for."""
    may_have_sign = ("\\" in text or "Q." in text) and any(part in text for part in _PARTS_OF_SIGNS)
    if may_have_sign or (not text.isascii() and _HAS_EMOJI.search(text)):
        return _MARKS.sub(_without_mark, text)
    return text


def _without_mark(mark: re.Match[str]) -> str:
    before, after = mark.string[max(0, mark.start() - 4) : mark.start()], mark.string[mark.end() : mark.end() + 5]
    return mark[0] if _OPERAND_BEFORE.search(before) and _OPERAND_AFTER.match(after) else " "


def same_text(one: str, other: str) -> bool:
    """Whether two texts are the same letter by letter; white space, marks, and dollar signs and full stops at their
    edges aside."""
    first, second = (" ".join(without_marks(text).split()).lstrip(" $").rstrip(" $.") for text in (one, other))
    return first == second


def plain(text: str) -> str:
    """`text` without markup, on one line, without quotes and closing punctuation at its edges."""
    text = ascii_forms(without_marks(text))
    if _MARKUP_CHARACTERS.search(text):
        text = _without_markup(text)
    text = _SIGN_WORD.sub(r"\1-", text)
    if not text.isascii():
        text = _CHINESE_MINUS.sub("-", text)
    # A leading point may open a decimal (".5"), so only the right edge loses full stops.
    return " ".join(text.split()).strip(" \"'*_,;:").rstrip(" \"'*_.,;:")


def _without_markup(text: str) -> str:
    text = _POWER.sub("^", single_backslashes(text).replace("{,}", ",").replace(r"\%", "%"))
    text = _SHORT_MONEY.sub(lambda match: match[1] + _SHORT_FORMS[match[2]], text)
    text = _NEGATIVE_MONEY.sub("-", text)
    text = _DEGREES.sub("°", _APPROXIMATELY.sub("=", ORDINAL.sub("", text)))
    text = _SPACED.sub(" ", _REMOVED.sub("", text))
    for _ in range(3):  # \textbf{\text{...}}: three levels are more than anyone writes
        text = _WRAPPER.sub(r" \1 ", text)
    return _without_open_braces(text)


def _without_open_braces(text: str) -> str:
    r"""Wrappers cut off by a line end, as in `\textbf{Answer: 5` or `Answer:} 5`, lose their lone brace."""
    text = _WRAPPER_OPENING.sub(" ", text)
    for _ in range(min(3, text.count("}") - text.count("{"))):
        text = text.strip()
        text = text[1:] if text.startswith("}") else text.removesuffix("}")
    while text.startswith("{") and text.endswith("}") and text.find("}") == len(text) - 1:
        text = text[1:-1]
    return text


def word_set(text: str) -> frozenset[str]:
    """The words of a table that is written as one text."""
    return frozenset(text.split())


# ----- boxes


class BoxSpan(NamedTuple):
    """Half-open character range [start, end) of a box's content."""

    start: int
    end: int


# Two backslashes are what a box looks like that was escaped once too often ("\\boxed{5}" in JSON).
BOX = r"\\{1,2}(?:boxed|fbox)\s{0,4}\{"
_FIRST_BOX = re.compile(BOX)
BRACES = re.compile(rf"(?P<box>{BOX})|\\.|(?P<brace>[{{}}])", re.DOTALL)
"""Openings of boxes, and braces. An escaped brace (\\{) is one token, so that it neither opens nor closes anything."""


def boxed_spans(text: str) -> list[BoxSpan]:
    """Balanced boxes by the position of their closing brace; of nested boxes the outer one comes last."""
    spans: list[BoxSpan] = []
    first = _FIRST_BOX.search(text)
    if first is None:
        return spans
    open_braces: list[int | None] = []  # content start of a box, None for any other brace
    for token in BRACES.finditer(text, first.start()):
        if token["box"]:
            open_braces.append(token.end())
        elif token["brace"] == "{":
            open_braces.append(None)
        elif token["brace"] == "}" and open_braces:
            start = open_braces.pop()
            if start is not None:
                spans.append(BoxSpan(start, token.start()))
    return spans


def without_inner_boxes(content: str) -> str:
    """The content of a box with the contents of boxes in it, spaces around them."""
    if _FIRST_BOX.search(content) is None:
        return content
    characters = list(content)
    for span in boxed_spans(content):
        characters[span.end] = " "
    return _FIRST_BOX.sub(" ", "".join(characters))


def without_open_boxes(text: str) -> str:
    """`text` without boxes that are never closed, each to the end of its line: they announce nothing."""
    if _FIRST_BOX.search(text) is None:
        return text
    closed = {span.start for span in boxed_spans(text)}
    kept: list[str] = []
    end = 0
    for box in _FIRST_BOX.finditer(text):
        if box.end() not in closed and box.start() >= end:
            kept.append(text[end : box.start()])
            end = text.find("\n", box.end())
            if end < 0:
                return "".join(kept)
    return "".join([*kept, text[end:]]) if kept else text


_CODE = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})([^`\n]*)$.*?(?:^[ \t]{0,3}\1|\Z)", re.MULTILINE | re.DOTALL)


def without_code(text: str) -> str:
    """`text` without blocks of code between fences; what a program printed ("```output") stays."""
    return (
        _CODE.sub(lambda block: block[0] if block[2].strip() == "output" else "", text)
        if "```" in text or "~~~" in text
        else text
    )


# ----- parts of a response


class Passage(NamedTuple):
    """is_block: whether `text` is the inside of an <answer> block, so that all of it is meant as the answer."""

    text: str
    is_block: bool


_ANSWER_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_THINK_TAG = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_OPENS_THINKING = re.compile(r"\s*<think(?:ing)?>", re.IGNORECASE)
_NEXT_QUESTION = re.compile(
    r"^[ \t>*_#]{0,8}(?:question|problem|exercise|example|q|human|user|问题|问|题目)"
    r"[ \t*_]{0,4}[0-9]{0,4}[ \t*_.]{0,4}[:：]",
    re.IGNORECASE | re.MULTILINE,
)
_HAS_DIGIT = re.compile(r"\d")
_PLACEHOLDERS = {"and", "or", "your", "my", "the", "a", "final", "answer", "here", "goes", "tag", "tags", "block"}
_MAX_WORDS = 20
_WORDS = re.compile(r"\w+")


def passages(text: str, *, from_start: bool, is_cut: bool) -> Iterator[Passage]:
    """The parts of `text` in the order in which they are searched.

    from_start: of several blocks the first counts, and what follows a new "Question:" line is another matter, as long
    as the text before it holds a digit. is_cut: a block that is not closed is unfinished, not the answer.
    """
    text = without_marks(text)
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
        words = {word[0].lower() for word, _ in zip(_WORDS.finditer(text, start, end), range(_MAX_WORDS), strict=False)}
        if words - _PLACEHOLDERS:
            return start, end
    return None


def _after_thinking(text: str, from_start: bool) -> str:
    """Text after the last </think> (from_start: the first); empty where thinking is still going on."""
    ends = [tag.end() for tag in _THINK_TAG.finditer(text) if tag[1]]
    if ends:
        text = text[ends[0] if from_start else ends[-1] :]
    return "" if _OPENS_THINKING.match(text) else text
