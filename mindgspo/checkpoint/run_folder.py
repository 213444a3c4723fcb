"""The folder of one run: its files, its lock, and whether it may be started, resumed or replaced.

Nothing is ever deleted here.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import time
import uuid
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal

import psutil

from mindgspo.checkpoint.origin import CHECKPOINTS, Origin, Restore, find_origin, finish_rollback
from mindgspo.errors import RunFolderError
from mindgspo.io import make_folder, read_json, unused_name, write_error, write_json
from mindgspo.metrics.files import (
    CONFIG_FILE,
    ENVIRONMENT_FILE,
    METRICS_FILE,
    PLOT_FILE,
    REPORT_FILE,
    RUN_FILE,
    SAMPLES_FILE,
    SUMMARY_FILE,
    VALIDATION_FILE,
    read_summary,
)
from mindgspo.parallel.platform.runtime import is_emulated
from mindgspo.text import listed

_LOCK = ".lock"
# Any of these shows that a run has started here. Prepared data and the configuration are written before a run does
# anything that could be lost.
_RUN_MARKS = (METRICS_FILE, SAMPLES_FILE, SUMMARY_FILE, CHECKPOINTS, "export")
_OWN_NAMES = (
    *_RUN_MARKS,
    CONFIG_FILE,
    ENVIRONMENT_FILE,
    RUN_FILE,
    VALIDATION_FILE,
    "answers",
    "data",
    "dumps",
    "failures",
    "logs",
    "reference",
    "rollout_weights",
    "swanlab",
    "swap",
    "tensorboard",
    "wandb",
)


_VISIBLE_WITHIN_S, _VISIBLE_POLL_S = 10.0, 0.1


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


def is_open(root: Path) -> bool:
    """Whether a process writes into a run folder now.

    Where its last holder lives, the lock is tried for: that cannot keep a run from starting unless the number of that
    process went to another one.
    """
    try:
        descriptor = os.open(root / _LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        holder = re.fullmatch(r"process (\d{1,9}) on (.+)\n", os.pread(descriptor, 200, 0).decode(errors="replace"))
        if holder and holder[2] == socket.gethostname() and not psutil.pid_exists(int(holder[1])):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class RunStatus(str, Enum):
    """NEW: nothing was there. RESUMED: a run continues. FINISHED: its summary says that it is complete."""

    NEW = "new"
    RESUMED = "resumed"
    FINISHED = "finished"


class _Inside:
    """A path below the root of a `RunFolder`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: RunFolder, owner: type | None = None) -> Path:
        return folder.root / self._name


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """An open run folder. The process holds its lock until `close()` or its end; the other ranks of a run see it
    without one."""

    root: Path
    """Absolute."""
    status: RunStatus
    run_id: str
    """Made once per run, kept on resume."""
    moved_aside: Path | None = None
    """Where the earlier run of this name was moved; None if there was none."""
    origin: Origin | None = None
    """Source of its state: for a new run its starting point; for a resumed one the step to go back to, or its starting
    point again as long as it has no checkpoint."""
    _lock: RunLock | None = field(default=None, repr=False, compare=False)

    config = _Inside(CONFIG_FILE)
    """The resolved configuration (YAML)."""
    metrics = _Inside(METRICS_FILE)
    """One JSON line of metrics per step."""
    samples = _Inside(SAMPLES_FILE)
    """Prompts, responses and rewards as JSON lines."""
    summary = _Inside(SUMMARY_FILE)
    """The run in a few numbers; `"finished": true` marks a complete run."""
    plot = _Inside(PLOT_FILE)
    """The reward curve."""
    report = _Inside(REPORT_FILE)
    """The report for people."""
    checkpoints = _Inside(CHECKPOINTS)
    """Folder of checkpoints."""
    reference = _Inside("reference")
    """The weights of the reference policy, where a KL term has one."""
    export = _Inside("export")
    adapter = _Inside("adapter")
    """The trained model as a Hugging Face folder."""
    data = _Inside("data")
    """Folder of data sets prepared for this run."""
    logs = _Inside("logs")
    """Folder of the workers' logs."""
    tensorboard = _Inside("tensorboard")
    """Folder of TensorBoard event files."""

    def close(self) -> None:
        """Let another process open the folder."""
        if self._lock is not None:
            self._lock.release()


def open_run_folder(
    run_dir: Path, *, resume: Literal["never", "auto"] | Path, overwrite: bool, restore: Restore = "all"
) -> RunFolder:
    """Make, continue or replace a run folder, and lock it.

    A folder that holds a run is rejected with resume="never", continued with "auto", and moved to
    `<run_dir>.old-<timestamp>` with overwrite. A folder with other files and no run is always rejected. With a path as
    resume, a run rolls back to a checkpoint of its own, or a new one starts from another run's, taking as much of it as
    `restore` says.

    Raises RunFolderError: rejected, locked by a live process, not writable.
    """
    root = Path(os.path.abspath(run_dir.expanduser()))
    if overwrite and resume == "auto":
        raise RunFolderError(f"{root}: --overwrite starts anew and resume=auto continues; ask for one of them")
    _refuse_foreign(root)
    try:
        origin = None if isinstance(resume, str) else find_origin(resume, root, restore=restore)
        if overwrite and origin is not None and origin.path.is_relative_to(root):
            raise RunFolderError(f"{root}: --overwrite would move {origin.path} aside, from which the run is to begin")
        how = resume if isinstance(resume, str) else "auto" if origin is None or origin.is_same_run else "never"
        make_folder(root)
        lock = RunLock(root / _LOCK)
        try:
            return _open_locked(root, lock, resume=how, overwrite=overwrite, origin=origin)
        except BaseException:
            lock.release()
            raise
    except OSError as error:
        raise RunFolderError(f"{write_error(root, error)} with `--set run_dir=...`") from error


