"""Names of a run folder's files, and how they are read and written: JSON Lines, whole files, summary.json.

A JSON Lines file only grows by whole lines, each write one system call; any other file is written under another name
and renamed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from mindgspo.errors import RunFolderError
from mindgspo.io import fsync, parse_json, read_json, read_lines, write_file, write_json, writing

METRICS_FILE = "metrics.jsonl"
SAMPLES_FILE = "samples.jsonl"
VALIDATION_FILE = "validation.jsonl"
SUMMARY_FILE = "summary.json"
CONFIG_FILE = "config.yaml"
RUN_FILE = "run.json"
ENVIRONMENT_FILE = "environment.jsonl"
PLOT_FILE = "reward.png"
REPORT_FILE = "report.html"
SAMPLES_PAGE = "samples.html"
PROFILE_FOLDER = "profile"
LOGS = (METRICS_FILE, SAMPLES_FILE, VALIDATION_FILE)
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One file, or the beginning of one that grows: its size in bytes and the hexadecimal digest of its content."""

    size: int
    digest: str


class LogFile:
    """A JSON Lines file that this process alone appends to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hash, self._hashed = xxhash.xxh3_128(), 0

    def append(self, records: Iterable[Mapping[str, object]]) -> None:
        """Append one JSON line per record. Raises WriteError."""
        data = b"".join(json_line(record) for record in records)
        with writing(self.path, len(data)), self.path.open("ab") as file:
            file.write(data)

    def record(self) -> FileRecord:
        """Size and 128-bit XXH3 digest of the file. Reads only what was appended since the last call."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self._hashed:
            self._hash, self._hashed = xxhash.xxh3_128(), 0
        self._hashed += _update(self._hash, self.path, self._hashed, size)
        return FileRecord(size=self._hashed, digest=self._hash.hexdigest())

    def cut(self, step: int, size: int | None = None) -> None:
        """Drop the records beyond `step`. size: where they begin, if that is known; the rest is not read."""
        if size is None:
            drop_records_after(self.path, step)
        elif self.path.exists():
            os.truncate(self.path, size)
            fsync(self.path)
        self._hash, self._hashed = xxhash.xxh3_128(), 0


def begins_with(path: Path, record: FileRecord) -> bool:
    """Whether a file still begins with what was recorded; one that is absent counts as empty."""
    digest = xxhash.xxh3_128()
    return _update(digest, path, 0, record.size) == record.size and digest.hexdigest() == record.digest


def _update(digest: xxhash.xxh3_128, path: Path, start: int, end: int) -> int:
    """Hash the bytes from start to end; returns how many there were."""
    if start == end or not path.exists():
        return 0
    position = start
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while block := file.read(min(_BLOCK_BYTES, end - position)):
            digest.update(block)
            position += len(block)
    return position - start


def json_line(record: Mapping[str, object]) -> bytes:
    """One line of JSON Lines. Raises ValueError for NaN and inf, which JSON does not have."""
    # A lone surrogate (a broken piece of a model's text) becomes its JSON escape, which reads back as itself.
    return json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n"


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a JSON Lines file; none if absent. A last line without newline (killed run) is skipped.

    Raises RunFolderError, naming file and line, for a line that is not a JSON object.
    """
    if not path.exists():
        return
    for number, line in read_lines(path, RunFolderError):
        if line.endswith(b"\n"):
            yield _decode(line, path, number)


def drop_records_after(path: Path, step: int) -> None:
    """Rewrite the file without the records beyond `step` and without a half-written last line."""
    if path.exists():
        write_file(path, b"".join(split_records(path, step)[0]))


def split_records(path: Path, step: int) -> tuple[list[bytes], list[bytes]]:
    """The lines up to `step`, and those beyond it; none if absent. A half-written last line is in neither."""
    until: list[bytes] = []
    beyond: list[bytes] = []
    if path.exists():
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    (until if _step(_decode(line, path, number), path, number) <= step else beyond).append(line)
    return until, beyond


def _decode(line: bytes, path: Path, number: int) -> dict[str, object]:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise RunFolderError(f"{path}, line {number}: {error}; delete that line") from error
    if not isinstance(record, dict):
        raise RunFolderError(f"{path}, line {number}: expected an object, got {type(record).__name__}")
    return record


def _step(record: Mapping[str, object], path: Path, number: int) -> int:
    step = record.get("step")
    if not isinstance(step, int):
        raise RunFolderError(f"{path}, line {number}: has no integer 'step'")
    return step


def plain_number(key: str, value: Any) -> int | float:
    """`value` (Python or numpy scalar) as int or float; an assertion naming `key` if it is not finite."""
    number = value.item() if hasattr(value, "item") else value
    assert isinstance(number, (int, float)), f"metric {key}: expected a number, got {type(value).__name__}"
    assert math.isfinite(number), f"metric {key} is {number}"
    return int(number) if isinstance(number, (bool, int)) else number


def write_summary(run_dir: Path, **fields: float | int | str | bool | None) -> Path:
    """Write `fields` as summary.json, replacing an older one as a whole.

    Usual fields: accuracy_before, accuracy_after (shares), steps, seconds, tokens_per_second, peak_rss_mb. A
    number that is not finite is an assertion error naming it; None is written as null (not measured).
    """
    record = {
        key: value if value is None or isinstance(value, (str, bool)) else plain_number(key, value)
        for key, value in fields.items()
    }
    path = Path(run_dir) / SUMMARY_FILE
    write_json(path, record)
    return path


def read_summary(run_dir: Path) -> dict[str, object]:
    """The fields of summary.json; {} while the run has not ended. RunFolderError if the file is not JSON."""
    path = Path(run_dir) / SUMMARY_FILE
    if not path.exists():
        return {}
    try:
        record = read_json(path)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path}: {error}") from error
    if not isinstance(record, dict):
        raise RunFolderError(f"{path}: expected an object, got {type(record).__name__}")
    return record


def recorded_number(value: object) -> int | float | None:
    """A number as a run folder has it; None for anything else."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
