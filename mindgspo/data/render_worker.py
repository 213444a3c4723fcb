"""The program of a worker that tokenizes chunks; `render_pool` starts it. MindSpore is not imported.

What enters: on stdin one JSON line of setup, then one per chunk. What leaves: the chunk's file, then on stdout one JSON
line per chunk: null, or the error that the parent is to raise.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mindgspo.data.chunks import render, write_chunk
from mindgspo.data.dataset_info import PromptFacts
from mindgspo.data.source_row import DroppedRow, SourceRow
from mindgspo.errors import DataError, TokenizerError
from mindgspo.tokenization import Tokenizer, load_backend
from mindgspo.tokenization.chat import read_chat_template
from mindgspo.tokenization.files import read_files


def main() -> None:
    """Serve until stdin ends."""
    # Whatever a library prints must not get between the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    setup = json.loads(sys.stdin.buffer.readline())
    tokenizer = _tokenizer(setup)
    facts = PromptFacts(**setup["facts"])
    for line in sys.stdin.buffer:
        answer = _answer(json.loads(line), facts, tokenizer)
        try:
            print(json.dumps(answer), file=replies, flush=True)
        except BrokenPipeError:
            os._exit(0)  # the parent was killed: nobody is left to read either this or a traceback


def _answer(request: Mapping[str, Any], facts: PromptFacts, tokenizer: Tokenizer) -> dict[str, str] | None:
    try:
        rows = (render(row, facts, tokenizer) for row in _rows(request["rows"]))
        write_chunk(Path(request["path"]), rows)
    except (DataError, TokenizerError) as error:
        return {"error": type(error).__name__, "message": str(error)}
    return None


def _rows(fields: list[dict[str, Any]]) -> Iterator[SourceRow | DroppedRow]:
    for one in fields:
        if "messages" in one:
            yield SourceRow(**{**one, "messages": tuple(one["messages"])})
        else:
            yield DroppedRow(**one)


def _tokenizer(setup: Mapping[str, Any]) -> Tokenizer:
    """The parent's tokenizer; messages name the files as the parent does."""
    folder = Path(setup["tokenizer"])
    files = dataclasses.replace(read_files(folder), origin=setup["name"])
    tokenizer = Tokenizer(
        name=setup["name"],
        eos_ids=tuple(setup["eos_ids"]),
        pad_id=setup["pad_id"],
        backend=load_backend(folder),
        files=files,
        template=read_chat_template(files),
    )
    assert tokenizer.fingerprint == setup["fingerprint"], f"{folder}: not the parent's tokenizer"
    return tokenizer
