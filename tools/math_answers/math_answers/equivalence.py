r"""Whether two answers are the same, as far as that is quick and certain. The rest needs a symbolic comparison.

Linear in the texts, exact: no floats.

    1. the same text                           "x^2 + 1" twice
    2. both numbers: decided                   0.5 and \frac{1}{2}, 50\% and 50, 72 clips and 72.0; 0.333 and 1/3 differ
    3. times of day, numbers with a base       4:30 p.m. and 4:30; 52_8 and 52_{8}; a base or p.m. left out is implied
    4. both words                              \text{(C)} and C, \text{east} and East; east and west differ
    5. the same normal form                    see `latex_reader`
    6. numbers, lists and tuples of numbers    3,5,7 and 3,5 differ, (1,2) and (2,1) too
    7. tuples and sets, orders of capitals     (1,2) and \{1,2\} differ, ABC and BCA, 3:1 and 3
    8. what is not worked out differs          \gcd(12,18) and 2 \cdot 3 for 6, x+3=8 for 5, |x| < 2 for (-2,2)
    9. what is too large to evaluate differs   9^{9^{9^9}}, (10^{10})!
   10. what no formula can contain differs     prose in another script, quotation marks
   11. anything else is undecided              2\sqrt{2} and \sqrt{8}, x(x+1) and x^2+x
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from math_answers import relations
from math_answers.answer_tokens import denies
from math_answers.findings import Unevaluated
from math_answers.latex_reader import form_of_tokens
from math_answers.latex_tokens import LINE_BREAK, MAX_EXPRESSION_CHARS, TRIGONOMETRIC, Token, TokenKind
from math_answers.latex_values import CONSTANTS, NormalForm
from math_answers.quantity import (
    Quantity,
    is_number_in_prose,
    parse_number,
    read_quantity,
    same_quantity,
)
from math_answers.symbolic_input import is_too_large, safe_latex
from math_answers.text import plain, word_set


class Equivalence(Enum):
    """UNDECIDED: only a symbolic comparison can tell."""

    SAME = "same"
    DIFFERENT = "different"
    UNDECIDED = "undecided"


_DECIMAL_COMMA = re.compile(
    r"\s*\$?\s*([-+]?(?:0|[1-9][0-9]*(?!(?:(?:,|\{,\})[0-9]{3})+(?![0-9]))))(?:,|\{,\})([0-9]+)\s*\$?\s*"
)
_TYPED_AREA = re.compile(r"[^A-Za-z]*\s[kcdm]?m\s?[²³]")
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})\s?(?:([ap])\.?\s?m\.?)?", re.IGNORECASE)
_BASED = re.compile(r"\+(?P<digits>[0-9]+)_\{(?P<base>[^{}]*)\}")
_OPTION = re.compile(r"\(?([A-F])\)?\.?")
_HEDGES = word_set("or maybe perhaps possibly negative not if least most plus minus times base mod between less")
_TIMES = re.compile(r"\btimes\W*\Z")  # "5 (times)" counts, "5 times two" is a product
_TYPED_WORDS = ("cup", "cap", "pm")
_ARTICLES = frozenset(("a", "an", "the"))


_DENIED = re.compile(r"\W*(?:text\W*)?(?:not|never|neither)\b", re.IGNORECASE)


def compare_answers(answer: str, gold: str, unevaluated: Unevaluated = "refuse") -> Equivalence:
    """Compares two answers without looking at the question. Never raises.

    SAME does not depend on which of the two is the gold answer, but for a decimal comma, which only the gold answer may
    introduce; DIFFERENT does where the answer is not worked out. unevaluated: whether an answer that is left to be
    computed is DIFFERENT or compared by its value.
    """
    if max(len(answer), len(gold)) > MAX_EXPRESSION_CHARS:
        return Equivalence.SAME if answer.strip() == gold.strip() else Equivalence.DIFFERENT
    pair = [_Reading(*each) for each in zip((answer, gold), relations.values_of_pair(answer, gold), strict=True)]
    if not all(reading.tokens for reading in pair):
        return Equivalence.DIFFERENT
    if answer.split() == gold.split():
        return Equivalence.SAME
    if _is_decimal_comma(pair[0], gold):
        return Equivalence.SAME
    is_denied = (_DENIED.match(answer) is None) != (_DENIED.match(gold) is None)
    if is_denied or any(relations.contradicts_itself(reading.tokens) for reading in pair):
        return Equivalence.DIFFERENT
    if unevaluated == "refuse" and _is_left_to_compute(*pair):
        return Equivalence.DIFFERENT
    for stage in (_compare_numbers, _compare_times, _compare_based, _compare_options, _compare_words, _compare_forms):
        found = stage(*pair)
        if found is not Equivalence.UNDECIDED:
            return found
    if pair[0].tokens == pair[1].tokens:
        return Equivalence.SAME  # what the reader of forms does not know, such as cases
    if relations.is_to_be_solved(pair[0].tokens, pair[1].tokens):
        return Equivalence.DIFFERENT
    if any(is_too_large(reading.tokens) for reading in pair):
        return Equivalence.DIFFERENT
    can_be_formulas = all(safe_latex(reading.tokens) is not None for reading in pair)
    return Equivalence.UNDECIDED if can_be_formulas else Equivalence.DIFFERENT


class _Reading:
    """One answer with all that the stages ask about it."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.plain = plain(text)
        self.tokens: Sequence[Token] = tokens
        self._text = text

    @cached_property
    def form(self) -> NormalForm | None:
        return form_of_tokens(list(self.tokens))

    @cached_property
    def number(self) -> Quantity | None:
        """The value, of a number with or without words."""
        if self.form is not None and self.form.is_number:
            return Quantity(value=Fraction(self.form.body))
        if self.form is not None and self.form.is_percent:
            return Quantity(value=Fraction(self.form.body.removesuffix(" %")) / 100, percent=True)
        # A literal may be in a notation that the form does not know, such as 1.5e3, and a unit's exponent after it.
        if parse_number(self.plain) is not None or self._is_number_with_words():
            return read_quantity(self._text)
        kinds = [token.kind for token in self.tokens]
        is_list = (TokenKind.NUMBER, TokenKind.NUMBER) in pairwise(kinds) or any(
            token.is_symbol(",") for token in self.tokens
        )
        if is_list or TokenKind.TEXT in kinds:
            return None
        value = parse_number("".join(token.text for token in self.tokens))
        return None if value is None else Quantity(value=value)

    def _is_number_with_words(self) -> bool:
        """Whether this can be "$1,000 per day" and cannot be "2ab", "x^2 = 4" or "5 or more"."""
        if _TYPED_AREA.fullmatch(self.plain):
            return True
        has_words = is_prose = is_number_in_prose(self.plain)
        if is_prose and _HEDGES & frozenset(re.findall(r"\w+", _TIMES.sub("", self.plain.lower()))):
            return False
        for token in self.tokens:
            words = frozenset(token.text.lower().split()) if token.is_text else frozenset()
            if token.is_symbol(*"=<>[") or words & _HEDGES:
                return False
            if (token.is_letter or token.is_symbol(*"^:(,;")) and not is_prose:
                return False
            if token.is_text and denies(token.text, is_first=not has_words or is_prose):
                return False
            if token.is_command and token.text != "frac" and not (is_prose and token.text in _TYPED_WORDS):
                return False
            has_words = has_words or token.is_text or not token.text.isascii()
        return has_words

    @property
    def option(self) -> str | None:
        """The letter of an option of a choice, alone or before what the option says."""
        first, *others = self.tokens
        option = _OPTION.fullmatch(first.text) if first.is_text or not others else None
        is_alone = all(not token.is_text and not token.is_symbol(",", ";", "?") for token in others)
        return option[1] if option is not None and is_alone else None

    @property
    def is_order(self) -> bool:
        """Whether this is nothing but capital letters, which name an order of things rather than a product."""
        return len(self.tokens) > 1 and all(token.is_letter and token.text.isupper() for token in self.tokens)

    @property
    def is_ratio(self) -> bool:
        """Whether this is 3:1."""
        return [token.text for token in self.tokens if not token.is_number] == [":"]

    @property
    def is_whole(self) -> bool:
        """Whether this is one whole number."""
        return self.form is not None and self.form.is_number and "/" not in self.form.body

    def has_name_of(self, other: _Reading) -> bool:
        """Whether these may be answers for the same variable: not x = 5 and y = 5."""
        names = {reading.form.name for reading in (self, other) if reading.form is not None} - {None}
        return len(names) <= 1

    @property
    def words(self) -> tuple[str, ...]:
        """The words of an answer that is nothing but words or one letter, without articles; () for any other."""
        texts: list[str] = []
        for token in self.tokens:
            if token.is_text or token.is_letter:
                texts.append(token.text)
            elif not token.is_symbol("(", ")", ".", ",") and not (
                token.is_symbol("-") and texts and len(texts[-1]) > 1
            ):
                return ()  # a hyphen within words; -x is no word
        if len(texts) > 1 and all(len(text) == 1 for text in texts):
            return ()  # a product of variables
        words = re.findall(r"[^\W\d_]+", self.plain)
        return tuple(word for word in words if word.lower() not in _ARTICLES) if len(words) > 1 else tuple(words)


