"""Shared memory of the workers of one host: slots for bytes from one rank to others, and counters for waiting.

One file is mapped by all of them; `mindgspo_kernels/shared_memory.cc` does the work, for the host and in graphs. Ranks
with cards only wait for each other.
"""

from __future__ import annotations

import ctypes
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindgspo.errors import ConfigError
from mindgspo.parallel.plans.placement import Ranks
from mindgspo.parallel.platform import heartbeat
from mindgspo_kernels.binding import call, group_bytes

SLOT_BYTES = 1 << 20
NUM_SLOTS = 2
"""Slots of each sender, which fills one while the other is read.

Smaller slots are slower, because waking a rank takes as long as copying about 100 KiB; larger or more slots are hardly
faster and fall out of the processor's caches between write and read. The 64 MiB of shared memory in a container suffice
for 21 ranks.
"""
_POST_BYTES = 1 << 19
"""Bytes of a slot for messages to a single rank, of which there are as many: they may be full while the sender takes
part in a collective."""

_log = logging.getLogger(__name__)
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Numbers:
    """An array as `binding.Bits` for the C++ functions."""

    dtype: str
    bits: np.ndarray


class SharedMemoryGroup:
    """The shared memory of a cluster, as seen by one rank.

    file: made by `new_group_file` for `world_size` ranks. has_slots: False if only `barrier` is called; as when the
    file was made. Raises ConfigError if the file cannot be opened.

    All ranks of a group call its collectives in one order, with arrays of the same shapes and dtypes. If two ranks are
    in different collectives, ValueError names both.
    """

    def __init__(self, file: Path, *, rank: int, world_size: int, has_slots: bool = True) -> None:
        try:
            opened = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(
                f"{file}: rank {rank} cannot open the memory it shares with rank 0 ({error.strerror}); the workers of "
                "a CPU cluster run on one host"
            ) from error
        self._rank = rank
        self._interrupt: BaseException | None = None
        polls = self._poll_signals()
        next(polls)
        # An attribute keeps the function alive: C has its address.
        self._is_interrupted = ctypes.CFUNCTYPE(ctypes.c_int)(polls.__next__)
        found = ctypes.c_void_p(), ctypes.c_void_p()
        interrupt_address = ctypes.cast(self._is_interrupted, ctypes.c_void_p).value
        callbacks = ctypes.byref(heartbeat.waiting_address), interrupt_address
        offset = 0
        try:
            for address, slot_bytes in zip(found, _slots(has_slots), strict=False):
                sizes = world_size, slot_bytes, NUM_SLOTS
                call("open_shared_memory", opened, offset, rank, *sizes, *callbacks, ctypes.byref(address))
                offset += group_bytes(*sizes)
        finally:
            os.close(opened)
        self._address, self._post = (address.value for address in found)

    def serve_graphs(self) -> None:
        """Make operators in graphs use this shared memory from now on."""
        call("use_in_graphs", self._address)

    def barrier(self, ranks: Ranks) -> None:
        """Wait until all `ranks` are in this call."""
        self._call("barrier", self._address, *_group(ranks))

    @contextmanager
    def passing(self, num_bytes: int, *, sender: int, ranks: Ranks) -> Iterator[np.ndarray]:
        """Yield a uint8 buffer [num_bytes <= SLOT_BYTES] that the sender fills and the other `ranks` read inside.

        The sender waits only for a free slot, so it can be NUM_SLOTS messages ahead of its slowest receiver.
        """
        assert num_bytes <= SLOT_BYTES, num_bytes
        slot = ctypes.c_void_p()
        self._call("begin_message", self._address, num_bytes, sender, ctypes.byref(slot))
        yield np.frombuffer(memoryview((ctypes.c_uint8 * num_bytes).from_address(slot.value or 0)), np.uint8)
        self._call("end_message", self._address, *_group(ranks), num_bytes, sender)

    def broadcast(self, array: np.ndarray, *, sender: int, ranks: Ranks) -> None:
        """Fill `array` (contiguous) on all `ranks` with the sender's."""
        self._call("broadcast", self._address, *_group(ranks), sender, _numbers(array))

    def send(self, array: np.ndarray, receiver: int) -> None:
        """Send an array to a rank that calls `receive`; wait for it only if the slots are full."""
        self._call("broadcast", self._post, *_group(sorted((self._rank, receiver))), self._rank, _numbers(array))

    def receive(self, array: np.ndarray, sender: int) -> None:
        """Fill `array` with the next one that `sender` sends to this rank."""
        self._call("broadcast", self._post, *_group(sorted((self._rank, sender))), sender, _numbers(array))

    def sum(self, arrays: Sequence[np.ndarray], ranks: Ranks) -> None:
        """Replace `arrays` (contiguous, of one dtype) on all `ranks` by their sums.

        They are added in rank order, so every rank gets the same bits.
        """
        numbers = [_numbers(array) for array in arrays]
        self._call("all_reduce", self._address, *_group(ranks), 0, len(numbers), numbers, numbers)

    def _call(self, name: str, *arguments: object) -> None:
        try:
            call(name, *arguments)
        except ValueError as error:
            if self._interrupt is not None:
                raise self._interrupt from error
            raise

    def _poll_signals(self) -> Iterator[int]:
        """Generator that C resumes while it waits, so that Python's signal handlers run inside its `try`.

        In a function they would run at the entry, outside any `try`.
        """
        while True:
            try:
                yield int(self._interrupt is not None)
            except GeneratorExit:
                return
            except BaseException as error:
                self._interrupt = error


def _group(ranks: Sequence[int]) -> tuple[ctypes.Array, int]:
    return (ctypes.c_int64 * len(ranks))(*ranks), len(ranks)


def _numbers(array: np.ndarray) -> Numbers:
    """Flatten an array for C: ranks compare only the number of elements."""
    assert array.flags.c_contiguous, array.flags
    return Numbers(str(array.dtype), array.reshape(-1))


def _slots(has_slots: bool) -> tuple[int, ...]:
    """Return the bytes of each sender's slots for collectives and for messages to one rank."""
    return (SLOT_BYTES, _POST_BYTES) if has_slots else (0,)


def new_group_file(world_size: int, folder: Path = _SHARED_MEMORY, *, has_slots: bool = True) -> Path:
    """Make a file of allocated zeros for every rank to open; the caller unlinks it afterwards.

    It is in `folder` or, with a warning, in the folder for temporary files if `folder` has no room. Raises ConfigError
    if neither has.
    """
    num_bytes = sum(group_bytes(world_size, slot_bytes, NUM_SLOTS) for slot_bytes in _slots(has_slots))
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
    """Make a file of zeros and allocate its pages: a page missing later would kill the process (SIGBUS)."""
    descriptor, name = tempfile.mkstemp(prefix=f"mindgspo-ranks-{os.getuid()}-", dir=folder)
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
    except OSError:
        os.unlink(name)
        raise
    finally:
        os.close(descriptor)
    return Path(name)
