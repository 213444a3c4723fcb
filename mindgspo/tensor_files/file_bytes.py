"""Positional reads of an open file, and the errors for files that cannot be read."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mindgspo.errors import WeightsError
from mindgspo.tensor_files.tensors import TensorInfo
from mindgspo.text import printable, shorten

# How many names of one kind a message shows.
LISTED = 8


def damaged(path: Path, what: object) -> WeightsError:
    """The error for a file that is not whole."""
    return WeightsError(
        f"{path}: truncated, damaged or unreadable ({_shown(str(what))}); its size is {_size(path)}. "
        "Copy or download the file again and compare its size and checksum with the source"
    )


def titled_names(title: str, names: Sequence[str], describe: Callable[[str], str] = str) -> list[str]:
    """A titled block with the first few names and how many more there are; nothing where there are none."""
    if not names:
        return []
    more = [f"    ... and {len(names) - LISTED} more"] if len(names) > LISTED else []
    return [f"  {title} ({len(names)}):", *(f"    {_shown(describe(name))}" for name in names[:LISTED]), *more]


def refused_dtypes(path: Path, dtypes: Sequence[tuple[str, str]]) -> WeightsError:
    """The error for (name, dtype) pairs that no reader here takes."""
    of = dict(dtypes)
    return WeightsError(
        f"{path}: dtypes that cannot be read here (use float32, float16 or bfloat16 weights)\n"
        + "\n".join(titled_names("refused", list(of), lambda name: f"{name}: {of[name]}"))
    )


def _shown(text: str) -> str:
    """Text out of a file for a message: no control characters for the terminal, no endless names."""
    return printable(shorten(text, 400)).replace("\n", "\\n")


def _size(path: Path) -> str:
    try:
        return f"{os.stat(path).st_size:,} bytes"
    except OSError:
        return "unknown"


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
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise WeightsError(f"{path}: cannot be opened ({error.strerror})") from error
        found = os.fstat(self._descriptor)
        self.size = found.st_size
        if not stat.S_ISREG(found.st_mode):  # a pipe would wait for ever
            self.close()
            raise WeightsError(f"{path}: is no regular file")

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