def _is_decimal_comma(answer: _Reading, gold: str) -> bool:
    """Whether `gold` is a number with a decimal comma, as in 3,14, and `answer` the same number."""
    comma = _DECIMAL_COMMA.fullmatch(gold)
    if comma is None:
        return False
    own = _DECIMAL_COMMA.fullmatch(answer.plain)
    if own is None and answer.number is None:
        return False
    value = answer.number.value if answer.number is not None else parse_number(f"{own[1]}.{own[2]}")
    return value == parse_number(f"{comma[1]}.{comma[2]}")


def _compare_numbers(answer: _Reading, gold: _Reading) -> Equivalence:
    if answer.number is None or gold.number is None or not answer.has_name_of(gold):
        return Equivalence.UNDECIDED
    return _decided(same_quantity(answer.number, gold.number))


def _compare_times(answer: _Reading, gold: _Reading) -> Equivalence:
    times = [_TIME.fullmatch(reading.plain) for reading in (answer, gold)]
    if times[0] is None or times[1] is None:
        return Equivalence.UNDECIDED
    (hour, minute, half), (gold_hour, gold_minute, gold_half) = (time.groups() for time in times if time is not None)
    same_half = half is None or gold_half is None or half.lower() == gold_half.lower()
    return _decided(int(hour) == int(gold_hour) and minute == gold_minute and same_half)


