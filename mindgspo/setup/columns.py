"""Which column of a file is the question and which the answer, by their names and by what they hold.

Nothing is guessed where names leave a choice: then the user is asked, with the columns and a sample of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from mindgspo.config.data import ColumnsSection
from mindgspo.data.source_rows import is_blank
from mindgspo.errors import DataError
from mindgspo.text import did_you_mean, listed, shorten

Row = Mapping[str, object]

# What a word in a column's name says for the column to be the one that is looked for. Words that stand beside a better
# one ("final answer", "expected result") count less than those that can stand alone.
_QUESTION = {
    **dict.fromkeys(("question", "questions", "problem", "prompt", "query", "instruction"), 3),
    **dict.fromkeys(("task", "exercise", "puzzle", "q", "ask"), 2),
    **dict.fromkeys(("input", "text", "user"), 1),
    **dict.fromkeys(("\u95ee\u9898", "\u9898\u76ee", "\u9898\u5e72", "\u63d0\u95ee"), 3),
}
_ANSWER = {
    **dict.fromkeys(("answer", "answers", "gold", "truth", "expected"), 3),
    **dict.fromkeys(("label", "target", "result", "reference", "output", "a"), 2),
    **dict.fromkeys(("final", "correct", "ground", "value", "response", "completion", "solution"), 1),
    **dict.fromkeys(("\u7b54\u6848", "\u7ed3\u679c"), 3),
}
_SOLUTION = {
    **dict.fromkeys(("solution", "rationale", "explanation", "reasoning", "cot", "derivation"), 2),
    **dict.fromkeys(("worked", "steps"), 1),
    **dict.fromkeys(("\u89e3\u6790", "\u89e3\u7b54", "\u89e3\u9898\u8fc7\u7a0b"), 2),
}
_BESIDE = 0.5
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[\u4e00-\u9fff]+")
_SAMPLE_WIDTH, _MOST_SHOWN, _MOST_DEPTH = 40, 12, 3


def find_columns(
    path: Path, rows: Sequence[Row], *, question: str | None, answer: str | None, name: str
) -> ColumnsSection:
    """The columns of the first rows of a file. question, answer: as the user says; name: that all rows get as their
    data source. Raises DataError that shows the columns, where names do not tell."""
    columns = {key: [row.get(key) for row in map(_flat, rows)] for key in _flat(rows[0])}
    for option, given in (("--question", question), ("--answer", answer)):
        if given is not None and given not in columns:
            hint, known = did_you_mean(given, columns), listed(list(columns))
            raise DataError(f"{path}: {option} {given}: there is no such column{hint} (there are: {known})")
    texts = [key for key, values in columns.items() if all(map(_is_question, values))]
    answers = [key for key, values in columns.items() if _are_answers(values)]
    question = question or _best([key for key in texts if key != answer], _QUESTION)
    answer = answer or _best([key for key in answers if key != question], _ANSWER)
    # Where one is known and only one other column could be the other, there is no choice.
    if question is not None and answer is None:
        answer = _only(key for key in answers if key != question)
    if answer is not None and question is None:
        question = _only(key for key in texts if key != answer)
    if question is None or answer is None:
        shown = [f"{key} = {shorten(repr(values[0]), _SAMPLE_WIDTH)}" for key, values in columns.items()]
        missing = "the question" if question is None else f"the answer to {question}"
        raise DataError(
            f"{path}: no column is clearly {missing}; say --question COLUMN --answer COLUMN. The first row has: "
            f"{listed(shown, _MOST_SHOWN)}"
        )
    others = [key for key, values in columns.items() if key not in (question, answer) and _is_solution(values)]
    return ColumnsSection(prompt=question, answer=answer, solution=_best(others, _SOLUTION), data_source_name=name)


def _flat(row: Row, prefix: str = "", depth: int = 1) -> dict[str, object]:
    """The row's values by dotted names."""
    found: dict[str, object] = {}
    for key, value in row.items():
        if isinstance(value, Mapping) and depth < _MOST_DEPTH:
            found |= _flat(value, f"{prefix}{key}.", depth + 1)
        else:
            found[f"{prefix}{key}"] = value
    return found


def _is_question(value: object) -> bool:
    """A text, or a list of messages."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(one, Mapping) and "role" in one and "content" in one for one in value)
    return isinstance(value, str) and bool(value.strip())


def _are_answers(values: Sequence[object]) -> bool:
    """Texts or numbers; a few may be missing."""
    given = [value for value in values if not is_blank(value)]
    return bool(given) and all(isinstance(value, (str, int, float)) and not isinstance(value, bool) for value in given)


def _is_solution(values: Sequence[object]) -> bool:
    return all(value is None or isinstance(value, str) for value in values) and any(values)


def _best(names: Iterable[str], words: Mapping[str, float]) -> str | None:
    """The name that speaks most for itself; None where none does, or two do as much."""
    scores = sorted(((_score(name, words), name) for name in names), reverse=True)
    scores = [one for one in scores if one[0] > 0]
    is_clear = len(scores) == 1 or (len(scores) > 1 and scores[0][0] > scores[1][0])
    return scores[0][1] if is_clear else None


def _score(name: str, words: Mapping[str, float]) -> float:
    said = [word.lower() for word in _WORDS.findall(name)]
    return sum(words.get(word, -_BESIDE) for word in said) if any(word in words for word in said) else 0


def _only(names: Iterator[str]) -> str | None:
    found = list(names)
    return found[0] if len(found) == 1 else None
