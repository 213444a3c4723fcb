"""The rows of a user's file: read from four kinds of file, and some held out if no file of held-out rows is given."""

from __future__ import annotations

import csv
import hashlib
import heapq
import json
import random
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from mindgspo.config.data import ColumnsSection, DataSourceSection
from mindgspo.config.reward import RewardSection
from mindgspo.data.benchmarks import format_of_row
from mindgspo.data.formats import Parser, parser_for
from mindgspo.data.source_rows import DroppedRow, SourceRow, json_object
from mindgspo.data.sources import JSONL, PARQUET, read_file
from mindgspo.errors import DataError
from mindgspo.init.columns import TableRow, columns_beside, find_columns, held_beside
from mindgspo.io import MOST_LINE_BYTES, atomic_file, decoded, json_items, make_folder, read_bytes, read_lines
from mindgspo.rewards.registry import build_verifier, gold_is_readable
from mindgspo.text import counted, hub_hint, listed, shorten

AS_THEY_ARE = (JSONL, PARQUET)
"""Kinds of file that a run reads itself."""
READERS = ("gsm8k", "multiple_choice", "math")
"""Reward functions that may read gold answers of a user's rows, the most particular first."""
_OF_FORMATS = frozenset(
    ["question", "problem", "instruction", "prompt", "answer", "solution", "output", "reward_model", "extra_info"]
)
"""Columns that the published formats read, with those inside them."""
_OTHER_MARKS = ";\t,|"
"""Separators of fields in other files."""
_KINDS = (*AS_THEY_ARE, ".json", ".csv", ".tsv")
_FIRST_ROWS, _MOST_MEASURED = 50, 500
MOST_UNUSABLE = 0.1
"""Share of the rows."""
MOST_ANSWER = 60
"""Characters."""
_HELD_OUT_SHARE, _MOST_HELD_OUT = 10, 512


@dataclass(slots=True, kw_only=True)
class Unread:
    """Rows whose gold answers a reward function cannot read, by their numbers from 0, and the first of them; and those
    of more than `MOST_ANSWER` characters, which no response repeats letter by letter."""

    rows: set[int] = field(default_factory=set)
    first: str = ""
    num_long: int = 0
    first_long: str = ""

    def add(self, number: int, row: SourceRow, *, can_read: bool) -> None:
        """Count a row."""
        said = f"{row.where}: {shorten(repr(row.answer))}"
        if not can_read:
            self.rows.add(number)
            self.first = self.first or said
        elif len(row.answer) > MOST_ANSWER:
            self.num_long += 1
            self.first_long = self.first_long or said


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAccount:
    """Contents of a data file."""

    source: DataSourceSection
    """How a run reads the file."""
    keys: tuple[str | None, ...]
    """prompt_key of each row in order; None for a row that cannot be used."""
    problem: str
    """What is wrong with the first unusable row; "" if all are usable."""
    measured: tuple[SourceRow, ...]
    """Some of the usable rows."""
    unread: Mapping[str, Unread]
    """For rows with columns of their own: by name of `READERS`, the usable rows whose gold answer it cannot read or
    hardly ever meets."""
    left_out: tuple[str, ...]
    """Columns that questions may need and whose content is missing from the prompts of num_left_out rows."""
    num_left_out: int

    @property
    def path(self) -> Path:
        """Path of the file."""
        assert self.source.path is not None
        return self.source.path

    @property
    def prompts(self) -> frozenset[str]:
        """Keys of the usable rows."""
        return frozenset(key for key in self.keys if key is not None)

    def num_with(self, prompts: frozenset[str]) -> int:
        """Rows whose prompts are among these."""
        return sum(key in prompts for key in self.keys)

    def without(self, unread: Unread) -> RowAccount:
        """The same with rows that cannot be read among the unusable ones."""
        if not unread.rows:
            return self
        keys = tuple(None if number in unread.rows else key for number, key in enumerate(self.keys))
        problem = self.problem or f"{unread.first} cannot be read"
        return replace(self, keys=keys, problem=problem)

    @property
    def num_rows(self) -> int:
        """Usable rows."""
        return len(self.keys) - self.num_unusable

    @property
    def num_unusable(self) -> int:
        """The others."""
        return self.keys.count(None)


