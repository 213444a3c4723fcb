"""GSM8K's rows, as OpenAI published them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mindgspo.data.formats.fields import asks, text_of
from mindgspo.data.source_row import DroppedRow, SourceRow

DATA_SOURCE = "openai/gsm8k"
ANSWER_MARK = "####"
NO_GOLD = f"the answer has no final '{ANSWER_MARK} <number>'"
# GSM8K's calculator annotations, e.g. 48/2 = <<48/2=24>>24.
CALCULATOR = re.compile(r"<<[^<>]*>>")


def parse_gsm8k(row: Mapping[str, object], where: str) -> SourceRow | DroppedRow:
    """{question, answer}: gold is the text after the last '####', without thousands separators, as in verl's prepared
    files; the solution loses its calculator annotations."""
    question = text_of(row, "question", where)
    solution = CALCULATOR.sub("", text_of(row, "answer", where)).strip()
    _, mark, gold = solution.rpartition(ANSWER_MARK)
    if not mark or not gold.strip():
        return DroppedRow(where=where, reason=NO_GOLD, answer="")
    return SourceRow(
        where=where,
        messages=asks(question),
        answer=gold.strip().replace(",", ""),
        solution=solution,
        data_source=DATA_SOURCE,
    )
