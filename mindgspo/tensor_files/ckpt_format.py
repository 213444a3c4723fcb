"""MindSpore's checkpoint files (`*.ckpt`): where each tensor lies in the protobuf, and the bytes around tensors.

Values are never parsed, so a file may have any size:

    repeated value = 1 { tag = 1 (string), tensor = 2 { dims = 1 (repeated int64), type = 2, content = 3 } }

Parts of a large tensor follow each other under one tag, each with the dims of the whole. Text that MindSpore keeps
beside tensors has type `str` and UTF-32 content; here it is metadata. A trailing CRC is passed over, as
`mindspore.load_checkpoint` does; encrypted files are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from mindgspo.errors import WeightsError
from mindgspo.tensor_files.file_bytes import Extent, FileContent, PlacedBytes, damaged, refused_dtypes
from mindgspo.tensor_files.tensors import MAX_AXES, STORED_BITS, TensorInfo

VARINT, _FIXED64, BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
# MindSpore writes larger tensors in parts of this size.
PART_BYTES = 512 << 20
_TYPES: Mapping[str, str] = {
    "Float64": "F64",
    "Float32": "F32",
    "Float16": "F16",
    "BFloat16": "BF16",
    "Int64": "I64",
    "UInt64": "U64",
    "Int32": "I32",
    "UInt32": "U32",
    "Int16": "I16",
    "UInt16": "U16",
    "Int8": "I8",
    "UInt8": "U8",
    "Bool": "BOOL",
}
_TYPE_OF = {dtype: name for name, dtype in _TYPES.items()}
_TEXT = "str"
_CRC_MARK, _CRC_BYTES = b"crc_num", 17
# Three magic numbers, one per cipher; they differ in the first byte.
_CIPHER_MARK = b"\x5e\x3a\x7f"


class WireError(ValueError):
    """The bytes are no such message; the reader of files adds the path."""


def fields(content: FileContent, start: int, end: int) -> Iterator[tuple[int, int, Extent]]:
    """(number, wire type, place) of every field of a message. Of a VARINT, `place.start` is its value."""
    position = start
    while position < end:
        key, position = _read_varint(content, position, end)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise WireError(f"field number 0 at {position:,}")
        if kind == VARINT:
            value, position = _read_varint(content, position, end)
            yield number, kind, Extent(start=value, length=0)
            continue
        if kind == BYTES:
            length, position = _read_varint(content, position, end)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise WireError(f"wire type {kind} at {position:,}")
        if position + length > end:
            raise WireError(f"a field of {length:,} bytes at {position:,}, where {end - position:,} are left")
        yield number, kind, Extent(start=position, length=length)
        position += length


def varints_of(content: FileContent, place: Extent, *, most: int) -> list[int]:
    """The numbers of a packed repeated field, and one too many where there are more than `most`."""
    position, end, values = place.start, place.start + place.length, []
    while position < end and len(values) <= most:
        value, position = _read_varint(content, position, end)
        values.append(value)
    return values


def varint(value: int) -> bytes:
    """A number as protobuf writes it: 7 bits a byte, low ones first."""
    assert value >= 0, f"{value} would need protobuf's signed form"
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def field(number: int, content: bytes) -> bytes:
    """A field of bytes or text."""
    return varint(number << 3 | BYTES) + varint(len(content)) + content


def _read_varint(content: FileContent, position: int, end: int) -> tuple[int, int]:
    """The number at `position`, and the position behind it."""
    value = 0
    for count, byte in enumerate(content.at_most(position, min(_MAX_VARINT_BYTES, end - position))):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if value >= 1 << 63:
                raise WireError(f"a negative number at {position:,}")
            return value, position + count + 1
    raise WireError(f"a number without an end at {position:,}")


def looks_like_ckpt(content: FileContent) -> bool:
    """Whether a first `value` could begin here, or an encrypted file."""
    start = content.at_most(0, 4)
    return start[:1] == b"\x0a" or start[1:] == _CIPHER_MARK


def read_ckpt(path: Path, content: FileContent) -> tuple[dict[str, PlacedBytes], dict[str, str]]:
    """{name: info and place} in the file's order, and the texts beside the tensors.

    Raises WeightsError: truncated, encrypted, no checkpoint at all, a tensor in parts that contradict each other, a
    name that stands twice, an unknown dtype.
    """
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
                raise WireError(f"tensor {part.name} stands there twice")
            parts.setdefault(part.name, []).append(part)
            before = part.name
        if not parts:
            raise WireError("it is empty")
    except WireError as error:
        raise damaged(path, f"no MindSpore checkpoint, or not a whole one: {error}") from error
    refused = [(name, of[0].type) for name, of in parts.items() if of[0].type not in (*_TYPES, _TEXT)]
    if refused:
        raise refused_dtypes(path, refused)
    texts = {name: _text(path, of, content) for name, of in parts.items() if of[0].type == _TEXT}
    return {name: _joined(path, of) for name, of in parts.items() if name not in texts}, texts


def part_header(name: str, info: TensorInfo, length: int) -> bytes:
    """The bytes that stand before `length` bytes of a tensor's values."""
    return _value_header(name, info.shape, _TYPE_OF[info.dtype], length)


