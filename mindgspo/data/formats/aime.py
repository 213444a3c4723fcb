"""AIME problems, as several publishers write them down."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mindgspo.data.formats.fields import answer_text, asks, checked_text, first_key, json_object, present
from mindgspo.data.source_row import DroppedRow, SourceRow

DATA_SOURCE = "aime"
NOT_AN_INTEGER = "the answer is no integer from 0 to 999, as every answer of AIME is"
KEPT = ("id", "year", "source")
_INTEGER = re.compile(r"0{0,9}([0-9]{1,3})")


def parse_aime(row: Mapping[str, object], where: str) -> SourceRow | DroppedRow:
    """{problem or question, answer or expected_answer}; capitals in these names do not count.

    The answer may be text or a number; AIME's three-digit spelling ("073") is the integer 73. id, year and source go
    into extra_info.
    """
    fields = {str(key).lower(): value for key, value in row.items()}
    question = first_key(fields, ("problem", "question"), where)
    key = first_key(fields, ("answer", "expected_answer"), where)
    given = answer_text(fields[key], f"{where}: {key}")
    integer = _INTEGER.fullmatch(given.strip().strip("$"))
    if integer is None:
        return DroppedRow(where=where, reason=NOT_AN_INTEGER, answer=given)
    return SourceRow(
        where=where,
        messages=asks(checked_text(fields[question], f"{where}: {question}")),
        answer=str(int(integer.group(1))),
        data_source=DATA_SOURCE,
        extra_info=json_object(present(fields, KEPT), where),
    )
