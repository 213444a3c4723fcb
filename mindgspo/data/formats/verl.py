"""Rows in verl's schema, whatever they ask."""

from __future__ import annotations

from collections.abc import Mapping

from mindgspo.data.formats.fields import answer_text, is_blank, json_object, messages_of, shown, text_of
from mindgspo.data.source_row import DroppedRow, SourceRow
from mindgspo.errors import DataError

NO_GOLD = "reward_model.ground_truth is empty"


def parse_verl(row: Mapping[str, object], where: str) -> SourceRow | DroppedRow:
    """{data_source, prompt: chat messages, ability, reward_model: {ground_truth, style}, extra_info}.

    extra_info is kept as it is, with `ability` beside its keys (unless it has that key itself).
    """
    messages = messages_of(row.get("prompt"), f"{where}: prompt")
    answer = ground_truth(row, where)
    if answer is None:
        return DroppedRow(where=where, reason=NO_GOLD, answer="")
    return SourceRow(
        where=where,
        messages=messages,
        answer=answer,
        data_source=text_of(row, "data_source", where),
        extra_info=extra_info(row, where),
    )


def ground_truth(row: Mapping[str, object], where: str) -> str | None:
    """The gold answer, text or number; None where the field is there and empty."""
    reward_model = row.get("reward_model")
    if not isinstance(reward_model, Mapping):
        raise DataError(f"{where}: reward_model: expected {{ground_truth, style}}, got {shown(reward_model)}")
    if "ground_truth" in reward_model and is_blank(reward_model["ground_truth"]):
        return None
    return answer_text(reward_model.get("ground_truth"), f"{where}: reward_model.ground_truth")


def extra_info(row: Mapping[str, object], where: str) -> dict[str, object]:
    """The field of that name, empty where there is none, and `ability`."""
    given = row.get("extra_info") or {}
    if not isinstance(given, Mapping):
        raise DataError(f"{where}: extra_info: expected an object, got {shown(given)}")
    ability = {} if row.get("ability") is None else {"ability": row["ability"]}
    return json_object({**ability, **given}, f"{where}: extra_info")
