"""GGUF files, read without trust: what the header says, and tensors unpacked to float32 row by row.

A file is, in little-endian numbers: `GGUF`, version (u32), number of tensors and of entries (u64), the entries (key,
type, value), the tensors' names, sizes, types and offsets, padding, then the tensors' bytes. Sizes stand innermost
first. The package `gguf` (0.19), which llama.cpp publishes, knows the blocks of each type and unpacks them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from numpy.typing import NDArray

from mindgspo.errors import WeightsError
from mindgspo.io import Closing
from mindgspo.tensor_files.formats import FileContent, damaged
from mindgspo.text import listed, printable, shorten

MAGIC = b"GGUF"
Value: TypeAlias = int | float | str | bool | list[int] | list[float] | list[str] | list[bool]

# struct's formats of the types of entries that have one size.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# More is damage, or an attack on memory: the largest vocabularies have some 300,000 tokens and merges.
_MOST_ENTRIES, _MOST_ELEMENTS, _MOST_TENSORS, _MOST_TEXT, _MOST_HEADER = 1 << 12, 1 << 21, 1 << 18, 1 << 22, 1 << 26
_MOST_AXES = 4
TYPES = (
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
)
"""Types of tensors that are unpacked."""
_TYPE_NAMES = {one.value: one.name for one in GGMLQuantizationType}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTensor:
    """A tensor as the file holds it."""

    type: str
    """One of TYPES."""
    shape: tuple[int, ...]
    """Outermost axis first."""
    start: int
    """First byte in the file."""
    row_bytes: int
    """Bytes of a row, which is the innermost axis; no block crosses its end."""

    @property
    def num_rows(self) -> int:
        """Rows of all outer axes together."""
        return math.prod(self.shape[:-1])

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return self.num_rows * self.row_bytes


class _Header:
    """Numbers and texts, one after the other. Raises WeightsError past the end of the file or of what is bearable."""

    def __init__(self, content: FileContent) -> None:
        self.content, self.position, self._buffer, self._first = content, 0, b"", 0

    def take(self, count: int) -> bytes:
        """Take the next `count` bytes."""
        if self.position + count > min(self.content.size, _MOST_HEADER):
            raise self.bad(f"the header does not end within {min(self.content.size, _MOST_HEADER):,} bytes")
        start = self.position - self._first
        if start + count > len(self._buffer):
            self._buffer = self.content.at_most(self.position, max(count, 1 << 20))
            self._first, start = self.position, 0
        self.position += count
        return self._buffer[start : start + count]

    def number(self, form: str) -> int | float | bool:
        """Take one number in struct's format."""
        return struct.unpack("<" + form, self.take(struct.calcsize(form)))[0]

    def count(self, most: int, what: str) -> int:
        """Take a number of things, of which there may be `most`."""
        number = int(self.number("Q"))
        if number > most:
            raise self.bad(f"{number:,} {what}, at most {most:,}")
        return number

    def text(self) -> str:
        """Take a text."""
        try:
            return self.take(self.count(_MOST_TEXT, "bytes of text")).decode()
        except UnicodeDecodeError as error:
            raise self.bad(str(error)) from error

    def value(self) -> Value:
        """Take an entry's type and value."""
        kind = int(self.number("I"))
        if kind == _STRING:
            return self.text()
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind != _ARRAY:
            raise self.bad(f"an entry of type {kind}")
        kind, count = int(self.number("I")), self.count(_MOST_ELEMENTS, "elements of an array")
        if kind == _STRING:
            return [self.text() for _ in range(count)]
        if kind not in _NUMBERS:
            raise self.bad(f"an array of type {kind}")
        form = f"<{count}{_NUMBERS[kind]}"
        return list(struct.unpack(form, self.take(struct.calcsize(form))))

    def bad(self, what: str) -> WeightsError:
        """The error for a damaged header."""
        return damaged(self.content.path, what)


class OpenGguf(Closing):
    """An open file: its entries by key, its tensors by name. Raises WeightsError: damaged, or not readable here."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content = FileContent(path)
        try:
            header = _Header(self._content)
            if header.take(4) != MAGIC:
                raise WeightsError(f"{path}: is no GGUF file, which begins with {MAGIC.decode()}")
            version = int(header.number("I"))
            if version not in (2, 3):
                raise WeightsError(f"{path}: GGUF version {version}; versions 2 and 3, little-endian, are read")
            num_tensors = header.count(_MOST_TENSORS, "tensors")
            self.entries: Mapping[str, Value] = _unique(
                header, [(header.text(), header.value()) for _ in range(header.count(_MOST_ENTRIES, "entries"))]
            )
            self.tensors: Mapping[str, PackedTensor] = self._placed(header, num_tensors)
        except BaseException:
            self.close()
            raise

    def _placed(self, header: _Header, num_tensors: int) -> dict[str, PackedTensor]:
        """The tensors, which lie behind the header, inside the file, and apart from one another."""
        found = [(header.text(), _described(header)) for _ in range(num_tensors)]
        alignment = self.entries.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= 1 << 20:
            raise header.bad(f"general.alignment {shorten(alignment)}")
        begin = -(-header.position // alignment) * alignment
        tensors = {name: _packed(header, name, kind, shape, begin + offset) for name, (kind, shape, offset) in found}
        if len(tensors) < len(found):
            raise header.bad("two tensors of one name")
        end = begin
        for name, tensor in sorted(tensors.items(), key=lambda item: item[1].start):
            if tensor.start < end or tensor.start + tensor.num_bytes > self._content.size:
                raise header.bad(f"{printable(shorten(name))} lies over another tensor or behind the end of the file")
            end = tensor.start + tensor.num_bytes
        return tensors

    def rows(self, name: str, first: int, stop: int) -> NDArray[np.float32]:
        """Unpack some rows of a tensor, [stop - first, elements of a row]."""
        tensor = self.tensors[name]
        packed = np.empty((stop - first, tensor.row_bytes), np.uint8)
        self._content.fill(memoryview(packed.reshape(-1)), tensor.start + first * tensor.row_bytes)
        with np.errstate(all="ignore"):  # scales of a hostile file may be anything
            return np.ascontiguousarray(dequantize(packed, GGMLQuantizationType[tensor.type]), np.float32)

    def close(self) -> None:
        """Close the file."""
        self._content.close()


def _unique(header: _Header, entries: list[tuple[str, Value]]) -> dict[str, Value]:
    found = dict(entries)
    if len(found) < len(entries):
        raise header.bad("two entries of one key")
    return found


def _described(header: _Header) -> tuple[int, tuple[int, ...], int]:
    """Type, shape and offset of the next tensor."""
    axes = int(header.number("I"))
    if not 1 <= axes <= _MOST_AXES:
        raise header.bad(f"a tensor of {axes} axes")
    innermost_first = [int(header.number("Q")) for _ in range(axes)]
    return int(header.number("I")), tuple(reversed(innermost_first)), int(header.number("Q"))


def _packed(header: _Header, name: str, kind: int, shape: tuple[int, ...], start: int) -> PackedTensor:
    type_name = _TYPE_NAMES.get(kind, str(kind))
    if type_name not in TYPES:
        raise WeightsError(
            f"{header.content.path}: {printable(shorten(name))} has type {type_name}; unpacked are {listed(TYPES, 20)}"
        )
    elements, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
    if shape[-1] % elements or not all(shape) or math.prod(shape) > header.content.size * elements:
        raise header.bad(f"{printable(shorten(name))} of type {type_name} with shape {shape}")
    return PackedTensor(type=type_name, shape=shape, start=start, row_bytes=shape[-1] // elements * num_bytes)
