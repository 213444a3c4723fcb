"""The folder beside a data set in which its parts are gathered until it is whole.

What enters: the output folder and the key of its inputs. What leaves: `PartialFolder`, held by this process alone.
Called by prepare. `<out>.partial-<key>` outlives a process that was killed, and the next one with the same inputs goes
on from it; the kernel drops the lock with its holder, so there are no stale locks.
"""

from __future__ import annotations

import fcntl
import glob
import os
import re
import shutil
import uuid
from pathlib import Path

from mindgspo.data.chunks import is_whole_chunk

_LOCK = "lock"
_READY = "ready"
_CHUNK = "chunk-{:05d}.jsonl"
_PRIVATE = re.compile(r"\.partial-[0-9a-f]+-[0-9a-f]{8}\Z")


class PartialFolder:
    """Chunk files, the finished data set before it gets its name, and a lock.

    Where another process holds the folder, or the file system knows no locks, the folder is this process's own, under a
    name that no other will look for: `is_private`.
    """

    def __init__(self, out_dir: Path, key: str) -> None:
        shared = partial_path(out_dir, key)
        self._descriptor = _locked(shared)
        self.is_private = self._descriptor is None
        self.path = shared.with_name(f"{shared.name}-{uuid.uuid4().hex[:8]}") if self.is_private else shared
        self.path.mkdir(parents=True, exist_ok=True)

    def chunk(self, index: int) -> Path:
        """Where chunk `index` is, or is to be written."""
        return self.path / _CHUNK.format(index)

    def has_chunk(self, index: int, num_rows: int) -> bool:
        """Whether an earlier process finished it."""
        return is_whole_chunk(self.chunk(index), num_rows)

    def empty_ready(self) -> Path:
        """A new folder, to be filled and renamed."""
        ready = self.path / _READY
        shutil.rmtree(ready, ignore_errors=True)
        ready.mkdir()
        return ready

    def close(self, *, keep: bool) -> None:
        """Give the folder up. keep: leave it for the next process, unless it is private."""
        if self.is_private or not keep:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def partial_path(out_dir: Path, key: str) -> Path:
    """The folder that processes with the same inputs share, one after the other."""
    return out_dir.with_name(f"{out_dir.name}.partial-{key}")


def other_partials(out_dir: Path) -> list[Path]:
    """Folders with chunks that interrupted processes left beside `out_dir`, whatever their inputs were: neither private
    ones nor those that a process holds."""
    chunks = out_dir.parent.glob(f"{glob.escape(out_dir.name)}.partial-*/{_CHUNK.format(0)}")
    shared = (chunk.parent for chunk in chunks if _PRIVATE.search(chunk.parent.name) is None)
    return sorted(folder for folder in shared if not _is_held(folder))


def _is_held(folder: Path) -> bool:
    """Whether a process has the folder's lock, or that cannot be told."""
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _locked(folder: Path) -> int | None:
    """The descriptor of the folder's lock, held; None if it cannot be had."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _LOCK
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except FileNotFoundError:
        return None  # its holder has just removed the folder
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Between open and lock the holder may have removed the folder: then this locks a file without a name.
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