def _compare_based(answer: _Reading, gold: _Reading) -> Equivalence:
    """A base that is left out is the one that the question names; symbolic parsers ignore subscripts of numbers."""
    numbers = [_based(reading) for reading in (answer, gold)]
    if numbers[0] is None or numbers[1] is None or (numbers[0][1] is None and numbers[1][1] is None):
        return Equivalence.UNDECIDED
    (digits, base), (gold_digits, gold_base) = numbers[0], numbers[1]
    return _decided(digits == gold_digits and (base is None or gold_base is None or base == gold_base))


def _based(reading: _Reading) -> tuple[str, str | None] | None:
    """Digits and base of 52_8; no base for a whole number."""
    if reading.form is None:
        return None
    if based := _BASED.fullmatch(reading.form.body):
        return based["digits"], based["base"]
    return (reading.form.body.removeprefix("+"), None) if reading.is_whole else None


def _compare_options(answer: _Reading, gold: _Reading) -> Equivalence:
    r"""Compare the letters of options: \textbf{(B)}\ 5 is B where the other answer is a letter alone."""
    option, gold_option = answer.option, gold.option
    is_one = [len(reading.tokens) == 1 for reading in (answer, gold)]
    return _decided(True) if option is not None and option == gold_option and any(is_one) else Equivalence.UNDECIDED


