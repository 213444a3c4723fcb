"""The files of one launch, and what they show of a failure: which rank failed first, and why, from failure records,
exit codes, heartbeats and logs."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mindgspo.errors import MindGSPOError
from mindgspo.io import make_folder, read_json, scratch_folder, write_file
from mindgspo.launch.error_codes import find, told
from mindgspo.parallel.platform import worker_process
from mindgspo.parallel.platform.heartbeat import Record, State

_TAIL_BYTES = 2**16
_MAX_TRACEBACK_LINES = 80
_CLEAR_LINE = b"\r\x1b[2K"
_SHOW_CURSOR = b"\x1b[?25h"
_NUM_LAST_LINES = 20
_SIGNAL_HINTS = {
    signal.SIGKILL: "sent by an operator, a batch system, or the kernel where memory ran out (dmesg tells)",
    signal.SIGSEGV: "a crash in compiled code",
    signal.SIGBUS: "a crash in compiled code, or a full disk or /dev/shm under mapped memory",
    signal.SIGABRT: "compiled code gave up",
}


SCHEDULER = -1
"""Stands for MindSpore's scheduler where ranks are numbered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFolder:
    """log_dir stays. state_dir is on this machine and is removed when the launcher ends."""

    log_dir: Path
    state_dir: Path

    def log(self, rank: int) -> Path:
        """Log of a rank, or of the scheduler."""
        return log_file(self.log_dir, rank)

    def failure(self, rank: int) -> Path:
        """See `failure_file`."""
        return failure_file(self.log_dir, rank)

    def failure_beside_logs(self, rank: int) -> Path:
        """The same if log_dir is on a full disk: the launcher still reports it in one message."""
        return failure_file(self.state_dir, rank)

    def stack(self, rank: int) -> Path:
        """Python stack of a rank, written whenever it is asked during a stall."""
        return self.state_dir / f"stack_{rank}"

    def waits(self, rank: int) -> Path:
        """The collectives that a rank has waited in for a long time, one line each; written on emulated cards."""
        return self.state_dir / f"waits_{rank}"

    def heartbeat(self, rank: int) -> Path:
        """See `heartbeat`."""
        return self.state_dir / f"heartbeat_{rank}"


def log_file(log_dir: Path, rank: int) -> Path:
    """Log of a rank, or of the scheduler."""
    return log_dir / ("scheduler.log" if rank == SCHEDULER else f"rank_{rank}.log")


def failure_file(log_dir: Path, rank: int) -> Path:
    """Why a rank failed, see `failures.FailureRecord`."""
    return log_dir / f"failure_{rank}.json"


@contextmanager
def open_folder(log_dir: Path, members: Iterable[int]) -> Iterator[LaunchFolder]:
    """Create the folders. Logs of an earlier launch for these ranks are moved to `log_dir`/earlier_<n>."""
    make_folder(log_dir)
    with scratch_folder("launch") as state_dir:
        folder = LaunchFolder(log_dir=log_dir.resolve(), state_dir=state_dir.resolve())
        move_earlier_aside(folder.log_dir, members)
        yield folder


