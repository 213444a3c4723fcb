"""The two formats of tensor files, read without trust: where each tensor lies, and the bytes around tensors.

Values are never parsed, so a file may have any size. safetensors: 8 bytes little-endian header length, JSON header,
then the tensors at `data_offsets`, which cover the rest exactly. MindSpore's checkpoints (`*.ckpt`) are protobuf:

    repeated value = 1 { tag = 1 (string), tensor = 2 { dims = 1 (repeated int64), type = 2, content = 3 } }

Parts of a large tensor follow each other under one tag, each with the dims of the whole. Text that MindSpore keeps
beside tensors has type `str` and UTF-32 content; here it is metadata. A trailing CRC is passed over, as
`mindspore.load_checkpoint` does; encrypted files are refused.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mindgspo.errors import WeightsError
from mindgspo.io import parse_json, unique_keys
from mindgspo.tensor_files.tensors import MAX_AXES, MINDSPORE_NAMES, STORED_BITS, TensorInfo
from mindgspo.text import printable, shorten

# How many names of one kind a message shows.
LISTED = 8


def damaged(path: Path, what: object) -> WeightsError:
    """The error for a file that is not whole."""
    return WeightsError(
        f"{path}: truncated, damaged or unreadable ({_printable(str(what))}); its size is {_size(path)}. "
        "Copy or download the file again and compare its size and checksum with the source"
    )


def titled_names(title: str, names: Sequence[str], describe: Callable[[str], str] = str) -> list[str]:
    """A titled block with the first few names and how many more there are; nothing if there are none."""
    if not names:
        return []
    more = [f"    ... and {len(names) - LISTED} more"] if len(names) > LISTED else []
    return [f"  {title} ({len(names)}):", *(f"    {_printable(describe(name))}" for name in names[:LISTED]), *more]


def refused_dtypes(path: Path, dtypes: Sequence[tuple[str, str]]) -> WeightsError:
    """The error for (name, dtype) pairs that no reader here takes."""
    of = dict(dtypes)
    return WeightsError(
        f"{path}: dtypes that cannot be read here (use float32, float16 or bfloat16 weights)\n"
        + "\n".join(titled_names("refused", list(of), lambda name: f"{name}: {of[name]}"))
    )


def _printable(text: str) -> str:
    """Text out of a file for a message: no control characters for the terminal, no endless names."""
    return printable(shorten(text, 400)).replace("\n", "\\n")


def _size(path: Path) -> str:
    try:
        return f"{os.stat(path).st_size:,} bytes"
    except OSError:
        return "unknown"


class FileContent:
    """An open file of known size."""

    def __init__(self, path: Path) -> None:
        """Raises WeightsError if the file cannot be opened."""
        self.path = path
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
        """`length` bytes from `start`. Raises WeightsError if the file is shorter."""
        found = bytearray(length)
        self.fill(memoryview(found), start)
        return bytes(found)

    def at_most(self, start: int, length: int) -> bytes:
        """Read up to `length` bytes from `start`."""
        try:
            return os.pread(self._descriptor, length, start)
        except OSError as error:
            raise damaged(self.path, error) from error

    def fill(self, buffer: memoryview, start: int) -> None:
        """Read as many bytes as `buffer` holds, from `start`. Raises WeightsError if the file is shorter."""
        assert self._descriptor >= 0, f"{self.path} is closed"
        done = 0
        while done < buffer.nbytes:  # one call reads 2 GiB at most
            try:
                count = os.preadv(self._descriptor, [buffer[done:]], start + done)
            except OSError as error:
                raise damaged(self.path, error) from error
            if count == 0:
                raise damaged(self.path, f"no byte at {start + done:,}")
            done += count

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A stretch of a file, in bytes."""

    file: FileContent
    start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedBytes:
    """A tensor, and the stretches that hold its bytes."""

    info: TensorInfo
    extents: tuple[Extent, ...]
    """In order. safetensors: one; MindSpore's ckpt: one or more."""


