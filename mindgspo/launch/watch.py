"""Watch the progress of a run: report stalls and clusters that do not form, with the ranks that others wait for."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import psutil

from mindgspo.config.schema import WatchSection
from mindgspo.launch.failures import LaunchFolder, names, position, positions
from mindgspo.launch.processes import ClusterPlan, Processes
from mindgspo.launch.worker import end_process
from mindgspo.parallel.platform import heartbeat
from mindgspo.parallel.platform.heartbeat import MEETING, Heartbeat, Record, State, awaited, read_record

_NUM_STEP_TIMES = 50  # of the last steps the median is taken, so that the limit follows growing responses
REPORT_MEETING_S = 30.0
_MAX_STACKS = 4  # ranks whose stacks are shown; the others usually wait at the same place
_CALLS_GRAPHS = ("/mindspore/", "/mindgspo/parallel/platform/runtime.py", "/mindgspo/parallel/collectives/")
MAX_STACK_LINES = 12
_STACK_WAIT_S = 1.0
_NOTABLE_STATUS = {
    psutil.STATUS_STOPPED: "stopped by a signal",
    psutil.STATUS_TRACING_STOP: "held by a debugger",
    psutil.STATUS_DISK_SLEEP: "waiting for a disk or a network file system",
}
STALLED = 124
"""Exit code of a run that was ended because it stalled; also that of timeout(1)."""
_LOOK_S = 1.0
_CONNECT_S = 1.0
# A shorter silence may be a busy network. MindSpore's scheduler waits 30 s for a node that is silent.
_LOST_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """No rank has made progress for `seconds`; the others wait for `ranks`. limit_s: what `seconds` exceeds."""

    ranks: tuple[int, ...]
    seconds: float
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GoesOn:
    """The stall that was reported has ended after `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentRanks:
    """The cluster has not formed after `seconds`; `ranks` of this node are missing, possibly none."""

    ranks: tuple[int, ...]
    seconds: float


class StallWatch:
    """Receives all ranks' records at intervals; reports once that a stall has begun and once that it has ended."""

    def __init__(self, section: WatchSection, now: float) -> None:
        """now: seconds of any clock that does not jump, here and in `observe`."""
        self._section = section
        self._sequences: dict[int, tuple[int, int]] = {}
        self._moved_at = now
        self._is_reported = False
        self._steps = _StepTimes()

    def observe(self, records: Mapping[int, Record | None], now: float) -> Stall | GoesOn | None:
        """records: by rank, None for one that has not come."""
        self._steps.observe(records, now)
        sequences = {rank: record.sequence for rank, record in records.items() if record is not None}
        if sequences != self._sequences:
            return self._moves(sequences, now)
        seconds = now - self._moved_at
        ranks = awaited(records)
        limit = self.limit_s
        if self._is_reported or not ranks or seconds < limit:
            return None
        self._is_reported = True
        return Stall(ranks=ranks, seconds=seconds, limit_s=limit)

    def _moves(self, sequences: dict[int, tuple[int, int]], now: float) -> GoesOn | None:
        stood_still = now - self._moved_at
        was_reported = self._is_reported
        self._sequences, self._moved_at, self._is_reported = sequences, now, False
        return GoesOn(seconds=stood_still) if was_reported else None

    @property
    def limit_s(self) -> float:
        """Seconds without progress that count as a stall now."""
        return max(self._section.min_seconds, self._section.factor * self._steps.median_s)


class _StepTimes:
    """Seconds from one step to the next, by the foremost rank. Step 0 is the time before the first step."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._began = 0.0
        self._seconds: deque[float] = deque(maxlen=_NUM_STEP_TIMES)

    def observe(self, records: Mapping[int, Record | None], now: float) -> None:
        entered = [record.step for record in records.values() if record is not None and record.entered > 0]
        step = max(entered, default=None)
        if step is None or step == self._step:
            return
        if self._step and step > self._step:
            self._seconds.append((now - self._began) / (step - self._step))
        self._step, self._began = step, now

    @property
    def median_s(self) -> float:
        """0 until a step has ended."""
        return median(self._seconds) if self._seconds else 0.0


class StartWatch:
    """Reports every `REPORT_MEETING_S` which ranks are missing, until all ranks of this node are past the meeting
    (is_over)."""

    def __init__(self, now: float) -> None:
        self._began = self._spoke = now
        self.is_over = False

    def observe(self, records: Mapping[int, Record | None], now: float) -> AbsentRanks | None:
        """See `StallWatch.observe`."""
        if self.is_over:
            return None
        self.is_over = all(record is not None and _is_past(record) for record in records.values())
        if self.is_over or now - self._spoke < REPORT_MEETING_S:
            return None
        self._spoke = now
        absent = tuple(rank for rank, record in records.items() if record is None or record.entered == 0)
        return AbsentRanks(ranks=absent, seconds=now - self._began)


def _is_past(record: Record) -> bool:
    return record.state is not State.STARTING and record.stage != MEETING


def what_follows(section: WatchSection) -> str:
    """The last line about a stall."""
    if section.on_stall == "stop":
        return f"the run is ended (watch.on_stall=stop, exit code {STALLED}); resume=auto continues it"
    return "nothing was ended; Ctrl-C ends the run (watch.on_stall=stop would)"


class Watch:
    """One per launch; `poll` is called often, and acts every `poll_seconds`."""

    def __init__(
        self,
        section: WatchSection,
        plan: ClusterPlan,
        folder: LaunchFolder,
        processes: Processes,
        tell: Callable[[Sequence[str]], None],
    ) -> None:
        """tell: shows lines to the user."""
        now = time.monotonic()
        self._section, self._plan, self._folder, self._processes = section, plan, folder, processes
        self._tell = tell
        self._start = StartWatch(now)
        self._stalls = StallWatch(section, now)
        self._next = now

    def records(self) -> dict[int, Record | None]:
        """The ranks of this node, None for one without a sign of life."""
        return {rank: read_record(self._folder.heartbeat(rank)) for rank in self._plan.ranks}

    @property
    def is_formed(self) -> bool:
        """Whether all ranks of this node have been seen past the absent."""
        return self._start.is_over

    def poll(self) -> bool:
        """Report a stall that has begun or ended. True: there is a stall, and on_stall ends the launch."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._section.poll_seconds
        records = self.records()
        absent = self._start.observe(records, now)
        if absent is not None:
            self._tell(self._about_absent(absent))
        event = self._stalls.observe(records, now) if self.is_formed else None
        if isinstance(event, GoesOn):
            self._tell([f"the run goes on, after {event.seconds:.0f} s without progress"])
        elif isinstance(event, Stall):
            self._tell(self._about_stall(event, records))
            return self._section.on_stall == "stop"
        return False

    def _about_absent(self, absent: AbsentRanks) -> list[str]:
        begin = f"the cluster has not formed after {absent.seconds:.0f} s"
        if absent.ranks:
            return [f"{begin}: {names(absent.ranks)} of {self._plan.num_workers} have not come yet", self._logs()]
        address = f"{self._plan.master_addr}:{self._plan.master_port}"
        if self._plan.nodes > 1:
            return [f"{begin}: all ranks of this node have come to {address}, and wait for those of other nodes"]
        return [f"{begin}: all ranks have come to the scheduler at {address}, and wait for it", self._logs()]

    def _logs(self) -> str:
        return f"logs: {self._folder.log_dir}"

    def _about_stall(self, stall: Stall, records: Mapping[int, Record | None]) -> list[str]:
        awaited = {rank: records[rank] for rank in stall.ranks}
        others = {rank: record for rank, record in records.items() if rank not in stall.ranks}
        lines = [f"stalled: no rank has made progress for {stall.seconds:.0f} s (limit {stall.limit_s:.0f} s)"]
        if others:
            lines.append(f"awaited: {positions(awaited)}")
            lines.append(f"waiting: {positions(others)}")
        else:
            lines.append(f"all are equally far, so that nobody can be named: {positions(awaited)}")
        for rank in stall.ranks[:_MAX_STACKS]:
            lines += self._about_awaited(rank, records[rank])
        for rank in others:
            lines += self._about_waiting(rank, others[rank])
        return [*lines, what_follows(self._section)]

    def _about_awaited(self, rank: int, record: Record | None) -> list[str]:
        status = _NOTABLE_STATUS.get(self._processes.status(rank) or "")
        log = f"log: {self._folder.log(rank)}"
        if status:
            return [f"rank {rank} is {status}", log]
        waits = self._waits(rank, record)
        stack = self._stack(rank) if record is not None else []
        if not stack:
            return [*waits, log]
        lines = [f"rank {rank} is here, innermost first:", *(f"  {line}" for line in stack[:MAX_STACK_LINES])]
        return [*waits, *lines, log]

    def _waits(self, rank: int, record: Record | None) -> list[str]:
        path = self._folder.waits(rank)
        if path.exists():
            return path.read_text(encoding="utf-8").splitlines()
        return [f"rank {rank} waits in {record.waits_in}"] if record is not None and record.waits_in else []

    def _about_waiting(self, rank: int, record: Record | None) -> list[str]:
        """The collective that a rank waits in, if known, and the innermost line of its own code."""
        waits = self._waits(rank, record)
        stack = self._stack(rank) if waits else []
        own = [line for line in stack if not any(part in line for part in _CALLS_GRAPHS)]
        return [*waits, *(f"  {line}" for line in (own or stack)[:1])]

    def _stack(self, rank: int) -> list[str]:
        """Ask a worker with a heartbeat for its Python stack; empty if it does not answer in time."""
        path = self._folder.stack(rank)
        before = path.stat().st_size
        self._processes.signal(rank, signal.SIGUSR1)
        give_up = time.monotonic() + _STACK_WAIT_S
        while time.monotonic() < give_up:
            time.sleep(0.05)
            if path.stat().st_size > before:
                time.sleep(0.05)  # until the last line is written
                with path.open(encoding="utf-8", errors="replace") as file:
                    file.seek(before)
                    return [line.strip() for line in file.read().splitlines() if line.lstrip().startswith("File ")]
        return []


class RemoteScheduler:
    """Checks every second whether the address is listened to; `is_lost` is called often."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host.strip("[]"), port
        self._heard_at: float | None = None
        self._next = 0.0

    def is_lost(self) -> bool:
        """Whether nothing has listened for some seconds. The first call comes when the cluster has formed."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOOK_S
            if self._heard_at is None or self._listens():
                self._heard_at = now
        return self._heard_at is not None and now - self._heard_at > _LOST_S

    def _listens(self) -> bool:
        try:
            socket.create_connection(self._address, timeout=_CONNECT_S).close()
        except OSError:
            return False
        return True


def _tell(lines: Sequence[str]) -> None:
    print(*lines, sep="\n", file=sys.stderr, flush=True)


@contextmanager
def watch_this_process(
    section: WatchSection, tell: Callable[[Sequence[str]], None] = _tell, end: Callable[[int], object] = end_process
) -> Iterator[None]:
    """While the block runs in the calling thread, another thread watches its heartbeat. tell: shows lines to the user.
    end: ends the process with an exit code."""
    is_over = threading.Event()
    watch = SelfWatch(section, heartbeat.start_beating(None), threading.get_ident(), tell, end)
    thread = threading.Thread(target=watch.run, args=(is_over,), name="mindgspo-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        heartbeat.stop()


class SelfWatch:
    """Watches the heartbeat of its own process. thread: identity of the thread whose stack is shown."""

    def __init__(
        self,
        section: WatchSection,
        beat: Heartbeat,
        thread: int,
        tell: Callable[[Sequence[str]], None],
        end: Callable[[int], object],
    ) -> None:
        self._section, self._beat, self._thread, self._tell, self._end = section, beat, thread, tell, end
        self._stalls = StallWatch(section, time.monotonic())

    def run(self, is_over: threading.Event) -> None:
        """Look until the event is set."""
        while not is_over.wait(self._section.poll_seconds):
            self._look()

    def _look(self) -> None:
        record = self._beat.record
        event = self._stalls.observe({0: record}, time.monotonic())
        if isinstance(event, GoesOn):
            self._tell([f"the run goes on, after {event.seconds:.0f} s without progress"])
        elif isinstance(event, Stall):
            self._tell(self._about(event, record))
            if self._section.on_stall == "stop":
                self._end(STALLED)

    def _about(self, stall: Stall, record: Record) -> list[str]:
        return [
            f"stalled: no progress for {stall.seconds:.0f} s (limit {stall.limit_s:.0f} s) at {position(record)}",
            "it is here, innermost first:",
            *(f"  {line}" for line in self._stack()),
            what_follows(self._section),
        ]

    def _stack(self) -> list[str]:
        frame = sys._current_frames().get(self._thread)
        entries = reversed(traceback.extract_stack(frame)) if frame is not None else ()
        lines = [f'File "{entry.filename}", line {entry.lineno} in {entry.name}' for entry in entries]
        return lines[:MAX_STACK_LINES]
