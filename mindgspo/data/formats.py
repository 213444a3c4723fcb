r"""The formats that rows of files come in: one parser each, from a dictionary to a `SourceRow`.

A parser returns a `DroppedRow` if a solution exists but states no answer. A field that the format promises and the row
lacks raises a DataError that names row, field and rule: then the file is not in the stated format, and nothing is
repaired. To add a format: its parser here, its entry in `PARSERS`, its name in config/data.py and config/rules.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from math_answers.quantity import last_boxes, read_quantity
from mindgspo.data.source_rows import (
    DroppedRow,
    SourceRow,
    answer_text,
    asks,
    checked_text,
    first_key,
    is_blank,
    messages_of,
    optional_text,
    present,
    text_of,
    turns_of,
    value_text,
)
from mindgspo.errors import DataError
from mindgspo.text import did_you_mean
from mindgspo.tokenization import ChatMessage

if TYPE_CHECKING:
    import pyarrow

    from mindgspo.config.data import ColumnsSection, DataSourceSection

Parser = Callable[[Mapping[str, object], str], "SourceRow | DroppedRow"]
"""(row, place for messages) -> the row as this project has it."""

# GSM8K's calculator annotations, e.g. 48/2 = <<48/2=24>>24.
_CALCULATOR = re.compile(r"<<[^<>]*>>")
# `\boxed 5$`: a few solutions of MATH leave the braces out; their authors' own grader reads up to the dollar sign.
_BOX_WITHOUT_BRACES = re.compile(r"\\(?:boxed|fbox)[ \t]{1,4}([^\s${}\\][^${}\\\n]{0,40})\$")
_AIME_INTEGER = re.compile(r"0{0,9}([0-9]{1,3})")
# DianJin's options are lettered from A on; words such as GDP or USD are open answers.
_CHOICES = re.compile(r"[A-J](?:[ ,\u3001\uff0c]{0,3}[A-J]){0,9}")
# DAPO's published prompt, word for word: its reward function looks for the line that it asks for.
DAPO_PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'


def parse_gsm8k(row: Mapping[str, object], where: str) -> SourceRow | DroppedRow:
    """{question, answer} as OpenAI published them: gold is the text after the last '####', without thousands
    separators, as in verl's prepared files; the solution loses its calculator annotations. A row whose gold has another
    comma ("3,5") is dropped: it is one number with a decimal comma or two."""
    question = text_of(row, "question", where)
    solution = _CALCULATOR.sub("", text_of(row, "answer", where)).strip()
    _, mark, gold = solution.rpartition("####")
    if not mark or not gold.strip():
        return DroppedRow(where=where, reason="the answer has no final '#### <number>'", answer="")
    without_commas = gold.strip().replace(",", "")
    if "," in gold and (read_quantity(gold) is None or read_quantity(gold) != read_quantity(without_commas)):
        reason = "the answer has a comma that separates no thousands"
        return DroppedRow(where=where, reason=reason, answer=gold.strip())
    return SourceRow(
        where=where,
        messages=asks(question),
        answer=without_commas,
        solution=solution,
        data_source="openai/gsm8k",
    )


def parse_math(row: Mapping[str, object], where: str) -> SourceRow | DroppedRow:
    r"""MATH (Hendrycks et al. 2021, arXiv 2103.03874) and MATH-lighteval: {problem, solution, level, type}; MATH-500:
    {problem, solution, answer, subject, level, unique_id}.

    Gold is `answer` if the row has that field, else the solution's last \boxed{}. The data source is "math" for all
    three, which differ in nothing that a reward looks at; level, type, subject and unique_id go into extra_info.
    """
    problem = text_of(row, "problem", where)
    solution = text_of(row, "solution", where)
    given = row.get("answer")
    answer = last_box(solution) if given is None else answer_text(given, f"{where}: answer")
    if answer is None:
        return DroppedRow(where=where, reason=r"the solution has no \boxed{} answer", answer="")
    return SourceRow(
        where=where,
        messages=asks(problem),
        answer=answer,
        solution=solution,
        data_source="math",
        extra_info=present(row, ("level", "type", "subject", "unique_id")),
    )


def last_box(solution: str) -> str | None:
    """The content of the last balanced box, or of the boxes listed up to it; without any, the last box without braces;
    None if empty or absent."""
    content = last_boxes(solution)
    if content is None:
        bare = _BOX_WITHOUT_BRACES.findall(solution)
        content = bare[-1].strip() if bare else ""
    return content or None


def parse_aime(row: Mapping[str, object], where: str) -> SourceRow | DroppedRow:
    """{problem or question, answer or expected_answer}; capitals in these names do not count.

    The answer may be text or a number; AIME's three-digit spelling ("073") is the integer 73. id, year and source go
    into extra_info.
    """
    fields = {str(key).lower(): value for key, value in row.items()}
    question = first_key(fields, ("problem", "question"), where)
    key = first_key(fields, ("answer", "expected_answer"), where)
    given = answer_text(fields[key], f"{where}: {key}")
    integer = _AIME_INTEGER.fullmatch(given.strip().strip("$"))
    if integer is None:
        reason = "the answer is no integer from 0 to 999, as every answer of AIME is"
        return DroppedRow(where=where, reason=reason, answer=given)
    return SourceRow(
        where=where,
        messages=asks(checked_text(fields[question], f"{where}: {question}")),
        answer=str(int(integer.group(1))),
        data_source="aime",
        extra_info=present(fields, ("id", "year", "source")),
    )


def parse_dianjin(row: Mapping[str, object], where: str) -> SourceRow | DroppedRow:
    r"""DianJin-R1-Data (arXiv 2504.15716): {instruction, output}, where `output` is
    "<think>...</think><answer>...\boxed{ABD}...</answer>".

    Gold is the last \boxed{} of the last answer block, the solution the whole output. The data source is "dianjin"
    where the gold consists of option letters only, else "dianjin_open".
    """
    instruction = text_of(row, "instruction", where)
    output = text_of(row, "output", where)
    _, opening, rest = output.rpartition("<answer>")
    if not opening:
        return DroppedRow(where=where, reason="the output has no <answer> block", answer="")
    gold = last_box(rest.partition("</answer>")[0])
    if gold is None:
        return DroppedRow(where=where, reason=r"the answer block has no \boxed{} answer", answer="")
    letters = [character for character in gold if character.isalpha()]
    is_choice = _CHOICES.fullmatch(gold) is not None and len(letters) == len(set(letters))
    return SourceRow(
        where=where,
        messages=asks(instruction),
        answer=gold,
        solution=output,
        data_source="dianjin" if is_choice else "dianjin_open",
    )


def parse_verl(row: Mapping[str, object], where: str) -> SourceRow | DroppedRow:
    """{data_source, prompt: chat messages, ability, reward_model: {ground_truth, style}, extra_info}.

    extra_info is kept as it is, with `ability` added to its keys (unless it has that key itself).
    """
    messages = messages_of(row.get("prompt"), f"{where}: prompt")
    return _with_ground_truth(row, messages, where, lambda: text_of(row, "data_source", where))


def parse_dapo(row: Mapping[str, object], where: str) -> SourceRow | DroppedRow:
    """DAPO-Math-17k (BytedTsinghua-SIA) in verl's schema; `prompt` may also be the question as text, without the
    published prompt around it. The data source is always "math_dapo"."""
    prompt = row.get("prompt")
    place = f"{where}: prompt"
    messages = asks(checked_text(prompt, place)) if isinstance(prompt, str) else messages_of(prompt, place)
    return _with_ground_truth(row, (*messages[:-1], _in_dapo_prompt(messages[-1])), where, lambda: "math_dapo")


def _in_dapo_prompt(message: ChatMessage) -> ChatMessage:
    """The question in the published prompt; unchanged if it already contains either half of that prompt."""
    content = message["content"]
    if content.lstrip().startswith(DAPO_PREFIX.strip()) or content.rstrip().endswith(DAPO_SUFFIX.strip()):
        return message
    return {"role": message["role"], "content": f"{DAPO_PREFIX}{content}{DAPO_SUFFIX}"}


def _with_ground_truth(
    row: Mapping[str, object], messages: tuple[ChatMessage, ...], where: str, data_source: Callable[[], str]
) -> SourceRow | DroppedRow:
    """verl's fields other than the prompt. The row is dropped if reward_model.ground_truth exists and is empty."""
    reward_model = row.get("reward_model")
    if not isinstance(reward_model, Mapping):
        raise DataError(f"{where}: reward_model: expected {{ground_truth, style}}, got {value_text(reward_model)}")
    if "ground_truth" in reward_model and is_blank(reward_model["ground_truth"]):
        return DroppedRow(where=where, reason="reward_model.ground_truth is empty", answer="")
    answer = answer_text(reward_model.get("ground_truth"), f"{where}: reward_model.ground_truth")
    source = data_source()
    extra = row.get("extra_info") or {}
    if not isinstance(extra, Mapping):
        raise DataError(f"{where}: extra_info: expected an object, got {value_text(extra)}")
    return SourceRow(
        where=where,
        messages=messages,
        answer=answer,
        data_source=source,
        extra_info={**present(row, ("ability",)), **extra},
    )


