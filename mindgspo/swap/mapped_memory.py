"""The CPU's tier of the swap: parameters live in memory that is mapped from files, and their pages come and go.

Graphs read and write a parameter's mapped file in place. Evicting writes its dirty pages and unmaps them (the process's
RSS falls; the kernel may drop its own copy whenever memory is short); loading maps the pages again. Content that nobody
keeps lives in private anonymous memory: evicted for nothing, back as zeros.

Of an evicted parameter in a file every reader still gets the right values, at the price of pages that no ledger knows.
The files are unlinked as soon as they are open: nothing is left behind by any end of the process, kill -9 included.
MindSpore's own CPU pool never returns memory; activations and the gradients of one graph stay in it.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from mindspore import Parameter, Tensor

from mindgspo.errors import ConfigError, TrainingError

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
# Linux 5.14: page in at once, and report what would be a deadly signal at the first access as an error.
_MADV_POPULATE_READ = 22
# Start to write a range and wait. Unlike fsync it forces no journal and no disk cache: nothing need survive a crash.
_SYNC_FILE_RANGE = 1 | 2 | 4
_IN_MEMORY = ("tmpfs", "ramfs")
_libc = ctypes.CDLL(None, use_errno=True)
_log = logging.getLogger(__name__)


def free_memory_bytes(groups: Path = _GROUPS, own_group: Path = _OWN_GROUP) -> int:
    """Bytes that are free or that the kernel would free; the tightest limit counts.

    groups, own_group: where control groups (version 2) are listed and where the process's own is named. Where there
    are none, or of version 1, the machine alone counts.
    """
    rooms = [room for folder in _own_folders(groups, own_group) if (room := _room(folder)) is not None]
    return max(0, min([psutil.virtual_memory().available, *rooms]))


def _own_folders(groups: Path, own_group: Path) -> Iterator[Path]:
    """The process's group and those around it."""
    try:
        lines = own_group.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("0::/"):
            folder = groups / line.removeprefix("0::/")
            yield folder
            yield from (parent for parent in folder.parents if parent.is_relative_to(groups))


