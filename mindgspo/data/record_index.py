"""Whether MindSpore's reader can be trusted with a MindRecord file: it follows the index and the file's header blindly.

The index is a SQLite file with a row per record: the pages that hold its raw fields and its blob, and the bytes there.
The header is JSON behind 8 bytes of length: which pages there are, of which size.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from mindgspo.errors import DataError
from mindgspo.io import parse_json

_LENGTH_BYTES = 8
_KINDS = {"RAW": "RAW_DATA", "BLOB": "BLOB_DATA"}


def check_record_file(path: Path, num_rows: int | None = None) -> None:
    """Raise DataError unless the index beside `path` places `num_rows` records (None: any number but 0) inside the
    pages of this file."""
    try:
        pages = _pages(path)
        with closing(sqlite3.connect(f"{Path(f'{path}.db').absolute().as_uri()}?mode=ro", uri=True)) as index:
            _check_index(index, path.name, pages, num_rows)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, sqlite3.Error) as error:
        raise DataError(
            f"{path}: damaged ({error}); copy it and {path.name}.db again, or prepare again with --force"
        ) from error


def num_records(path: Path) -> int:
    """Rows of the file. Raises DataError where its index cannot be read."""
    try:
        with closing(sqlite3.connect(f"{Path(f'{path}.db').absolute().as_uri()}?mode=ro", uri=True)) as index:
            return int(index.execute("SELECT COUNT(*) FROM INDEXES").fetchone()[0])
    except (TypeError, ValueError, sqlite3.Error) as error:
        raise DataError(f"{path}: damaged ({error}); copy it and {path.name}.db again") from error


def _pages(path: Path) -> dict[tuple[str, int], int]:
    """{(kind, page): bytes in use} as the header says, all of them within the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 0 < length <= size - _LENGTH_BYTES:
            raise ValueError(f"its header would have {length:,} bytes")
        header: dict[str, Any] = parse_json(file.read(length))
    header_size, page_size = header["header_size"], header["page_size"]
    if type(header_size) is not int or type(page_size) is not int or header_size < length or page_size <= 0:
        raise ValueError("its header states impossible sizes")
    used = {}
    for page in header["page"]:
        number, bytes_used = page["page_id"], page["page_size"]
        if type(number) is not int or type(bytes_used) is not int or not 0 <= bytes_used <= page_size:
            raise ValueError("its header states impossible pages")
        if number < 0 or header_size + number * page_size + bytes_used > size:
            raise ValueError(f"page {number} ends beyond the file")
        used[page["page_type"], number] = bytes_used
    return used


def _check_index(index: sqlite3.Connection, name: str, pages: dict[tuple[str, int], int], num_rows: int | None) -> None:
    problem = index.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise ValueError(f"its index: {problem}")
    names = index.execute("SELECT NAME FROM SHARD_NAME").fetchall()
    if names != [(name,)]:
        raise ValueError("its index is another file's")
    found = index.execute("SELECT COUNT(*), COUNT(DISTINCT ROW_ID), MIN(ROW_ID), MAX(ROW_ID) FROM INDEXES").fetchone()
    if num_rows is not None and found[0] != num_rows:
        raise ValueError(f"its index holds {found[0]} rows, dataset.json says {num_rows}")
    if found[0] == 0 or found != (found[0], found[0], 0, found[0] - 1):
        raise ValueError(f"its index of {found[0]} rows has none, gaps or repetitions")
    for kind, page_type in _KINDS.items():
        start, end = f"PAGE_OFFSET_{kind}", f"PAGE_OFFSET_{kind}_END"
        rows = index.execute(
            f"SELECT PAGE_ID_{kind}, MIN({start}), MIN({end} - {start}), MAX({end}), "
            f"MIN(TYPEOF({start}) || TYPEOF({end})), MAX(TYPEOF({start}) || TYPEOF({end})) "
            f"FROM INDEXES GROUP BY PAGE_ID_{kind}"
        )
        for page, first, shortest, last, *types in rows:
            bytes_used = pages.get((page_type, page), -1)
            if types != ["integerinteger"] * 2 or first < 0 or shortest < 0 or last > bytes_used:
                raise ValueError("its index places rows outside of the file's pages")
