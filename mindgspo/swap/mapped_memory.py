"""The CPU tier of the swap: parameters in memory mapped from files, whose pages are evicted and loaded.

Graphs read and write a parameter's mapped file directly. Evicting writes its dirty pages and unmaps them: the process's
RSS falls, and the kernel may drop its own copy when memory is short. Loading maps the pages again. Content that need
not be kept is in private anonymous memory, evicted without writing, and zero when loaded again.

Reading an evicted parameter still gives the right values but brings back pages that the ledger does not count. The
files are unlinked once open, so nothing remains after any end of the process, including kill -9. MindSpore's own CPU
pool never shrinks; activations and the gradients of one graph stay in it.
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
# Linux 5.14: load all pages and return an error where the first access would raise SIGBUS.
_MADV_POPULATE_READ = 22
# Write a range and wait. Unlike fsync, it flushes neither journal nor disk cache: nothing need survive a crash.
_SYNC_FILE_RANGE = 1 | 2 | 4
_IN_MEMORY = ("tmpfs", "ramfs")
_libc = ctypes.CDLL(None, use_errno=True)
_log = logging.getLogger(__name__)


def free_memory_bytes(groups: Path = _GROUPS, own_group: Path = _OWN_GROUP) -> int:
    """Return the bytes that are free or that the kernel would free, under the tightest limit.

    groups: root of the control groups (version 2); own_group: file with the name of the process's group. Without
    control groups, or with those of version 1, only the machine's memory counts.
    """
    rooms = [room for folder in _own_folders(groups, own_group) if (room := _room(folder)) is not None]
    return max(0, min([psutil.virtual_memory().available, *rooms]))


def _own_folders(groups: Path, own_group: Path) -> Iterator[Path]:
    """Yield the folders of the process's group and of those around it."""
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
    """Return the bytes left below a group's limit, including reclaimable file pages; None without a limit."""
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
class _Pages:
    """Whole pages of a mapping that hold one parameter."""

    parameter: Parameter
    array: np.ndarray
    """View of the pages that keeps the mapping alive."""
    num_bytes: int
    descriptor: int | None
    """Descriptor of the mapped file; None for anonymous memory."""
    start: int
    """Offset of the pages in the file."""

    @property
    def address(self) -> int:
        return self.array.ctypes.data


