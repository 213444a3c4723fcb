"""What the workers of a CPU cluster share, one file of memory: slots through which bytes go from one rank to others,
and counters by which they wait for each other.

    file: the slots, uint8 [W, NUM_SLOTS, SLOT_BYTES]; met, taken [W, W], put [W, W, NUM_SLOTS], all int64

W is the world size. The first axis is the rank that writes; nobody else writes there.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mindgspo.errors import ConfigError
from mindgspo.parallel import heartbeat
from mindgspo.parallel.ranks import Ranks

SLOT_BYTES = 1 << 20
NUM_SLOTS = 2
"""Of each sender: it fills one while the other is read. Smaller slots are slower, because waking a rank takes as long
as copying some 100 KiB; larger or more ones are hardly faster, and leave the processor's caches between the sender's
write and the receivers' reads. The 64 MiB that containers have for shared memory do for 31 ranks."""

_log = logging.getLogger(__name__)
_SHARED_MEMORY = Path("/dev/shm")
_SPINS, _SHORTEST_SLEEP, _LONGEST_SLEEP = 20, 5e-5, 2e-3
_COUNT = np.dtype(np.int64)


class Meeting:
    """The shared file of one cluster, seen from one rank. file: made by `new_meeting_file`, of `world_size` ranks.

    Raises ConfigError where the file cannot be opened.
    """

    def __init__(self, file: Path, *, rank: int, world_size: int) -> None:
        try:
            self._file = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(
                f"{file}: rank {rank} cannot open the memory it shares with rank 0 ({error.strerror}); the workers of "
                "a CPU cluster run on one host"
            ) from error
        pairs = world_size * world_size
        memory = np.frombuffer(mmap.mmap(self._file, 0), np.uint8)
        slots, counters = np.split(memory, [world_size * NUM_SLOTS * SLOT_BYTES])
        met, taken, put = np.split(counters.view(_COUNT), [pairs, 2 * pairs])
        self._met, self._taken = (counts.reshape(world_size, world_size) for counts in (met, taken))
        # Which message of a pair is in a slot of its sender, counted from 1.
        self._put = put.reshape(world_size, world_size, NUM_SLOTS)
        self._slots = slots.reshape(world_size, NUM_SLOTS, SLOT_BYTES)
        self._rank = rank
        self._next_slot = 0

    def meet(self, ranks: Ranks) -> None:
        """Wait until every one of `ranks` has come to this meeting."""
        others = [rank for rank in ranks if rank != self._rank]
        with self._locked(fcntl.LOCK_EX):
            self._met[self._rank, others] += 1
        self._wait(lambda: bool((self._met[others, self._rank] >= self._met[self._rank, others]).all()))

    @contextmanager
    def passing(self, num_bytes: int, *, sender: int, ranks: Ranks) -> Iterator[np.ndarray]:
        """uint8 [num_bytes <= SLOT_BYTES]: what the sender writes inside, the other `ranks` read inside.

        The sender waits only where a slot is still read, so it can be NUM_SLOTS messages ahead of its slowest receiver.
        """
        assert num_bytes <= SLOT_BYTES, num_bytes
        me = self._rank
        if me == sender:
            slot = self._next_slot
            self._wait(lambda: bool((self._taken[:, me] >= self._put[me, :, slot]).all()))
            yield self._slots[me, slot, :num_bytes]
            with self._locked(fcntl.LOCK_EX):
                for receiver in ranks:
                    if receiver != me:
                        self._put[me, receiver, slot] = self._put[me, receiver].max() + 1
            self._next_slot = (slot + 1) % NUM_SLOTS
        else:
            numbers, next_number = self._put[sender, me], self._taken[me, sender] + 1
            self._wait(lambda: next_number in numbers)
            yield self._slots[sender, numbers.tolist().index(next_number), :num_bytes]
            with self._locked(fcntl.LOCK_EX):
                self._taken[me, sender] = next_number

    def broadcast(self, raw: np.ndarray, *, sender: int, ranks: Ranks) -> None:
        """Fill `raw`, uint8 [bytes] of any number, on all `ranks` with the sender's."""
        for first in range(0, raw.size, SLOT_BYTES):
            part = raw[first : first + SLOT_BYTES]
            with self.passing(part.size, sender=sender, ranks=ranks) as slot:
                if self._rank == sender:
                    slot[...] = part
                else:
                    part[...] = slot

    def sum(self, arrays: Sequence[np.ndarray], ranks: Ranks) -> None:
        """Replace `arrays`, contiguous and of one dtype, on all `ranks` by their sums, added up in the order of the
        ranks: the same bits everywhere."""
        for run in _runs(arrays, SLOT_BYTES):
            num_bytes = sum(part.nbytes for part in run)
            dtype = run[0].dtype
            with self.passing(num_bytes, sender=self._rank, ranks=ranks) as slot:
                own = np.concatenate(run, out=slot.view(dtype))
            total = np.zeros_like(own)
            for rank in ranks:
                if rank == self._rank:
                    total += own  # this slot is not written to before the next call of `passing`
                else:
                    with self.passing(num_bytes, sender=rank, ranks=ranks) as slot:
                        total += slot.view(dtype)
            first = 0
            for part in run:
                part[...] = total[first : first + part.size]
                first += part.size

    def _wait(self, has_come: Callable[[], bool]) -> None:
        spins, pause = 0, _SHORTEST_SLEEP
        while not has_come():
            spins += 1
            if spins == _SPINS:
                heartbeat.wait(True)
            elif spins > _SPINS:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_SLEEP)
        if spins >= _SPINS:
            heartbeat.wait(False)
        with self._locked(fcntl.LOCK_SH):
            pass

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        """Orders memory between ranks, which plain loads and stores do not on aarch64.

        A counter is stored under the exclusive lock, and whoever has seen its new value takes the shared lock before it
        goes on. That happens after the writer's unlocking: then all the writer's earlier loads and stores are over, and
        none of the reader's later ones has begun.
        """
        fcntl.flock(self._file, kind)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def _runs(arrays: Sequence[np.ndarray], max_bytes: int) -> Iterator[list[np.ndarray]]:
    """The elements of the arrays in their order, as views that together have at most `max_bytes`."""
    run: list[np.ndarray] = []
    room = max_bytes
    for array in arrays:
        assert array.flags.c_contiguous, array.flags
        rest = array.reshape(-1)
        while rest.size:
            part = rest[: room // rest.itemsize]
            run.append(part)
            rest, room = rest[part.size :], room - part.nbytes
            if room < array.itemsize:
                yield run
                run, room = [], max_bytes
    if run:
        yield run


def new_meeting_file(world_size: int, folder: Path = _SHARED_MEMORY) -> Path:
    """Zeros, all of them allocated; to be opened by every rank and then unlinked by whoever made them.

    In `folder`, or, with a warning, in that for temporary files where `folder` is missing or has no room. Raises
    ConfigError where there is none either.
    """
    num_counters = (2 + NUM_SLOTS) * world_size * world_size
    num_bytes = world_size * NUM_SLOTS * SLOT_BYTES + num_counters * _COUNT.itemsize
    try:
        return _allocated(folder, num_bytes)
    except OSError as error:
        elsewhere = Path(tempfile.gettempdir())
        reason = f"{folder} has no room for the {num_bytes / 2**20:.1f} MiB that {world_size} ranks share ({error})"
        _log.warning("%s; they are in %s", reason, elsewhere)
    try:
        return _allocated(elsewhere, num_bytes)
    except OSError as error:
        raise ConfigError(f"{reason}, neither has {elsewhere} ({error}); make room in one of them") from error


def _allocated(folder: Path, num_bytes: int) -> Path:
    """A file of zeros whose pages cannot be missing later, when that would kill the process (SIGBUS)."""
    descriptor, name = tempfile.mkstemp(prefix=f"mindgspo-meeting-{os.getuid()}-", dir=folder)
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
    except OSError:
        os.unlink(name)
        raise
    finally:
        os.close(descriptor)
    return Path(name)
