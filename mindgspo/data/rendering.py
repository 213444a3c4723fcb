"""From an open source to chunk files: what an earlier attempt finished is taken over, the rest is tokenized.

What enters: `Source` and the folder for the chunks. What leaves: the chunk files, in order. Called by prepare.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from mindgspo.data.chunks import render, write_chunk
from mindgspo.data.dataset_info import PromptFacts
from mindgspo.data.partial_folder import PartialFolder
from mindgspo.data.progress import PreparationProgress
from mindgspo.data.render_pool import Chunk, RenderPool
from mindgspo.data.sources import Source
from mindgspo.tokenization import Tokenizer

CHUNK_ROWS = 1024
# Fewer chunks than this are done before a worker has loaded its tokenizer.
POOL_FROM_CHUNKS = 4
MOST_WORKERS = 16


def default_workers() -> int:
    """One per processor that this process may use, within reason."""
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS)


class _Chunks:
    """The source's rows in chunks, and what was found done."""

    def __init__(self, opened: Source, partial: PartialFolder, chunk_rows: int) -> None:
        self._opened = opened
        self._partial = partial
        self._chunk_rows = chunk_rows
        self.paths: list[Path] = []
        self.rows_found = 0

    def to_do(self) -> Iterator[Chunk]:
        """Chunks without a file that is whole."""
        rows = self._opened.parsed()
        while part := list(itertools.islice(rows, self._chunk_rows)):
            index = len(self.paths)
            self.paths.append(self._partial.chunk(index))
            if self._partial.has_chunk(index, len(part)):
                self.rows_found += len(part)
            else:
                yield Chunk(index=index, path=self.paths[-1], rows=part)


def render_chunks(
    opened: Source,
    facts: PromptFacts,
    tokenizer: Tokenizer,
    partial: PartialFolder,
    progress: PreparationProgress,
    *,
    workers: int,
    chunk_rows: int,
) -> list[Path]:
    """The whole chunk files of all rows, in order. The files do not depend on `workers`."""
    chunks = _Chunks(opened, partial, chunk_rows)
    to_do = chunks.to_do()
    first = list(itertools.islice(to_do, POOL_FROM_CHUNKS))
    if chunks.rows_found:
        progress.note(f"going on with {partial.path}: {chunks.rows_found} rows were tokenized before")
    advance = progress.stage("tokenize", opened.count)
    advance(chunks.rows_found)
    waiting = itertools.chain(first, to_do)
    if workers == 1 or len(first) < POOL_FROM_CHUNKS:
        for chunk in waiting:
            write_chunk(chunk.path, (render(row, facts, tokenizer) for row in chunk.rows))
            advance(len(chunk.rows))
        return chunks.paths
    with RenderPool(facts, tokenizer, count=workers, folder=partial.path) as pool:
        for rows in pool.run(waiting):
            advance(rows)
    return chunks.paths
