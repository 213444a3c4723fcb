r"""Answers that are expressions, as in MATH: is the one of a response equivalent to the gold answer?

The usual form is \boxed{...}; others are believed where there is none. Numbers, and answers that differ from the gold
answer only in how they are typed, are decided at once; what remains is left to the symbolic comparison. The second half
finds the formula in a line that announces it: of "$2\sqrt{3}$, because ..." 2\sqrt{3}.
"""

from __future__ import annotations

import re

from math_answers.answer_tokens import answer_tokens
from math_answers.equivalence import Equivalence, compare_answers
from math_answers.extract import (
    USUAL_MARKERS,
    Announced,
    Marker,
    content_of,
    find_answer,
    occurrences,
    withdrawal,
)
from math_answers.final_number import final_number
from math_answers.findings import AnswerMode, Finding, Outcome, Unevaluated, judged
from math_answers.latex_reader import normal_form
from math_answers.latex_tokens import MAX_EXPRESSION_CHARS, TokenKind
from math_answers.quantity import last_boxes, read_quantity
from math_answers.rounded import alike
from math_answers.text import boxed_spans, passages, same_text, single_backslashes, without_code

MAX_ENDING_CHARS = 1000
"""Most characters of a text without a marker that are searched for a last formula."""

_MAX_WORDS = 3
_MAX_LINES = 20
_LINES = (Marker.ANSWER_LINE, Marker.ANSWER_COLON, Marker.ANSWER_IS)
_HAS_DIGIT = re.compile(r"\d")
_HAS_WORD = re.compile(r"\w")
_PROSE = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}[ ,]+[A-Za-z]{2,}")


def check_expression(
    response: str,
    gold: str,
    *,
    mode: AnswerMode = "flexible",
    unevaluated: Unevaluated = "refuse",
    is_cut: bool = False,
) -> Finding:
    r"""Whether the answer of a response is equivalent to `gold`, which is an expression, a few words, or a solution
    whose last \boxed{} holds one. UNDECIDED where only a symbolic comparison of `answer` and `gold` of the finding can
    tell. mode, is_cut: see `extract.find_answer`. unevaluated: see `equivalence.compare_answers`. Never raises.
    """
    stated = _stated_gold(gold)
    expected = gold_answer(stated)
    if not _is_readable(expected):
        return Finding(outcome=Outcome.UNPARSEABLE_GOLD)
    announced = _announced(response, stated, mode, takes_words=_is_words(expected), is_cut=is_cut)
    if announced is None:
        return Finding(outcome=Outcome.NO_ANSWER)
    if same_text(announced.text, stated):
        return judged(announced.text, True)
    answer, expected = alike(_answer_in(announced), expected)
    comparison = compare_answers(answer, expected, unevaluated)
    if comparison is Equivalence.UNDECIDED:
        return Finding(outcome=Outcome.UNDECIDED, answer=answer, gold=expected)
    return judged(answer, comparison is Equivalence.SAME)


def is_expression(gold: str) -> bool:
    r"""Whether `gold` is an answer: an expression or a few words, or a solution whose last \boxed{} holds one."""
    return _is_readable(gold_answer(_stated_gold(gold)))


def _announced(response: str, gold: str, mode: AnswerMode, *, takes_words: bool, is_cut: bool) -> Announced | None:
    if mode != "strict":
        for passage in passages(response, from_start=mode == "first", is_cut=is_cut):
            if passage.is_block and same_text(passage.text, gold):
                return Announced(passage.text)
            stated = None if boxed_spans(passage.text) else _stated(passage.text, gold, mode, takes_words)
            if stated is not None:
                return stated
    return find_answer(response, own=(Marker.BOXED,), others=USUAL_MARKERS, mode=mode, is_cut=is_cut, ending=_ending)


def _stated(text: str, gold: str, mode: AnswerMode, takes_words: bool) -> Announced | None:
    r"""The announcement in a text without a box. `find_answer` looks for numbers and for formulas that start like
    one, so that it would pass over "The answer is $\{1,2\}$." and "The answer is east." to the last number."""
    for occurrence in occurrences(text, _LINES, from_start=mode == "first")[:_MAX_LINES]:
        if mode != "first" and withdrawal(text, occurrence):
            return None
        content = content_of(text, occurrence)
        if takes_back(content) or same_text(content, gold):
            return Announced(content)
        expression = expression_in(content)
        if (takes_words and _is_words(expression)) or _is_formula(expression):
            return Announced(content)
    return None


