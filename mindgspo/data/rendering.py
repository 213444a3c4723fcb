"""Rendering of source rows to prompt ids: chat template, tokenizing, truncation; and files of rendered rows.

Rows are written in chunks, so that an interruption loses little. A chunk file is JSON lines and a last line with the
number of its rows and the sha256 of the lines before it; it is checked before it is reused from an earlier attempt.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mindgspo.data.dataset_info import PromptFacts
from mindgspo.data.source_rows import DroppedRow, SourceRow
from mindgspo.errors import DataError
from mindgspo.io import write_file
from mindgspo.tokenization import ChatMessage, Tokenizer
from mindgspo.tokenization.chat import plain_schemas
from mindgspo.types import Int32Array, Prompt

if TYPE_CHECKING:
    from mindgspo.config.data import DataSection, DataSourceSection


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedRow:
    """A row that states an answer, tokenized; undocumented fields are those of `Prompt`."""

    where: str
    """File and row."""
    prompt_key: str
    """Equal for rows that ask the same."""
    full_length: int
    """Tokens before truncation."""
    ids: Int32Array
    """[L], after truncation."""
    text: str
    answer: str
    data_source: str
    solution: str
    extra_info: Mapping[str, object]
    nulled: Sequence[str]
    """See `SourceRow`."""

    def as_prompt(self, index: int) -> Prompt:
        """The prompt that becomes row `index` of the data set."""
        return Prompt(
            index=index,
            ids=self.ids,
            text=self.text,
            answer=self.answer,
            data_source=self.data_source,
            solution=self.solution,
            extra_info=self.extra_info,
        )


def _middle(ids: list[int], limit: int) -> list[int]:
    """The first half and the last half; the last is the longer one if the limit is odd (as in verl)."""
    head = limit // 2
    return ids[:head] + ids[len(ids) - (limit - head) :]


# A policy is named after the side that is cut away (verl's words).
CUTS: Mapping[str, Callable[[list[int], int], list[int]]] = {
    "left": lambda ids, limit: ids[-limit:],
    "right": lambda ids, limit: ids[:limit],
    "middle": _middle,
}


# Their prompts already say how to write the answer.
FORMATS_WITH_INSTRUCTION = ("verl", "dapo")


def prompt_facts(
    source: DataSourceSection, data: DataSection, tools: Sequence[Mapping[str, object]] = ()
) -> PromptFacts:
    """The prompt settings as they take effect on the rows of `source`. tools: JSON schemas for the chat template."""
    has_own = source.format in FORMATS_WITH_INSTRUCTION
    return PromptFacts(
        system_prompt=data.system_prompt,
        instruction_prefix="" if has_own else data.instruction_prefix,
        instruction_suffix="" if has_own else data.instruction_suffix,
        max_prompt_length=data.max_prompt_length,
        truncation=data.truncation,
        tools=tuple(plain_schemas(tools)),
    )


def conversation(row: SourceRow, facts: PromptFacts) -> list[ChatMessage]:
    """The messages of a row's chat.

    Prefix and suffix are put around the last one; the system prompt goes in front unless the row brings its own.
    """
    last = row.messages[-1]
    messages = [
        *row.messages[:-1],
        {"role": last["role"], "content": facts.instruction_prefix + last["content"] + facts.instruction_suffix},
    ]
    if facts.system_prompt is not None and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": facts.system_prompt})
    return messages


def render_row(row: SourceRow | DroppedRow, facts: PromptFacts, tokenizer: Tokenizer) -> RenderedRow | DroppedRow:
    """Tokenize a row that states an answer; a prompt that is too long is cut if `facts.truncation` names a side, else
    left whole.

    Raises DataError for a prompt without any token, TokenizerError if the chat template fails.
    """
    if isinstance(row, DroppedRow):
        return row
    text = tokenizer.render_chat(conversation(row, facts), add_generation_prompt=True, tools=facts.tools)
    ids = tokenizer.encode(text)
    if not ids:
        raise DataError(f"{row.where}: the chat template of {tokenizer.name} made an empty prompt of it")
    full_length = len(ids)
    if full_length > facts.max_prompt_length and facts.truncation in CUTS:
        ids = CUTS[facts.truncation](ids, facts.max_prompt_length)
        text = tokenizer.decode(ids)
    return RenderedRow(
        where=row.where,
        prompt_key=row.prompt_key,
        full_length=full_length,
        ids=np.array(ids, dtype=np.int32),
        text=text,
        answer=row.answer,
        data_source=row.data_source,
        solution=row.solution,
        extra_info=row.extra_info,
        nulled=row.nulled,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Rows of a source and the file that they are to be written to."""

    path: Path
    rows: list[SourceRow | DroppedRow]


def write_chunk(path: Path, rows: Iterable[RenderedRow | DroppedRow]) -> None:
    """Write `rows` aside, then put the file in its place."""
    lines = [_to_line(row) for row in rows]
    content = b"".join(lines)
    footer = {"rows": len(lines), "sha256": hashlib.sha256(content).hexdigest()}
    write_file(path, content + json.dumps(footer).encode() + b"\n", sync=False)


def write_chunks(chunks: Iterable[Chunk], facts: PromptFacts, tokenizer: Tokenizer, *, count: int) -> Iterator[int]:
    """Write all chunks in `count` threads; yields the number of rows of each, in order.

    Each thread has the tokenizer in a child process of its own, which takes most of the time. At most two chunks per
    thread are under way. Raises what rendering a row raises, the first one in the order of chunks.
    """
    of_thread = threading.local()

    def write(chunk: Chunk) -> int:
        if not hasattr(of_thread, "tokenizer"):
            of_thread.tokenizer = tokenizer.in_own_process()
        write_chunk(chunk.path, (render_row(row, facts, of_thread.tokenizer) for row in chunk.rows))
        return len(chunk.rows)

    pending: deque[Future[int]] = deque()
    with ThreadPoolExecutor(count, thread_name_prefix="render") as threads:
        try:
            for chunk in chunks:
                pending.append(threads.submit(write, chunk))
                if len(pending) == 2 * count:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def is_whole_chunk(path: Path, num_rows: int) -> bool:
    """Whether the file is there, holds `num_rows` rows, and is as it was written."""
    if not path.is_file():
        return False
    content = path.read_bytes()
    start = content.rfind(b"\n", 0, -1) + 1
    footer = {"rows": num_rows, "sha256": hashlib.sha256(content[:start]).hexdigest()}
    return content[start:] == json.dumps(footer).encode() + b"\n"


def read_chunks(paths: Iterable[Path]) -> Iterator[RenderedRow | DroppedRow]:
    """The rows of whole chunk files, in order."""
    for path in paths:
        with path.open("rb") as file:
            line = next(file)
            for following in file:
                yield _from_line(line)
                line = following


def _to_line(row: RenderedRow | DroppedRow) -> bytes:
    fields = {name: getattr(row, name) for name in row.__slots__}
    if isinstance(row, RenderedRow):
        fields["ids"] = row.ids.tolist()
    return json.dumps(fields).encode() + b"\n"


def _from_line(line: bytes) -> RenderedRow | DroppedRow:
    fields = json.loads(line)
    if "ids" not in fields:
        return DroppedRow(**fields)
    return RenderedRow(**{**fields, "ids": np.array(fields["ids"], dtype=np.int32)})
