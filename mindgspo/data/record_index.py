"""Checks a MindRecord file before MindSpore reads it, because its reader trusts index, header and rows, and a damaged
file would crash the process.

The file begins with 8 bytes of length and a header in JSON: columns and pages. A page holds the single values of rows,
each row a MessagePack map, or their arrays of integers. The index, a SQLite file beside it, has a row per record: the
two pages and the bytes there. Lengths are little-endian in front of a row, big-endian inside of it.
"""

from __future__ import annotations

import mmap
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mindgspo.errors import DataError
from mindgspo.io import parse_json

_LENGTH_BYTES = 8
_PAGE_TYPES = {"RAW": "RAW_DATA", "BLOB": "BLOB_DATA"}
_INTEGERS = ("int32", "int64")
_NO_VALUES = {"id": "int64"}  # what a row without single values holds instead


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """Facts that the header of a MindRecord file states."""

    values: Mapping[str, str]
    """Type of every column of single values."""
    arrays: tuple[int, ...]
    """Length of the arrays of every other column, in the order of the file; -1: any length."""
    first_page: int
    page_size: int
    used: Mapping[tuple[str, int], int]
    """Bytes in use of every page, by (type, number)."""
    groups: frozenset[tuple[int, int]]
    """(page of arrays, group of rows): MindSpore writes a page of arrays per group, and pages of single values name the
    groups that start in them."""