def _stated_gold(gold: str) -> str:
    r"""Content of the last \boxed{} of a whole solution, or of the boxes that are listed there; else all of it."""
    boxed = last_boxes(gold)
    return gold.strip() if boxed is None else boxed


def gold_answer(stated: str) -> str:
    """The formula of a gold answer such as "The solution is: $k=4$.", if nothing else is said; all of any other."""
    formulas = list(_FORMULA.finditer(stated)) if len(stated) <= MAX_EXPRESSION_CHARS else []
    if not formulas or not _ONLY_ANNOUNCES.fullmatch(stated, 0, formulas[0].start()):
        return stated
    found = _first_list(stated, formulas, takes_all=True)
    return stated if found is None or _HAS_WORD.search(stated, formulas[-1].end()) else found


def _is_readable(gold: str) -> bool:
    return any(token.kind is not TokenKind.SYMBOL for token in answer_tokens(gold))


def _answer_in(announced: Announced) -> str:
    """The expression that is compared. All of a box is its answer: the formulas in it are a list, or pieces of what it
    says as a whole."""
    if takes_back(announced.text):
        return announced.text.strip()
    return expression_in(announced.text, takes_all=announced.is_box)


def _is_words(text: str) -> bool:
    tokens = [token for token in answer_tokens(text) if not token.is_symbol("(", ")")]
    are_words = bool(tokens) and all(token.kind in (TokenKind.TEXT, TokenKind.LETTER) for token in tokens)
    # The prompt of DAPO-Math says "Answer: $Answer": an echo of it answers nothing.
    return are_words and len(text.split()) <= _MAX_WORDS and tokens[0].text.lower() != "answer"


def _is_formula(text: str) -> bool:
    """Whether `text` can be read as a formula and not as prose, such as "in dollars"."""
    return not _is_words(text) and not _PROSE.search(text) and normal_form(text) is not None


# ----- the formula in a line that announces it