def _compare_words(answer: _Reading, gold: _Reading) -> Equivalence:
    words, gold_words = answer.words, gold.words
    if not words or not gold_words:
        return Equivalence.UNDECIDED
    if words == gold_words or (max(map(len, words)) > 1 and _lower(words) == _lower(gold_words)):
        return Equivalence.SAME
    are_alike = len(words) == len(gold_words) == 1 and (len(words[0]) > 1) == (len(gold_words[0]) > 1)
    return _decided(False) if are_alike and _lower(words) != _lower(gold_words) else Equivalence.UNDECIDED


def _lower(words: tuple[str, ...]) -> list[str]:
    return [word.lower() for word in words]


def _compare_forms(answer: _Reading, gold: _Reading) -> Equivalence:
    form, gold_form = answer.form, gold.form
    if form is None or gold_form is None:
        return Equivalence.UNDECIDED
    if form.same_as(gold_form):
        return Equivalence.SAME
    if form.body == gold_form.body:
        return Equivalence.UNDECIDED
    pair = (form, gold_form)
    if _is_tuple_and_set(form, gold_form) or _is_tuple_and_set(gold_form, form):
        return Equivalence.DIFFERENT
    if answer.is_order and gold.is_order:
        return Equivalence.DIFFERENT
    if (answer.is_ratio and gold.is_whole) or (answer.is_whole and gold.is_ratio):
        return Equivalence.DIFFERENT
    are_sets = all(each.is_number or each.is_number_set for each in pair)
    are_tuples = all(each.is_number or each.is_number_tuple for each in pair)
    return _decided(False) if are_sets or are_tuples else Equivalence.UNDECIDED


def _is_tuple_and_set(form: NormalForm, other: NormalForm) -> bool:
    """Whether one is a tuple or interval, the other a set of values; x = 2, y = 3 may be the point (2,3)."""
    is_set_of_values = other.body.startswith("set{") and "=" not in other.body and "relation(" not in other.body
    return form.body.startswith("+tuple") and is_set_of_values


def _decided(same: bool) -> Equivalence:
    return Equivalence.SAME if same else Equivalence.DIFFERENT


# What tokens are to the patterns below: n a number, t the number 10, f a fraction, r a root, o a function, k a
# constant, x a letter, c any other command.
_SHAPES = {
    **{text: text for text in "+-*/^!|%,_()[]{}"},
    **{";": ",", ":": ",", "&": ",", "cup": ",", LINE_BREAK: ",", r"\{": "(", r"\}": ")", r"\|": "|", "pm": "+"},
    **{"frac": "f", "sqrt": "r", "infty": "n", "begin{pmatrix}": "<", "end{pmatrix}": ">"},
    **dict.fromkeys(("binom", "choose", "log", "ln", "lg", "exp", *TRIGONOMETRIC), "o"),
    **dict.fromkeys((*CONSTANTS - {"infty"}, *relations.NUMBER_LETTERS), "k"),
    **dict.fromkeys(("ldots", "dots", "cdots"), ""),
}
_WRITTEN_NUMBER = re.compile(
    r"(?:[nt]?f\{[-+]?[nt]\}\{[-+]?[nt]\}|f\{[nt]\}\{t\^\{[nt]\}\}|[nt]/t\^\{[nt]\}|[nt][nt]/[nt]|[nt]/[nt]|(?:[nt]\*)?t\^\{[-+]?[nt]\}|[nt])%?"
)
_BRACKETED_NUMBER = re.compile(r"(?:\([-+]*N\)|\{[-+]*N\})%?")
# N stands for a number as people write it: a sum or product of two, a power, a factorial, a function of numbers alone.
_TO_COMPUTE = re.compile(
    r"(?:\A|[-+(,{<])N[-+]+N(?=\Z|[-+),}>])|(?<![r\]])N(?:[*/]?N|\^[-+]*N)|k\^[-+]*N|N!|\|[-+]*N\||>[-+*/]*<|\A(?=[^x]*\Z).*o|\A[-+]*N?r(?:\[N\])?N\Z"
)
_NUMBERS_AND_NAMES = re.compile(r"(?:[-+]*N|x+)?(?:[,()<>\[\]{}](?:[-+]*N|x+)?)*")
_DIVISION_SIGN = re.compile(r"\\div(?![A-Za-z])|÷")
_SIGNIFICANT = 6


