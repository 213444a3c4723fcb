"""Rendered rows on their way to the MindRecord file: written in chunks, so that an interruption loses little.

What enters: rows of a source. What leaves: chunk files of JSON lines, and the rows read from them. A chunk file ends in
a line with the number of its rows and the sha256 of the lines before it, is written aside and renamed, and is checked
before it is taken over from an earlier attempt. Written by prepare or its workers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from mindgspo.data.dataset_info import PromptFacts
from mindgspo.data.prompts import RenderedRow, render_row
from mindgspo.data.source_row import DroppedRow, SourceRow
from mindgspo.io import write_file
from mindgspo.tokenization import Tokenizer


def render(row: SourceRow | DroppedRow, facts: PromptFacts, tokenizer: Tokenizer) -> RenderedRow | DroppedRow:
    """Tokenize a row that states an answer. Raises as `render_row`."""
    if isinstance(row, DroppedRow):
        return row
    return render_row(row, facts, tokenizer)


def write_chunk(path: Path, rows: Iterable[RenderedRow | DroppedRow]) -> None:
    """Write `rows` aside, then put the file in its place."""
    lines = [_to_line(row) for row in rows]
    content = b"".join(lines)
    footer = {"rows": len(lines), "sha256": hashlib.sha256(content).hexdigest()}
    write_file(path, content + json.dumps(footer).encode() + b"\n", sync=False)


def is_whole_chunk(path: Path, num_rows: int) -> bool:
    """Whether the file is there, holds `num_rows` rows, and is as it was written."""
    if not path.is_file():
        return False
    content = path.read_bytes()
    start = content.rfind(b"\n", 0, -1) + 1
    footer = {"rows": num_rows, "sha256": hashlib.sha256(content[:start]).hexdigest()}
    return content[start:] == json.dumps(footer).encode() + b"\n"


def read_chunk(path: Path) -> Iterator[RenderedRow | DroppedRow]:
    """The rows of a whole chunk file, in order."""
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
