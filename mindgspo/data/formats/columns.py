"""Rows of any file, by a table that says which column holds what.

A name may be dotted, reward_model.ground_truth, to reach into nested columns; a column whose own name has the dots goes
before. Called by `open_source` (a parquet file's schema, before any row is read) and for every row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mindgspo.data.formats.fields import answer_text, asks, checked_text, json_object, messages_of, optional_text
from mindgspo.data.source_row import SourceRow
from mindgspo.errors import DataError
from mindgspo.text import did_you_mean

if TYPE_CHECKING:
    import pyarrow

    from mindgspo.config.data import ColumnsSection


def parse_columns(columns: ColumnsSection, row: Mapping[str, object], where: str) -> SourceRow:
    """The row as `columns` reads it; the keys of extra_info are the names as they are written there."""
    found = {key: _value(row, name, key, where) for key, name in _mapped(columns)}
    extra = {name: _value(row, name, "extra_info", where) for name in columns.extra_info}
    prompt = found["prompt"]
    place = f"{where}: {columns.prompt}"
    if columns.data_source is None:
        assert columns.data_source_name is not None, "the section has been checked"
        data_source = columns.data_source_name
    else:
        data_source = checked_text(found["data_source"], f"{where}: {columns.data_source}")
    return SourceRow(
        where=where,
        messages=asks(checked_text(prompt, place)) if isinstance(prompt, str) else messages_of(prompt, place),
        answer=answer_text(found["answer"], f"{where}: {columns.answer}"),
        solution=optional_text(found.get("solution"), f"{where}: {columns.solution}"),
        data_source=data_source,
        extra_info=json_object(extra, f"{where}: extra_info"),
    )


def check_schema(path: Path, schema: pyarrow.Schema, columns: ColumnsSection) -> None:
    """Raise DataError for the first mapped column that the parquet file's schema lacks."""
    known = [name for field in schema for name in _schema_names(field, "")]
    wanted = [*_mapped(columns), *(("extra_info", name) for name in columns.extra_info)]
    for key, name in wanted:
        if name not in known:
            raise DataError(_no_such_column(str(path), key, name, known))


def _mapped(columns: ColumnsSection) -> list[tuple[str, str]]:
    """(key of the section, column) of the single columns that are set."""
    names = {key: getattr(columns, key) for key in ("prompt", "answer", "solution", "data_source")}
    return [(key, name) for key, name in names.items() if name is not None]


def _value(row: Mapping[str, object], name: str, key: str, where: str) -> object:
    if name in row:
        return row[name]
    value: object = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise DataError(_no_such_column(where, key, name, list(_row_names(row, ""))))
        value = value[part]
    return value


def _no_such_column(where: str, key: str, name: str, known: list[str]) -> str:
    hint = did_you_mean(name, known)
    return f"{where}: columns.{key}: there is no column {name!r}{hint} (there are: {', '.join(known) or 'none'})"


def _row_names(row: Mapping[str, object], prefix: str) -> Iterator[str]:
    for name, value in row.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _row_names(value, f"{prefix}{name}.")


def _schema_names(field: pyarrow.Field, prefix: str) -> Iterator[str]:
    import pyarrow

    yield f"{prefix}{field.name}"
    if pyarrow.types.is_struct(field.type):
        for i in range(field.type.num_fields):
            yield from _schema_names(field.type.field(i), f"{prefix}{field.name}.")
