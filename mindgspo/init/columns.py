"""Finds the columns of question and answer in a file, by their names and contents.

If names leave a choice, nothing is guessed: the user is asked, and shown the columns with a sample of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from mindgspo.config.data import ColumnsSection
from mindgspo.data.source_rows import is_blank
from mindgspo.errors import DataError
from mindgspo.text import did_you_mean, listed, shorten

TableRow = Mapping[str, object]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# How strongly the last word of a name indicates the column. Words that qualify a better one ("final answer", "expected
# result") count less than words that can stand alone.
_QUESTION = {
    **dict.fromkeys(("question", "questions", "problem", "prompt", "query", "instruction"), 3),
    **dict.fromkeys(("task", "exercise", "puzzle", "q", "ask"), 2),
    **dict.fromkeys(("input", "text", "content", "user"), 1),
    **dict.fromkeys(("问题", "题目", "题干", "提问"), 3),
}
_ANSWER = {
    **dict.fromkeys(("answer", "answers", "gold", "truth", "expected", "gt"), 3),
    **dict.fromkeys(("label", "target", "result", "reference", "output", "a"), 2),
    **dict.fromkeys(("final", "correct", "ground", "value", "response", "completion", "solution"), 1),
    **dict.fromkeys(("答案", "结果"), 3),
}
_SOLUTION = {
    **dict.fromkeys(("solution", "rationale", "explanation", "reasoning", "cot", "derivation"), 2),
    **dict.fromkeys(("worked", "steps"), 1),
    **dict.fromkeys(("解析", "解答", "解题过程"), 2),
}
_ALONE = 3  # from here on a word may have words before it that are not known
_FORMS = _words("text string str content value statement key stem latex en zh cn english chinese 内容 文本")
"""Last words that change nothing: "answer_text", "answerKey"."""
_NEUTRAL = _words("question problem answer final gold correct right true raw full math gt reference the my")
"""First words that change nothing."""
_OF_ANOTHER = _words(
    "wrong incorrect false bad rejected model student generated predicted prediction pred candidate distractor is has "
    "num number count n system judge previous similar followup"
)
_ABOUT = _words(
    "id ids idx index type types kind source length len level difficulty topic category class subject tag name title "
    "url lang language license date year split format unit score count num number hash uuid key"
)
"""Last words of columns about a row: neither question nor answer, whatever else they say."""
# Columns without which a question may have no answer.
_OPTIONS = _words("option options choice choices candidates alternatives distractors endings 选项")
_BODIES = _words(
    "body context passage premise story paragraph background article table document documents scenario input text "
    "content image images figure picture diagram system 材料 背景 文章 正文 上下文 图片 系统提示词 系统提示"
)
_LETTERED = re.compile(
    r"((?:incorrect|wrong|false)?[ _.-]?(?:option|choice|op|answer|ending|distractor|alternative|sol|选项|))s?[ _.-]?"
    r"(?:[a-h]|[0-9])",
    re.IGNORECASE,
)
_MARK = re.compile(r"\(?[A-Ja-j][).:、]\s*")
_IDENTIFIER = re.compile(r"[A-Za-z][\w./:-]*[0-9][\w./:-]*")
_BESIDE, _FEW_ROWS = 1, 10
_NAME_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|内容|文本|[\u4e00-\u9fff]+?(?=内容|文本|[^\u4e00-\u9fff]|$)")
_MOST_COLUMNS, _MOST_NAME = 4096, 200
_SAMPLE_WIDTH, _MOST_SHOWN, _MOST_DEPTH = 40, 12, 3


def find_columns(
    path: Path, rows: Sequence[TableRow], *, question: str | None, answer: str | None, name: str
) -> ColumnsSection:
    """Find the columns of a file from its first rows. question, answer: the user's choice; name: data source of all
    rows. Raises a DataError that shows the columns if names leave a choice."""
    flat = [_flat(row) for row in rows]
    if len(flat[0]) > _MOST_COLUMNS:
        raise DataError(f"{path}: has {len(flat[0]):,} columns, and at most {_MOST_COLUMNS:,} are looked at")
    columns = {key: [row.get(key) for row in flat] for key in flat[0]}
    for option, given in (("--question", question), ("--answer", answer)):
        if given is not None and given not in columns:
            hint, known = did_you_mean(given, columns), listed(list(columns))
            raise DataError(f"{path}: {option} {given}: there is no such column{hint} (there are: {known})")
    lettered = _lettered(columns)
    texts = [key for key, values in columns.items() if _are_questions(values)]
    answers = [key for key, values in columns.items() if _are_answers(values)]
    question = question or _best([key for key in texts if key != answer and key not in lettered], _QUESTION, columns)
    answer = answer or _best([key for key in answers if key != question and key not in lettered], _ANSWER, columns)
    named = [key for key, values in columns.items() if _score(key, _ANSWER) > 0 and not all(map(is_blank, values))]
    lists = [] if any(key in answers for key in named) else [key for key in named if _are_lists(columns[key])]
    # If one is known and only one column could be the other, there is no choice.
    if question is not None and answer is None:
        answer = None if lists else _only([key for key in answers if key != question], columns)
    if answer is not None and question is None:
        question = _only([key for key in texts if key != answer], columns)
    if question is None or answer is None:
        shown = [f"{key} = {shorten(repr(values[0]), _SAMPLE_WIDTH)}" for key, values in columns.items()]
        missing = "the question" if question is None else f"the answer to {question}"
        named = max(lists, key=lambda key: _score(key, _ANSWER), default="")
        hint = "" if answer or not lists else f" ({named} holds lists: write their one item as text or number)"
        raise DataError(
            f"{path}: no column is clearly {missing}; say --question COLUMN --answer COLUMN{hint}. The first row has: "
            f"{listed(shown, _MOST_SHOWN) or 'nothing'}"
        )
    others = [key for key, values in columns.items() if key not in (question, answer) and _is_solution(values)]
    solution = _best(others, _SOLUTION, columns)
    for key in filter(None, (question, answer, solution)):
        if len(key) > _MOST_NAME or re.search("[\ud800-\udfff]", key):
            rule = f"the name of a column that is read has at most {_MOST_NAME} characters, and no half of a character"
            raise DataError(f"{path}: {shorten(ascii(key))}: {rule}; rename it")
    return ColumnsSection(prompt=question, answer=answer, solution=solution, data_source_name=name)


def columns_beside(rows: Sequence[TableRow], taken: Iterable[str]) -> tuple[str, ...]:
    """Names of columns that a question may depend on: options, and texts that it refers to. rows: the first ones.
    taken: columns that are used."""
    columns = dict.fromkeys(key for row in rows for key in _flat(row))
    lettered, found = _lettered(columns), dict.fromkeys(taken)
    found = {_belonging(key) or (key if key in lettered else None): None for key in columns if key not in found}
    return tuple(key for key in found if key)


def held_beside(row: TableRow, beside: Sequence[str], asked: str) -> list[str]:
    """Return the columns among `beside` that hold something the question, `asked`, does not. A text that holds the
    whole question is another form of it."""
    asked = _plain(asked)
    return [
        name
        for name in beside
        if any(asked not in text and _MARK.sub("", text, count=1) not in asked for text in _texts(_at(row, name)))
    ]


def _at(row: TableRow, name: str) -> object:
    """The value at a dotted name, None if there is none."""
    if name in row:
        return row[name]
    first, _, rest = name.partition(".")
    inside = row.get(first)
    return _at(inside, rest) if rest and isinstance(inside, Mapping) else None


def _texts(value: object) -> Iterator[str]:
    """Yield the pieces of a column: each option, the text, or that there is a picture."""
    if isinstance(value, (list, Mapping)):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(one)
    elif not is_blank(value):
        yield _plain(str(value))


def _plain(text: str) -> str:
    return " ".join(text.split())


def _belonging(key: str) -> str | None:
    """The name down to the part that names options or what a question is about."""
    parts = key.split(".")
    for number, part in enumerate(parts, start=1):
        words = _said(part)
        if len(words) > 1 and words[-2:-1] == ["system"] and words[-1] in _QUESTION.keys() | {"message"}:
            words = words[:-1]  # "system_prompt"
        if words and words[-1] in _OPTIONS | _BODIES:
            return ".".join(parts[:number])
    return None


def _lettered(columns: Iterable[str]) -> set[str]:
    """Columns whose names differ only in a letter or digit, like those of options: A, B, C, D; option1, option2."""
    found: dict[str, list[str]] = {}
    for key in columns:
        if match := _LETTERED.fullmatch(key):
            found.setdefault(match[1].lower(), []).append(key)
    return {key for keys in found.values() if len(keys) > 1 for key in keys}


def _flat(row: TableRow, prefix: str = "", depth: int = 1) -> dict[str, object]:
    """The row's values by dotted names."""
    found: dict[str, object] = {}
    for key, value in row.items():
        if isinstance(value, Mapping) and value and depth < _MOST_DEPTH:
            found |= _flat(value, f"{prefix}{key}.", depth + 1)
        else:
            found[f"{prefix}{key}"] = value
    return found