def _open_locked(root: Path, lock: RunLock, *, resume: str, overwrite: bool, origin: Origin | None) -> RunFolder:
    finish_rollback(root)
    if not _run_marks(root):
        origin = origin or (_beginning(root) if resume == "auto" else None)
        run_id = _new_identity(root, origin)
        return RunFolder(root=root, status=RunStatus.NEW, run_id=run_id, origin=origin, _lock=lock)
    finished = _is_finished(root)
    if overwrite:
        return _replace(root, lock, origin)
    if resume == "never":
        kind = "finished" if finished else "begun"
        steps = read_summary(root).get("steps", 0) if finished else 0
        more = f" with --set trainer.max_steps=N, N above {steps}" if finished else ""
        raise RunFolderError(
            f"{root} already holds a {kind} run ({', '.join(_run_marks(root))}). Choose one of:\n"
            f"  --set resume=auto     continue it{more}\n"
            "  --set run_dir=...     start this run in another folder\n"
            f"  --overwrite           start anew here; the old folder is kept as {root.name}.old-<timestamp>"
        )
    status = RunStatus.FINISHED if finished and origin is None else RunStatus.RESUMED
    return RunFolder(root=root, status=status, run_id=_identity(root), origin=origin or _beginning(root), _lock=lock)


def _replace(root: Path, lock: RunLock, origin: Origin | None) -> RunFolder:
    """Move the old run aside, with its lock file (so that lock is given up); open a new one in its place."""
    if Path.cwd().is_relative_to(root.resolve()):
        raise RunFolderError(f"{root}: the current folder lies inside it; change to another one to use --overwrite")
    moved_aside = unused_name(root.with_name(f"{root.name}.old"))
    os.rename(root, moved_aside)
    lock.release()
    make_folder(root)
    new_lock = RunLock(root / _LOCK)
    return RunFolder(
        root=root,
        status=RunStatus.NEW,
        run_id=_new_identity(root, origin),
        moved_aside=moved_aside,
        origin=origin,
        _lock=new_lock,
    )


def _refuse_foreign(root: Path) -> None:
    """A path that is no folder, or a folder whose files no run of ours made."""
    if not root.exists():
        return
    if not root.is_dir():
        raise RunFolderError(f"{root}: is a file; choose a folder with `--set run_dir=...`")
    names = sorted(entry.name for entry in root.iterdir())
    foreign = [name for name in names if not _is_ours(name)]
    if CONFIG_FILE in names and RUN_FILE not in names:
        foreign.append(CONFIG_FILE)
    if foreign and not _run_marks(root):
        raise RunFolderError(
            f"{root}: holds files that no run made ({listed(foreign, 5)}), so nothing is written "
            "there; choose a new or empty folder with `--set run_dir=...`"
        )


def _is_ours(name: str) -> bool:
    """A name of this folder, or `.<name>.<anything>`: an unfinished file left by a killed process."""
    return name == _LOCK or name in _OWN_NAMES or name.startswith(tuple(f".{own}." for own in _OWN_NAMES))


def _run_marks(root: Path) -> list[str]:
    return [name for name in _RUN_MARKS if (root / name).exists()]


def _is_finished(root: Path) -> bool:
    summary = root / SUMMARY_FILE
    return summary.is_file() and _read_object(summary).get("finished") is True


def _identity(root: Path) -> str:
    path = root / RUN_FILE
    if not path.is_file():
        return _new_identity(root)
    run_id = _read_object(path).get("run_id")
    if not isinstance(run_id, str):
        raise RunFolderError(f"{path}: damaged (no run_id); remove this file and try again")
    return run_id


def seen_run_id(root: Path, expected: str, wait_s: float = _VISIBLE_WITHIN_S) -> str:
    """The id of the run in a folder as this machine sees it, or what is there instead: on a disk of its own another
    machine has no such folder, or an older run's. A network file system may show a new file late."""
    give_up = time.monotonic() + wait_s
    while True:
        try:
            found = str(read_json(root / RUN_FILE).get("run_id"))
        except (OSError, ValueError, AttributeError):
            found = f"no run at {root} on {socket.gethostname()}"
        if found == expected or time.monotonic() >= give_up:
            return found
        time.sleep(_VISIBLE_POLL_S)


def _new_identity(root: Path, origin: Origin | None = None) -> str:
    run_id = uuid.uuid4().hex
    begins = {} if origin is None else {"started_from": {"path": str(origin.path), "restore": origin.restore}}
    device = {"emulated": True} if is_emulated() else {}
    write_json(root / RUN_FILE, {"run_id": run_id, **begins, **device})
    return run_id


def _beginning(root: Path) -> Origin | None:
    """The other run's checkpoint that this run began with."""
    path = root / RUN_FILE
    begun = _read_object(path).get("started_from") if path.is_file() else None
    if not isinstance(begun, dict):
        return None
    return Origin(
        path=Path(str(begun.get("path"))),
        is_same_run=False,
        restore="weights" if begun.get("restore") == "weights" else "all",
    )


def _read_object(path: Path) -> dict[str, object]:
    try:
        content = read_json(path)
    except ValueError as error:
        raise RunFolderError(f"{path}: damaged ({error}); remove this file and try again") from error
    if not isinstance(content, dict):
        raise RunFolderError(f"{path}: damaged (no JSON object); remove this file and try again")
    return content
