"""How far a worker has come, written by the worker for the launcher: stages, steps and ticks in one small file."""

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
"""The stage from which a rank has come to the place where the cluster forms."""

_MARK = b"mgh3"
_BODY = struct.Struct("<qBqqqd64s")  # process id, state, step, entered, ticks, changed_at, stage
_HEAD = struct.Struct("<4sI")  # mark, checksum of the body
_WAITING = slice(_HEAD.size + _BODY.size, _HEAD.size + _BODY.size + 112)
"""After them, zero-terminated text that `mindgspo_kernels/shared_memory.cc` writes from any thread that waits."""
_SIZE = _WAITING.stop
_MAX_STAGE_BYTES = 64
_MAX_READS = 3


class State(IntEnum):
    """STARTING: alive, no stage entered yet. FINISHED, FAILED: its work is over, well or badly."""

    STARTING = 0
    RUNNING = 1
    FINISHED = 2
    FAILED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The last sign of life. entered: stages entered so far. ticks: since the last of them. changed_at: on
    time.monotonic(), which processes of one machine share. waits_in: the collective in which it waits for another rank,
    and for which one; empty where it does not wait, and within HCCL."""

    process_id: int
    state: State
    step: int
    stage: str
    entered: int
    ticks: int
    changed_at: float
    waits_in: str = ""

    @property
    def sequence(self) -> tuple[int, int]:
        """Grows with every enter and tick. Ticks count within their stage only, because replicas that generate
        responses of other lengths tick another number of times."""
        return self.entered, self.ticks


class Heartbeat:
    """The writing side; one per process. `enter` and `tick` cost 1 microsecond and are called by one thread.

    path: None where only this process reads, by `record`.
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
        """This process goes on to `stage` (at most 64 bytes) of `step`."""
        self._state = State.RUNNING
        self._stage = stage.encode()[:_MAX_STAGE_BYTES]
        self._step = step
        self._entered += 1
        self._ticks = 0
        self._write()

    def tick(self) -> None:
        """Something was done within the stage, such as one decode step or one micro-batch."""
        self._ticks += 1
        self._write()

    def finish(self) -> None:
        """All work is done."""
        self._state = State.FINISHED
        self._write()

    def fail(self) -> None:
        """Work has ended with an exception."""
        self._state = State.FAILED
        self._write()

    @property
    def record(self) -> Record:
        """What was written last; for other threads."""
        return Record(
            process_id=self._process_id,
            state=self._state,
            step=self._step,
            stage=self._stage.decode(errors="ignore"),
            entered=self._entered,
            ticks=self._ticks,
            changed_at=self._changed_at,
            waits_in=_text(self._memory[_WAITING]),
        )

    @property
    def waiting(self) -> ctypes.Array:
        """Where it is written what this process waits for; 112 bytes."""
        return (ctypes.c_char * (_WAITING.stop - _WAITING.start)).from_buffer(self._memory, _WAITING.start)

    def close(self) -> None:
        """Write no more."""
        if self._file is not None:
            os.close(self._file)

    def _write(self) -> None:
        self._changed_at = time.monotonic()
        if self._file is None:
            return
        body = _BODY.pack(
            self._process_id,
            self._state,
            self._step,
            self._entered,
            self._ticks,
            self._changed_at,
            self._stage,
        )
        os.pwrite(self._file, _HEAD.pack(_MARK, zlib.crc32(body)) + body, 0)


def read_record(path: Path) -> Record | None:
    """The last record in the file; None if there is none yet."""
    for _ in range(_MAX_READS):  # a read may meet a write half way; the next one will not
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
    """The ranks that the others wait for: those that have not come, else those with the fewest sequence points.

    All ranks walk through the same stages, so whoever is behind holds the others up; not one that is known to wait
    itself, unless all are. Where nobody is behind, all ranks still at work are named; none where all have ended.
    `records`: by rank, None for one that has not come.
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
waiting_place = ctypes.c_void_p()
"""The address of `Heartbeat.waiting` of this process; null without one."""
_places: list[ctypes.Array] = []
"""All of them: a thread that waits may still write to one that is no longer read."""


def start_beating(path: Path | None) -> Heartbeat:
    """From now on the functions below write to `path`, or with None into the memory of what is returned; without this
    call they do nothing."""
    global _heartbeat
    _heartbeat = Heartbeat(path)
    _places.append(_heartbeat.waiting)
    waiting_place.value = ctypes.addressof(_places[-1])
    return _heartbeat


def stop() -> None:
    """The functions below do nothing again."""
    global _heartbeat
    waiting_place.value = None
    if _heartbeat is not None:
        _heartbeat.close()
    _heartbeat = None


def enter(stage: str, step: int) -> None:
    """`Heartbeat.enter` of this process."""
    if _heartbeat is not None:
        _heartbeat.enter(stage, step)


def begin_step(step: int) -> None:
    """The stages entered from now on belong to this training step."""
    global _step
    _step = step


def enter_stage(stage: str) -> None:
    """`enter` in the present training step; 0 is before the first one."""
    enter(stage, _step)


def tick() -> None:
    """`Heartbeat.tick` of this process."""
    if _heartbeat is not None:
        _heartbeat.tick()


def finish() -> None:
    """`Heartbeat.finish` of this process."""
    if _heartbeat is not None:
        _heartbeat.finish()


def fail() -> None:
    """`Heartbeat.fail` of this process."""
    if _heartbeat is not None:
        _heartbeat.fail()
