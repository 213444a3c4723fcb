"""The row formats that files come in: GSM8K's and verl's.

What enters: one dictionary and the words that say where it stands. What leaves: a `SourceRow`, or a DataError
that names the row, the field and the rule. Nothing is repaired: a row without an answer could only train
noise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from mindgspo.data.source_row import SourceRow
from mindgspo.errors import DataError
from mindgspo.tokenization import ChatMessage

GSM8K_SOURCE = "openai/gsm8k"
ANSWER_MARK = "####"
# GSM8K's calculator annotations, e.g. 48/2 = <<48/2=24>>24.
CALCULATOR = re.compile(r"<<[^<>]*>>")


def parse_gsm8k(row: Mapping[str, object], where: str) -> SourceRow:
    """{question, answer}: gold is the text after the last '####'; the solution loses its annotations."""
    question = _text(row, "question", where)
    solution = CALCULATOR.sub("", _text(row, "answer", where)).strip()
    _, mark, gold = solution.rpartition(ANSWER_MARK)
    if not mark or not gold.strip():
        raise DataError(f"{where}: answer: no final '{ANSWER_MARK} <number>', so the row has no gold answer")
    return SourceRow(
        where=where,
        messages=({"role": "user", "content": question},),
        answer=gold.strip(),
        solution=solution,
        data_source=GSM8K_SOURCE,
    )


def parse_verl(row: Mapping[str, object], where: str) -> SourceRow:
    """{data_source, prompt: chat messages, ability, reward_model: {ground_truth, style}, extra_info}.

    extra_info is kept as it is, with `ability` beside its keys (unless it has that key itself).
    """
    reward_model = row.get("reward_model")
    if not isinstance(reward_model, Mapping):
        raise DataError(f"{where}: reward_model: expected {{ground_truth, style}}, got {_shown(reward_model)}")
    extra_info = row.get("extra_info") or {}
    if not isinstance(extra_info, Mapping):
        raise DataError(f"{where}: extra_info: expected an object, got {_shown(extra_info)}")
    ability = {} if row.get("ability") is None else {"ability": row["ability"]}
    return SourceRow(
        where=where,
        messages=_messages(row.get("prompt"), where),
        answer=_ground_truth(reward_model.get("ground_truth"), where),
        data_source=_text(row, "data_source", where),
        extra_info=_checked_json({**ability, **extra_info}, where),
    )


PARSERS: Mapping[str, Callable[[Mapping[str, object], str], SourceRow]] = {
    "gsm8k": parse_gsm8k,
    "verl": parse_verl,
}


def _messages(prompt: object, where: str) -> tuple[ChatMessage, ...]:
    if not isinstance(prompt, list) or not prompt:
        raise DataError(f"{where}: prompt: expected a list of {{role, content}} messages, got {_shown(prompt)}")
    messages: list[ChatMessage] = []
    for i, message in enumerate(prompt):
        if not isinstance(message, Mapping):
            raise DataError(f"{where}: prompt[{i}]: expected {{role, content}}, got {_shown(message)}")
        place = f"{where}: prompt[{i}]"
        messages.append({"role": _text(message, "role", place), "content": _text(message, "content", place)})
    return tuple(messages)


def _ground_truth(value: object, where: str) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value.strip():
        return value
    raise DataError(f"{where}: reward_model.ground_truth: the row has no gold answer (text or number), got {value!r}")


def _text(row: Mapping[str, object], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        given = _shown(value) if key in row else f"only the fields {', '.join(map(str, row)) or '(none)'}"
        raise DataError(f"{where}: {key}: expected a non-empty text, got {given}")
    return value


def _checked_json(value: dict[str, object], where: str) -> dict[str, object]:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: extra_info: holds something that JSON cannot ({error})") from error


def _shown(value: object) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"
