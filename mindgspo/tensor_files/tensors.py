"""Tensors as files describe them: dtypes, rounding between them, sources of tensors.

numpy has no bfloat16: its bits are held as uint16. 8-bit and 4-bit floats are refused by the readers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mindgspo.errors import WeightsError

# Name in safetensors; how the bits are held (files are little-endian); name in MindSpore's checkpoints.
_DTYPES = (
    ("F64", "<f8", "Float64"),
    ("F32", "<f4", "Float32"),
    ("F16", "<f2", "Float16"),
    ("BF16", "<u2", "BFloat16"),
    ("I64", "<i8", "Int64"),
    ("U64", "<u8", "UInt64"),
    ("I32", "<i4", "Int32"),
    ("U32", "<u4", "UInt32"),
    ("I16", "<i2", "Int16"),
    ("U16", "<u2", "UInt16"),
    ("I8", "i1", "Int8"),
    ("U8", "u1", "UInt8"),
    ("BOOL", "?", "Bool"),
)
STORED_BITS: Mapping[str, np.dtype] = {name: np.dtype(bits) for name, bits, _ in _DTYPES}
MINDSPORE_NAMES: Mapping[str, str] = {name: theirs for name, _, theirs in _DTYPES}
FLOAT_DTYPES = frozenset(["F64", "F32", "F16", "BF16"])

# More is damage or an attack on time: numpy has at most 64.
MAX_AXES = 32

# How many bytes a copy holds at once.
CHUNK_BYTES = 16 << 20
# What people write, and what files say.
FILE_DTYPES: Mapping[str, str] = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_SPELLED = {"F64": "float64", **{name: spelled for spelled, name in FILE_DTYPES.items()}}


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
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Descriptions of the tensors, in the files' order."""
        ...

    @property
    def metadata(self) -> Mapping[str, str]:
        """Text that stands beside the tensors."""
        ...

    def read(self, name: str) -> np.ndarray:
        """A whole tensor."""
        ...

    def read_slice(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A part of a tensor; slices of step 1, one per leading axis."""
        ...

    def chunks(self, name: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[NDArray]:
        """A whole tensor, flat, in pieces."""
        ...


def info_of(array: np.ndarray, *, bfloat16_bits: bool = False) -> TensorInfo:
    """Describe an array as a file does. bfloat16_bits: it is uint16 and holds the bits of bfloat16 numbers."""
    if bfloat16_bits:
        assert array.dtype == np.uint16, f"{array.dtype} holds no bits of bfloat16"
        return TensorInfo(dtype="BF16", shape=array.shape)
    plain = array.dtype.newbyteorder("<")
    names = [name for name, bits in STORED_BITS.items() if bits == plain and name != "BF16"]
    assert names, f"no file dtype for {array.dtype}"
    return TensorInfo(dtype=names[0], shape=array.shape)


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
        return self.read(name)[index]

    def chunks(self, name: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[NDArray]:
        """The array, flat, in pieces."""
        flat = self.read(name).reshape(-1)
        step = max(chunk_bytes // flat.itemsize, 1)
        for first in range(0, flat.size, step):
            yield flat[first : first + step]


def float32_of(source: TensorSource, name: str) -> NDArray[np.float32]:
    """A whole tensor of floats, widened or rounded to float32."""
    bits = source.read(name)
    return widen_bfloat16(bits) if source.tensors[name].dtype == "BF16" else bits.astype(np.float32, copy=False)


class PickedTensors:
    """A `TensorSource` of tensors of other sources. picked: {name: (source, name there)}. path: for messages."""

    def __init__(
        self, picked: Mapping[str, tuple[TensorSource, str]], *, path: Path, metadata: Mapping[str, str]
    ) -> None:
        self.path, self.metadata = path, metadata
        self.tensors: Mapping[str, TensorInfo] = {name: at.tensors[theirs] for name, (at, theirs) in picked.items()}
        self._picked = picked

    def read(self, name: str) -> np.ndarray:
        """A whole tensor."""
        source, theirs = self._picked[name]
        return source.read(theirs)

    def read_slice(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A part of a tensor."""
        source, theirs = self._picked[name]
        return source.read_slice(theirs, index)

    def chunks(self, name: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[NDArray]:
        """A whole tensor, flat, in pieces."""
        source, theirs = self._picked[name]
        return source.chunks(theirs, chunk_bytes)


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16 numbers, ties to even, as torch rounds; a NaN stays a NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    # Half of the last kept bit's weight (less one where that bit is 0) carries exactly where rounding is up.
    upper = bits >> np.uint32(16)
    rounded = (bits + (np.uint32(0x7FFF) + (upper & np.uint32(1)))) >> np.uint32(16)
    quiet_nan = upper | np.uint32(0x0040)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, quiet_nan, rounded).astype(np.uint16).reshape(np.shape(values))


def widen_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The float32 numbers with the same values: bfloat16 is float32's upper half."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def rounded(bits: np.ndarray, *, source: str, target: str, name: str, path: Path) -> np.ndarray:
    """The bits of the nearest numbers of dtype `target`; both dtypes are floats as files name them.

    name, path: of the weight and the file to be written, for messages.
    Raises WeightsError: finite values that become infinite.
    """
    if source == target:
        return bits
    values = widen_bfloat16(bits) if source == "BF16" else bits
    with np.errstate(over="ignore"):
        # torch takes the way over float32 as well.
        if target == "BF16":
            result = bfloat16_bits(np.asarray(values, np.float32))
            kept = widen_bfloat16(result)
        elif target == "F64":
            kept = result = np.asarray(values, np.float64)
        else:
            single = np.asarray(values, np.float32)
            kept = result = single.astype(np.float16) if target == "F16" else single
    overflowed = int(np.count_nonzero(np.isinf(kept) & np.isfinite(values)))
    if overflowed:
        raise WeightsError(
            f"{path}: {overflowed} values of {name} are too large for {_SPELLED[target]} (largest magnitude "
            f"{np.abs(values[np.isfinite(values)]).max():g}); write float32 instead"
        )
    return result