# The library's own limit: a longer header is damage or an attack on memory.
MAX_HEADER_BYTES = 100_000_000
_METADATA = "__metadata__"
_FIELDS = {"dtype", "shape", "data_offsets"}
# Dtypes in the library's order of writing: wide ones first, so that every tensor is aligned.
_WRITING_ORDER = ("U64", "I64", "F64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "I8", "U8", "BOOL")


def looks_like_safetensors(content: FileContent) -> bool:
    """Whether a header of plausible length begins where it must."""
    start = content.at_most(0, 9)
    return len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") <= content.size - 8


def read_header(content: FileContent) -> tuple[dict[str, PlacedBytes], dict[str, str]]:
    """{name: info and place} in the order of the bytes, and the metadata.

    Raises WeightsError: truncated, trailing or overlapping bytes, a name that stands twice, an unknown dtype.
    """
    if content.size < 8:
        raise damaged(content.path, "no room for the length of a header")
    length = int.from_bytes(content.at(0, 8), "little")
    if length > min(MAX_HEADER_BYTES, content.size - 8):
        raise damaged(content.path, f"its header would have {length:,} bytes")
    try:
        header = parse_json(bytes(content.at(8, length)), object_pairs_hook=unique_keys)
        if not isinstance(header, dict):
            raise ValueError("is no JSON object")
        metadata = _metadata(header.pop(_METADATA, {}))
        entries = {str(name): _entry(name, entry) for name, entry in header.items()}
    except ValueError as error:
        raise damaged(content.path, f"its header: {error}") from error
    refused = [(name, dtype) for name, (dtype, *_) in entries.items() if dtype not in STORED_BITS]
    if refused:
        raise refused_dtypes(content.path, refused)
    return _placed(content, entries, data_start=8 + length), metadata


def header_bytes(infos: Mapping[str, TensorInfo], metadata: Mapping[str, str] | None) -> bytes:
    """Length and header of a file that holds these tensors in this order."""
    assert _METADATA not in infos, "the format keeps this name for itself"
    header: dict[str, object] = {} if metadata is None else {_METADATA: dict(metadata)}
    offset = 0
    for name, info in infos.items():
        end = offset + info.num_bytes
        header[name] = {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def library_order(infos: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Order tensors as the safetensors library does in a file: by dtype, then by name."""
    return dict(sorted(infos.items(), key=lambda item: (_WRITING_ORDER.index(item[1].dtype), item[0])))


def _metadata(found: object) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError(f"{_METADATA} must hold text only")
    return found


def _entry(name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
    """dtype, shape, first and last byte of one entry."""
    if not isinstance(entry, dict) or entry.keys() != _FIELDS:
        raise ValueError(f"{name!r} must have {', '.join(sorted(_FIELDS))}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise ValueError(f"{name!r} has dtype {dtype!r:.40}, shape {shape!r:.80}, data_offsets {offsets!r:.80}")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _are_counts(values: object) -> bool:
    if not isinstance(values, list) or len(values) > MAX_AXES:
        return False
    return all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _placed(
    content: FileContent, entries: Mapping[str, tuple[str, tuple[int, ...], int, int]], *, data_start: int
) -> dict[str, PlacedBytes]:
    """Every tensor's place, once it is certain that together they cover the file."""
    placed, position = {}, 0
    for name, (dtype, shape, first, last) in sorted(entries.items(), key=lambda item: item[1][2:]):
        info = TensorInfo(dtype=dtype, shape=shape)
        if first != position or last - first != info.num_bytes:
            raise damaged(
                content.path,
                f"tensor {name} of {info.num_bytes:,} bytes ({dtype} {list(shape)}) should lie at "
                f"{position:,}, its header says {first:,} to {last:,}",
            )
        placed[name] = PlacedBytes(
            info=info, extents=(Extent(file=content, start=data_start + first, length=last - first),)
        )
        position = last
    if data_start + position != content.size:
        raise damaged(content.path, f"its header describes {data_start + position:,} bytes")
    return placed


_VARINT, _BYTES = 0, 2  # wire types; checkpoints have no other
_MAX_VARINT_BYTES = 10
# MindSpore writes larger tensors in parts of this size.
PART_BYTES = 512 << 20
_DTYPE_OF = {theirs: name for name, theirs in MINDSPORE_NAMES.items()}
_TEXT = "str"
_CRC_MARK, _CRC_BYTES = b"crc_num", 17
# Three magic numbers, one per cipher; they differ in the first byte.
_CIPHER_MARK = b"\x5e\x3a\x7f"


class _WireError(ValueError):
    """The bytes are no such message; the reader of files adds the path."""


def _fields(content: FileContent, start: int, end: int) -> Iterator[tuple[int, int, Extent]]:
    """(number, wire type, place) of every field of a message. Of a _VARINT, `place.start` is its value."""
    position = start
    while position < end:
        key, position = _read_varint(content, position, end)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise _WireError(f"field number 0 at {position:,}")
        if kind not in (_VARINT, _BYTES):
            raise _WireError(f"wire type {kind} at {position:,}")
        value, position = _read_varint(content, position, end)
        if kind == _VARINT:
            yield number, kind, Extent(file=content, start=value, length=0)
            continue
        length = value
        if position + length > end:
            raise _WireError(f"a field of {length:,} bytes at {position:,}, where {end - position:,} are left")
        yield number, kind, Extent(file=content, start=position, length=length)
        position += length


def _varints(content: FileContent, place: Extent, *, most: int) -> list[int]:
    """The numbers of a packed repeated field, and one too many where there are more than `most`."""
    position, end, values = place.start, place.start + place.length, []
    while position < end and len(values) <= most:
        value, position = _read_varint(content, position, end)
        values.append(value)
    return values


def _varint(value: int) -> bytes:
    """A number as protobuf writes it: 7 bits a byte, low ones first."""
    assert value >= 0, f"{value} would need protobuf's signed form"
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes or text."""
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _read_varint(content: FileContent, position: int, end: int) -> tuple[int, int]:
    """The number at `position`, and the position after it."""
    value = 0
    for count, byte in enumerate(content.at_most(position, min(_MAX_VARINT_BYTES, end - position))):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if value >= 1 << 63:
                raise _WireError(f"a negative number at {position:,}")
            return value, position + count + 1
    raise _WireError(f"a number without an end at {position:,}")


def looks_like_ckpt(content: FileContent) -> bool:
    """Whether a first `value` could begin here, or an encrypted file."""
    start = content.at_most(0, 4)
    return start[:1] == b"\x0a" or start[1:] == _CIPHER_MARK


def read_ckpt(content: FileContent) -> tuple[dict[str, PlacedBytes], dict[str, str]]:
    """{name: info and place} in the file's order, and the texts beside the tensors.

    Raises WeightsError: truncated, encrypted, no checkpoint at all, a tensor in parts that contradict each other, a
    name that stands twice, an unknown dtype.
    """
    path = content.path
    if content.at_most(0, 4)[1:] == _CIPHER_MARK:
        raise WeightsError(
            f"{path}: is encrypted; load it with mindspore.load_checkpoint(..., dec_key=...) and save it"
        )
    is_marked = content.size > _CRC_BYTES and content.at(content.size - _CRC_BYTES, 7) == _CRC_MARK
    end = content.size - (_CRC_BYTES if is_marked else 0)
    parts: dict[str, list[_Part]] = {}
    before = None
    try:
        for part in _parts(content, end):
            if part.name in parts and part.name != before:
                raise _WireError(f"tensor {part.name} stands there twice")
            parts.setdefault(part.name, []).append(part)
            before = part.name
        if not parts:
            raise _WireError("it is empty")
    except _WireError as error:
        raise damaged(path, f"no MindSpore checkpoint, or not a whole one: {error}") from error
    refused = [(name, of[0].type) for name, of in parts.items() if of[0].type not in (*_DTYPE_OF, _TEXT)]
    if refused:
        raise refused_dtypes(path, refused)
    texts = {name: _text(content, of) for name, of in parts.items() if of[0].type == _TEXT}
    return {name: _joined(content, of) for name, of in parts.items() if name not in texts}, texts


def part_header(name: str, info: TensorInfo, length: int) -> bytes:
    """The bytes that stand before `length` bytes of a tensor's values."""
    return _value_header(name, info.shape, MINDSPORE_NAMES[info.dtype], length)


def text_record(name: str, text: str) -> bytes:
    """A text as MindSpore keeps it beside tensors."""
    content = text.encode("utf-32-le")
    return _value_header(name, (0,), _TEXT, len(content)) + content


def _value_header(name: str, dims: tuple[int, ...], type_name: str, length: int) -> bytes:
    tensor = (
        b"".join(b"\x08" + _varint(dim) for dim in dims) + _field(2, type_name.encode()) + b"\x1a" + _varint(length)
    )
    head = _field(1, name.encode()) + b"\x12" + _varint(len(tensor) + length) + tensor
    return b"\x0a" + _varint(len(head) + length) + head


class _Part(NamedTuple):
    """One `value`: a tensor, or part of one."""

    name: str
    type: str
    dims: tuple[int, ...]
    extent: Extent


def _parts(content: FileContent, end: int) -> Iterator[_Part]:
    for number, kind, value in _fields(content, 0, end):
        if (number, kind) != (1, _BYTES):
            raise _WireError("a field that checkpoints do not have (strategy files have the same suffix)")
        found = {number: value for number, kind, value in _fields(content, value.start, value.start + value.length)}
        if 3 in found:
            raise _WireError("it holds a map parameter (embedding cache), which is not supported")
        if 1 not in found or 2 not in found:
            raise _WireError(f"a value without name or tensor at {value.start:,}")
        yield _part(content, name=_utf8(content, found[1]), tensor=found[2])


def _part(content: FileContent, *, name: str, tensor: Extent) -> _Part:
    dims: list[int] = []
    type_name, values = None, None
    for number, kind, value in _fields(content, tensor.start, tensor.start + tensor.length):
        if number == 1:
            dims += [value.start] if kind == _VARINT else _varints(content, value, most=MAX_AXES)
        elif (number, kind) == (2, _BYTES):
            type_name = _utf8(content, value)
        elif (number, kind) == (3, _BYTES):
            values = value
        if len(dims) > MAX_AXES:
            raise _WireError(f"tensor {name} with more than {MAX_AXES} axes")
    if type_name is None or values is None:
        raise _WireError(f"tensor {name} without type or content")
    return _Part(name, type_name, tuple(dims), values)


def _utf8(content: FileContent, place: Extent) -> str:
    if place.length > 1 << 20:
        raise _WireError(f"a name of {place.length:,} bytes at {place.start:,}")
    try:
        return content.at(place.start, place.length).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _WireError(f"a name that is no UTF-8 at {place.start:,}") from error


def _joined(content: FileContent, parts: list[_Part]) -> PlacedBytes:
    """The tensor that consecutive parts make."""
    first = parts[0]
    length = sum(part.extent.length for part in parts)
    # Dims [0] with one element's bytes: what older MindSpore wrote for a scalar.
    shape = () if first.dims == (0,) and length == STORED_BITS[_DTYPE_OF[first.type]].itemsize else first.dims
    info = TensorInfo(dtype=_DTYPE_OF[first.type], shape=shape)
    if any((part.dims, part.type) != (first.dims, first.type) for part in parts) or length != info.num_bytes:
        raise damaged(
            content.path,
            f"tensor {first.name} ({first.type} {list(shape)}) has {length:,} bytes in {len(parts)} parts "
            f"instead of {info.num_bytes:,}, or its parts are of different shape or type",
        )
    return PlacedBytes(info=info, extents=tuple(part.extent for part in parts))


def _text(content: FileContent, parts: list[_Part]) -> str:
    try:
        return b"".join(content.at(part.extent.start, part.extent.length) for part in parts).decode("utf-32-le")
    except UnicodeDecodeError as error:
        raise damaged(content.path, f"text {parts[0].name} is no UTF-32") from error
