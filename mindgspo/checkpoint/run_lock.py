"""One live process per run folder.

What enters: the path of a lock file. What leaves: a held lock, or an error that names the holder. Called
by the run folder. The kernel drops the lock when its process ends, however it ends, so there are no stale
locks.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from mindgspo.errors import RunFolderError


class RunLock:
    """An exclusive `flock` on a file; held until `release()` or the end of the process."""

    def __init__(self, path: Path) -> None:
        """Raises RunFolderError if another process holds it, or the file system knows no locks."""
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._acquire(path)
        except BaseException:
            self.release()
            raise

    def _acquire(self, path: Path) -> None:
        assert self._descriptor is not None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip()
            raise RunFolderError(
                f"{path.parent}: another process is writing into this run folder ({holder or 'unknown'}); "
                "wait for it, stop it, or choose another folder with `--set run_dir=...`"
            ) from None
        except OSError as error:
            raise RunFolderError(
                f"{path}: this file system offers no file locks ({error}); put run_dir on another one"
            ) from error
        # The folder may have been moved aside between open and lock: then this is the lock of another folder.
        if not path.exists() or not os.path.samestat(os.fstat(self._descriptor), path.stat()):
            raise RunFolderError(f"{path.parent}: another process has just moved this run folder; try again")
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock up; a second call does nothing. The file stays: removing it would open a race."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