def _are_questions(values: Sequence[object]) -> bool:
    """Texts, or lists of messages, and not mere names of rows such as "q17"."""
    names = sum(isinstance(value, str) and _IDENTIFIER.fullmatch(value) is not None for value in values)
    return all(map(_is_question, values)) and names < len(values)


def _is_question(value: object) -> bool:
    """A text, or a list of messages."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(one, Mapping) and "role" in one and "content" in one for one in value)
    return isinstance(value, str) and bool(value.strip())


def _are_answers(values: Sequence[object]) -> bool:
    """Texts or numbers; a few may be missing."""
    given = [value for value in values if not is_blank(value)]
    return bool(given) and all(isinstance(value, (str, int, float)) and not isinstance(value, bool) for value in given)


def _are_lists(values: Sequence[object]) -> bool:
    return all(isinstance(value, list) for value in values)


def _is_solution(values: Sequence[object]) -> bool:
    return all(value is None or isinstance(value, str) for value in values) and any(values)


def _best(names: Iterable[str], words: Mapping[str, int], columns: Mapping[str, Sequence[object]]) -> str | None:
    """Return the name with the highest score; None if no name scores, or if two tie and hold different values."""
    scores = {name: _score(name, words) for name in names}
    most = max(scores.values(), default=0)
    best = [name for name, score in scores.items() if score == most > 0]
    return best[0] if best and all(columns[name] == columns[best[0]] for name in best) else None


def _score(name: str, words: Mapping[str, int]) -> int:
    """Score a name by its last word, 0 if that is unknown: a name that merely contains such a word ("answer_type") is
    no answer."""
    *above, own = map(_said, name.split("."))
    while len(own) > 1 and own[-1] in _FORMS:
        own = own[:-1]
    if (
        not own
        or any(word in _OF_ANOTHER or word in _ABOUT for word in own)
        or any(len(part) == 1 and part[0] in _OF_ANOTHER for part in above)
    ):
        return 0
    head = next((word for word in words if own[-1] == word or (not word.isascii() and own[-1].endswith(word))), None)
    before = [word for word in own[:-1] if word not in _NEUTRAL or word in words]
    if head is None or (words[head] < _ALONE and any(word not in words for word in before)):
        return 0
    return words[head] + sum(words.get(word, -_BESIDE) for word in [*chain(*above), *before])


def _said(name: str) -> list[str]:
    """The words of a name, in small letters."""
    return [word.lower() for word in _NAME_WORDS.findall(name)]


def _only(names: Sequence[str], columns: Mapping[str, Sequence[object]]) -> str | None:
    """The only name left apart from columns of metadata; None if the name itself rules it out, or if its column repeats
    a few values."""
    found = [name for name in names if not (said := _said(name)) or said[-1] not in _ABOUT]
    is_clear = len(found) == 1 and not _OF_ANOTHER.intersection(_said(found[0])) and not _are_few(columns[found[0]])
    return found[0] if is_clear else None


def _are_few(values: Sequence[object]) -> bool:
    return len(values) >= _FEW_ROWS and 2 * len(set(map(repr, values))) < len(values)
