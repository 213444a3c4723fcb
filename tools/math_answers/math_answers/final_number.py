r"""The final number of a text that announces no answer: "So in total she sold 48 + 24 = 72 clips." gives "72".

Where the text ends in no single number the result is something that `read_quantity` refuses: the last number of "72 or
73", "2 hours and 5 minutes", "3:20 pm", "48 + 24", "2^10", "5x" is not what the text says.

Passed over are numbers that only count or name something ("Step 3:", "2. Add", x_1, cm^2), that are denied ("not 72"),
those of code, those of a question, because a question that is repeated or asked back states nothing, and those of a
reason that is no calculation ("because 9 > 8"). The result of a calculation is preferred to a number that only words
part from it ("= 24 pages in 3 days"), and on the last line with a number one in bold type to all others.
"""

from __future__ import annotations

import re

from math_answers.quantity import number_places, read_quantity, without_aside
from math_answers.text import WRONG_MARKS, ascii_forms, plain, without_code

MAX_LINE_CHARS = 1000
"""Most characters of a line that are read, counted back from its last digit; the answer's sentence is shorter."""

MAX_LINES = 1000
"""Most lines with digits that are looked at."""

_DIGIT = re.compile(r"[0-9\uff10-\uff19\u00bc-\u00be\u2150-\u215e]")
_LIST_LABEL = re.compile(r"[ \t>*_#-]{0,12}[0-9]{1,2}[.)][*_]{0,2}\s(?=.{0,20}\w)")
_SENTENCE = re.compile(r"(?:[^.?!]|\.(?!\s|\Z))+[.?!]?|[.?!]")
_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*")
_ITALIC = re.compile(r"(?<!\S)\*([^*\s][^*\n]{0,200})\*(?!\w)")

# What stands before a number, to the left of \Z.
_NAMED = re.compile(
    r"(?:\b(?:step|case|part|question|problem|example|option|equation|figure|table|method|approach|line|section)"
    r"|步骤|第)\s{0,2}#?\Z"
    r"|#\Z",
    re.IGNORECASE,
)
_INDEXED = re.compile(r"[A-Za-z]\s?\^\s?\{?-?\Z|[A-Za-z\])]_\{?\Z|[A-Za-z]\Z")
_CURRENCY = re.compile(r"(?<![A-Za-z])(?:USD?|Rs|EUR|GBP|CNY|RMB|HK|RM)\Z", re.IGNORECASE)
_DENIED = re.compile(
    r"(?:\b(?:not|never|cannot|instead of|rather than|neither|nor)(?: be| equal(?: to)?)?|n't(?: be| equal)?"
    r"|(?:n't|\bnot) (?:think|believe)(?: that)? (?:it|the answer)(?: is|'s)|\\neq?|≠"
    r"|不(?:可能|会|应该|应)?(?:是|为|等于))\s?\Z",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    r"\s?(?:is|are|was|were|would be|seems)(?:n't|\s(?:not|wrong|incorrect|impossible|invalid|false|too\s))"
    r"|\s?(?:does|do|did|can|could)(?:n't|\s?not)\s|\s?(?:是错|不对|不是)"
    rf"|(?:\s[A-Za-z]{{1,20}})?\s?[{WRONG_MARKS}]",
    re.IGNORECASE,
)
_SIGN = re.compile(r"(?P<word>[^\W\d_]*)(?P<char>\S?)(?P<gap>\s?)(?P<sign>[-+])(?P<space>\s?)\Z")
_OPERATOR_BEFORE = re.compile(
    r"(?:[+*/^×÷·√{]|[0-9)\s]x|\\(?:times|cdot|div|pm|sqrt|log|ln)\s?[\[({]?"
    r"|\b(?:sqrt|plus|minus|times|divided by|multiplied by|twice|double|half)\s?\(?"
    r"|\b(?:more|less|fewer|greater|larger|bigger|smaller|higher|lower) than|\b(?:square|cube) root of(?:\sthe number)?"
    r"|(?<=[\w)}])\s?[<>≤≥]|\\(?:leq?|geq?|lt|gt)"
    r"|(?:%|\bhalf|\bthirds?|\bquarters?|[0-9]/[0-9]{1,9})\sof(?:\sthe)?)\s?\Z",
    re.IGNORECASE,
)
_RESULT = re.compile(r"=\s?(?:-\s?)?\Z")
_GOES_ON = re.compile(
    r"[,;:=()+*/]|\s-\s|\b(?:so|thus|then|therefore|which|that|or|leav\w+|left with)\b", re.IGNORECASE
)
_REASON = re.compile(r"\bbecause\b.*", re.DOTALL)
_CHANGED_FROM = re.compile(
    r"\b(?:up|down|went|goes|go|rose|rises?|grew|grows?|fell|falls?|(?:rais|increas|decreas|reduc|chang|drop|mov|improv)\w{0,5})"
    r"\b[^.,;]{0,20}\bfrom\s?\Z",
    re.IGNORECASE,
)

# What stands after a number.
_OPERATOR_AFTER = re.compile(
    r"\s?(?:[+*^×÷]|\\(?:times|cdot|div|pm)(?![A-Za-z])|x(?=\s?[0-9(]))\s?[\w(\\]"
    r"|\s-\s[A-Za-z](?![A-Za-z])|\s?\\?(?:sqrt|pi)\b|\s?\\frac|\}|/[0-9]"
)
# In prose a letter of these is a unit: "a rope of 12m".
_BELONGS = re.compile(
    r"(?=[gmhsLVWA](?![^\W\d_]))|[^\W\d_]{0,20}(?:\s?(?:hundred|thousand|million|billion|trillion|万|亿)\b)?"
    r"(?:\sand\s(?:an?|one)\s(?:half|third|quarter)\b)?"
)
_NEXT_WORD = re.compile(r"\s?[^\W\d_]{0,20}")

