"""Tensors of an emulated card, as numpy sees them.

Used by every operator.
"""

from __future__ import annotations

import ctypes
import struct
from math import prod

import numpy as np

# aclDataType of acl/acl_base.h.
DTYPE_NAMES = {
    0: "float32",
    1: "float16",
    2: "int8",
    3: "int32",
    4: "uint8",
    6: "int16",
    7: "uint16",
    8: "uint32",
    9: "int64",
    10: "uint64",
    11: "float64",
    12: "bool",
    16: "complex64",
    17: "complex128",
    27: "bfloat16",
}
FLOATS = frozenset({"float32", "float16", "bfloat16"})
INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8"})
REAL = FLOATS | INTEGERS | {"float64", "bool"}
ANY = REAL | {"uint16", "uint32", "uint64"}
_MAX_RANK = 16
# tag, data, dtype, rank, offset, shape[16], strides[16], format: see `Tensor` in native/common.h.
_DESCRIPTOR = struct.Struct(f"=qQiiq{_MAX_RANK}q{_MAX_RANK}qi")


def storage_dtype(name: str) -> np.dtype:
    """The numpy dtype that holds a dtype's bits: numpy has no bfloat16, so its bits are uint16."""
    return np.dtype("uint16" if name == "bfloat16" else name)


class DeviceTensor:
    """A view of device memory.

    dtype: "float32", "bfloat16", ... bits: the memory itself, uint16 for bfloat16; None for a tensor without memory.
    """

    __slots__ = ("bits", "dtype", "shape")

    def __init__(self, dtype: str, shape: tuple[int, ...], bits: np.ndarray | None) -> None:
        self.dtype, self.shape, self.bits = dtype, shape, bits

    @classmethod
    def at(cls, address: int) -> DeviceTensor:
        """The tensor that a native descriptor at this address describes; its memory is not copied."""
        fields = _DESCRIPTOR.unpack(ctypes.string_at(address, _DESCRIPTOR.size))
        _, data, number, rank, offset = fields[:5]
        name = DTYPE_NAMES.get(number)
        if name is None:
            raise TypeError(f"aclDataType {number} is not emulated")
        shape, strides = fields[5 : 5 + rank], fields[5 + _MAX_RANK : 5 + _MAX_RANK + rank]
        dtype = storage_dtype(name)
        if 0 in shape:
            return cls(name, shape, np.empty(shape, dtype))
        if not data:
            return cls(name, shape, None)
        size = dtype.itemsize
        span = 1 + sum((axis - 1) * stride for axis, stride in zip(shape, strides, strict=True))
        memory = (ctypes.c_char * (span * size)).from_address(data + offset * size)
        return cls(name, shape, np.ndarray(shape, dtype, memory, 0, tuple(stride * size for stride in strides)))

    @classmethod
    def of(cls, values: np.ndarray | list | float, dtype: str = "float32") -> DeviceTensor:
        """A tensor with memory of its own that holds these values, rounded to `dtype`."""
        values = np.asarray(values)
        tensor = cls(dtype, values.shape, np.zeros(values.shape, storage_dtype(dtype)))
        tensor.store(values)
        return tensor

    @classmethod
    def zeros(cls, shape: tuple[int, ...], dtype: str = "float32") -> DeviceTensor:
        """A tensor for results."""
        return cls(dtype, shape, np.zeros(shape, storage_dtype(dtype)))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    def view(self, *shape: int) -> DeviceTensor:
        """The same memory with other axes."""
        return self.seen(self.bits.reshape(shape))

    def seen(self, bits: np.ndarray) -> DeviceTensor:
        """The part or the order of this tensor's memory that `bits` is."""
        assert np.may_share_memory(bits, self.bits) or not bits.size, f"{self!r} has no view as {list(bits.shape)}"
        return DeviceTensor(self.dtype, bits.shape, bits)

    def values(self) -> np.ndarray:
        """What to compute with: bfloat16 and float16 as float32 copies, everything else as a view of the memory."""
        assert self.bits is not None, "a tensor without memory has no values"
        if self.dtype == "bfloat16":
            return (self.bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return self.bits.astype(np.float32) if self.dtype == "float16" else self.bits

    def store(self, values: np.ndarray | float) -> None:
        """Write results of the tensor's own shape (or one that broadcasts to it), rounded to its dtype."""
        assert self.bits is not None, "a tensor without memory takes no results"
        values = np.asarray(values)
        if values.shape != self.shape and values.size == self.bits.size:
            values = values.reshape(self.shape)
        if self.dtype == "bfloat16":
            self.bits[...] = round_to_bfloat16(values)
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                self.bits[...] = values

    def __repr__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """uint16 bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = ((bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)).astype(
        np.uint16
    )
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, np.uint16(0x7FC0), rounded)
