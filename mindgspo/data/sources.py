"""A data source of the configuration, opened: its identity and its rows, without MindSpore.

What enters: `DataSourceSection` and the seed. What leaves: `Source`. Called by prepare.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from mindgspo.config.rules import columns_problems
from mindgspo.data.arithmetic import generate_rows
from mindgspo.data.formats import parser_for
from mindgspo.data.formats.columns import check_schema
from mindgspo.data.formats.fields import checked_text
from mindgspo.data.source_files import PARQUET, check_file, count_rows, read_file, read_schema, sha256_of
from mindgspo.data.source_row import DroppedRow, SourceRow
from mindgspo.errors import DataError

if TYPE_CHECKING:
    from mindgspo.config.data import DataSourceSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source that exists.

    section: as configured. seed: what generated rows are drawn with; None for files, which need none.
    sha256: of the file's bytes, or of the generated rows.
    """

    section: DataSourceSection
    seed: int | None
    sha256: str

    @property
    def label(self) -> str:
        """The source for messages: its path, or the generated task's name."""
        return str(self.section.path) if self.section.path else f"arithmetic {self.section.split}"

    def parsed(self) -> Iterator[SourceRow | DroppedRow]:
        """At most `max_rows` rows in order, those left out for want of an answer among them. Raises as `rows`."""
        if self.seed is not None:
            yield from _generated(self.section, self.seed)
            return
        assert self.section.path is not None
        parse = parser_for(self.section)
        for where, row in itertools.islice(read_file(self.section.path), self.section.max_rows):
            yield parse(row, where)

    def count(self) -> int:
        """About how many rows there are; the rows need not be readable as such."""
        if self.seed is not None:
            return len(_generated(self.section, self.seed))
        assert self.section.path is not None
        rows = count_rows(self.section.path)
        return rows if self.section.max_rows is None else min(rows, self.section.max_rows)


def open_source(section: DataSourceSection, seed: int) -> Source:
    """Check that the source exists, that a parquet file has the mapped columns, and take its hash.

    Raises DataError: no such file, unknown kind of file, a path where none belongs or none where one does, columns
    missing in the section or in the file, or the format "prepared", whose folder has no raw rows.
    """
    if section.format == "prepared":
        raise DataError(f"data source {section.path}: format 'prepared' is ready for use; there is nothing to prepare")
    for problem in columns_problems("data source", section):
        raise DataError(problem)
    if section.columns is not None and section.columns.data_source is None:
        checked_text(section.columns.data_source_name, "data source.columns.data_source_name")
    if section.format == "arithmetic":
        if section.path is not None:
            raise DataError(f"data source {section.path}: format 'arithmetic' is generated and takes no path (--input)")
        return Source(section=section, seed=seed, sha256=_hash_rows(section, seed))
    if section.path is None:
        raise DataError(f"data source: format {section.format!r} needs a path (--input) to a *.jsonl or *.parquet file")
    check_file(section.path)
    if section.columns is not None and section.path.suffix == PARQUET:
        check_schema(section.path, read_schema(section.path), section.columns)
    return Source(section=section, seed=None, sha256=sha256_of(section.path))


def _generated(section: DataSourceSection, seed: int) -> list[SourceRow]:
    return generate_rows(section.split, section.max_rows, seed, section.forgotten_carries)


def _hash_rows(section: DataSourceSection, seed: int) -> str:
    rows = _generated(section, seed)
    return hashlib.sha256(json.dumps([asdict(row) for row in rows]).encode()).hexdigest()