# What stands between two numbers that are one answer, or one hedge.
_UNITS = r"(?:feet|foot|ft|hours?|hrs?|minutes?|mins?|pounds?|lbs?|dollars?|days?|weeks?|months?|years?)\.?\s"
_ONE_ANSWER = re.compile(
    r"\s?(?:,|;|\||:|-|到|或)\s?|\s|\s?" + _UNITS + r"|"
    r"(?:\s[^\W\d_]{1,20}){0,2},?\s?(?:\bor|\band|&|\bto|\bout of|和|或)\s?(?:about\s|approximately\s)?",
    re.IGNORECASE,
)
_CLOCK = re.compile(r"[0-9]{1,2}\s?:\s?[0-9]{1,2}(?![0-9])")
_CONTEXT_CHARS = 40


def final_number(text: str) -> str | None:
    """The final number of `text`, or None if it states none. Linear; never raises."""
    num_lines = 0
    for line in reversed(without_code(text).split("\n")):
        last_digit = _last_digit(line)
        if last_digit is None:
            continue
        found = _in_line(ascii_forms(line[max(0, last_digit - MAX_LINE_CHARS) : last_digit + MAX_LINE_CHARS]))
        num_lines += 1
        if found is not None or num_lines == MAX_LINES:
            return found
    return None


def _last_digit(line: str) -> int | None:
    from_end = _DIGIT.search(line[::-1])
    return None if from_end is None else len(line) - 1 - from_end.start()


def _in_line(line: str) -> str | None:
    label = _LIST_LABEL.match(line)
    line = line if label is None else line[label.end() :]
    for bold in reversed(_BOLD.findall(line)):
        if read_quantity(bold) is not None and not bold.rstrip().endswith("?"):
            return bold
    for sentence in reversed(_SENTENCE.findall(line)):
        found = None if sentence.endswith("?") else _in_sentence(plain(_ITALIC.sub(r" \1 ", sentence)))
        if found is not None:
            return found
    return None


def _in_sentence(sentence: str) -> str | None:
    sentence = _without_reason(without_aside(sentence))
    places = number_places(sentence)
    for index in reversed(range(len(places))):
        start, end = places[index]
        if not _is_passed_over(_before(sentence, start)) and not _DENIED_AFTER.match(sentence, end):
            index = _result_before(sentence, places, index)
            return _with_its_context(sentence, *places[index], places[index - 1] if index else None)
    return None


def _without_reason(sentence: str) -> str:
    """`sentence` up to a reason that is no calculation: "he buys 9, because 9 > 8" says 9."""
    reason = _REASON.search(sentence)
    if reason is None or "=" in reason[0] or _DIGIT.search(sentence, 0, reason.start()) is None:
        return sentence
    return sentence[: reason.start()]


def _result_before(sentence: str, places: list[tuple[int, int]], index: int) -> int:
    """The number that the last equation of the sentence comes to, where only words stand between it and the number at
    `index`: "she reads 8 * 3 = 24 pages in 3 days" says 24."""
    for earlier in reversed(range(index)):
        start, end = places[earlier]
        if _RESULT.search(_before(sentence, start)):
            return earlier if _GOES_ON.search(sentence, end, places[index][0]) is None else index
    return index


def _with_its_context(sentence: str, start: int, end: int, previous: tuple[int, int] | None) -> str:
    """The number at [start, end) with sign and multiplier, or the whole of which it is only a piece."""
    before = _before(sentence, start)
    sign = _SIGN.search(before)
    is_operand = _OPERATOR_BEFORE.search(before) is not None or (sign is not None and _subtracts(sign))
    if is_operand:
        return sentence[previous[0] if previous else max(0, start - _CONTEXT_CHARS) : end]
    if _OPERATOR_AFTER.match(sentence, end):
        return sentence[start : end + _CONTEXT_CHARS]
    if previous is not None and _is_one_answer(sentence, previous, start):
        next_word = _NEXT_WORD.match(sentence, end)
        return sentence[previous[0] : next_word.end() if next_word else end]
    belongs = _BELONGS.match(sentence, end)
    is_negative = sign is not None and sign["sign"] == "-" and not _is_dash(sign)
    return ("-" if is_negative else "") + sentence[start : belongs.end() if belongs else end]


def _before(sentence: str, start: int) -> str:
    return sentence[max(0, start - _CONTEXT_CHARS) : start]


def _is_passed_over(before: str) -> bool:
    is_index = _INDEXED.search(before) is not None and _CURRENCY.search(before) is None
    return is_index or _NAMED.search(before) is not None or _DENIED.search(before) is not None


def _subtracts(sign: re.Match[str]) -> bool:
    """Whether plus or minus joins two operands; else it is the sign of the number, or a dash after a word."""
    word, char = sign["word"], sign["char"]
    if char:
        return char.isdigit() or char in ")]}%"
    return len(word) == 1 or (word != "" and not sign["gap"])


def _is_dash(sign: re.Match[str]) -> bool:
    """Whether this is the dash of "Total - 72"."""
    return sign["word"] != "" and sign["char"] == "" and sign["space"] != ""


def _is_one_answer(sentence: str, previous: tuple[int, int], start: int) -> bool:
    between = sentence[previous[1] : start]
    if not _ONE_ANSWER.fullmatch(between) or _is_passed_over(_before(sentence, previous[0])):
        return False
    if ":" in between and not _CLOCK.match(sentence, previous[0]):
        return False  # "Week 3: 210 pages"
    return "to" not in between or not _CHANGED_FROM.search(_before(sentence, previous[0]))
