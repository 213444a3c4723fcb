"""What a file says of a tensor, and the dtypes that files and numpy share.

What enters: a dtype's name as safetensors spells it. What leaves: the numpy dtype of the stored bits. Called by all of
this room. numpy has no bfloat16: its bits are held as uint16. 8-bit and 4-bit floats are refused by the readers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

# How the bits of each dtype are held; files are little-endian.
STORED_BITS: Mapping[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
FLOAT_DTYPES = frozenset(["F64", "F32", "F16", "BF16"])

# More is damage or an attack on time: numpy has at most 64.
MAX_AXES = 32

# How many bytes a copy holds at once.
CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """A tensor as a file describes it, its values unread. dtype: a key of STORED_BITS."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bits(self) -> np.dtype:
        """The numpy dtype that holds one element's bits."""
        return STORED_BITS[self.dtype]

    @property
    def num_elements(self) -> int:
        """Elements of the whole tensor; 1 for shape ()."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor in the file."""
        return self.num_elements * self.bits.itemsize


class TensorSource(Protocol):
    """Tensors that are read when asked for: one file, or a folder's shards. Reads may come from several threads."""

    @property
    def path(self) -> Path:
        """Named in messages."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """What is there, in the files' order."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Text that stands beside the tensors."""

    def read(self, name: str) -> np.ndarray:
        """A whole tensor."""

    def read_slice(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A part of a tensor; slices of step 1, one per leading axis."""

    def chunks(self, name: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[NDArray]:
        """A whole tensor, flat, in pieces."""


def info_of(array: np.ndarray, *, bfloat16_bits: bool = False) -> TensorInfo:
    """How a file describes this array. bfloat16_bits: it is uint16 and holds the bits of bfloat16 numbers."""
    if bfloat16_bits:
        assert array.dtype == np.uint16, f"{array.dtype} holds no bits of bfloat16"
        return TensorInfo(dtype="BF16", shape=array.shape)
    plain = array.dtype.newbyteorder("<")
    names = [name for name, bits in STORED_BITS.items() if bits == plain and name != "BF16"]
    assert names, f"no file dtype for {array.dtype}"
    return TensorInfo(dtype=names[0], shape=array.shape)