# A dollar sign that is no delimiter has a space on the inner side or a digit after it: "$5 or $6".
_FORMULA = re.compile(
    r"\$\$(?P<display>[^$]+)\$\$|(?<!\\)\$(?=\S)(?P<inline>[^$]*[^$\s\\])\$(?![0-9])|\\[(\[](?P<bracket>[^$]+?)\\[)\]]"
)
_CONNECTS = re.compile(r"\s*(?:,|;|,?\s?(?:and|or)|和|或|、|，)\s*", re.IGNORECASE)
_EQUALS = re.compile(r"\s*(?:=|is|are|equals)\s*", re.IGNORECASE)
_IS = re.compile(r"\b(?:is|are|equals)\b[\s:]*", re.IGNORECASE)
_GOES_ON = re.compile(
    r"\s*(?:,?\s?(?:and|or)\b|[-+*/^=]|[?,]\s?(?:or|maybe|perhaps|possibly|no|not)\b"
    r"|(?:is|was|are)(?:n['’]t|\s(?:not|wrong|incorrect|false))\b|\(?(?:not|wrong|incorrect)\b)",
    re.IGNORECASE,
)
_ANNOUNCES = re.compile(
    r"(?:\A|\b(?:is|are|be|equals|equal to|therefore|thus|simply|exactly|approximately|about)|[=:是为：]"
    r"|等于|\bthe (?:ordered )?(?:interval|set|function|polynomial|point|number|value|pair|triple|matrix|vector"
    r"|line|equation|expression|fraction|ratio))[\s*_\"'(]*\Z",
    re.IGNORECASE,
)
_ONLY_ANNOUNCES = re.compile(
    r"\s*(?:[A-Za-z]{1,20}\s){0,4}(?:is|are|have|get|solutions?|answers?|results?|thus|so|hence|therefore)\s?[:=,]?\s*",
    re.IGNORECASE,
)
_DENIES = re.compile(
    r"\b(?:not|never|cannot|more|less|least|most|twice|half|neither|greater|smaller)\b|n['’]t\b|不",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"[\s*_:]*(?:not|never|more than|less than|greater than|smaller than|at least|at most|twice|half(?: of)?"
    r"|(?:it )?(?:cannot|can['’]t|can not) be)\s+(?:equal to )?[-$(\\0-9]",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(
    r"(?<!\b[Rr]s)(?<!\bapprox)[.?](?=\s|\Z)|[。；\n]|,?\s(?:because|since|so|which|where|as|thus|hence|therefore)\s",
    re.IGNORECASE,
)


# "Yes. Or $17$" in a box.
_NEXT_ANSWER = re.compile(
    r"\s*(?:(?:or|and|also|maybe|perhaps|possibly|alternatively|another)\b|[-$(\\0-9])", re.IGNORECASE
)


def expression_in(content: str, *, takes_all: bool = False) -> str:
    """The formulas between delimiters, where they are announced and nothing else says a number; else the first
    sentence, or all of `content` where it takes back a formula: "not $x$", "$\\pi$? or $e$?". takes_all: all of it also
    where formulas are left that are not in one list with the first."""
    content = single_backslashes(content)
    formulas = list(_FORMULA.finditer(content))
    if formulas and not re.search(r"[0-9]", content[: formulas[0].start()]):
        found = _first_list(content, formulas, takes_all=takes_all)
        if found is not None:
            return found
        if (takes_all and len(formulas) > 1) or any(_GOES_ON.match(content, formula.end()) for formula in formulas):
            return content.strip()
    content = content.lstrip()
    end = _SENTENCE_END.search(content)
    if end is not None and end[0] == "?" and _HAS_WORD.search(content, end.end()):
        return content.strip()
    is_reason = end is not None and end[0].strip(" ,").isalpha()
    is_list = end is not None and takes_all and not is_reason and _NEXT_ANSWER.match(content, end.end()) is not None
    sentence = content if end is None or is_list else content[: end.start()]
    if _IS.search(sentence) and (formulas or not _is_formula(sentence)):
        sentence = _after_is(sentence) or sentence
    return sentence.strip() or content.strip()


def _after_is(sentence: str) -> str | None:
    """The value of "the largest $n$ is 34", if it is a formula."""
    *_, last = _IS.split(sentence)
    value = last.strip(" $.")
    return value if len(last) < len(sentence) and not _DENIES.search(sentence) and _is_formula(value) else None


def _ending(text: str) -> str | None:
    """End of a text without any marker: the last formulas as a whole, where words announce them or they are an
    equation; else the final number. A number within a formula that says something else is no answer."""
    text = without_code(text)
    sentence = text[-MAX_ENDING_CHARS:]
    formulas = list(_FORMULA.finditer(sentence))
    if formulas and not _HAS_DIGIT.search(sentence, formulas[-1].end()):
        inside = _inside(formulas[-1])
        if read_quantity(inside) is None:
            first = len(formulas) - 1
            while first and _CONNECTS.fullmatch(sentence, formulas[first - 1].end(), formulas[first].start()):
                first -= 1
            sentence = sentence[_start_of_sentence(sentence, formulas[first].start()) :]
            found = _first_list(sentence, list(_FORMULA.finditer(sentence)))
            return found if found is not None or "=" not in inside else inside
    number = final_number(text)
    if number is not None:
        line = text.rstrip().rpartition("\n")[2]
        return number if read_quantity(number) is not None else _after_is(line[-MAX_ENDING_CHARS:])
    return None


def _start_of_sentence(text: str, position: int) -> int:
    return max(text.rfind(end, 0, position) + 1 for end in (". ", "? ", "\n\n", "。"))


def takes_back(content: str) -> bool:
    """Whether an announcement says what the answer is not: "not $5$", "more than 5", "twice $5$"."""
    return _TAKEN_BACK.match(content) is not None


def _first_list(content: str, formulas: list[re.Match[str]], *, takes_all: bool = False) -> str | None:
    """The first formula and those that are listed right after it; None where nothing announces it,
    where a list goes on without delimiters, and where the words around it take it back. takes_all: None also where
    another formula or number follows."""
    parts = [_inside(formulas[0])]
    last = formulas[0]
    before = content[: last.start()]
    is_announced = _ANNOUNCES.search(before) is not None
    for formula in formulas[1:]:
        between = content[last.end() : formula.start()]
        if _EQUALS.fullmatch(between):
            parts = [_inside(formula)]
            is_announced = True
        elif _CONNECTS.fullmatch(between):
            parts.append(_inside(formula))
        else:
            break
        last = formula
    has_more = takes_all and (last is not formulas[-1] or _HAS_DIGIT.search(content, last.end()) is not None)
    is_refused = has_more or not is_announced or _DENIES.search(before) or _GOES_ON.match(content, last.end())
    return None if is_refused else " , ".join(parts)


def _inside(formula: re.Match[str]) -> str:
    return (formula["display"] or formula["inline"] or formula["bracket"]).strip()