def move_earlier_aside(log_dir: Path, members: Iterable[int]) -> None:
    """Move logs of an earlier launch for these ranks to `log_dir`/earlier_<n>."""
    paths = [file(log_dir, rank) for rank in members for file in (log_file, failure_file)]
    paths = [path for path in paths if path.exists()]
    if not paths:
        return
    number = 1
    while (aside := log_dir / f"earlier_{number}").exists():
        number += 1
    aside.mkdir()
    for path in paths:
        path.rename(aside / path.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """Why a process failed, as it wrote it down itself."""

    time: float
    """Seconds since the epoch."""
    error: str
    """Name of the exception's class."""
    message: str
    traceback: str
    is_user_error: bool
    """A `MindGSPOError`, shown without its traceback."""
    log_bytes: int
    """Length of the worker's log at that moment, without the traceback that follows."""

    @classmethod
    def of(cls, error: BaseException, *, log_bytes: int) -> FailureRecord:
        """The record of an exception that is being handled now."""
        return cls(
            time=time.time(),
            error=type(error).__name__,
            message=str(error),
            traceback="".join(traceback.format_exception(type(error), error, error.__traceback__)),
            is_user_error=isinstance(error, MindGSPOError),
            log_bytes=log_bytes,
        )

    def write(self, path: Path) -> None:
        """Write the record atomically."""
        write_file(path, json.dumps(dataclasses.asdict(self), indent=2).encode() + b"\n", sync=False)


@contextmanager
def noted_failure(log_dir: Path) -> Iterator[None]:
    """Records the exception that ended the block, in a process that no launcher started, for `mindgspo runs`. A
    launcher's workers do so themselves."""
    try:
        yield
    except Exception as error:
        if not worker_process.is_worker():
            with suppress(OSError):  # a full disk may be the reason
                make_folder(log_dir)
                FailureRecord.of(error, log_bytes=0).write(failure_file(log_dir, 0))
        raise


def read_failure(path: Path) -> FailureRecord | None:
    """The recorded failure; None if none was recorded."""
    try:
        return FailureRecord(**read_json(path))
    except FileNotFoundError:
        return None


class LogFollower:
    """Copies a growing file to `output` as it is, the control codes of a progress bar included."""

    def __init__(self, path: Path, output: BinaryIO, *, is_terminal: bool) -> None:
        self._path = path
        self._output: BinaryIO | None = output
        self._is_terminal = is_terminal
        self._position = 0
        self._is_line_open = False

    def size(self) -> int:
        """Bytes that the file holds now; `copy` can be bounded by them."""
        return self._path.stat().st_size if self._path.exists() else 0

    def copy(self, end: int) -> None:
        """Copy what was not copied yet, up to byte `end`."""
        if self._output is None or end <= self._position:
            return
        with self._path.open("rb") as log:
            log.seek(self._position)
            piece = log.read(end - self._position)
        self._position += len(piece)
        self._write(piece)
        self._is_line_open = not piece.endswith(b"\n")

    def end_line(self) -> None:
        """Clear the line for a message of the launcher; a progress bar there is redrawn afterwards."""
        if self._is_line_open:
            self._write(_CLEAR_LINE if self._is_terminal else b"\n")
            self._is_line_open = False

    def close(self) -> None:
        """Leave the terminal as it was found; a progress bar hides the cursor."""
        self.end_line()
        if self._is_terminal:
            self._write(_SHOW_CURSOR)

    def _write(self, piece: bytes) -> None:
        if self._output is None:
            return
        try:
            self._output.write(piece)
            self._output.flush()
        except BrokenPipeError:  # the reader is gone, e.g. `| head`; the run goes on, the log is complete
            self._output = None


def standard_output(path: Path) -> LogFollower:
    """Follows `path` on this process's standard output."""
    return LogFollower(path, sys.stdout.buffer, is_terminal=sys.stdout.isatty())


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines that are not empty; none if there is no file."""
    return [line for line in _tail(path) if line.strip()][-count:]


def last_traceback(path: Path) -> list[str]:
    """The lines of a log from its last traceback to the end; empty if it has no traceback."""
    lines = _tail(path)
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    return lines[starts[-1] :][:_MAX_TRACEBACK_LINES] if starts else []


def _tail(path: Path) -> list[str]:
    if not path.exists():
        return []
    with path.open("rb") as log:
        log.seek(0, 2)
        log.seek(max(0, log.tell() - _TAIL_BYTES))
        return log.read().decode("utf-8", "replace").splitlines()


def name(rank: int) -> str:
    """`rank 3`, or what the scheduler is called."""
    return "MindSpore's scheduler" if rank == SCHEDULER else f"rank {rank}"


def names(ranks: Iterable[int]) -> str:
    """`rank 3`, or `ranks 0, 2-5`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"{'rank' if len(runs) == 1 and len(runs[0]) == 1 else 'ranks'} {', '.join(texts)}"


def position(record: Record | None) -> str:
    """`step 3, generate`, and the collective in which it waits; empty for a rank without a heartbeat."""
    if record is None:
        return ""
    if record.state is State.FINISHED:
        return "finished"
    if record.entered == 0:
        return "starting"
    return f"step {record.step}, {record.stage}{f', in {record.waits_in}' if record.waits_in else ''}"


def positions(records: Mapping[int, Record | None]) -> str:
    """Ranks at the same place together: `ranks 0, 2 at step 3, update; rank 1 at step 3, generate`."""
    places: dict[str, list[int]] = {}
    for rank, record in sorted(records.items()):
        places.setdefault(position(record), []).append(rank)
    return "; ".join(_at(place, ranks) for place, ranks in places.items())


def _at(place: str, ranks: list[int]) -> str:
    if not place:
        return f"{names(ranks)} without a sign of life"
    return f"{names(ranks)} {place if place in ('finished', 'starting') else f'at {place}'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """A rank that failed."""

    rank: int
    time: float
    """Seconds since the epoch, at the earliest."""
    record: FailureRecord | None = None
    """Record that the rank wrote."""
    exit_code: int | None = None
    """Exit code of a rank that wrote no record; negative for a signal."""

    @property
    def log_bytes(self) -> int:
        """Bytes of the rank's log that precede the failure."""
        return self.record.log_bytes if self.record is not None else 0

    @property
    def launcher_exit_code(self) -> int:
        """1 for an exception, 128 + number for a signal as shells have it, else the rank's own code."""
        if self.record is not None or self.exit_code is None:
            return 1
        return 128 - self.exit_code if self.exit_code < 0 else self.exit_code


def first_failure(failures: Iterable[RankFailure]) -> RankFailure | None:
    """The earliest failure; of simultaneous ones, a worker's before the scheduler's, which lost that worker."""
    return min(failures, key=lambda failure: (failure.time, failure.rank == SCHEDULER, failure.rank), default=None)


def failure_lines(failure: RankFailure, records: Mapping[int, Record | None], folder: LaunchFolder) -> list[str]:
    """Message for the user: a user's error as the command line shows it, else which rank failed, where and how, and the
    other ranks."""
    if failure.record is not None and failure.record.is_user_error:
        return [f"error: {failure.record.message}"]
    where = position(records.get(failure.rank))
    return [
        f"{name(failure.rank)} failed first{f' ({where})' if where else ''}: {_cause(failure)}",
        *_evidence(failure, folder),
        f"log: {folder.log(failure.rank)}",
        *_others(failure, records),
        *_meaning(failure, records, folder),
    ]


def _meaning(failure: RankFailure, records: Mapping[int, Record | None], folder: LaunchFolder) -> list[str]:
    """Meaning of the error codes of CANN, HCCL and MindSpore in the most informative log: the first rank to end may
    only have waited for the one that failed."""
    own = _tail(folder.log(failure.rank))
    if failure.record is not None:
        own += failure.record.traceback.splitlines()
    found = [(failure.rank, find(own))]
    found += [(rank, find(_tail(folder.log(rank)))) for rank in sorted(records) if rank != failure.rank]
    rank, seen = max(found, key=lambda one: one[1][0].error.kind if one[1] else 0)
    return told(seen, where=f"{name(rank)}: ")


def _cause(failure: RankFailure) -> str:
    if failure.record is not None:
        first_line = next(iter(failure.record.message.strip().splitlines()), "")
        return f"{failure.record.error}: {first_line}" if first_line else failure.record.error
    assert failure.exit_code is not None
    if failure.exit_code >= 0:
        asked = {
            128 + number: f", which is how {number.name} ends a rank" for number in (signal.SIGINT, signal.SIGTERM)
        }
        return f"exit code {failure.exit_code}{asked.get(failure.exit_code, '')}"
    return _signal_text(-failure.exit_code)


def _signal_text(number: int) -> str:
    try:
        known = signal.Signals(number)
    except ValueError:
        return f"ended by signal {number}"
    hint = _SIGNAL_HINTS.get(known)
    return f"ended by {known.name}{f', {hint}' if hint else ''}"


def _evidence(failure: RankFailure, folder: LaunchFolder) -> list[str]:
    if failure.record is not None:
        return failure.record.traceback.rstrip("\n").splitlines()
    log = folder.log(failure.rank)
    was_killed = failure.exit_code is not None and failure.exit_code < 0
    if not was_killed and (found := last_traceback(log)):
        return found
    # Python's report of a crash ends with a line of a kilobyte.
    lines = [line for line in last_lines(log, _NUM_LAST_LINES) if not line.startswith("Extension modules:")]
    return (
        ["there is no traceback; it printed last:", *(f"  {line}" for line in lines)]
        if lines
        else ["it printed nothing"]
    )


def _others(failure: RankFailure, records: Mapping[int, Record | None]) -> list[str]:
    others = {rank: record for rank, record in records.items() if rank != failure.rank}
    return [f"the others: {positions(others)}"] if others else []
