"""Looks at the heartbeats while a launch runs, and tells the user who is awaited.

What enters: heartbeat files, the section `watch`. What leaves: lines for the screen, and whether the launch must end.
Called by `launcher`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence

import psutil

from mindgspo.config.schema import WatchSection
from mindgspo.parallel.launch.cluster import ClusterPlan
from mindgspo.parallel.launch.folder import LaunchFolder
from mindgspo.parallel.launch.heartbeat import Record, read_record
from mindgspo.parallel.launch.positions import names, positions
from mindgspo.parallel.launch.processes import Processes
from mindgspo.parallel.launch.stalls import GoesOn, Meeting, MeetingWatch, Stall, StallWatch

_MAX_STACKS = 4
MAX_STACK_LINES = 12
_STACK_WAIT_S = 1.0
_NOTABLE_STATUS = {
    psutil.STATUS_STOPPED: "stopped by a signal",
    psutil.STATUS_TRACING_STOP: "held by a debugger",
    psutil.STATUS_DISK_SLEEP: "waiting for a disk or a network file system",
}


STALLED = 124
"""Exit code of a run that was ended because it stalled; also that of timeout(1)."""


def what_follows(section: WatchSection) -> str:
    """The last line about a stall."""
    if section.on_stall == "stop":
        return f"the run is ended (watch.on_stall=stop, exit code {STALLED}); resume=auto continues it"
    return "nothing was ended; Ctrl-C ends the run (watch.on_stall=stop would)"


class Watch:
    """One per launch; `look` is called often, and acts every `poll_seconds`."""

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
        self._meeting = MeetingWatch(now)
        self._stalls = StallWatch(section, now)
        self._next = now

    def records(self) -> dict[int, Record | None]:
        """The ranks of this node, None for one without a sign of life."""
        return {rank: read_record(self._folder.heartbeat(rank)) for rank in self._plan.ranks}

    @property
    def is_formed(self) -> bool:
        """Whether all ranks of this node have been seen past the meeting."""
        return self._meeting.is_over

    def look(self) -> bool:
        """Speak if something has begun or ended. True: it is a stall, and the section wants it to end the launch."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._section.poll_seconds
        records = self.records()
        meeting = self._meeting.observe(records, now)
        if meeting is not None:
            self._tell(self._about_meeting(meeting))
        event = self._stalls.observe(records, now) if self.is_formed else None
        if isinstance(event, GoesOn):
            self._tell([f"the run goes on, after {event.seconds:.0f} s without progress"])
        elif isinstance(event, Stall):
            self._tell(self._about_stall(event, records))
            return self._section.on_stall == "stop"
        return False

    def _about_meeting(self, meeting: Meeting) -> list[str]:
        begin = f"the cluster has not formed after {meeting.seconds:.0f} s"
        if meeting.ranks:
            return [f"{begin}: {names(meeting.ranks)} of {self._plan.num_workers} have not come yet", self._logs()]
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
        return [*lines, what_follows(self._section)]

    def _about_awaited(self, rank: int, record: Record | None) -> list[str]:
        status = _NOTABLE_STATUS.get(self._processes.status(rank) or "")
        log = f"log: {self._folder.log(rank)}"
        if status:
            return [f"rank {rank} is {status}", log]
        stack = self._stack(rank) if record is not None else []
        if not stack:
            return [log]
        return [f"rank {rank} is here, innermost first:", *(f"  {line}" for line in stack[:MAX_STACK_LINES]), log]

    def _stack(self, rank: int) -> list[str]:
        """Ask a worker that has a heartbeat, and so answers, for its Python stack; empty if it does not in time."""
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
