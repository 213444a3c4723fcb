"""Data sources: *.jsonl and *.parquet files row by row, and the generated task. MindSpore is not imported.

Rows come with their place, "file:line" or "file row n", for messages.
"""

from __future__ import annotations

import codecs
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mindgspo.config.rules import source_problems
from mindgspo.data.arithmetic import generate_rows
from mindgspo.data.formats import check_schema, parser_for
from mindgspo.data.mindrlhf import read_mindrlhf
from mindgspo.data.record_index import num_records
from mindgspo.data.source_rows import DroppedRow, SourceRow, checked_text
from mindgspo.errors import DataError
from mindgspo.io import check_is_fetched, parse_json, read_lines
from mindgspo.text import hub_hint
from mindgspo.tokenization import Tokenizer

if TYPE_CHECKING:
    import pyarrow

    from mindgspo.config.data import DataSourceSection

# A file of some KB can hold rows of some GB, each the same long text: few are unpacked at a time.
_ROWS_PER_BATCH, _MOST_BATCH_BYTES = 64, 256 << 20
JSONL = ".jsonl"
PARQUET = ".parquet"
_FROM_LIST = " (a JSON list becomes a file of lines by `jq -c '.[]' rows.json > rows.jsonl`)"

_FROM_TABLE = " (`mindgspo init --data FILE` reads tables and writes such a file)"


def check_source_file(path: Path) -> None:
    """Raise DataError unless `path` is a file of a known kind."""
    if not path.is_file():
        what = "is a folder, expected a file" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {what}{'' if path.suffix in (JSONL, PARQUET) else hub_hint(path, is_data=True)}")
    if path.suffix not in (JSONL, PARQUET):
        hint = _FROM_LIST if path.suffix == ".json" else _FROM_TABLE if path.suffix in (".csv", ".tsv") else ""
        raise DataError(f"{path}: unknown kind of file; expected *{JSONL} or *{PARQUET}{hint}")
    with path.open("rb") as file:
        check_is_fetched(path, file.read(64), DataError)