def check_record_file(path: Path, num_rows: int | None = None) -> None:
    """Raise DataError unless `path` and the index beside it are a whole file of `num_rows` records (None: any number
    but 0), whose columns are texts, integers and arrays of integers."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            header = _read_header(content)
            with closing(_open_index(path)) as index:
                _check_index(index, path.name, header, num_rows)
                for row, raw, blob in _rows(index, content, header):
                    if not (_is_raw(raw, header.values) and _is_blob(blob, header.arrays)):
                        raise ValueError(f"row {row} is not what the header says")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, sqlite3.Error) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{path}: damaged ({reason}); copy it and {path.name}.db again, or prepare again with --force"
        ) from error


def num_records(path: Path) -> int:
    """Rows of the file. Raises DataError if its index cannot be read."""
    try:
        with closing(_open_index(path)) as index:
            return int(index.execute("SELECT COUNT(*) FROM INDEXES").fetchone()[0])
    except (TypeError, ValueError, sqlite3.Error) as error:
        raise DataError(f"{path}: damaged ({error}); copy it and {path.name}.db again") from error


def _open_index(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{Path(f'{path}.db').absolute().as_uri()}?mode=ro", uri=True)


def _read_header(content: mmap.mmap) -> _Header:
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    if not 0 < length <= len(content) - _LENGTH_BYTES:
        raise ValueError(f"its header would have {length:,} bytes")
    header: dict[str, Any] = parse_json(content[_LENGTH_BYTES : _LENGTH_BYTES + length])
    first_page, page_size = header["header_size"], header["page_size"]
    if type(first_page) is not int or type(page_size) is not int or first_page < length or page_size <= 0:
        raise ValueError("its header states impossible sizes")
    used, blob_pages, groups = {}, set(), set()
    for page in header["page"]:
        number, bytes_used = page["page_id"], page["page_size"]
        if type(number) is not int or type(bytes_used) is not int or number < 0 or not 0 <= bytes_used <= page_size:
            raise ValueError("its header states impossible pages")
        if first_page + number * page_size + bytes_used > len(content):
            raise ValueError(f"page {number} ends beyond the file")
        used[page["page_type"], number] = bytes_used
        if page["page_type"] == _PAGE_TYPES["BLOB"]:
            blob_pages.add((number, page["page_type_id"]))
        else:
            groups |= {group["id"] for group in page["row_group_ids"]}
    (schema,) = header["schema"]
    columns, blobs = schema["schema"], schema["blob_fields"]
    arrays = tuple(_array_length(columns[name]) for name in blobs)
    values = {name: column["type"] for name, column in columns.items() if name not in blobs}
    if any(set(columns[name]) != {"type"} or kind not in ("string", *_INTEGERS) for name, kind in values.items()):
        raise ValueError(f"its columns {', '.join(values)} are not all of texts and integers")
    return _Header(
        values=values or _NO_VALUES,
        arrays=arrays,
        first_page=first_page,
        page_size=page_size,
        used=used,
        groups=frozenset((number, group) for number, group in blob_pages if group in groups),
    )


def _array_length(column: Mapping[str, Any]) -> int:
    (length,) = column["shape"]
    if column["type"] not in _INTEGERS or type(length) is not int or length < -1:
        raise ValueError("it has arrays of something else than integers, or of more than one axis")
    return length


def _check_index(index: sqlite3.Connection, name: str, header: _Header, num_rows: int | None) -> None:
    problem = index.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise ValueError(f"its index: {problem}")
    if index.execute("SELECT NAME FROM SHARD_NAME").fetchall() != [(name,)]:
        raise ValueError("its index is another file's")
    found = index.execute("SELECT COUNT(*), COUNT(DISTINCT ROW_ID), MIN(ROW_ID), MAX(ROW_ID) FROM INDEXES").fetchone()
    if num_rows is not None and found[0] != num_rows:
        raise ValueError(f"its index holds {found[0]} rows, dataset.json says {num_rows}")
    if found[0] == 0 or found != (found[0], found[0], 0, found[0] - 1):
        raise ValueError(f"its index of {found[0]} rows has none, gaps or repetitions")
    if not set(index.execute("SELECT DISTINCT PAGE_ID_BLOB, ROW_GROUP_ID FROM INDEXES")) <= header.groups:
        raise ValueError("its index places rows in groups that its header does not name")
    for kind, page_type in _PAGE_TYPES.items():
        start, end = f"PAGE_OFFSET_{kind}", f"PAGE_OFFSET_{kind}_END"
        pages = index.execute(
            f"SELECT PAGE_ID_{kind}, MIN({start}), MIN({end} - {start}), MAX({end}), "
            f"MIN(TYPEOF({start}) || TYPEOF({end})), MAX(TYPEOF({start}) || TYPEOF({end})) "
            f"FROM INDEXES GROUP BY PAGE_ID_{kind}"
        )
        for page, first, shortest, last, *types in pages:
            used = header.used.get((page_type, page), -1)
            if types != ["integerinteger"] * 2 or first < 0 or shortest < 0 or last > used:
                raise ValueError("its index places rows outside of the file's pages")


def _rows(index: sqlite3.Connection, content: mmap.mmap, header: _Header) -> Iterator[tuple[int, bytes, bytes]]:
    """(number, single values, arrays) of every row, without the lengths in front of them."""
    columns = ", ".join(f"PAGE_ID_{kind}, PAGE_OFFSET_{kind}, PAGE_OFFSET_{kind}_END" for kind in _PAGE_TYPES)
    for row, *places in index.execute(f"SELECT ROW_ID, {columns} FROM INDEXES"):
        pieces = []
        for page, start, end in (places[:3], places[3:]):
            offset = header.first_page + page * header.page_size
            piece = content[offset + start : offset + end]
            if int.from_bytes(piece[:_LENGTH_BYTES], "little") != len(piece) - _LENGTH_BYTES:
                raise ValueError(f"row {row} has another length than its index says")
            pieces.append(piece[_LENGTH_BYTES:])
        yield row, *pieces


def _is_blob(blob: bytes, lengths: tuple[int, ...]) -> bool:
    """Whether these are arrays of these lengths; each has its number of bytes in front, unless it is the only one."""
    if len(lengths) == 1:
        return _is_array(blob, lengths[0])
    for length in lengths:
        size = int.from_bytes(blob[:_LENGTH_BYTES], "big")
        if not _is_array(blob[_LENGTH_BYTES : _LENGTH_BYTES + size], length):
            return False
        blob = blob[_LENGTH_BYTES + size :]
    return not blob


def _is_array(content: bytes, length: int) -> bool:
    """Whether this is a packed array: 4 bytes with its length, then two bits per number with the logarithm of its
    size, then the numbers in 1, 2, 4 or 8 bytes."""
    count = int.from_bytes(content[:4], "big")
    start = 4 + (count + 3) // 4
    if len(content) < start or length not in (-1, count):
        return False
    bits = np.frombuffer(content[4:start], np.uint8)[:, None] >> np.array([6, 4, 2, 0], np.uint8) & 3
    return start + int((1 << bits.reshape(-1)[:count].astype(np.int64)).sum()) == len(content)


def _is_raw(content: bytes, types: Mapping[str, str]) -> bool:
    """Whether this is a MessagePack map of exactly these texts and integers."""
    if not content or content[0] != _SMALL_MAP + len(types):
        return False
    position, names = 1, set()
    for _ in types:
        name, position = _text(content, position)
        names.add(name)
        if types.get(name) == "string":
            _, position = _text(content, position)
        else:
            position = _integer_end(content, position)
    return names == set(types) and position == len(content)


_SMALL_MAP, _SMALL_TEXT, _TEXT_SIZES = 0x80, 0xA0, {0xD9: 1, 0xDA: 2, 0xDB: 4}
_INTEGER_SIZES = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}


def _text(content: bytes, position: int) -> tuple[str, int]:
    """The text there, and where it ends."""
    head = content[position]
    start = position + 1
    if _SMALL_TEXT <= head < _SMALL_TEXT + 32:
        end = start + head - _SMALL_TEXT
    else:
        size = _TEXT_SIZES[head]
        end = start + size + int.from_bytes(content[start : start + size], "big")
        start += size
    if end > len(content):
        raise ValueError("a text ends beyond its row")
    return content[start:end].decode(), end


def _integer_end(content: bytes, position: int) -> int:
    head = content[position]
    return position + 1 + (0 if head < 0x80 or head >= 0xE0 else _INTEGER_SIZES[head])