def text_record(name: str, text: str) -> bytes:
    """A text as MindSpore keeps it beside tensors."""
    content = text.encode("utf-32-le")
    return _value_header(name, (0,), _TEXT, len(content)) + content


def _value_header(name: str, dims: tuple[int, ...], type_name: str, length: int) -> bytes:
    tensor = b"".join(b"\x08" + varint(dim) for dim in dims) + field(2, type_name.encode()) + b"\x1a" + varint(length)
    head = field(1, name.encode()) + b"\x12" + varint(len(tensor) + length) + tensor
    return b"\x0a" + varint(len(head) + length) + head


class _Part:
    """One `value`: a tensor, or part of one."""

    __slots__ = ("dims", "extent", "name", "type")

    def __init__(self, name: str, type_name: str, dims: tuple[int, ...], extent: Extent) -> None:
        self.name, self.type, self.dims, self.extent = name, type_name, dims, extent


def _parts(content: FileContent, end: int) -> Iterator[_Part]:
    for number, kind, value in fields(content, 0, end):
        if (number, kind) != (1, BYTES):
            raise WireError("a field that checkpoints do not have (strategy files have the same suffix)")
        found = {number: value for number, kind, value in fields(content, value.start, value.start + value.length)}
        if 3 in found:
            raise WireError("it holds a map parameter (embedding cache), which is not supported")
        if 1 not in found or 2 not in found:
            raise WireError(f"a value without name or tensor at {value.start:,}")
        yield _part(content, name=_utf8(content, found[1]), tensor=found[2])


def _part(content: FileContent, *, name: str, tensor: Extent) -> _Part:
    dims: list[int] = []
    type_name, values = None, None
    for number, kind, value in fields(content, tensor.start, tensor.start + tensor.length):
        if number == 1:
            dims += [value.start] if kind == VARINT else varints_of(content, value, most=MAX_AXES)
        elif (number, kind) == (2, BYTES):
            type_name = _utf8(content, value)
        elif (number, kind) == (3, BYTES):
            values = value
        if len(dims) > MAX_AXES:
            raise WireError(f"tensor {name} with more than {MAX_AXES} axes")
    if type_name is None or values is None:
        raise WireError(f"tensor {name} without type or content")
    return _Part(name, type_name, tuple(dims), values)


def _utf8(content: FileContent, place: Extent) -> str:
    if place.length > 1 << 20:
        raise WireError(f"a name of {place.length:,} bytes at {place.start:,}")
    try:
        return content.at(place.start, place.length).decode("utf-8")
    except UnicodeDecodeError as error:
        raise WireError(f"a name that is no UTF-8 at {place.start:,}") from error


def _joined(path: Path, parts: list[_Part]) -> PlacedBytes:
    """The tensor that consecutive parts make."""
    first = parts[0]
    length = sum(part.extent.length for part in parts)
    # Dims [0] with one element's bytes: what older MindSpore wrote for a scalar.
    shape = () if first.dims == (0,) and length == STORED_BITS[_TYPES[first.type]].itemsize else first.dims
    info = TensorInfo(dtype=_TYPES[first.type], shape=shape)
    if any((part.dims, part.type) != (first.dims, first.type) for part in parts) or length != info.num_bytes:
        raise damaged(
            path,
            f"tensor {first.name} ({first.type} {list(shape)}) has {length:,} bytes in {len(parts)} parts "
            f"instead of {info.num_bytes:,}, or its parts are of different shape or type",
        )
    return PlacedBytes(info=info, extents=tuple(part.extent for part in parts))


def _text(path: Path, parts: list[_Part], content: FileContent) -> str:
    try:
        return b"".join(content.at(part.extent.start, part.extent.length) for part in parts).decode("utf-32-le")
    except UnicodeDecodeError as error:
        raise damaged(path, f"text {parts[0].name} is no UTF-32") from error
