"""Protobuf's wire format, as far as MindSpore's checkpoints use it, read from a file without loading it.

What enters: a stretch of an open file. What leaves: its fields, with the place of what is long. Called by
`ckpt_format`.
"""

from __future__ import annotations

from collections.abc import Iterator

from mindgspo.tensor_files.extents import Extent, FileContent

VARINT, _FIXED64, BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


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
