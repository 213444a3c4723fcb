"""The processes of one launch on this machine: their exit codes, and their end with all that they started.

What enters: process ids from `launch.msrun`. What leaves: exit codes by rank. Called by `launcher`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress

import psutil

# How long processes that were asked to end may take: contexts are left, temporary folders removed. Whoever hangs in a
# collective cannot react at all.
GRACE_S = 3.0
_KILL_S = 3.0
_POLL_S = 0.02


class Processes:
    """Children of this process, by rank (SCHEDULER among them). exit_codes: of those that have ended, negative signal
    numbers as in `subprocess`."""

    def __init__(self, process_ids: Mapping[int, int], others: frozenset[int]) -> None:
        """others: process ids of children that have nothing to do with the launch, from `children_now`."""
        self.process_ids = dict(process_ids)
        self.exit_codes: dict[int, int] = {}
        self._others = others

    def poll(self) -> dict[int, int]:
        """Exit codes of those that have ended since the last call."""
        ended = {}
        for rank, process_id in self.process_ids.items():
            if rank not in self.exit_codes and (code := _exit_code(process_id)) is not None:
                ended[rank] = code
        self.exit_codes |= ended
        return ended

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank that has not ended."""
        if rank in self.process_ids and rank not in self.exit_codes:
            os.kill(self.process_ids[rank], number)  # an ended child that was not waited for keeps its process id

    def status(self, rank: int) -> str | None:
        """What the kernel says of a rank, e.g. `stopped` or `disk-sleep`."""
        with suppress(psutil.Error):
            return psutil.Process(self.process_ids[rank]).status()
        return None

    def end(self, grace_s: float = GRACE_S) -> None:
        """Ask all to end, wait `grace_s`, kill what remains, their descendants included. Nothing is left."""
        for rank in self.process_ids:
            self.signal(rank, signal.SIGTERM)
        give_up = time.monotonic() + grace_s
        while len(self.exit_codes) < len(self.process_ids) and time.monotonic() < give_up:
            self.poll()
            time.sleep(_POLL_S)
        give_up = time.monotonic() + _KILL_S
        while (left := self._left()) and time.monotonic() < give_up:
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self.poll()
            time.sleep(_POLL_S)

    def _left(self) -> list[psutil.Process]:
        """Living descendants. Orphans have become children of this process, which reaps them here."""
        children = [child for child in psutil.Process().children() if child.pid not in self._others]
        left = []
        for child in children:
            known = child.pid in self.process_ids.values()
            if not known and _exit_code(child.pid) is not None:
                continue
            with suppress(psutil.NoSuchProcess):
                left += [child, *child.children(recursive=True)]
        return [process for process in left if not _is_dead(process)]


def children_now() -> frozenset[int]:
    """Process ids of the children that this process has."""
    return frozenset(child.pid for child in psutil.Process().children())


def _exit_code(process_id: int) -> int | None:
    ended, status = os.waitpid(process_id, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _is_dead(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