class MappedMemory:
    """`MemoryTier` on CPU. folder: on a disk, created if missing. Raises ConfigError if it cannot be written."""

    loads_in_background = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pages: dict[int, _Pages] = {}
        self._files = ExitStack()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise ConfigError(f"swap.path: {folder} cannot be written ({error}); set it to another folder") from error
        if (kind := _file_system(folder)) in _IN_MEMORY:
            _log.warning("swap.path: %s lies in memory (%s): what is evicted there frees nothing", folder, kind)

    def take_over(self, parameters: Sequence[Parameter], *, keeps_content: bool) -> None:
        """See `MemoryTier`. Disk space is allocated here, so that no later write finds the disk full."""
        sizes = [_whole_pages(parameter.asnumpy().nbytes) for parameter in parameters]
        descriptor, memory = self._map(max(sum(sizes), mmap.PAGESIZE), keeps_content)
        start = 0
        for parameter, size in zip(parameters, sizes, strict=True):
            assert id(parameter) not in self._pages, f"{parameter.name} was taken over before"
            values = parameter.asnumpy()
            array = np.frombuffer(memory, values.dtype, values.size, offset=start).reshape(values.shape)
            pages = _Pages(parameter=parameter, array=array, num_bytes=size, descriptor=descriptor, start=start)
            # New pages are zero, so initial optimizer state, all zeros, takes no memory.
            if values.reshape(-1).view(np.uint8).any():
                np.copyto(array, values)
            _live_in(pages)
            self._pages[id(parameter)] = pages
            start += size

    def evict(self, parameter: Parameter) -> None:
        """See `MemoryTier`."""
        pages = self._settled(parameter)
        try:
            if pages.descriptor is not None:
                _write_out(pages.descriptor, pages.start, pages.num_bytes)
            _advise(pages, mmap.MADV_DONTNEED)
        except OSError as error:
            raise TrainingError(
                f"swap: {parameter.name} could not be written to {self._folder} ({error}); it is still in memory"
            ) from error

    def load(self, parameter: Parameter) -> None:
        """See `MemoryTier`. Anonymous pages are allocated when first written."""
        pages = self._settled(parameter)
        if pages.descriptor is None:
            return
        try:
            _page_in(pages)
        except OSError as error:
            raise TrainingError(
                f"swap: {parameter.name} could not be read from {self._folder} ({error}); it is still evicted"
            ) from error

    def tidy(self) -> None:
        """See `MemoryTier`: otherwise freed temporaries and parameters' former memory stay in malloc's lists."""
        _libc.malloc_trim(ctypes.c_size_t(0))

    def free_bytes(self) -> int:
        """See `MemoryTier`. Cached pages of files count as free, because the kernel would drop them."""
        return free_memory_bytes()

    def close(self) -> None:
        """See `MemoryTier`. Memory and disk space are freed with the parameters."""
        self._pages.clear()
        self._files.close()

    def _map(self, num_bytes: int, keeps_content: bool) -> tuple[int | None, mmap.mmap]:
        """Return zeroed memory and the descriptor of its file, if it has one."""
        if not keeps_content:
            return None, _mapped(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with ExitStack() as until_mapped:
            file = until_mapped.enter_context(tempfile.TemporaryFile(dir=self._folder))
            self._claim(file.fileno(), num_bytes)
            memory = _mapped(file.fileno(), num_bytes, mmap.MAP_SHARED)
            self._files.push(until_mapped.pop_all())
            return file.fileno(), memory

    def _claim(self, descriptor: int, num_bytes: int) -> None:
        """Have the file system allocate these bytes."""
        try:
            os.posix_fallocate(descriptor, 0, num_bytes)
        except OSError as error:
            free = shutil.disk_usage(self._folder).free
            raise ConfigError(
                f"swap.path: {self._folder} has no room for {num_bytes / 2**20:,.1f} MiB ({error}; about "
                f"{free / 2**20:,.1f} MiB are free); make room, or set swap.path to a folder on a larger disk"
            ) from error

    def _settled(self, parameter: Parameter) -> _Pages:
        """Return a parameter's pages, after moving it back into them: loading a checkpoint replaces its memory."""
        pages = self._pages[id(parameter)]
        values = parameter.asnumpy()
        if values.ctypes.data != pages.address:
            assert values.shape == pages.array.shape and values.dtype == pages.array.dtype, parameter.name
            np.copyto(pages.array, values)
            _live_in(pages)
        return pages


def _live_in(pages: _Pages) -> None:
    """Make the pages the parameter's memory; its former memory is freed unless it was of MindSpore's pool."""
    pages.parameter.set_data(Tensor.from_numpy(pages.array), slice_shape=True)
    assert pages.parameter.asnumpy().ctypes.data == pages.address, f"{pages.parameter.name} was copied"


def _page_in(pages: _Pages) -> None:
    _advise(pages, mmap.MADV_WILLNEED)
    try:
        _advise(pages, _MADV_POPULATE_READ)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # An older kernel: reading one byte per page does the same, but a failing disk kills the process.
        pages.array.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE].max(initial=0)


def _write_out(descriptor: int, start: int, num_bytes: int) -> None:
    offset, length = ctypes.c_int64(start), ctypes.c_int64(num_bytes)
    _check(_libc.sync_file_range(descriptor, offset, length, ctypes.c_uint(_SYNC_FILE_RANGE)))


def _advise(pages: _Pages, advice: int) -> None:
    # ctypes lets other threads run meanwhile; mmap.madvise does not.
    _check(_libc.madvise(ctypes.c_void_p(pages.address), ctypes.c_size_t(pages.num_bytes), advice))


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
    """Return the type of the file system that holds `folder`, e.g. "ext4"."""
    resolved = str(folder.resolve())
    holders = [
        part
        for part in psutil.disk_partitions(all=True)
        if os.path.commonpath([resolved, part.mountpoint]) == part.mountpoint
    ]
    return max(holders, key=lambda part: len(part.mountpoint)).fstype if holders else ""
