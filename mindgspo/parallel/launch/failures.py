"""Which rank failed first, and what to say about it.

What enters: failure records, exit codes, heartbeats, logs. What leaves: lines for the screen and an exit code. Called
by `launcher`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mindgspo.parallel.launch.failure_record import FailureRecord
from mindgspo.parallel.launch.folder import SCHEDULER, LaunchFolder
from mindgspo.parallel.launch.heartbeat import Record
from mindgspo.parallel.launch.logs import last_lines, last_traceback
from mindgspo.parallel.launch.positions import name, position, positions

_NUM_LAST_LINES = 20
_SIGNAL_HINTS = {
    signal.SIGKILL: "sent by an operator, a batch system, or the kernel where memory ran out (dmesg tells)",
    signal.SIGSEGV: "a crash in compiled code",
    signal.SIGBUS: "a crash in compiled code, or a full disk or /dev/shm under mapped memory",
    signal.SIGABRT: "compiled code gave up",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """time: seconds since the epoch, at the earliest. record: what the rank wrote. exit_code: of a rank that wrote
    nothing, negative for a signal."""

    rank: int
    time: float
    record: FailureRecord | None = None
    exit_code: int | None = None

    @property
    def log_bytes(self) -> int:
        """How much of the rank's log is there to see before the failure; of the rest the end is shown with it."""
        return self.record.log_bytes if self.record is not None else 0

    @property
    def launcher_exit_code(self) -> int:
        """1 for an exception, 128 + number for a signal as shells have it, else the rank's own code."""
        if self.record is not None or self.exit_code is None:
            return 1
        return 128 - self.exit_code if self.exit_code < 0 else self.exit_code


def first_failure(failures: Iterable[Failure]) -> Failure | None:
    """The earliest; of failures at the same time a worker's before the scheduler's, which lost that worker."""
    return min(failures, key=lambda failure: (failure.time, failure.rank == SCHEDULER, failure.rank), default=None)


def explain(failure: Failure, records: Mapping[int, Record | None], folder: LaunchFolder) -> list[str]:
    """What the user reads: a user's error as the command line shows it, else who failed where, how, and the others."""
    if failure.record is not None and failure.record.is_user_error:
        return [f"error: {failure.record.message}"]
    where = position(records.get(failure.rank))
    return [
        f"{name(failure.rank)} failed first{f' ({where})' if where else ''}: {_cause(failure)}",
        *_evidence(failure, folder),
        f"log: {folder.log(failure.rank)}",
        *_others(failure, records),
    ]


def _cause(failure: Failure) -> str:
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


def _evidence(failure: Failure, folder: LaunchFolder) -> list[str]:
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


def _others(failure: Failure, records: Mapping[int, Record | None]) -> list[str]:
    others = {rank: record for rank, record in records.items() if rank != failure.rank}
    return [f"the others: {positions(others)}"] if others else []
