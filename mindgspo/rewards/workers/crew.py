"""The children that are alive, and those that are killed but not yet gone.

Called by `round`, which hires and dismisses, and by `pool`, which ends them all. Knows nothing of jobs.
"""

from __future__ import annotations

import os
import time

from mindgspo.rewards.workers.process import Child, PoolSettings

REAP_SECONDS = 5.0


class Crew:
    """children: those alive, starting or ready. They belong to the process that made them, not to a forked copy."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._owner = os.getpid()
        self._killed: list[Child] = []
        self.children: list[Child] = []

    def hire(self) -> Child:
        """Start one more child. Raises OSError if the system has no room for it."""
        child = Child(self._settings)
        self.children.append(child)
        return child

    def dismiss(self, child: Child) -> None:
        """Kill a child. It is not waited for, so that the others need not wait."""
        self._killed.append(child)
        self.children.remove(child)
        child.kill()

    def reap(self) -> None:
        """Wait until the killed have gone; those that the kernel cannot end yet are left for the next time."""
        give_up = time.monotonic() + REAP_SECONDS
        self._killed = [child for child in self._killed if not child.reap(max(0.0, give_up - time.monotonic()))]

    def end(self) -> None:
        """Kill all children and wait until they have gone."""
        if self.disown_copies():
            return
        for child in tuple(self.children):
            self.dismiss(child)
        self.reap()

    def disown_copies(self) -> bool:
        """In a forked copy of the process: let go of the children, which stay the original's. True if it is a copy."""
        is_copy = os.getpid() != self._owner
        if is_copy:
            self._owner, self.children, self._killed = os.getpid(), [], []
        return is_copy
