"""Bytes of an open file by their position.

What enters: a file's path. What leaves: positional reads, which threads may share, and the places of tensors in the
file. Called by the readers of this room.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mindgspo.errors import WeightsError
from mindgspo.tensor_files.damage import damaged
from mindgspo.tensor_files.tensor_info import TensorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A stretch of a file, in bytes."""

    start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedBytes:
    """A tensor and the stretches that hold its bytes, in order. safetensors: one; MindSpore's ckpt: one or more."""

    info: TensorInfo
    extents: tuple[Extent, ...]


class FileContent:
    """An open file of known size."""

    def __init__(self, path: Path) -> None:
        """Raises WeightsError where the file cannot be opened."""
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise WeightsError(f"{path}: cannot be opened ({error.strerror})") from error
        self.size = os.fstat(self._descriptor).st_size

    def at(self, start: int, length: int) -> bytes:
        """`length` bytes from `start`. Raises WeightsError where the file is shorter."""
        found = bytearray(length)
        self.fill(memoryview(found), start)
        return bytes(found)

    def at_most(self, start: int, length: int) -> bytes:
        """The same, or what there is."""
        try:
            return os.pread(self._descriptor, length, start)
        except OSError as error:
            raise damaged(self._path, error) from error

    def fill(self, buffer: memoryview, start: int) -> None:
        """Read as many bytes as `buffer` holds, from `start`. Raises WeightsError where the file is shorter."""
        assert self._descriptor >= 0, f"{self._path} is closed"
        done = 0
        while done < buffer.nbytes:  # one call reads 2 GiB at most
            try:
                count = os.preadv(self._descriptor, [buffer[done:]], start + done)
            except OSError as error:
                raise damaged(self._path, error) from error
            if count == 0:
                raise damaged(self._path, f"no byte at {start + done:,}")
            done += count

    def close(self) -> None:
        """Let the file go; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
