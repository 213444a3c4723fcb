"""Notices on the other nodes that the scheduler of node 0 has gone, with which the run has ended there.

What enters: the scheduler's address. What leaves: whether it is lost. Called by `launcher` on nodes other than 0:
workers that hang in a collective would wait for ever, because MindSpore raises its error in a thread beside them.
"""

from __future__ import annotations

import socket
import time

_LOOK_S = 1.0
_CONNECT_S = 1.0
# Shorter silence may be a busy network. MindSpore's scheduler waits 30 s for a node that is silent.
_LOST_S = 5.0


class RemoteScheduler:
    """Asks every second whether somebody listens; `is_lost` is called often."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host.strip("[]"), port
        self._heard_at: float | None = None
        self._next = 0.0

    def is_lost(self) -> bool:
        """Whether nobody has listened for some seconds. The first call comes when the cluster has formed."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOOK_S
            if self._heard_at is None or self._listens():
                self._heard_at = now
        return self._heard_at is not None and now - self._heard_at > _LOST_S

    def _listens(self) -> bool:
        try:
            socket.create_connection(self._address, timeout=_CONNECT_S).close()
        except OSError:
            return False
        return True
