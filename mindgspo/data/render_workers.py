"""Worker processes that tokenize chunks of rows, and the program that they run.

A worker is a fresh Python that talks JSON lines over its pipes; MindSpore is not imported. Neither fork nor
multiprocessing is used: the parent may have MindSpore's threads, which a fork would copy in the middle of whatever they
do, and multiprocessing's spawn runs the parent's main script again, which breaks scripts without a `__main__` guard. A
worker ends when its input does, so none outlives its parent by more than the chunk in hand.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mindgspo.data.dataset_info import PromptFacts
from mindgspo.data.rendering import render_row, write_chunk
from mindgspo.data.source_rows import DroppedRow, SourceRow
from mindgspo.errors import DataError, TokenizerError, WriteError
from mindgspo.tokenization import Tokenizer, load_backend
from mindgspo.tokenization.chat import read_chat_template
from mindgspo.tokenization.files import read_files

# The parent's own path goes along: it may have been set by hand, by pytest or by a script.
_START = "import sys; sys.path[:] = sys.argv[1:]; from mindgspo.data.render_workers import main; main()"
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_ERRORS = {"DataError": DataError, "TokenizerError": TokenizerError, "WriteError": WriteError}


class WorkerDiedError(DataError):
    """Not a fault of the data: what is done stays for the next attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Rows of a source and the file that they are to be written to."""

    path: Path
    rows: list[SourceRow | DroppedRow]


def write_chunks(
    chunks: Iterable[Chunk], facts: PromptFacts, tokenizer: Tokenizer, *, count: int, folder: Path
) -> Iterator[int]:
    """Have every chunk written by at most `count` workers; the number of rows of each, in order.

    At most two chunks per worker are under way. The tokenizer's files are saved into `folder`, from where each worker
    loads them once, so that workers read what this process has in memory. Raises what rendering a row raises, the first
    one in the order of chunks, and WorkerDiedError.
    """
    tokenizer.save(folder / "tokenizer")
    setup = {
        "tokenizer": str(folder / "tokenizer"),
        "name": tokenizer.name,
        "eos_ids": tokenizer.eos_ids,
        "pad_id": tokenizer.pad_id,
        "fingerprint": tokenizer.fingerprint,
        "facts": facts.model_dump(),
    }
    workers: list[subprocess.Popen[bytes]] = []
    of_thread = threading.local()

    def write(chunk: Chunk) -> int:
        """In a thread: ask the thread's own worker, and wait for it."""
        if not hasattr(of_thread, "worker"):
            workers.append(_started())
            of_thread.worker = workers[-1]
            _send(of_thread.worker, setup)
        rows = [{name: getattr(row, name) for name in row.__slots__} for row in chunk.rows]
        _send(of_thread.worker, {"path": str(chunk.path), "rows": rows})
        answer = of_thread.worker.stdout.readline()
        if not answer.endswith(b"\n"):
            raise _died(of_thread.worker)
        reply = json.loads(answer)
        if reply is not None:
            raise _ERRORS[reply["error"]](reply["message"])
        return len(chunk.rows)

    threads = ThreadPoolExecutor(count, thread_name_prefix="render")
    pending: deque[Future[int]] = deque()
    try:
        for chunk in chunks:
            pending.append(threads.submit(write, chunk))
            if len(pending) == 2 * count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BaseException:
        threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.kill()
        raise
    finally:
        threads.shutdown(wait=True)
        for worker in workers:
            worker.communicate()


def _started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _START, *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | _ONE_THREAD,
        # A session of its own: Ctrl-C reaches the parent only, which then ends its workers.
        start_new_session=True,
    )


def _send(worker: subprocess.Popen[bytes], request: dict[str, Any]) -> None:
    assert worker.stdin is not None
    try:
        worker.stdin.write(json.dumps(request).encode() + b"\n")
        worker.stdin.flush()
    except BrokenPipeError:
        raise _died(worker) from None


def _died(worker: subprocess.Popen[bytes]) -> WorkerDiedError:
    return WorkerDiedError(
        f"a worker process that tokenizes rows ended with exit code {worker.wait()} (-9: it was killed, usually for "
        "want of memory; else see its last words above). What is done is kept: run the same again, perhaps with fewer "
        "--workers"
    )


def main() -> None:
    """The worker: one JSON line of setup on stdin, then one per chunk; on stdout null or an error for each chunk."""
    # Whatever a library prints must not get between the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    setup = json.loads(sys.stdin.buffer.readline())
    tokenizer = _tokenizer(setup)
    facts = PromptFacts(**setup["facts"])
    for line in sys.stdin.buffer:
        request = json.loads(line)
        answer = None
        try:
            rows = (render_row(_row(fields), facts, tokenizer) for fields in request["rows"])
            write_chunk(Path(request["path"]), rows)
        except (DataError, TokenizerError, WriteError) as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        try:
            print(json.dumps(answer), file=replies, flush=True)
        except BrokenPipeError:
            os._exit(0)  # the parent was killed: nobody is left to read either this or a traceback


def _row(fields: dict[str, Any]) -> SourceRow | DroppedRow:
    if "messages" in fields:
        return SourceRow(**{**fields, "messages": tuple(fields["messages"])})
    return DroppedRow(**fields)


def _tokenizer(setup: dict[str, Any]) -> Tokenizer:
    """The parent's tokenizer; messages name the files as the parent does."""
    folder = Path(setup["tokenizer"])
    files = replace(read_files(folder), origin=setup["name"])
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
