"""The rows of a user's file: read from four kinds of file, told apart, and held out where no file for it is given."""

from __future__ import annotations

import csv
import hashlib
import heapq
import json
import random
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mindgspo.config.data import ColumnsSection, DataSourceSection
from mindgspo.config.reward import RewardSection
from mindgspo.data.benchmarks import format_of_row
from mindgspo.data.formats import Parser, parser_for
from mindgspo.data.source_rows import DroppedRow, SourceRow, json_object
from mindgspo.data.sources import JSONL, PARQUET, read_file
from mindgspo.errors import DataError
from mindgspo.io import MOST_LINE_BYTES, atomic_file, make_folder, parse_json, read_bytes, read_lines
from mindgspo.rewards.registry import build_function, gold_is_readable
from mindgspo.setup.columns import find_columns
from mindgspo.text import listed

AS_THEY_ARE = (JSONL, PARQUET)
"""Kinds of file that a run reads itself."""
READERS = ("gsm8k", "multiple_choice", "math")
"""Reward functions that may read gold answers of a user's rows, the most particular first."""
_KINDS = (*AS_THEY_ARE, ".json", ".csv", ".tsv")
_FIRST_ROWS, _MOST_MEASURED = 50, 500
_MOST_UNUSABLE = 0.1
_HELD_OUT_SHARE, _MOST_HELD_OUT = 10, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAccount:
    """What a file holds. source: how a run reads it. keys: prompt_key of the usable rows in order, None for the others;
    problem: what is wrong with the first of those, "" where there is none. measured: some of the usable rows.
    readable: of rows in columns of their own, how many gold answers each of `READERS` can read."""

    source: DataSourceSection
    keys: tuple[str | None, ...]
    problem: str
    measured: tuple[SourceRow, ...]
    readable: Mapping[str, int]

    @property
    def path(self) -> Path:
        """Of the file."""
        assert self.source.path is not None
        return self.source.path

    @property
    def prompts(self) -> frozenset[str]:
        """Keys of the usable rows."""
        return frozenset(key for key in self.keys if key is not None)

    def num_with(self, prompts: frozenset[str]) -> int:
        """Rows whose prompts are among these."""
        return sum(key in prompts for key in self.keys)

    @property
    def num_rows(self) -> int:
        """Usable rows."""
        return len(self.keys) - self.num_unusable

    @property
    def num_unusable(self) -> int:
        """The others."""
        return self.keys.count(None)


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """(place, row) of a *.jsonl, *.parquet, *.json, *.csv or *.tsv file. Raises DataError."""
    kind = path.suffix.lower()
    if not path.is_file():
        raise DataError(f"{path}: {'is a folder, expected a file' if path.is_dir() else 'no such file'}")
    if kind not in _KINDS:
        raise DataError(f"{path}: unknown kind of file; expected *{', *'.join(_KINDS)}")
    if path.suffix in AS_THEY_ARE:
        yield from read_file(path)
    elif kind == ".json":
        yield from _read_json(path)
    else:
        yield from _read_csv(path, delimiter="\t" if kind == ".tsv" else ",")


def _read_json(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    try:
        rows = parse_json(read_bytes(path))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}") from error
    if isinstance(rows, dict):  # {"data": [...]}
        lists = [value for value in rows.values() if isinstance(value, list)]
        rows = lists[0] if len(lists) == 1 else rows
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a list of rows, got {type(rows).__name__}")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise DataError(f"{path} row {number}: expected a JSON object, got {type(row).__name__}")
        yield f"{path} row {number}", row


def _read_csv(path: Path, *, delimiter: str) -> Iterator[tuple[str, dict[str, object]]]:
    csv.field_size_limit(MOST_LINE_BYTES)
    lines = (
        line.removeprefix(BOM_UTF8 if number == 1 else b"").decode() for number, line in read_lines(path, DataError)
    )
    reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
    try:
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if None in row or None in row.values():
                number = len(reader.fieldnames or ())
                raise DataError(f"{where}: has not the {number} fields that the first line names")
            yield where, dict(row)
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: line {reader.line_num + 1}: not readable as CSV ({error})") from error


