"""Reading *.jsonl and *.parquet row by row, without MindSpore.

What enters: a path. What leaves: `(where, row)` pairs, `where` being "file:line" (or "file row n" for
parquet) for messages, `row` a plain dictionary.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from mindgspo.errors import DataError

JSONL = ".jsonl"
PARQUET = ".parquet"


def check_file(path: Path) -> None:
    """Raise DataError unless `path` is a file of a known kind."""
    if not path.is_file():
        raise DataError(f"{path}: {'is a folder, expected a file' if path.is_dir() else 'no such file'}")
    if path.suffix not in (JSONL, PARQUET):
        raise DataError(f"{path}: unknown kind of file; expected *{JSONL} or *{PARQUET}")


def read_file(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Rows of a file in order. Raises DataError: not a known file, a line or file that cannot be parsed."""
    check_file(path)
    yield from _read_jsonl(path) if path.suffix == JSONL else _read_parquet(path)


def sha256_of(path: Path) -> str:
    """sha256 (hex) of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _read_jsonl(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}:{number}"
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
                raise DataError(f"{where}: not a line of JSON ({error})") from error
            if not isinstance(row, dict):
                raise DataError(f"{where}: expected a JSON object, got {type(row).__name__}")
            yield where, row


def _read_parquet(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    import pyarrow
    import pyarrow.parquet

    try:
        number = 0
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path} row {number}", row
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable parquet file ({error})") from error
