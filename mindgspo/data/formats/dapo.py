"""DAPO-Math-17k (BytedTsinghua-SIA), in verl's schema, as published or with its prompts laid bare by others."""

from __future__ import annotations

from collections.abc import Mapping

from mindgspo.data.formats.fields import asks, checked_text, messages_of
from mindgspo.data.formats.verl import NO_GOLD, extra_info, ground_truth
from mindgspo.data.source_row import DroppedRow, SourceRow
from mindgspo.tokenization import ChatMessage

DATA_SOURCE = "math_dapo"
# The published prompt, word for word: its reward function looks for the line that it asks for.
PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'


def parse_dapo(row: Mapping[str, object], where: str) -> SourceRow | DroppedRow:
    """verl's schema; `prompt` may also be the question as text. The data source is always "math_dapo"."""
    prompt = row.get("prompt")
    place = f"{where}: prompt"
    messages = asks(checked_text(prompt, place)) if isinstance(prompt, str) else messages_of(prompt, place)
    answer = ground_truth(row, where)
    if answer is None:
        return DroppedRow(where=where, reason=NO_GOLD, answer="")
    return SourceRow(
        where=where,
        messages=(*messages[:-1], in_template(messages[-1])),
        answer=answer,
        data_source=DATA_SOURCE,
        extra_info=extra_info(row, where),
    )


def in_template(message: ChatMessage) -> ChatMessage:
    """The question in the published prompt; as it is where either half of that prompt is there already."""
    content = message["content"]
    if content.lstrip().startswith(PREFIX.strip()) or content.rstrip().endswith(SUFFIX.strip()):
        return message
    return {"role": message["role"], "content": f"{PREFIX}{content}{SUFFIX}"}
