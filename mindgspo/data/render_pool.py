"""Worker processes that tokenize chunks, seen from their parent.

What enters: chunks of source rows. What leaves: chunk files, written by the workers. Called by prepare for larger data.

A worker is a fresh Python (`render_worker`) that talks JSON lines over its pipes. Neither fork nor multiprocessing is
used: the parent may have MindSpore's threads, which a fork would copy in the middle of whatever they do, and
multiprocessing's spawn runs the parent's main script again, which breaks scripts without a `__main__` guard. A worker
ends when its input does, so none outlives its parent by more than the chunk in hand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from mindgspo.data.dataset_info import PromptFacts
from mindgspo.data.source_row import DroppedRow, SourceRow
from mindgspo.errors import DataError, TokenizerError
from mindgspo.tokenization import Tokenizer

# The parent's own path goes along: it may have been set by hand, by pytest or by a script.
_START = "import sys; sys.path[:] = sys.argv[1:]; from mindgspo.data.render_worker import main; main()"
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_ERRORS = {"DataError": DataError, "TokenizerError": TokenizerError}
_TOKENIZER = "tokenizer"


class WorkerDiedError(DataError):
    """Not a fault of the data: what is done stays for the next attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Rows of a source and the file that they are to be written to. index: position in the source, from 0 on."""

    index: int
    path: Path
    rows: list[SourceRow | DroppedRow]


class RenderPool(AbstractContextManager["RenderPool"]):
    """At most `count` workers, each started when it is first needed.

    The tokenizer's files are saved into `folder`, from where each worker loads them once: what the workers read cannot
    differ from what this process has in memory.
    """

    def __init__(self, facts: PromptFacts, tokenizer: Tokenizer, *, count: int, folder: Path) -> None:
        tokenizer.save(folder / _TOKENIZER)
        setup = {
            "tokenizer": str(folder / _TOKENIZER),
            "name": tokenizer.name,
            "eos_ids": tokenizer.eos_ids,
            "pad_id": tokenizer.pad_id,
            "fingerprint": tokenizer.fingerprint,
            "facts": asdict(facts),
        }
        self._setup = json.dumps(setup).encode() + b"\n"
        self._count = count
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="render")
        self._own = threading.local()
        self._workers: list[subprocess.Popen[bytes]] = []

    def run(self, chunks: Iterable[Chunk]) -> Iterator[int]:
        """Have every chunk written; the number of rows of each, in order. At most two per worker are under way.

        Raises what rendering a row raises, the first one in the order of chunks, and WorkerDiedError.
        """
        pending: deque[Future[int]] = deque()
        for chunk in chunks:
            pending.append(self._threads.submit(self._render, chunk))
            if len(pending) == 2 * self._count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            if error is not None:
                worker.kill()
        self._threads.shutdown(wait=True)
        for worker in self._workers:
            worker.communicate()

    def _render(self, chunk: Chunk) -> int:
        """In a thread: ask the thread's own worker, and wait for it."""
        worker = getattr(self._own, "worker", None)
        if worker is None:
            worker = self._own.worker = self._started()
        request = {"path": str(chunk.path), "rows": [_fields(row) for row in chunk.rows]}
        try:
            worker.stdin.write(json.dumps(request).encode() + b"\n")
            worker.stdin.flush()
        except BrokenPipeError:
            raise _died(worker) from None
        answer = worker.stdout.readline()
        if not answer.endswith(b"\n"):
            raise _died(worker)
        reply = json.loads(answer)
        if reply is not None:
            raise _ERRORS[reply["error"]](reply["message"])
        return len(chunk.rows)

    def _started(self) -> subprocess.Popen[bytes]:
        worker = subprocess.Popen(
            [sys.executable, "-c", _START, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | _ONE_THREAD,
            # A session of its own: Ctrl-C reaches the parent only, which then ends its workers.
            start_new_session=True,
        )
        self._workers.append(worker)
        assert worker.stdin is not None
        try:
            worker.stdin.write(self._setup)
            worker.stdin.flush()
        except BrokenPipeError:
            raise _died(worker) from None
        return worker


def _fields(row: SourceRow | DroppedRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__slots__}


def _died(worker: subprocess.Popen[bytes]) -> WorkerDiedError:
    return WorkerDiedError(
        f"a worker process that tokenizes rows ended with exit code {worker.wait()} (-9: it was killed, usually for "
        "want of memory; else see its last words above). What is done is kept: run the same again, perhaps with fewer "
        "--workers"
    )