PARSERS: Mapping[str, Parser] = {
    "gsm8k": parse_gsm8k,
    "verl": parse_verl,
    "dapo": parse_dapo,
    "math": parse_math,
    "aime": parse_aime,
    "dianjin": parse_dianjin,
}


def parser_for(section: DataSourceSection) -> Parser:
    """The parser of a file's rows; its section has been checked."""
    if section.format != "columns":
        return PARSERS[section.format]
    assert section.columns is not None, "the format columns goes with a mapping"
    return partial(parse_columns, section.columns)


# The format `columns`: a name may be dotted, reward_model.ground_truth, to reach into nested columns; a column whose
# own name has the dots takes precedence.


def parse_columns(columns: ColumnsSection, row: Mapping[str, object], where: str) -> SourceRow:
    """The row as `columns` reads it; the keys of extra_info are the names as they are written there."""
    found = {key: _value(row, name, key, where) for key, name in _mapped(columns)}
    prompt = found["prompt"]
    place = f"{where}: {columns.prompt}"
    if columns.data_source is None:
        assert columns.data_source_name is not None, "the section has been checked"
        data_source = columns.data_source_name
    else:
        data_source = checked_text(found["data_source"], f"{where}: {columns.data_source}")
    return SourceRow(
        where=where,
        messages=asks(checked_text(prompt, place)) if isinstance(prompt, str) else messages_of(prompt, place),
        answer=answer_text(found["answer"], f"{where}: {columns.answer}"),
        solution=_solution(found.get("solution"), f"{where}: {columns.solution}"),
        data_source=data_source,
        extra_info={name: _value(row, name, "extra_info", where) for name in columns.extra_info},
    )


