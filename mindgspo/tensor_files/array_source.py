"""Arrays in memory as a source of tensors, so that one piece of code takes files and arrays alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mindgspo.tensor_files.tensor_info import CHUNK_BYTES, TensorInfo, info_of


class ArraySource:
    """A `TensorSource` of named arrays. path: where they came from, for messages."""

    def __init__(self, arrays: Mapping[str, np.ndarray], *, path: Path) -> None:
        self.path = path
        self.metadata: Mapping[str, str] = {}
        self.tensors: Mapping[str, TensorInfo] = {name: info_of(array) for name, array in arrays.items()}
        self._arrays = arrays

    def read(self, name: str) -> np.ndarray:
        """The array itself."""
        return self._arrays[name]

    def read_slice(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A view into the array."""
        return self._arrays[name][index]

    def chunks(self, name: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[NDArray]:
        """The array, flat, in pieces."""
        flat = self._arrays[name].reshape(-1)
        step = max(chunk_bytes // flat.itemsize, 1)
        for first in range(0, flat.size, step):
            yield flat[first : first + step]
