"""One file that is whole or absent, also after `kill -9` or a power cut.

What enters: the final path. What leaves: a file open for writing under a hidden name beside it, flushed and renamed at
the end. Called by the writers of this room; `checkpoint.durable` does the same for folders.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO

# Short files are written before the first of these.
_FLUSH_EVERY_S = 0.02


@contextmanager
def written_aside(
    path: Path, *, syncs: bool = True, seen: Callable[[memoryview], None] | None = None
) -> Iterator[IO[bytes]]:
    """An unbuffered file that becomes `path` where the block ends well, and vanishes where it does not. syncs: it is on
    the disk in the end; otherwise the kernel writes it later, and a power cut may leave part of it. seen: is shown what
    was written, e.g. to hash it without reading it back."""
    aside = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with aside.open("wb", buffering=0) as file:
            with flushed_meanwhile(file.fileno()) if syncs else nullcontext():
                yield file if seen is None else _SeenFile(file, seen)
            if syncs:
                os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    if syncs:
        flush_to_disk(path.parent)


class _SeenFile(io.RawIOBase):
    """Writes to a file, and shows what was written."""

    def __init__(self, file: IO[bytes], seen: Callable[[memoryview], None]) -> None:
        self._file, self._seen = file, seen

    def write(self, content: memoryview | bytes) -> int:
        count = self._file.write(content)
        self._seen(memoryview(content)[:count])
        return count


@contextmanager
def flushed_meanwhile(descriptor: int) -> Iterator[None]:
    """What is written in the block goes to the disk while more is written, so that the last flush waits for little.

    An error of the disk is told once only, so one that comes here is raised at the end of the block.
    """
    is_over = threading.Event()
    failure: list[OSError] = []

    def flush() -> None:
        try:
            while not is_over.wait(_FLUSH_EVERY_S):
                os.fdatasync(descriptor)
        except OSError as error:
            failure.append(error)

    flusher = threading.Thread(target=flush, name="flushes a file")
    flusher.start()
    try:
        yield
    finally:
        is_over.set()
        flusher.join()
    if failure:
        raise failure[0]


def flush_to_disk(path: Path) -> None:
    """Make a file's content, or a folder's list of names, survive a power cut (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(file: IO[bytes], content: memoryview | bytes) -> None:
    """Write every byte: one call of the system writes 2 GiB at most."""
    rest = memoryview(content)
    while rest.nbytes:
        rest = rest[file.write(rest) :]