def take_account(path: Path, *, question: str | None, answer: str | None, keeps_others: bool) -> RowAccount:
    """Reads all rows. question, answer: columns, where the user says so. keeps_others: a reward function of the user's
    is to see the other columns.

    Raises DataError: no rows, columns that cannot be told apart, or more than a tenth of the rows unusable.
    """
    first = [row for _, row in islice(read_rows(path), _FIRST_ROWS)]
    if not first:
        raise DataError(f"{path}: holds no rows")
    known = format_of_row(first[0]) if question is None and answer is None else None
    if known is not None:
        account = _account(path, DataSourceSection(format=known, path=path))
        if account.num_unusable <= _MOST_UNUSABLE * len(account.keys):
            return account
    name = path.stem if gold_is_readable(path.stem, "1") is None else f"own_{path.stem}"
    columns = find_columns(path, first, question=question, answer=answer, name=name)
    if keeps_others:
        taken = _top_columns(columns)
        others = [
            key for key in first[0] if key not in taken and all(key in row and _is_json(row[key]) for row in first)
        ]
        columns = columns.model_copy(update={"extra_info": tuple(others)})
    account = _account(path, DataSourceSection(format="columns", path=path, columns=columns))
    if account.num_unusable > _MOST_UNUSABLE * len(account.keys):
        raise DataError(
            f"{path}: {account.num_unusable} of {len(account.keys)} rows cannot be used, with {columns.prompt} as the "
            f"question and {columns.answer} as the answer; the first: {account.problem}"
        )
    return account


def _account(path: Path, source: DataSourceSection) -> RowAccount:
    parse = parser_for(source)
    readers = {name: build_function(name, RewardSection()) for name in READERS if source.format == "columns"}
    draw, measured = random.Random(0), []
    keys: list[str | None] = []
    readable, problem = Counter(), ""
    for where, row in read_rows(path):
        parsed, reason = _parsed(parse, row, where)
        problem = problem or reason
        keys.append(None if parsed is None else parsed.prompt_key)
        if parsed is None:
            continue
        readable.update(name for name, reader in readers.items() if reader.can_read(parsed.answer))
        if len(measured) < _MOST_MEASURED:
            measured.append(parsed)
        elif (place := draw.randrange(len(keys))) < _MOST_MEASURED:
            measured[place] = parsed
    return RowAccount(source=source, keys=tuple(keys), problem=problem, measured=tuple(measured), readable=readable)


def _parsed(parse: Parser, row: Mapping[str, object], where: str) -> tuple[SourceRow | None, str]:
    """The row, or what is wrong with it."""
    try:
        parsed = parse(row, where)
    except DataError as error:
        return None, str(error)
    return (None, f"{where}: {parsed.reason}") if isinstance(parsed, DroppedRow) else (parsed, "")


def held_out_keys(account: RowAccount) -> frozenset[str]:
    """The prompts to measure accuracy on: a tenth, chosen by their hash, so that equal prompts stay together and more
    rows change little. Raises DataError where there are too few rows."""
    different = account.prompts
    number = min(len(different) // _HELD_OUT_SHARE, _MOST_HELD_OUT)
    if number == 0:
        raise DataError(
            f"{account.path}: {len(different)} different questions are too few to hold some out; give at least "
            f"{_HELD_OUT_SHARE}, or a file of others with --eval"
        )
    return frozenset(heapq.nsmallest(number, different, key=lambda key: hashlib.sha256(key.encode()).digest()))


def write_rows(account: RowAccount, files: Mapping[Path, frozenset[str]]) -> None:
    """Write the usable rows as JSON Lines: those whose prompts a file's set names into that file. Of rows in columns of
    their own the columns that are read. Raises WriteError, and DataError for a value that JSON has not."""
    columns = account.source.columns
    kept = None if columns is None else _top_columns(columns) | set(columns.extra_info)
    for folder in {file.parent for file in files}:
        make_folder(folder)
    with ExitStack() as stack:
        opened = [(stack.enter_context(atomic_file(file)), keys) for file, keys in files.items()]
        for (where, row), key in zip(read_rows(account.path), account.keys, strict=True):
            for file, keys in opened:
                if key in keys:
                    row = row if kept is None else {name: row[name] for name in row if name in kept}
                    file.write(json.dumps(json_object(row, where), ensure_ascii=False).encode() + b"\n")


def _top_columns(columns: ColumnsSection) -> set[str]:
    """The columns that hold question, answer and solution, whether dots are part of their names or not."""
    names = [name for name in (columns.prompt, columns.answer, columns.solution) if name is not None]
    return {*names, *(name.split(".")[0] for name in names)}


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def rows_text(account: RowAccount) -> str:
    """Which columns hold what, for a person."""
    columns = account.source.columns
    if columns is None:
        return f"the columns of {account.source.format}"
    parts = [f"question = {columns.prompt}", f"answer = {columns.answer}"]
    parts += [f"worked solution = {columns.solution}"] if columns.solution else []
    return ", ".join(parts) + (f"; for the reward: {listed(columns.extra_info)}" if columns.extra_info else "")
