"""What the workers of one host share, one file of memory: slots through which bytes go from one rank to others, and
counters by which they wait for each other. The work is done in `mindgspo_kernels/shared_memory.cc`, here and in
graphs. Ranks with cards only wait for each other.
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
"""Of each sender: it fills one while the other is read. Smaller slots are slower, because waking a rank takes as long
as copying some 100 KiB; larger or more ones are hardly faster, and leave the processor's caches between the sender's
write and the receivers' reads. The 64 MiB that containers have for shared memory do for 21 ranks."""
_POST_BYTES = 1 << 19
"""As many slots for what is sent to one rank: they may be full while the sender is in a collective with others."""

_log = logging.getLogger(__name__)
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Numbers:
    """`binding.Bits` of an array."""

    dtype: str
    bits: np.ndarray


class SharedMemoryGroup:
    """The shared file of one cluster, seen from one rank. file: made by `new_group_file`, of `world_size` ranks.
    has_slots: whether anything but `barrier` is called; as when the file was made.

    All ranks of a collective call it in one order, with arrays of the same shapes and dtypes; ValueError, with what two
    of them are in, where they do not. Raises ConfigError where the file cannot be opened.
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
        looks = self._look_for_signals()
        next(looks)
        # Kept, because C has its address.
        self._is_interrupted = ctypes.CFUNCTYPE(ctypes.c_int)(looks.__next__)
        found = ctypes.c_void_p(), ctypes.c_void_p()
        places = ctypes.byref(heartbeat.waiting_place), ctypes.cast(self._is_interrupted, ctypes.c_void_p).value
        offset = 0
        try:
            for address, slot_bytes in zip(found, _slots(has_slots), strict=False):
                sizes = world_size, slot_bytes, NUM_SLOTS
                call("open_shared_memory", opened, offset, rank, *sizes, *places, ctypes.byref(address))
                offset += group_bytes(*sizes)
        finally:
            os.close(opened)
        self._address, self._post = (address.value for address in found)

    def serve_graphs(self) -> None:
        """From now on operators of graphs meet here."""
        call("use_in_graphs", self._address)

    def barrier(self, ranks: Ranks) -> None:
        """Wait until every one of `ranks` has come here."""
        self._call("barrier", self._address, *_group(ranks))

    @contextmanager
    def passing(self, num_bytes: int, *, sender: int, ranks: Ranks) -> Iterator[np.ndarray]:
        """uint8 [num_bytes <= SLOT_BYTES]: what the sender writes inside, the other `ranks` read inside.

        The sender waits only where a slot is still read, so it can be NUM_SLOTS messages ahead of its slowest receiver.
        """
        assert num_bytes <= SLOT_BYTES, num_bytes
        place = ctypes.c_void_p()
        self._call("begin_message", self._address, num_bytes, sender, ctypes.byref(place))
        yield np.frombuffer((ctypes.c_uint8 * num_bytes).from_address(place.value or 0), np.uint8)
        self._call("end_message", self._address, *_group(ranks), num_bytes, sender)

    def broadcast(self, array: np.ndarray, *, sender: int, ranks: Ranks) -> None:
        """Fill `array` (contiguous) on all `ranks` with the sender's."""
        self._call("broadcast", self._address, *_group(ranks), sender, _numbers(array))

    def send(self, array: np.ndarray, receiver: int) -> None:
        """To a rank that calls `receive`. Waits for it where the slots do not hold the array and what is on its way."""
        self._call("broadcast", self._post, *_group(sorted((self._rank, receiver))), self._rank, _numbers(array))

    def receive(self, array: np.ndarray, sender: int) -> None:
        """Fill `array` with the next one that `sender` sends here."""
        self._call("broadcast", self._post, *_group(sorted((self._rank, sender))), sender, _numbers(array))

    def sum(self, arrays: Sequence[np.ndarray], ranks: Ranks) -> None:
        """Replace `arrays`, contiguous and of one dtype, on all `ranks` by their sums, added up in the order of the
        ranks: the same bits everywhere."""
        numbers = [_numbers(array) for array in arrays]
        self._call("all_reduce", self._address, *_group(ranks), 0, len(numbers), numbers, numbers)

    def _call(self, name: str, *arguments: object) -> None:
        try:
            call(name, *arguments)
        except ValueError as error:
            if self._interrupt is not None:
                raise self._interrupt from error
            raise

    def _look_for_signals(self) -> Iterator[int]:
        """Resumed while C waits: what handles a signal that Python has got runs in here. In a function it would run at
        the entry, outside any `try`."""
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
    """Of any shape: what is compared between ranks is the number of elements."""
    assert array.flags.c_contiguous, array.flags
    return Numbers(str(array.dtype), array.reshape(-1))


def _slots(has_slots: bool) -> tuple[int, ...]:
    """Bytes of a slot of each sender: those of collectives, those of what is sent to one rank."""
    return (SLOT_BYTES, _POST_BYTES) if has_slots else (0,)


def new_group_file(world_size: int, folder: Path = _SHARED_MEMORY, *, has_slots: bool = True) -> Path:
    """Zeros, all of them allocated; to be opened by every rank and then unlinked by whoever made them.

    In `folder`, or, with a warning, in that for temporary files where `folder` is missing or has no room. Raises
    ConfigError where there is none either.
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
    """A file of zeros whose pages cannot be missing later, when that would kill the process (SIGBUS)."""
    descriptor, name = tempfile.mkstemp(prefix=f"mindgspo-ranks-{os.getuid()}-", dir=folder)
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
    except OSError:
        os.unlink(name)
        raise
    finally:
        os.close(descriptor)
    return Path(name)
