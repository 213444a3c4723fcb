"""Where the files of one launch are: logs and failures for the user, and what launcher and workers tell each other.

What enters: the user's log folder. What leaves: paths, the same on both sides. Called by the launcher and by `worker`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SCHEDULER = -1
"""Stands for MindSpore's scheduler where ranks are numbered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFolder:
    """log_dir stays. state_dir is on this machine, may hold programs, and is removed when the launcher ends."""

    log_dir: Path
    state_dir: Path

    def log(self, rank: int) -> Path:
        """What a rank, or the scheduler, prints."""
        return self.log_dir / ("scheduler.log" if rank == SCHEDULER else f"rank_{rank}.log")

    @property
    def msrun_log(self) -> Path:
        """What msrun prints."""
        return self.log_dir / "msrun.log"

    def failure(self, rank: int) -> Path:
        """Why a rank failed, see `launch.failure_record`."""
        return self.log_dir / f"failure_{rank}.json"

    def stack(self, rank: int) -> Path:
        """Where a rank is whenever it is asked, during a stall."""
        return self.state_dir / f"stack_{rank}"

    def heartbeat(self, rank: int) -> Path:
        """See `heartbeat`."""
        return self.state_dir / f"heartbeat_{rank}"

    def process_id(self, rank: int) -> Path:
        """Written by the program that stands in for `python`, see `launch.msrun`."""
        return self.state_dir / ("pid_MS_SCHED_0" if rank == SCHEDULER else f"pid_MS_WORKER_{rank}")


@contextmanager
def open_folder(log_dir: Path, members: Iterable[int]) -> Iterator[LaunchFolder]:
    """The folders, made. What an earlier launch logged for these ranks is moved to `log_dir`/earlier_<n>."""
    log_dir.mkdir(parents=True, exist_ok=True)
    state_dir = _make_state_dir(log_dir)
    folder = LaunchFolder(log_dir=log_dir.resolve(), state_dir=state_dir.resolve())
    try:
        _move_earlier_aside(folder, members)
        yield folder
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)


def _make_state_dir(log_dir: Path) -> Path:
    """In the system's temporary folder, unless nothing may be executed there."""
    made = Path(tempfile.mkdtemp(prefix="mindgspo-launch-"))
    probe = made / "probe"
    probe.touch(0o700)
    if os.access(probe, os.X_OK):
        return made
    shutil.rmtree(made)
    return Path(tempfile.mkdtemp(prefix=".launch-", dir=log_dir))


def _move_earlier_aside(folder: LaunchFolder, members: Iterable[int]) -> None:
    paths = [folder.msrun_log]
    for rank in members:
        paths += [folder.log(rank), folder.failure(rank)]
    paths = [path for path in paths if path.exists()]
    if not paths:
        return
    number = 1
    while (aside := folder.log_dir / f"earlier_{number}").exists():
        number += 1
    aside.mkdir()
    for path in paths:
        path.rename(aside / path.name)