def _is_left_to_compute(answer: _Reading, gold: _Reading) -> bool:
    r"""Whether `answer` holds an operation on plain numbers where `gold` is nothing but numbers, or one with a name
    that `gold` lacks: 12 \times 6, 2^{10}, \frac{3 + 4}{2}, \log_2 8. Numbers as people write them hold none:
    -\frac{3}{4}, 1\frac12, 3 \times 10^5, 50\%; nor do sums with irrational terms. A root may be what a long decimal
    stands for."""
    if len(answer.tokens) == 1:
        return False
    values = [side for element in relations.elements_of(answer.tokens) for side in relations.value_sides(*element)]
    if any(relations.operations_in(value) - relations.operations_in(gold.tokens) for value in values):
        return True
    shapes = [_shape(value) for value in values]
    has_operation = _DIVISION_SIGN.search(answer.plain) or any(map(_TO_COMPUTE.search, shapes))
    if not has_operation or parse_number(answer.plain) is not None:
        return False
    if "r" in "".join(shapes) and any("." in token.text and len(token.text) > _SIGNIFICANT for token in gold.tokens):
        return False
    gold_shapes = [_shape(side) for sides, _ in relations.elements_of(gold.tokens) for side in sides]
    return any("N" in shape for shape in gold_shapes) and all(map(_NUMBERS_AND_NAMES.fullmatch, gold_shapes))


def _shape(tokens: Sequence[Token]) -> str:
    """`tokens` with N for each written number and x for letters; words left out."""
    shape = _WRITTEN_NUMBER.sub("N", "".join(map(_shape_of, tokens)))
    while (smaller := _BRACKETED_NUMBER.sub("N", shape)) != shape:
        shape = smaller
    return shape


def _shape_of(token: Token) -> str:
    if token.is_number:
        return "t" if token.text == "10" else "n"
    if token.text in _SHAPES and not token.is_text:
        return _SHAPES[token.text]
    return {TokenKind.LETTER: "x", TokenKind.TEXT: ""}.get(token.kind, "c")


# ----- majority votes

RIGHT = 0
"""The number of the gold answer."""


def votes_of(answers: Sequence[str | None], are_correct: Sequence[bool]) -> list[int | None]:
    """RIGHT for a correct answer, 1, 2, ... for wrong ones in the order in which they come, None without an answer.

    A wrong answer counts as the first that it equals.
    """
    wrong: list[str] = []
    number_of: dict[str, int] = {}
    votes: list[int | None] = []
    for answer, is_correct in zip(answers, are_correct, strict=True):
        if is_correct:
            votes.append(RIGHT)
            continue
        if answer is None:
            votes.append(None)
            continue
        if answer not in number_of:
            number_of[answer] = _place(answer, wrong)
        votes.append(number_of[answer])
    return votes


def _place(answer: str, wrong: list[str]) -> int:
    """The number of `answer` among the wrong ones, to which it is added if it equals none."""
    for number, other in enumerate(wrong, start=1):
        if compare_answers(answer, other) is Equivalence.SAME:
            return number
    wrong.append(answer)
    return len(wrong)
