"""Where the files of one launch are: logs and failures for the user, and what launcher and workers exchange."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mindgspo.io import make_folder, scratch_folder

SCHEDULER = -1
"""Stands for MindSpore's scheduler where ranks are numbered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFolder:
    """log_dir stays. state_dir is on this machine and is removed when the launcher ends."""

    log_dir: Path
    state_dir: Path

    def log(self, rank: int) -> Path:
        """What a rank, or the scheduler, prints."""
        return log_file(self.log_dir, rank)

    def failure(self, rank: int) -> Path:
        """See `failure_file`."""
        return failure_file(self.log_dir, rank)

    def failure_beside_logs(self, rank: int) -> Path:
        """The same where log_dir is on a disk that is full: the launcher still tells it in one message."""
        return failure_file(self.state_dir, rank)

    def stack(self, rank: int) -> Path:
        """Where a rank is whenever it is asked, during a stall."""
        return self.state_dir / f"stack_{rank}"

    def waits(self, rank: int) -> Path:
        """The collectives that a rank has waited in for long, a line each; written on emulated cards."""
        return self.state_dir / f"waits_{rank}"

    def heartbeat(self, rank: int) -> Path:
        """See `heartbeat`."""
        return self.state_dir / f"heartbeat_{rank}"


def log_file(log_dir: Path, rank: int) -> Path:
    """What a rank, or the scheduler, prints."""
    return log_dir / ("scheduler.log" if rank == SCHEDULER else f"rank_{rank}.log")


def failure_file(log_dir: Path, rank: int) -> Path:
    """Why a rank failed, see `failures.FailureRecord`."""
    return log_dir / f"failure_{rank}.json"


@contextmanager
def open_folder(log_dir: Path, members: Iterable[int]) -> Iterator[LaunchFolder]:
    """The folders, made. What an earlier launch logged for these ranks is moved to `log_dir`/earlier_<n>."""
    make_folder(log_dir)
    with scratch_folder("launch") as state_dir:
        folder = LaunchFolder(log_dir=log_dir.resolve(), state_dir=state_dir.resolve())
        move_earlier_aside(folder.log_dir, members)
        yield folder


def move_earlier_aside(log_dir: Path, members: Iterable[int]) -> None:
    """Move what an earlier launch logged for these ranks to `log_dir`/earlier_<n>."""
    paths = [file(log_dir, rank) for rank in members for file in (log_file, failure_file)]
    paths = [path for path in paths if path.exists()]
    if not paths:
        return
    number = 1
    while (aside := log_dir / f"earlier_{number}").exists():
        number += 1
    aside.mkdir()
    for path in paths:
        path.rename(aside / path.name)