def read_file(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Rows of a file in order. Raises DataError: not a known file, a line or file that cannot be parsed."""
    check_source_file(path)
    yield from _read_jsonl(path) if path.suffix == JSONL else _read_parquet(path)


def read_schema(path: Path) -> pyarrow.Schema:
    """The columns of a parquet file. Raises DataError if it is none."""
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_schema(path)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable parquet file ({error})") from error


def count_rows(path: Path) -> int:
    """Number of rows of a readable file, for a progress bar: of jsonl, blank lines count as well."""
    if path.suffix == PARQUET:
        import pyarrow.parquet

        return pyarrow.parquet.read_metadata(path).num_rows
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def sha256_of(path: Path) -> str:
    """sha256 (hex) of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _read_jsonl(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    for number, line in read_lines(path, DataError):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        row = _parsed(line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").rstrip(b"\r\n"), where)
        if not isinstance(row, dict):
            hint = _FROM_LIST if isinstance(row, list) else ""
            raise DataError(f"{where}: expected a JSON object, got {type(row).__name__}{hint}")
        yield where, row


def _parsed(line: bytes, where: str) -> object:
    try:
        return parse_json(line)
    except ValueError as error:
        raise DataError(f"{where}: {error}{_FROM_LIST if line.strip() == b'[' else ''}") from error


def _read_parquet(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    import pyarrow
    import pyarrow.parquet

    try:
        number = 0
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in map(_plain, file.iter_batches(batch_size=_ROWS_PER_BATCH)):
                rows = f"{path} rows {number + 1} to {number + batch.num_rows}"
                if batch.nbytes > _MOST_BATCH_BYTES:
                    raise DataError(f"{rows}: more than {_MOST_BATCH_BYTES:,} bytes; remove the longest")
                try:
                    values = batch.to_pylist()
                except (ValueError, OverflowError) as error:  # text that is not UTF-8, parts of a microsecond
                    raise DataError(f"{rows}: a value that cannot be read ({error})") from error
                for row in values:
                    number += 1
                    yield f"{path} row {number}", row
    except (pyarrow.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:  # the last: of column names
        raise DataError(f"{path}: not a readable parquet file ({error or 'too large'})") from error


def _plain(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """The batch with the values of its dictionaries written out, so that its size is that of its rows; times as text,
    for Python has no nanoseconds and no year 10000; and float32 as the float64 of the same shortest decimals."""
    import pyarrow
    from pyarrow import types

    columns = []
    for column in batch.columns:
        plain = column.dictionary_decode() if types.is_dictionary(column.type) else column
        as_text = _plain_type(plain.type, pyarrow.string())
        if as_text != plain.type:
            plain = plain.cast(as_text).cast(_plain_type(plain.type, pyarrow.float64()))
        columns.append(plain)
    return pyarrow.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _plain_type(kind: pyarrow.DataType, floats: pyarrow.DataType) -> pyarrow.DataType:
    """The type with text in place of times, and `floats` in place of float32, also inside."""
    import pyarrow
    from pyarrow import types

    if types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind):
        return pyarrow.string()
    if types.is_float32(kind):
        return floats
    if types.is_struct(kind):
        return pyarrow.struct([one.with_type(_plain_type(one.type, floats)) for one in kind])
    if types.is_map(kind):
        return pyarrow.map_(_plain_type(kind.key_type, floats), _plain_type(kind.item_type, floats))
    if types.is_list(kind) or types.is_large_list(kind):
        build = pyarrow.list_ if types.is_list(kind) else pyarrow.large_list
        return build(kind.value_field.with_type(_plain_type(kind.value_type, floats)))
    return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source that exists; made by `open_source`."""

    section: DataSourceSection
    """Section of the configuration."""
    seed: int | None
    """Seed of generated rows; None for files."""
    sha256: str
    """Digest of the file's bytes, or of the generated rows."""
    _rows: Callable[[], Iterable[SourceRow | DroppedRow]] = field(compare=False, repr=False)
    _count: Callable[[], int] = field(compare=False, repr=False)

    @property
    def label(self) -> str:
        """The source for messages: its path, or the generated task's name."""
        return str(self.section.path) if self.section.path else f"arithmetic {self.section.split}"

    def parsed(self) -> Iterator[SourceRow | DroppedRow]:
        """At most `max_rows` rows in order, including those left out because they lack an answer. Raises like
        `read_file`."""
        return itertools.islice(self._rows(), self.section.max_rows)

    def count(self) -> int:
        """About how many rows there are; the rows need not be readable as such."""
        rows, most = self._count(), self.section.max_rows
        return rows if most is None else min(rows, most)


def open_source(section: DataSourceSection, seed: int, tokenizer: Tokenizer | None = None) -> Source:
    """Check that the source exists, that a parquet file has the mapped columns, and take its hash. tokenizer: for the
    format mindrlhf, whose rows are ids.

    Raises DataError: no such file, unknown kind of file, a path where none belongs or none if one does, columns
    missing in the section or in the file, or the format "prepared", whose folder has no raw rows.
    """
    if section.format == "prepared":
        raise DataError(f"data source {section.path}: format 'prepared' is ready for use; there is nothing to prepare")
    for problem in source_problems("data source", section):
        raise DataError(problem)
    if section.columns is not None and section.columns.data_source is None:
        checked_text(section.columns.data_source_name, "data source.columns.data_source_name")
    path = section.path
    if section.format == "arithmetic":
        if path is not None:
            raise DataError(f"data source {path}: format 'arithmetic' is generated and takes no path (--input)")
        rows = generate_rows(section.split, section.max_rows, seed, section.forgotten_carries, section.operation)
        digest = hashlib.sha256(json.dumps([asdict(row) for row in rows]).encode()).hexdigest()
        return Source(section=section, seed=seed, sha256=digest, _rows=lambda: rows, _count=lambda: len(rows))
    if path is None:
        raise DataError(f"data source: format {section.format!r} needs a path (--input) to a *.jsonl or *.parquet file")
    read, count = _readers(section, path, tokenizer)
    return Source(section=section, seed=None, sha256=sha256_of(path), _rows=read, _count=count)


def _readers(
    section: DataSourceSection, path: Path, tokenizer: Tokenizer | None
) -> tuple[Callable[[], Iterable[SourceRow | DroppedRow]], Callable[[], int]]:
    """Functions that read the rows of a file, and that count them."""
    if section.format == "mindrlhf":
        if not path.is_file():
            raise DataError(f"{path}: no such file; MindRLHF's --output_path is a file with a *.db beside it")
        assert tokenizer is not None, "rows of ids need a tokenizer"
        return partial(read_mindrlhf, path, tokenizer), partial(num_records, path)
    check_source_file(path)
    if section.columns is not None and path.suffix == PARQUET:
        check_schema(path, read_schema(path), section.columns)
    parse = parser_for(section)
    return lambda: (parse(row, where) for where, row in read_file(path)), partial(count_rows, path)