def read_table(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """(place, row) of a *.jsonl, *.parquet, *.json, *.csv or *.tsv file. Raises DataError."""
    kind = path.suffix.lower()
    if not path.is_file():
        what = "is a folder, expected a file" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {what}{'' if kind in _KINDS else hub_hint(path, is_data=True)}")
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
        for number, row in enumerate(json_items(read_bytes(path)), start=1):
            if not isinstance(row, dict):
                raise DataError(f"{path} row {number}: expected a JSON object, got {type(row).__name__}")
            yield f"{path} row {number}", row
    except (OSError, ValueError) as error:
        are_lines = "Extra data" in str(error)  # one value, and another after it
        hint = f"; where each line is an object it is JSON Lines: name it {path.stem}{JSONL}" if are_lines else ""
        raise DataError(f"{path}: {error}{hint}") from error


def _read_csv(path: Path, *, delimiter: str) -> Iterator[tuple[str, dict[str, object]]]:
    csv.field_size_limit(MOST_LINE_BYTES)
    lines = (
        decoded(line.removeprefix(BOM_UTF8 if number == 1 else b"")) for number, line in read_lines(path, DataError)
    )
    reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
    try:
        names = reader.fieldnames or ()
        if len(names) == 1 and (other := next((mark for mark in _OTHER_MARKS if mark in names[0]), None)):
            raise DataError(
                f"{path}:1: one field, {shorten(repr(names[0]))}; fields are parted by {delimiter!r} here, not by "
                f"{other!r}: save it so, or with tabs as *.tsv"
            )
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if None in row or None in row.values():
                number = len(reader.fieldnames or ())
                raise DataError(f"{where}: has not the {number} fields that the first line names")
            yield where, dict(row)
    except DataError:
        raise
    except (csv.Error, ValueError) as error:
        raise DataError(f"{path}: line {reader.line_num + 1}: not readable as CSV: {error}") from error


def account_for_rows(path: Path, *, question: str | None, answer: str | None, keeps_others: bool) -> RowAccount:
    """Read all rows. question, answer: columns, if the user names them. keeps_others: whether a user's reward function
    gets the other columns.

    Raises DataError: no rows, columns that cannot be told apart, or more than a tenth of the rows unusable.
    """
    first = [row for _, row in islice(read_table(path), _FIRST_ROWS)]
    if not first:
        raise DataError(f"{path}: holds no rows")
    known = format_of_row(first[0]) if question is None and answer is None else None
    if known is not None:
        account = _account(path, DataSourceSection(format=known, path=path), first)
        if account.num_unusable <= MOST_UNUSABLE * len(account.keys):
            return _asked_whole(account, is_said=False)
    name = path.stem if gold_is_readable(path.stem, "1") is None else f"own_{path.stem}"
    columns = find_columns(path, first, question=question, answer=answer, name=name)
    if keeps_others:
        taken = _top_columns(columns)
        others = [
            key for key in first[0] if key not in taken and all(key in row and _is_json(row[key]) for row in first)
        ]
        columns = columns.model_copy(update={"extra_info": tuple(others)})
    account = _account(path, DataSourceSection(format="columns", path=path, columns=columns), first)
    if account.num_unusable > MOST_UNUSABLE * len(account.keys):
        raise DataError(
            f"{path}: {account.num_unusable} of {len(account.keys)} rows cannot be used, with {columns.prompt} as the "
            f"question and {columns.answer} as the answer; the first: {account.problem}"
        )
    return _asked_whole(account, is_said=question is not None)


def _asked_whole(account: RowAccount, *, is_said: bool) -> RowAccount:
    """Raises DataError if columns that questions need are left out without the user's consent."""
    if is_said or account.num_left_out <= MOST_UNUSABLE * account.num_rows:
        return account
    raise DataError(
        f"{account.path}: {listed(account.left_out)}: not in the prompt, and {account.num_left_out} of "
        f"{account.num_rows} rows say something there that the question does not; write it into the question's column, "
        "or give --question COLUMN to leave it out"
    )


def _account(path: Path, source: DataSourceSection, first: Sequence[TableRow]) -> RowAccount:
    parse = parser_for(source)
    readers = {name: build_verifier(name, RewardSection()) for name in READERS if source.format == "columns"}
    unread = {name: Unread() for name in readers}
    if source.columns is None:
        beside = columns_beside([{key: row[key] for key in row if key not in _OF_FORMATS} for row in first], ())
    else:
        beside = columns_beside(first, _read_columns(source.columns))
    draw, measured = random.Random(0), []
    keys: list[str | None] = []
    left_out: dict[str, None] = {}
    num_left_out, problem = 0, ""
    for where, row in read_table(path):
        parsed, reason = _parsed(parse, row, where)
        problem = problem or reason
        keys.append(None if parsed is None else parsed.prompt_key)
        if parsed is None:
            continue
        asked = " ".join(message["content"] for message in parsed.messages)
        missing = held_beside(row, beside, asked)
        left_out |= dict.fromkeys(missing)
        num_left_out += bool(missing)
        for name, reader in readers.items():
            unread[name].add(len(keys) - 1, parsed, can_read=reader.can_read(parsed.answer))
        if len(measured) < _MOST_MEASURED:
            measured.append(parsed)
        elif (place := draw.randrange(len(keys))) < _MOST_MEASURED:
            measured[place] = parsed
    return RowAccount(
        source=source,
        keys=tuple(keys),
        problem=problem,
        measured=tuple(measured),
        unread=unread,
        left_out=tuple(left_out),
        num_left_out=num_left_out,
    )


def _parsed(parse: Parser, row: Mapping[str, object], where: str) -> tuple[SourceRow | None, str]:
    """The row, or what is wrong with it."""
    try:
        parsed = parse(row, where)
    except DataError as error:
        return None, str(error)
    return (None, f"{where}: {parsed.reason}") if isinstance(parsed, DroppedRow) else (parsed, "")


def held_out_keys(account: RowAccount) -> frozenset[str]:
    """The prompts to hold out: a tenth, chosen by hash, so that equal prompts stay together and additional rows change
    little. Raises DataError if there are too few rows."""
    different = account.prompts
    number = min(len(different) // _HELD_OUT_SHARE, _MOST_HELD_OUT)
    if number == 0:
        raise DataError(
            f"{account.path}: {len(different)} different questions are too few to hold some out; give at least "
            f"{_HELD_OUT_SHARE}, or a file of others with --eval"
        )
    return frozenset(heapq.nsmallest(number, different, key=lambda key: hashlib.sha256(key.encode()).digest()))


def write_rows(account: RowAccount, files: Mapping[Path, frozenset[str]]) -> None:
    """Write the usable rows as JSON Lines: those whose prompts a file's set names into that file. For rows with columns
    of their own, only the columns that are read. Raises WriteError."""
    columns = account.source.columns
    kept = None if columns is None else _top_columns(columns) | set(columns.extra_info)
    for folder in {file.parent for file in files}:
        make_folder(folder)
    with ExitStack() as stack:
        opened = [(stack.enter_context(atomic_file(file)), keys) for file, keys in files.items()]
        for (_, row), key in zip(read_table(account.path), account.keys, strict=True):
            for file, keys in opened:
                if key in keys:
                    row = row if kept is None else {name: row[name] for name in row if name in kept}
                    file.write(json.dumps(json_object(row)[0], ensure_ascii=False).encode() + b"\n")


def _read_columns(columns: ColumnsSection) -> list[str]:
    return [name for name in (columns.prompt, columns.answer, columns.solution) if name is not None]


def _top_columns(columns: ColumnsSection) -> set[str]:
    """The columns that hold question, answer and solution, whether dots are part of their names or not."""
    names = _read_columns(columns)
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
    parts = [", ".join(parts)]
    parts += [f"for the reward: {listed(columns.extra_info)}"] if columns.extra_info else []
    if account.num_left_out:
        parts.append(f"not in the prompt: {listed(account.left_out)} ({counted(account.num_left_out, 'row')})")
    return "; ".join(parts)
