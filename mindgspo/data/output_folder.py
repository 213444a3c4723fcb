"""The folder of a data set, and the one beside it in which its parts are collected.

`<out>.partial-<key>` outlives a process that was killed, and the next one with the same inputs continues from it; the
kernel drops its lock with the process, so there are no stale locks.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mindgspo.errors import DataError, WriteError
from mindgspo.io import make_folder, write_error


class OutputError(DataError):
    """The disk or the path is at fault, not the data: finished work is kept for the next attempt."""


def is_taken(out_dir: Path) -> bool:
    """Whether the path holds something that must not be touched; an empty folder may be."""
    return out_dir.exists() and not (out_dir.is_dir() and not any(out_dir.iterdir()))


def check_out_dir(out_dir: Path) -> None:
    """Raise OutputError for a place below a file, and for a link that leads nowhere or to an empty folder, which the
    finished folder could not replace."""
    with named_os_errors(out_dir):
        if out_dir.is_symlink() and not is_taken(out_dir):
            to = "an empty folder" if out_dir.exists() else "nothing"
            raise OutputError(f"{out_dir}: is a symbolic link to {to}; remove it, or name the folder itself")
        nearest = next(folder for folder in out_dir.absolute().parents if folder.exists())
        if not nearest.is_dir():
            raise OutputError(f"{out_dir}: {nearest} is a file, not a folder; choose another folder")


@contextmanager
def named_os_errors(out_dir: Path) -> Iterator[None]:
    """Turn the system's errors (a full disk, no permission) into OutputErrors that name the path."""
    try:
        yield
    except WriteError as error:
        raise OutputError(str(error)) from error
    except OSError as error:
        raise OutputError(str(write_error(Path(error.filename or out_dir), error))) from error


_LOCK = "lock"
_READY = "ready"
_CHUNK = "chunk-{:05d}.jsonl"


class PartialFolder:
    """Chunk files, the finished data set before it gets its name, and a lock."""

    def __init__(self, out_dir: Path, key: str) -> None:
        """Raises OutputError if another process has the folder, or the file system knows no locks."""
        self.path = partial_path(out_dir, key)
        self._descriptor: int | None = _locked(self.path)

    def chunk(self, index: int) -> Path:
        """Path of chunk `index`, written or not."""
        return self.path / _CHUNK.format(index)

    def empty_ready(self) -> Path:
        """A new folder, to be filled and renamed."""
        ready = self.path / _READY
        shutil.rmtree(ready, ignore_errors=True)
        ready.mkdir()
        return ready

    def close(self, *, keep: bool) -> None:
        """Give the folder up. keep: leave it for the next process."""
        if not keep:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def partial_path(out_dir: Path, key: str) -> Path:
    """The folder that processes with the same inputs share, one after the other."""
    return out_dir.with_name(f"{out_dir.name}.partial-{key}")


def partials_of_others(out_dir: Path, own: Path) -> list[Path]:
    """Folders with chunks of other inputs beside `out_dir`."""
    chunks = out_dir.parent.glob(f"{glob.escape(out_dir.name)}.partial-*/{_CHUNK.format(0)}")
    return sorted({chunk.parent for chunk in chunks} - {own})


def _locked(folder: Path) -> int:
    """The descriptor of the folder's lock, held."""
    while True:
        make_folder(folder)
        path = folder / _LOCK
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between open and lock the holder may have removed the folder: then this locks a file without a name.
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except OSError as error:
            os.close(descriptor)
            why = "another process is preparing this data set" if isinstance(error, BlockingIOError) else str(error)
            raise OutputError(f"{folder}: {why}; wait for it, or choose another folder") from error
        os.close(descriptor)
