"""Where the ranks of a CPU cluster wait for each other, as long as it takes.

MindSpore's CPU collectives give up after a time (30 seconds, where no launcher of ours has set another limit), and a
rank that gave up leaves messages behind that the next collective takes for its own: numbers then are wrong without an
error. So nobody enters a collective before all members are at its door. A compile, a reward function or a slow disk may
hold any of them up for longer than that.

What enters: the ranks that are about to communicate. What leaves: nothing, once they are all there. The counters lie in
shared memory: int64 [2, world, world], who has come to a meeting with whom how often, and who has sent how many
messages to whom. Two ranks come to their meetings in one order, so counting by pairs is enough for groups of any size.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from mindgspo.errors import ConfigError
from mindgspo.parallel import heartbeat
from mindgspo.parallel.ranks import Ranks

_SHARED_MEMORY = Path("/dev/shm")
_SPINS, _SHORTEST_SLEEP, _LONGEST_SLEEP = 50, 5e-5, 2e-3


class Meeting:
    """The counters of one cluster, seen from one rank. file: made by `new_meeting_file`, of `world_size` ranks."""

    def __init__(self, file: Path, *, rank: int, world_size: int) -> None:
        try:
            with file.open("r+b") as opened:
                self._memory = mmap.mmap(opened.fileno(), 0)
        except OSError as error:
            raise ConfigError(
                f"{file}: rank {rank} cannot open the memory it shares with rank 0 ({error.strerror}); the workers of "
                "a CPU cluster run on one host"
            ) from error
        counters = np.frombuffer(self._memory, np.int64).reshape(2, world_size, world_size)
        self._met, self._sent = counters[0], counters[1]
        self._received = np.zeros(world_size, np.int64)
        self._rank = rank

    def meet(self, ranks: Ranks) -> None:
        """Wait until every one of `ranks` has come to this meeting."""
        others = [rank for rank in ranks if rank != self._rank]
        for other in others:
            self._met[self._rank, other] += 1
        for other in others:
            self._wait(self._met, other, int(self._met[self._rank, other]))

    def has_sent(self, to: int) -> None:
        """A message to rank `to` is on its way."""
        self._sent[self._rank, to] += 1

    def await_message(self, sender: int) -> None:
        """Wait until the next message of `sender` is on its way."""
        self._received[sender] += 1
        self._wait(self._sent, sender, int(self._received[sender]))

    def _wait(self, counters: np.ndarray, other: int, count: int) -> None:
        spins, pause = 0, _SHORTEST_SLEEP
        while counters[other, self._rank] < count:
            spins += 1
            if spins == _SPINS:
                heartbeat.wait(True)
            elif spins > _SPINS:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_SLEEP)
        if spins >= _SPINS:
            heartbeat.wait(False)


def new_meeting_file(world_size: int) -> Path:
    """Zeroed counters, to be opened by every rank and then unlinked by whoever made them."""
    folder = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    descriptor, name = tempfile.mkstemp(prefix="mindgspo-meeting-", dir=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(bytes(2 * world_size * world_size * np.dtype(np.int64).itemsize))
    return Path(name)
