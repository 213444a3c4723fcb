"""One file of tensors, read by need: safetensors, or MindSpore's ckpt.

What enters: a path. What leaves: what the file holds, then whole tensors, slices of them, or their bytes in chunks.
Called by conversions, checkpoints and whoever must not hold a whole model. Only the header is read at first; reads are
positional, so threads may share a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from mindgspo.tensor_files.ckpt_format import looks_like_ckpt, read_records
from mindgspo.tensor_files.damage import damaged
from mindgspo.tensor_files.extents import FileContent, PlacedBytes
from mindgspo.tensor_files.safetensors_format import looks_like_safetensors, read_header
from mindgspo.tensor_files.slices import read_runs
from mindgspo.tensor_files.tensor_info import CHUNK_BYTES, TensorInfo


class TensorFile:
    """An open file; made by `open_tensor_file`. A context manager."""

    def __init__(
        self, path: Path, content: FileContent, placed: Mapping[str, PlacedBytes], metadata: Mapping[str, str]
    ) -> None:
        """placed: the tensors in the file's order."""
        self.path = path
        self.metadata = metadata
        self.tensors: Mapping[str, TensorInfo] = {name: place.info for name, place in placed.items()}
        self._content = content
        self._placed = placed

    def read(self, name: str) -> np.ndarray:
        """A whole tensor, its bits as stored: bfloat16 comes as uint16."""
        info = self.tensors[name]
        array = np.empty(info.shape, dtype=info.bits)
        self.read_into(name, 0, _bytes_of(array))
        return array

    def read_slice(self, name: str, index: tuple[slice, ...], out: np.ndarray | None = None) -> np.ndarray:
        """A part of a tensor, its bits as stored; only the rows that it needs are read.

        index: slices of step 1 for the leading axes; the others are whole. out: a contiguous array to read it into.
        """

        def read_into(start: int, array: np.ndarray) -> None:
            self.read_into(name, start, _bytes_of(array))

        return read_runs(self.tensors[name], index, read_into, out)

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with the tensor's bytes from byte `start` on."""
        assert start + buffer.nbytes <= self.tensors[name].num_bytes, f"{name}: {start}+{buffer.nbytes}"
        for extent in self._placed[name].extents:
            if start < extent.length and buffer.nbytes:
                count = min(extent.length - start, buffer.nbytes)
                self._content.fill(buffer[:count], extent.start + start)
                buffer, start = buffer[count:], 0
            else:
                start -= extent.length

    def chunks(self, name: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[NDArray]:
        """The whole tensor as flat arrays of at most `chunk_bytes`, in order; each is a fresh array."""
        info = self.tensors[name]
        step = max(chunk_bytes // info.bits.itemsize, 1)
        for first in range(0, info.num_elements, step):
            chunk = np.empty(min(step, info.num_elements - first), dtype=info.bits)
            self.read_into(name, first * info.bits.itemsize, _bytes_of(chunk))
            yield chunk

    def close(self) -> None:
        """Let the file go; nothing can be read any more."""
        self._content.close()

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_tensor_file(path: Path) -> TensorFile:
    """Open one file; what it is says its content, not its name.

    Raises WeightsError: no such file, truncated or damaged, neither of the two formats, dtypes that numpy has not.
    """
    content = FileContent(path)
    try:
        if looks_like_safetensors(content) or path.suffix == ".safetensors":
            placed, metadata = read_header(path, content)
        elif looks_like_ckpt(content) or path.suffix == ".ckpt":
            placed, metadata = read_records(path, content)
        else:
            raise damaged(path, "neither safetensors nor a MindSpore checkpoint; pickled weights are never loaded")
    except BaseException:
        content.close()
        raise
    return TensorFile(path, content, placed, metadata)


def _bytes_of(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array, byte by byte."""
    return memoryview(array.reshape(-1).view(np.uint8))
