r"""Numbers, exactly, with what people write around them: "$1,000 per day.", "x = 72 clips", "\boxed{50\%}".

Values are `fractions.Fraction`s, so that 72, 72.0, 1,000/2, 1.5e3 and \frac{1}{2} compare without rounding. A content
that is not exactly one quantity is None: "72 or 73", "3, 4", "5x", "2 hours and 5 minutes" and "4:30" are not one. A
hedge must never be paid, nor the last piece of something that is read whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from math_answers.text import BOX, BRACES, BoxSpan, boxed_spans, plain, without_inner_boxes, word_set

MAX_DIGITS = 100
"""Longest number read, and largest power of ten. Gold answers have a dozen digits at most; int() is quadratic in the
length."""

MAX_LITERAL_CHARS = 400
"""Longest literal looked at, separators and LaTeX included."""

# Grouped digits need exactly three digits per group, or as in India two and at the end three: "1,000" and "1,00,000"
# are numbers, "1,00" and "1, 2" are not.
_INTEGER = r"(?:[0-9]{1,3}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+|(?:'[0-9]{3})+|(?:,[0-9]{2})+,[0-9]{3})(?![0-9])|[0-9]+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.[0-9]+)?|\.[0-9]+)"
_LATEX_ARGUMENT = rf"(?:\{{\s*([-+]?\s?{_DECIMAL})\s*\}}|([0-9]))"
_LATEX_FRACTION = rf"\\[dt]?frac\s*{_LATEX_ARGUMENT}\s*{_LATEX_ARGUMENT}"

# Superscript 2, 3, 1, then 0 and 4 to 9: what an exponent looks like that was typed as characters.
_SUPERSCRIPTS = "²³¹⁰⁴⁵⁶⁷⁸⁹"
_TO_DIGITS = str.maketrans(_SUPERSCRIPTS + "⁻", "2310456789-")
_TIMES_TEN = r"\s?(?:[*xX×·⋅]|\\times(?![A-Za-z])|\\cdot(?![A-Za-z]))\s{0,4}10"
_POWER = rf"(?:\^\s?(?:\{{\s?([-+]?[0-9]{{1,4}})\s?\}}|([-+]?[0-9]{{1,4}}))|([{_SUPERSCRIPTS}⁻]{{1,5}}))"

_SIGN = re.compile(r"([-+]?)\s?")
_WHOLE_AND_LATEX = re.compile(rf"([0-9]+)?\s*{_LATEX_FRACTION}")
_WHOLE_AND_SLASH = re.compile(r"([0-9]+)\s+(?:and\s+)?([0-9]+)/([0-9]+)(?![0-9.,/])")
_SLASH = re.compile(rf"({_DECIMAL})\s*/\s*({_DECIMAL})(?!\s*/\s*[0-9])")
_SCIENTIFIC = re.compile(rf"({_DECIMAL})(?:[eE]([-+]?[0-9]{{1,4}})(?![0-9A-Za-z]|\.[0-9])|{_TIMES_TEN}{_POWER})")
_PLAIN = re.compile(_DECIMAL)
_PERCENT = re.compile(r"\s*%|\s+per\s?cent\b", re.IGNORECASE)

_START = re.compile(r"\\[dt]?frac(?![A-Za-z])|\.?[0-9]")
_RUN = re.compile(r"\\[dt]?frac|[0-9.,]+")
_AT_END = re.compile(r"[.,]+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class _NumberPrefix:
    """A number at the start of a text.

    value: exact value, percent already divided by 100. percent: whether a percent sign was written.
    rest: the text after it.
    """

    value: Fraction
    percent: bool
    rest: str


def parse_number(text: str) -> Fraction | None:
    r"""Exact value of a text that is one number and nothing else, or None.

    Integers, decimals, thousands separators, a sign, percent ("50%" is 1/2), fractions a/b, mixed numbers "1 1/2",
    \frac{a}{b} and its variants, scientific notation (1.5e3, 1.5 x 10^3, 1.5 \times 10^{3}). None for anything else,
    a zero denominator or an absurd size.
    """
    found = _read_number_prefix(text.strip())
    return found.value if found is not None and not found.rest.strip() else None


def _read_number_prefix(text: str) -> _NumberPrefix | None:
    """The number that `text` starts with, or None if it does not start with one."""
    head = text[:MAX_LITERAL_CHARS]
    sign = _SIGN.match(head)
    assert sign is not None, "the sign pattern matches the empty text"
    literal = _literal(head, sign.end())
    value = _value(literal.parts) if literal is not None else None
    if literal is None or value is None:
        return None
    percent = _PERCENT.match(head, literal.end)
    end = literal.end if percent is None else percent.end()
    value = value if percent is None else value / 100
    return _NumberPrefix(value=-value if sign.group(1) == "-" else value, percent=percent is not None, rest=text[end:])


def number_places(line: str) -> list[tuple[int, int]]:
    """[start, end) of every unsigned literal in `line`, percent signs included, readable or not; none overlap.

    The work is linear for a line whose digit runs are short, and at most that times the longest run.
    """
    places = []
    start = _START.search(line)
    while start is not None:
        literal = _literal(line, start.start())
        end = literal.end if literal is not None else 0
        run = _RUN.match(line, start.start())
        if literal is None and run is not None:
            trailing = _AT_END.search(run.group())
            end = run.end() - (len(trailing.group()) if trailing else 0)
        end = max(end, start.end())
        percent = _PERCENT.match(line, end)
        end = end if percent is None else percent.end()
        places.append((start.start(), end))
        start = _START.search(line, end)
    return places


@dataclass(frozen=True, slots=True, kw_only=True)
class _Literal:
    """parts: whole number, numerator, denominator and power of ten, as written. end: where the literal ends."""

    parts: tuple[str, str, str, str]
    end: int


def _literal(head: str, start: int) -> _Literal | None:
    """The unsigned literal at `start`; the longest notation that fits wins."""
    if match := _WHOLE_AND_LATEX.match(head, start):
        whole, top_braced, top_digit, bottom_braced, bottom_digit = match.groups()
        parts = (whole or "0", top_braced or top_digit, bottom_braced or bottom_digit, "0")
    elif match := _WHOLE_AND_SLASH.match(head, start):
        parts = (match[1], match[2], match[3], "0")
    elif match := _SCIENTIFIC.match(head, start):
        power = match[2] or match[3] or match[4] or match[5].translate(_TO_DIGITS)
        parts = (match[1], "0", "1", power)
    elif match := _SLASH.match(head, start):
        parts = ("0", match[1], match[2], "0")
    elif match := _PLAIN.match(head, start):
        parts = (match.group(), "0", "1", "0")
    else:
        return None
    return _Literal(parts=parts, end=match.end())


def _value(parts: tuple[str, str, str, str]) -> Fraction | None:
    if parts[1:] == ("0", "1", "0"):  # by far the most frequent
        return _decimal(parts[0])
    whole, top, bottom = (_decimal(part) for part in parts[:3])
    if whole is None or top is None or bottom is None or bottom == 0:
        return None
    power = _power(parts[3])
    return None if power is None else (whole + top / bottom) * power


def _decimal(literal: str) -> Fraction | None:
    """Exact value of sign, digits, separators and at most one decimal point; None beyond MAX_DIGITS."""
    compact = re.sub(r"[,'\s]", "", literal)
    return Fraction(compact) if len(compact) <= MAX_DIGITS else None


def _power(exponent: str) -> Fraction | None:
    """10 to the power of a short literal; None for one that is no integer or beyond MAX_DIGITS."""
    digits = exponent.lstrip("+-")
    if not digits.isdigit() or len(exponent) - len(digits) > 1 or int(digits) > MAX_DIGITS:
        return None
    power = Fraction(10) ** int(digits)
    return 1 / power if exponent.startswith("-") else power


# ----- units

# A unit is words: no further digit (except an exponent), operator, brace or LaTeX command.
_UNIT_EXPONENT = re.compile(r"(?<=[A-Za-z])\s?(?:\^\s?\{?-?[0-9]\}?|[²³])")
_UNIT_TAIL = re.compile(r"[^0-9\\{}=+*^<>|\[\]]*")
_UNIT_WORD = r"(?!(?:pi|sqrt|sin|cos|tan|log|ln|exp|xy)\b)[^\W\d_]{2,}"
_UNIT_HEAD = re.compile(
    r"\s*[°¢%]"  # degree, cent
    r"|\s*[\u3400-\u9fff]"  # Chinese measure words need no space
    rf"|\s*-?{_UNIT_WORD}"
    r"|\s+[mgshlLCFKVWANJ](?![^\W\d_])"  # single letters only after a space: "5 m" is metres, "5m" is algebra
    rf"|\s*/\s*{_UNIT_WORD}|\s+(?:per|a|an)\s|\s+\(\s?{_UNIT_WORD}|\((?=[^()]{{0,20}}[aeiou])[^\W\d_]{{4,}}|\s+\(?[A-Za-z]-[^\W\d_]{{4,}}|\s*[,;:?—]\s*{_UNIT_WORD}|\s+-\s+{_UNIT_WORD}|!\s+[A-Z]"
)
# Words that take the number back, or go on calculating with it.
_NO_UNIT = re.compile(
    r"\b(?:or|nor|not|no|never|cannot|wrong|incorrect|impossible|invalid|false|squared|cubed|plus|minus|divided|multiplied"
    r"|doubled|tripled|halved|base|factorial|lakhs?|crores?|(?:ten|hundred|thousand|million)ths|halves"
    r"|at (?:the |a )?(?:least|most|minimum|maximum|min|max))\b|n't\b|或|不|错|\bis too\b"
    r"|\band\s(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]{3,5}teen|twenty|thirty|forty"
    r"|fifty|sixty|seventy|eighty|ninety)\b",
    re.IGNORECASE,
)
_REASON = re.compile(r"[\s,(]\s?(?:because|since)\b|\s?,?\s?因为", re.IGNORECASE)
_EXPLANATION = re.compile(r"([^()]*)\s\(([^()]*)\)[\s.]*")
_UNIT_NUMBER = re.compile(r"[0-9][0-9.,]*")
_UNSURE = re.compile(r"\b(?:maybe|perhaps|possibly|alternatively|if)\b", re.IGNORECASE)


def is_unit(rest: str) -> bool:
    """Whether the text after a number is nothing, or words that measure or explain it."""
    reason = _REASON.search(rest)
    rest = _without_explanation(rest if reason is None else rest[: reason.start()])
    if _NO_UNIT.search(rest):
        return False
    rest = _UNIT_EXPONENT.sub("", rest)
    return not rest.strip() or bool(_UNIT_HEAD.match(rest) and _UNIT_TAIL.fullmatch(rest))


def _without_explanation(rest: str) -> str:
    """The part of " clips (48 in April and 24 in May)" before the bracket, which must hold numbers and words."""
    explained = _EXPLANATION.fullmatch(rest)
    if explained is None or len(_UNIT_NUMBER.findall(explained[2])) < 2 or not re.search(_UNIT_WORD, explained[2]):
        return rest
    return rest if _NO_UNIT.search(explained[2]) or _UNSURE.search(explained[2]) else explained[1]


# ----- a number with what stands around it

MAX_CONTENT_CHARS = 600
"""A longer content is not one number."""

_LEAD_IN = re.compile(
    r"\A(?:\s*(?:rs\.?|usd|us|hk|rmb|cny|eur|gbp|inr|approximately|approx\.?|about|roughly|around|nearly|almost|exactly"
    r"|only|just|a total of|equal to|therefore|thus|so|=|:|,|\([A-F]\)|(?:final )?answer ?:"
    r"|大约|约|总共|一共|共|人民币)(?![a-z]))+",
    re.IGNORECASE,
)
_BRACKETED = re.compile(r"(-?)[(\[]\s?([^()\[\]]*)[)\]]")
_STATED_BEFORE = re.compile(r"[0-9].*?\.\s", re.DOTALL)  # "34. A bound was \\boxed{40}" states 34
_SENTENCE_END = re.compile(r"\.(?=\s|\Z)")
_NUMBER_START = re.compile(r"[-+]?\s?(?:\.?[0-9]|\\[dt]?frac)")
_EQUALS = re.compile(
    r"(?<![<>])(?<!\s!)(?<!\\not)(?<!\\not )=|\b(?:is|are|equals|be)\b|(?<!不)(?:是|为|等于)",
    re.IGNORECASE,
)
_OPERATOR = re.compile(r"\s*[-+*/x×÷]\s?\$?[0-9]")
_VARIABLE = re.compile(r"[^\W\d]{1,20}")
_CALCULATION = re.compile(r"[0-9][0-9., ()]*(?:[-+*/x×÷][0-9., ()]+)+")
_MULTIPLE_OR_POWER = re.compile(r"[0-9]+\s?\*?\s?[A-Za-z]|[0-9]*[A-Za-z]\s?\^\s?(?:[0-9]{1,4}|\{\s?[0-9]{1,4}\s?\})")
_OR = re.compile(r"\bor\b|或", re.IGNORECASE)
_NEXT_STATEMENT = re.compile(r"[,;]\s?[^\W\d]|\band\b|和", re.IGNORECASE)
_CONCLUSION = re.compile(r"\b(?:so|thus|hence|therefore|then|which|giving)\b|所以|因此|故|则|即", re.IGNORECASE)

# "\\boxed{71}$ or $x = \\boxed{72}": what stands between the contents of two boxes that are one answer.
_JOINT = r"[,;/&|、，；]|\b(?:or|and|also|maybe|perhaps|possibly|alternatively)\b|或者?|和|与|及"
_MARKUP = r"[\s$*(}]|\\[()\[\],; ]|\\q?quad(?![A-Za-z])|\\text\{|[A-Za-z](?:_\{?[0-9]\}?)?\s?="
_BETWEEN_BOXES = re.compile(
    rf"\}}(?:(?:{_MARKUP}){{0,20}}(?:{_JOINT})(?:{_JOINT}|{_MARKUP}){{0,20}})?{BOX}", re.IGNORECASE
)
_MAX_BETWEEN = 60
_MAX_FORM_CHARS = 100
_MINUS_BEFORE_BOX = re.compile(rf"(?<![\w)}}\]-])[-−]\$?{BOX}\Z")
_SIMPLE = re.compile(r"\s*[0-9.,]+\s*")
_LETTERS = re.compile(r"[A-Z\s,]*")

_DIGIT = re.compile(r"[0-9]")
# "72 (-1)" is a product.
_ASIDE = re.compile(r"\s\(\s?[0-9][0-9.,]*\s?[-+*/x=×÷][-+*/x=×÷0-9., ]*[0-9]\)", re.IGNORECASE)

# A thousand grams, metres, watts, calories and hertz are a unit in Chinese.
_MULTIPLIER = re.compile(
    r"\s*(?:(dozen|hundred|thousand|million|billion|trillion)s?\b|(百万|千万|万亿|万|亿|百"
    r"|千(?![克米瓦卡赫])))",
    re.IGNORECASE,
)
_MULTIPLES = {
    **{"dozen": 12, "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12},
    **{"百": 10**2, "千": 10**3, "万": 10**4, "百万": 10**6, "千万": 10**7},
    **{"亿": 10**8, "万亿": 10**12},
}
_AND_A_PART = re.compile(r"\s+and\s+(?:an?|one)[ -](half|third|quarter)\b", re.IGNORECASE)
_PARTS = {"half": Fraction(1, 2), "third": Fraction(1, 3), "quarter": Fraction(1, 4)}
_DOLLARS_AND_CENTS = re.compile(
    r"([0-9][0-9,]{0,20})\s?(?:dollars?,?\s(?:and\s)?|and\s)([0-9]{1,2})\s?(?:cents?\b|¢)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """value: exact value ("50%" is 1/2). percent: whether a percent sign was written."""

    value: Fraction
    percent: bool = False


def read_quantity(content: str) -> Quantity | None:
    """The one quantity that `content` states, or None. Linear; never raises."""
    if len(content) > MAX_CONTENT_CHARS:
        return None
    sentence = _first_sentence_with_digit(plain(unboxed(content)))
    whole = _number_and_unit(sentence)
    return whole if whole is not None else _side_of_equation(sentence)


def unboxed(content: str) -> str:
    r"""Content of the last box of `content`, as in "Answer: $\boxed{34}$."; all of it where nothing is boxed, or
    where a value is stated before."""
    boxes = joined_spans(content)
    if not boxes or _STATED_BEFORE.search(content, 0, min(boxes[0].start, MAX_CONTENT_CHARS)):
        return content
    return box_content(content, boxes[-1].start, boxes[-1].end)


def joined_spans(text: str) -> list[BoxSpan]:
    r"""`boxed_spans`, where "\boxed{71} and \boxed{72}" is one span: a list or a hedge is one answer, read by
    `box_content`."""
    spans: list[BoxSpan] = []
    for span in boxed_spans(text):
        between = text[spans[-1].end : span.start] if spans and span.start - spans[-1].end <= _MAX_BETWEEN else ""
        if _BETWEEN_BOXES.fullmatch(between) and not _are_equal(text, spans[-1], span):
            span = BoxSpan(spans.pop().start, span.end)
        spans.append(span)
    return spans


def _are_equal(text: str, one: BoxSpan, other: BoxSpan) -> bool:
    r"""Whether two short boxes are one number in two forms: "\boxed{0.5} or \boxed{\frac{1}{2}}"."""
    if max(one.end - one.start, other.end - other.start) > _MAX_FORM_CHARS:
        return False
    first, second = (_number_and_unit(plain(text[span.start : span.end])) for span in (one, other))
    return first is not None and second is not None and same_quantity(first, second)


def box_content(text: str, start: int, end: int) -> str:
    r"""The content of the box or boxes at [start, end): "71 , 72", and "-\boxed{34}" says -34. Of boxes within it the
    content stands apart: "\boxed{7\boxed{2}}" says 7 and 2."""
    content = without_inner_boxes(_with_commas(text[start:end]))
    if _LETTERS.fullmatch(content) or not _MINUS_BEFORE_BOX.search(text[max(0, start - 20) : start]):
        return content
    return f"-{content}" if _SIMPLE.fullmatch(content) else f"-({content})"


def _with_commas(content: str) -> str:
    r"""The contents of joined boxes with commas between them. `content` starts inside the first box, so that the brace
    that closes more than was opened ends a box, and the next one begins at the next \boxed{."""
    parts: list[str] = []
    start: int | None = 0
    depth = 0
    for token in BRACES.finditer(content):
        if start is None:
            start, depth = (token.end(), 0) if token["box"] else (None, 0)
        elif token["box"] or token["brace"] == "{":
            depth += 1
        elif token["brace"] == "}":
            depth -= 1
            if depth < 0:
                parts.append(content[start : token.start()])
                start = None
    return " , ".join(parts if start is None else [*parts, content[start:]])


def last_boxes(text: str) -> str | None:
    r"""Content of the last box of `text`, or of the boxes that are listed up to it; None without any."""
    spans = joined_spans(text)
    return box_content(text, *spans[-1]).strip() if spans else None


_PROSE = re.compile(r"(?:[\s,;:(—-](?:[^\W\d_]|[\s,;:().'!/—-])*)?")
_WORDS = re.compile(r"[^\W\d_]+(?:[-/'][^\W\d_]+)*")
# Short words that nobody means as a product of variables. In brackets, after a comma and beside a longer word, any
# with a vowel is one.
_SHORT_WORDS = word_set(
    "I a all am an and are as at be by day do for has he her his in is it its my of on one our per she so the to two "
    "up us was we you cm mm km kg mg ft lb lbs oz yd mi mph sq cu hr hrs min sec ml pm rs usd eur gbp inr rmb cny qed "
    "cup men"
)
_VOWEL = re.compile(r"[aeiou]")
_UNITS_OF_TIME = ("s", "h")


def is_number_in_prose(content: str) -> bool:
    """Whether plain `content` is a number with words around it that no product of variables has: "72, in total",
    "9 (apples)", "Rs. 72"."""
    text = _after_lead_in(content)
    number = None if content.startswith("(") else _read_number_prefix(text)
    rest = "" if number is None else _UNIT_EXPONENT.sub("", number.rest)
    if number is None or not _PROSE.fullmatch(rest):
        return False
    words = _WORDS.findall(rest)
    is_apart = rest.lstrip()[:1] in tuple(",;:(—") or any(len(word) > 3 for word in words)
    return (bool(words) or text != content) and all(_is_word(word, is_apart=is_apart) for word in words)


def _is_word(text: str, *, is_apart: bool) -> bool:
    """Whether this is a word or a unit such as miles/s. is_apart: whether it cannot be a product for its place."""
    word, *others = text.split("/")
    is_short = len(word) < 4 and word.isascii() and word not in _SHORT_WORDS and word.lower() not in _SHORT_WORDS
    is_short = is_short and not (is_apart and len(word) == 3 and _VOWEL.search(word))
    return not is_short and all(len(other) > 1 or other in _UNITS_OF_TIME for other in others)


def starts_with_number(content: str) -> bool:
    """Whether a number, readable or absurd, is the first thing in `content`, markup and "about" aside."""
    return _NUMBER_START.match(_after_lead_in(plain(content[:MAX_CONTENT_CHARS]))) is not None


def without_aside(text: str) -> str:
    """`text` without the sum in brackets after its number that says how it came about: "72 clips (48 + 24)"."""
    aside = _ASIDE.search(text)
    return text if aside is None or not _DIGIT.search(text, 0, aside.start()) else _ASIDE.sub("", text)


def before_calculation(content: str) -> str:
    """The part of "35 + 70 = 105" before the equals sign, which is no quantity; anything else as it is.

    "The answer is n" names a number; a calculation after these words is one more step of the solution, and graders of
    GSM8K do not take it for an answer.
    """
    text = _after_lead_in(plain(content[:MAX_CONTENT_CHARS]))
    number = _read_number_prefix(text)
    if number is None or not _OPERATOR.match(number.rest):
        return content
    left, equals, _ = text.partition("=")
    return left if equals else content


def same_quantity(answer: Quantity, gold: Quantity) -> bool:
    """Equal values; a percent sign written on one side only may be a mere unit ("50%" for a gold of 50)."""
    if answer.value == gold.value:
        return True
    if answer.percent == gold.percent:
        return False
    with_sign, without = (answer, gold) if answer.percent else (gold, answer)
    return with_sign.value * 100 == without.value


def _first_sentence_with_digit(text: str) -> str:
    """`text` up to the first full stop after its first digit; a decimal point is no full stop."""
    digit = _DIGIT.search(text)
    if digit is None:
        return text
    end = _SENTENCE_END.search(text, digit.end())
    return text if end is None else text[: end.start()].rstrip(" \"'*_.,;:")


def _side_of_equation(sentence: str) -> Quantity | None:
    """The last side of "x = 48 + 24 = 72" or "the sum is 72"; the first side of "72 = x" or "72 = 48 + 24". None where
    two sides are different numbers, as in "x = 71 = 72"; a rounded one is not different."""
    sides = _EQUALS.split(sentence)
    if len(sides) == 1 or states_several(sentence) or contradict(sides):
        return None
    if any(_MULTIPLE_OR_POWER.fullmatch(_CONCLUSION.split(side)[-1].strip(" ,")) for side in sides[:-1]):
        return None
    stated = _number_and_unit(sides[-1])
    if stated is None and len(sides) == 2 and "=" in sentence:
        other = sides[1].strip()
        if _VARIABLE.fullmatch(other) or _CALCULATION.fullmatch(other):
            stated = _number_and_unit(sides[0])
    return stated


def contradict(sides: Sequence[str]) -> bool:
    """Whether two sides of an equation are different numbers, and neither is the other one rounded."""
    values = [value for value in map(parse_number, sides) if value is not None]
    decimals = [side.strip().partition(".")[2] for side in sides if parse_number(side) is not None]
    return any(
        abs(value - last) >= Fraction(1, 10 ** len(decimals[-1])) and value not in (last * 100, last / 100)
        for value, last in ((value, values[-1]) for value in values[:-1])
    )


def states_several(sentence: str) -> bool:
    """Whether `sentence` offers several values: "x = 33 or x = 34", "a = 5, b = 34"; not "m = 3, so m + 31 = 34"."""
    sides = _EQUALS.split(sentence)
    if len(sides) > 1 and _OR.search(sentence):
        return True
    joints = [side for side in sides[1:-1] if _NEXT_STATEMENT.search(side) or _CONCLUSION.search(side)]
    return bool(joints) and not _CONCLUSION.search(joints[-1])


def _after_lead_in(text: str) -> str:
    lead_in = _LEAD_IN.match(text)
    text = (text[lead_in.end() :] if lead_in else text).strip()
    bracketed = _BRACKETED.fullmatch(text)
    return text if bracketed is None else bracketed[1] + bracketed[2]


def _number_and_unit(text: str) -> Quantity | None:
    text = without_aside(_after_lead_in(text))
    if money := _DOLLARS_AND_CENTS.match(text):
        return _dollars_and_cents(money, text[money.end() :])
    number = _read_number_prefix(text)
    if number is None:
        return None
    value, rest = number.value, number.rest
    if part := _AND_A_PART.match(rest):
        value, rest = value + _PARTS[part[1].lower()], rest[part.end() :]
    for _ in range(2):  # "2 hundred thousand"
        if multiplier := _MULTIPLIER.match(rest):
            value *= _MULTIPLES[(multiplier[1] or multiplier[2]).lower()]
            rest = rest[multiplier.end() :]
    return Quantity(value=value, percent=number.percent) if is_unit(rest) else None


def _dollars_and_cents(money: re.Match[str], rest: str) -> Quantity | None:
    dollars = parse_number(money[1])
    return Quantity(value=dollars + Fraction(int(money[2]), 100)) if dollars is not None and is_unit(rest) else None