def _solution(value: object, place: str) -> str:
    """A solution's text; a conversation, of several turns in an environment, as JSON."""
    return json.dumps(turns_of(value, place)) if isinstance(value, list) else optional_text(value, place)


def check_schema(path: Path, schema: pyarrow.Schema, columns: ColumnsSection) -> None:
    """Raise DataError for the first mapped column that the parquet file's schema lacks."""
    known = [name for field in schema for name in _schema_names(field, "")]
    for key, name in [*_mapped(columns), *(("extra_info", name) for name in columns.extra_info)]:
        if name not in known:
            raise DataError(_no_such_column(str(path), key, name, known))


def _mapped(columns: ColumnsSection) -> list[tuple[str, str]]:
    """(key of the section, column) of the single columns that are set."""
    names = {key: getattr(columns, key) for key in ("prompt", "answer", "solution", "data_source")}
    return [(key, name) for key, name in names.items() if name is not None]


def _value(row: Mapping[str, object], name: str, key: str, where: str) -> object:
    if name in row:
        return row[name]
    value: object = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise DataError(_no_such_column(where, key, name, list(_row_names(row, ""))))
        value = value[part]
    return value


def _no_such_column(where: str, key: str, name: str, known: list[str]) -> str:
    hint = did_you_mean(name, known)
    return f"{where}: columns.{key}: there is no column {name!r}{hint} (there are: {', '.join(known) or 'none'})"


def _row_names(row: Mapping[str, object], prefix: str) -> Iterator[str]:
    for name, value in row.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _row_names(value, f"{prefix}{name}.")


def _schema_names(field: pyarrow.Field, prefix: str) -> Iterator[str]:
    import pyarrow

    yield f"{prefix}{field.name}"
    if pyarrow.types.is_struct(field.type):
        for i in range(field.type.num_fields):
            yield from _schema_names(field.type.field(i), f"{prefix}{field.name}.")
