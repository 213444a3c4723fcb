"""The watch of a process that no launcher looks at: a thread of its own reads its stages and tells of a stall.

What enters: the section `watch`, the heartbeat. What leaves: lines on the screen; with watch.on_stall=stop the end of
the process. Called by `trainer.start`. A process that is stopped as a whole (SIGSTOP) cannot tell.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mindgspo.config.schema import WatchSection
from mindgspo.parallel.launch import heartbeat
from mindgspo.parallel.launch.heartbeat import Heartbeat, Record
from mindgspo.parallel.launch.positions import position
from mindgspo.parallel.launch.stalls import GoesOn, Stall, StallWatch
from mindgspo.parallel.launch.watch import MAX_STACK_LINES, STALLED, what_follows
from mindgspo.parallel.launch.worker import end_process


def _tell(lines: Sequence[str]) -> None:
    print(*lines, sep="\n", file=sys.stderr, flush=True)


@contextmanager
def watched_by_itself(
    section: WatchSection, tell: Callable[[Sequence[str]], None] = _tell, end: Callable[[int], object] = end_process
) -> Iterator[None]:
    """While the block runs in the calling thread, another thread looks whether its heartbeat moves. tell: shows lines
    to the user. end: ends the process with an exit code."""
    is_over = threading.Event()
    watch = OwnWatch(section, heartbeat.start(None), threading.get_ident(), tell, end)
    thread = threading.Thread(target=watch.run, args=(is_over,), name="mindgspo-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        heartbeat.stop()


class OwnWatch:
    """Looks at the heartbeat of its own process. thread: identity of the thread whose stack is shown."""

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
