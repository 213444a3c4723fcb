"""Progress of a worker (stages, steps and ticks), written by the worker to a small file that the launcher reads.

Records pass through system calls, and a checksum finds those that were read half written: nothing here relies on the
order in which a processor carries out stores.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

MEETING = "meeting the other workers"
"""Name of the stage in which a rank joins the cluster."""

_MARK = b"mgh3"
_BODY = struct.Struct("<qBqqqd64s")  # process id, state, step, entered, ticks, changed_at, stage
_HEAD = struct.Struct("<4sI")  # mark, checksum of the body
_WAITING = slice(_HEAD.size + _BODY.size, _HEAD.size + _BODY.size + 112)
"""Zero-terminated text that `mindgspo_kernels/shared_memory.cc` writes from any waiting thread."""
_SIZE = _WAITING.stop
_MAX_STAGE_BYTES = 64
_MAX_READS = 3


class State(IntEnum):
    """State of a worker."""

    STARTING = 0
    """Alive, but no stage entered yet."""
    RUNNING = 1
    FINISHED = 2
    FAILED = 3
    """Ended with an exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The last sign of life of a worker."""

    process_id: int
    state: State
    step: int
    """Training step, from 1; 0 before the first one."""
    stage: str
    """E.g. "generate"."""
    entered: int
    """Number of stages entered so far."""
    ticks: int
    """Ticks since the last stage was entered."""
    changed_at: float
    """Time of the last change by time.monotonic(), which the processes of a machine share."""
    waits_in: str = ""
    """Collective in which it waits and the rank it waits for; empty if it does not wait, and within HCCL."""

    @property
    def sequence(self) -> tuple[int, int]:
        """Sequence number that grows with every `enter` and `tick`.

        Ticks count within their stage only, because replicas generating responses of other lengths tick more or less
        often.
        """
        return self.entered, self.ticks


class Heartbeat:
    """Writer of a process's record; `enter` and `tick` take 1 microsecond and are called by one thread.

    path: None if only this process reads the record.
    """

    def __init__(self, path: Path | None) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = None if path is None else os.open(path, flags, 0o644)
        if self._file is not None:
            os.ftruncate(self._file, _SIZE)
        self._memory = mmap.mmap(-1 if self._file is None else self._file, _SIZE)
        self._process_id = os.getpid()
        self._state = State.STARTING
        self._stage = b""
        self._step = self._entered = self._ticks = 0
        self._write()

    def enter(self, stage: str, step: int) -> None:
        """Enter `stage` (at most 64 bytes) of `step`."""
        self._state = State.RUNNING
        self._stage = stage.encode()[:_MAX_STAGE_BYTES]
        self._step = step
        self._entered += 1
        self._ticks = 0
        self._write()

    def tick(self) -> None:
        """Note progress within the stage, such as one decode step or one micro-batch."""
        self._ticks += 1
        self._write()

    def end(self, state: State) -> None:
        """Note that the work has ended, with FINISHED or FAILED."""
        self._state = state
        self._write()

    @property
    def record(self) -> Record:
        """The last record; for other threads."""
        return _record(self._content + self._memory[_WAITING])

    @property
    def waiting(self) -> ctypes.Array:
        """Buffer of 112 bytes for the collective that this process waits in."""
        return (ctypes.c_char * (_WAITING.stop - _WAITING.start)).from_buffer(self._memory, _WAITING.start)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)

    def _write(self) -> None:
        counts = self._step, self._entered, self._ticks
        body = _BODY.pack(self._process_id, self._state, *counts, time.monotonic(), self._stage)
        self._content = _HEAD.pack(_MARK, zlib.crc32(body)) + body
        if self._file is not None:
            os.pwrite(self._file, self._content, 0)


def read_record(path: Path) -> Record | None:
    """Return the last record in the file; None if there is none yet."""
    for _ in range(_MAX_READS):  # a read may overlap with a write; the next one will not
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        if len(content) != _SIZE:
            continue
        mark, checksum = _HEAD.unpack_from(content)
        if mark == _MARK and checksum == zlib.crc32(content[_HEAD.size : _WAITING.start]):
            return _record(content)
    return None


def _record(content: bytes) -> Record:
    process_id, state, step, entered, ticks, changed_at, stage = _BODY.unpack_from(content, _HEAD.size)
    return Record(
        process_id=process_id,
        state=State(state),
        step=step,
        stage=_text(stage),
        entered=entered,
        ticks=ticks,
        changed_at=changed_at,
        waits_in=_text(content[_WAITING]),
    )


def _text(padded: bytes) -> str:
    return padded.partition(b"\0")[0].decode(errors="ignore")


def awaited(records: Mapping[int, Record | None]) -> tuple[int, ...]:
    """Return the ranks that the others wait for: those without a record, else those with the lowest sequence number.

    All ranks pass through the same stages, so the slowest hold the others up; ranks known to wait themselves are
    excluded unless all wait. If all are equally far, all ranks still at work are returned; none if all have ended.
    `records`: by rank, None for a rank that has not joined.
    """
    absent = tuple(sorted(rank for rank, record in records.items() if record is None))
    if absent:
        return absent
    at_work = {
        rank: record
        for rank, record in records.items()
        if record is not None and record.state in (State.STARTING, State.RUNNING)
    }
    if not at_work:
        return ()
    suspected = {rank: record for rank, record in at_work.items() if not record.waits_in} or at_work
    last = min(record.sequence for record in suspected.values())
    return tuple(sorted(rank for rank, record in suspected.items() if record.sequence == last))


_heartbeat: Heartbeat | None = None
_step = 0
waiting_address = ctypes.c_void_p()
"""Address of this process's `Heartbeat.waiting`; null if there is no heartbeat."""
_buffers: list[ctypes.Array] = []
"""All such buffers, kept alive because a waiting thread may still write to an old one."""


def start_beating(path: Path | None) -> Heartbeat:
    """Make the functions below write to `path`, or with None only to the returned heartbeat.

    Without this call they do nothing.
    """
    global _heartbeat
    _heartbeat = Heartbeat(path)
    _buffers.append(_heartbeat.waiting)
    waiting_address.value = ctypes.addressof(_buffers[-1])
    return _heartbeat


def stop() -> None:
    """Make the functions below do nothing again."""
    global _heartbeat
    waiting_address.value = None
    if _heartbeat is not None:
        _heartbeat.close()
    _heartbeat = None


def enter(stage: str, step: int) -> None:
    """Enter a stage; see `Heartbeat.enter`."""
    if _heartbeat is not None:
        _heartbeat.enter(stage, step)


def begin_step(step: int) -> None:
    """Count the stages entered from now on to this training step."""
    global _step
    _step = step


def enter_stage(stage: str) -> None:
    """Enter a stage of the current training step; 0 before the first one."""
    enter(stage, _step)


def tick() -> None:
    """Note progress; see `Heartbeat.tick`."""
    if _heartbeat is not None:
        _heartbeat.tick()


def mark_ended(state: State) -> None:
    """Note that the work has ended; see `Heartbeat.end`."""
    if _heartbeat is not None:
        _heartbeat.end(state)
