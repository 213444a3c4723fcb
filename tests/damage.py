"""Damage to files: a bit that flips, and a disk that ends."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def flip_bit(path: Path, position: int = -1) -> None:
    """The lowest one of this byte."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@contextmanager
def files_end_at(num_bytes: int) -> Iterator[None]:
    """Writing beyond fails as on a full disk, in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