def _room(folder: Path) -> int | None:
    """Bytes below the group's limit, with the file pages that would make room; None without a limit."""
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        counters = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
    except OSError:
        return None
    if limit == "max":
        return None
    return int(limit) - used + int(counters.get("active_file", 0)) + int(counters.get("inactive_file", 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a parameter lives: whole pages of a mapping, which `array` keeps alive. descriptor: of the mapped file, in
    which they begin at `start`; None for anonymous memory."""

    parameter: Parameter
    array: np.ndarray
    num_bytes: int
    descriptor: int | None
    start: int

    @property
    def address(self) -> int:
        return self.array.ctypes.data


class MappedMemory:
    """Implements `MemoryTier`. folder: on a disk; it is created. Raises ConfigError where it cannot be written."""

    loads_in_background = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[int, _Place] = {}
        self._files = ExitStack()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise ConfigError(f"swap.path: {folder} cannot be written ({error}); set it to another folder") from error
        if (kind := _file_system(folder)) in _IN_MEMORY:
            _log.warning("swap.path: %s lies in memory (%s): what is evicted there frees nothing", folder, kind)

    def take_over(self, parameters: Sequence[Parameter], *, keeps_content: bool) -> None:
        """See `MemoryTier`. Room on the disk is claimed here, so that no later write meets a full disk."""
        sizes = [_whole_pages(parameter.asnumpy().nbytes) for parameter in parameters]
        descriptor, memory = self._map(max(sum(sizes), mmap.PAGESIZE), keeps_content)
        start = 0
        for parameter, size in zip(parameters, sizes, strict=True):
            assert id(parameter) not in self._places, f"{parameter.name} was taken over before"
            values = parameter.asnumpy()
            array = np.frombuffer(memory, values.dtype, values.size, offset=start).reshape(values.shape)
            place = _Place(parameter=parameter, array=array, num_bytes=size, descriptor=descriptor, start=start)
            # The new pages are zero already: zeros, which optimizer state begins with, need no memory.
            if values.reshape(-1).view(np.uint8).any():
                np.copyto(array, values)
            _live_in(place)
            self._places[id(parameter)] = place
            start += size

    def evict(self, parameter: Parameter) -> None:
        """See `MemoryTier`."""
        place = self._settled(parameter)
        try:
            if place.descriptor is not None:
                _write_out(place.descriptor, place.start, place.num_bytes)
            _advise(place, mmap.MADV_DONTNEED)
        except OSError as error:
            raise TrainingError(
                f"swap: {parameter.name} could not be written to {self._folder} ({error}); it is still in memory"
            ) from error

    def load(self, parameter: Parameter) -> None:
        """See `MemoryTier`. Anonymous memory comes page by page, when it is first written."""
        place = self._settled(parameter)
        if place.descriptor is None:
            return
        try:
            _page_in(place)
        except OSError as error:
            raise TrainingError(
                f"swap: {parameter.name} could not be read from {self._folder} ({error}); it is still evicted"
            ) from error

    def tidy(self) -> None:
        """See `MemoryTier`: numpy's temporaries, and what parameters had before, otherwise stay in malloc's lists."""
        _libc.malloc_trim(ctypes.c_size_t(0))

    def free_bytes(self) -> int:
        """See `MemoryTier`. Pages of files that are not mapped count as free: the kernel would drop them."""
        return free_memory_bytes()

    def close(self) -> None:
        """See `MemoryTier`. Memory and room on the disk are freed with the parameters."""
        self._places.clear()
        self._files.close()

    def _map(self, num_bytes: int, keeps_content: bool) -> tuple[int | None, mmap.mmap]:
        """Zeroed memory, and the descriptor of its file if it has one."""
        if not keeps_content:
            return None, _mapped(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with ExitStack() as until_mapped:
            file = until_mapped.enter_context(tempfile.TemporaryFile(dir=self._folder))
            self._claim(file.fileno(), num_bytes)
            memory = _mapped(file.fileno(), num_bytes, mmap.MAP_SHARED)
            self._files.push(until_mapped.pop_all())
            return file.fileno(), memory

    def _claim(self, descriptor: int, num_bytes: int) -> None:
        """Have the file system set these bytes apart."""
        try:
            os.posix_fallocate(descriptor, 0, num_bytes)
        except OSError as error:
            free = shutil.disk_usage(self._folder).free
            raise ConfigError(
                f"swap.path: {self._folder} has no room for {num_bytes / 2**20:,.1f} MiB ({error}; about "
                f"{free / 2**20:,.1f} MiB are free); make room, or set swap.path to a folder on a larger disk"
            ) from error

    def _settled(self, parameter: Parameter) -> _Place:
        """Its place, after taking it back there: loading a checkpoint gives a parameter other memory (`set_data`)."""
        place = self._places[id(parameter)]
        values = parameter.asnumpy()
        if values.ctypes.data != place.address:
            assert values.shape == place.array.shape and values.dtype == place.array.dtype, parameter.name
            np.copyto(place.array, values)
            _live_in(place)
        return place


def _live_in(place: _Place) -> None:
    """Give the parameter its place as memory; what it had before is freed, unless it was of MindSpore's pool."""
    place.parameter.set_data(Tensor.from_numpy(place.array), slice_shape=True)
    assert place.parameter.asnumpy().ctypes.data == place.address, f"{place.parameter.name} was copied"


def _page_in(place: _Place) -> None:
    _advise(place, mmap.MADV_WILLNEED)
    try:
        _advise(place, _MADV_POPULATE_READ)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # An older kernel: one byte per page does the same, only without a report of a failing disk.
        place.array.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE].max(initial=0)


def _write_out(descriptor: int, start: int, num_bytes: int) -> None:
    offset, length = ctypes.c_int64(start), ctypes.c_int64(num_bytes)
    _check(_libc.sync_file_range(descriptor, offset, length, ctypes.c_uint(_SYNC_FILE_RANGE)))


def _advise(place: _Place, advice: int) -> None:
    # ctypes lets other threads run meanwhile; mmap.madvise does not.
    _check(_libc.madvise(ctypes.c_void_p(place.address), ctypes.c_size_t(place.num_bytes), advice))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _mapped(descriptor: int, num_bytes: int, flags: int) -> mmap.mmap:
    try:
        return mmap.mmap(descriptor, num_bytes, flags=flags)
    except OSError as error:
        raise ConfigError(
            f"swap: no address space for {num_bytes / 2**20:,.1f} MiB ({error}); raise the process's memory limit "
            "(ulimit -v), or choose a smaller model"
        ) from error


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _file_system(folder: Path) -> str:
    """Kind of the file system that holds `folder`."""
    resolved = str(folder.resolve())
    holders = [
        part
        for part in psutil.disk_partitions(all=True)
        if os.path.commonpath([resolved, part.mountpoint]) == part.mountpoint
    ]
    return max(holders, key=lambda part: len(part.mountpoint)).fstype if holders else ""
