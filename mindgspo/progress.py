"""What a command is doing: progress bars, which disappear when the work ends, of rows and bytes on stderr, which also
takes notes, and of a run; and lines about a wait where there is no bar."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TextIO, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column
from rich.text import Text

from mindgspo.text import PrintableStream, duration, printable, raw_stream

_Row = TypeVar("_Row")


def console_of(stream: TextIO) -> Console:
    """A console that writes to a stream. To a notebook it writes lines of text, as to a file: each HTML piece and each
    move of a bar would be an output of its cell."""
    console = Console(file=raw_stream(stream) if stream.isatty() else stream)
    return Console(file=console.file, force_jupyter=False, force_terminal=False) if console.is_jupyter else console


# ----- lines about waits

_QUIET_S = 8.0


@dataclass(slots=True, eq=False)
class Activity:
    """What a command is doing, and how much of it is done. total: 0 where it is not known."""

    name: str
    done: int = 0
    total: int = 0
    unit: str = ""
    began: float = field(default_factory=time.monotonic)

    def advance(self, number: int) -> None:
        """So many more are done."""
        self.done += number

    def __str__(self) -> str:
        if not self.done and not self.total:
            return self.name
        of_all = f"/{self.total:,}" if self.total else ""
        return f"{self.name} {self.done:,}{of_all} {self.unit}".rstrip()

    def line(self) -> str:
        """What, how much, since when, and the time left at this rate."""
        seconds = time.monotonic() - self.began
        told = f"... {self}, {duration(seconds)}"
        if not 0 < self.done < self.total:
            return told
        return f"{told}, {duration(seconds / self.done * (self.total - self.done))} left"


_activities = [Activity("")]  # the first is the phase of a run
_num_bars = 0


@contextmanager
def activity(name: str, total: int = 0, unit: str = "") -> Iterator[Activity]:
    """What the command is doing until the end of the block, such as "loading weights"."""
    doing = Activity(name, total=total, unit=unit)
    _activities.append(doing)
    try:
        yield doing
    finally:
        _activities.remove(doing)


@contextmanager
def told_waits() -> Iterator[None]:
    """In the block, a line on stderr about the innermost activity whenever nothing was printed for 8 seconds and no bar
    is shown."""
    ended, stream = threading.Event(), sys.stderr

    def tell() -> None:
        while not ended.wait(0.5):
            silent = time.monotonic() - PrintableStream.written_at
            if silent >= _QUIET_S and _activities[-1].name and not _num_bars:
                print(_activities[-1].line(), file=stream, flush=True)

    PrintableStream.written_at = time.monotonic()
    teller = threading.Thread(target=tell, name="told-waits", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


def _bars(*columns: ProgressColumn, is_wanted: bool) -> Progress:
    """Shown where that is wanted and stderr is a terminal."""
    console = console_of(sys.stderr)
    return Progress(*columns, console=console, transient=True, disable=not (is_wanted and console.is_terminal))


def _show(bar: Progress) -> None:
    global _num_bars
    bar.start()
    _num_bars += not bar.disable


def _hide(bar: Progress) -> None:
    global _num_bars
    bar.stop()
    _num_bars -= not bar.disable


class RowProgress(AbstractContextManager["RowProgress"]):
    """One bar per stage, such as tokenizing, writing and reading back."""

    def __init__(self, *, is_wanted: bool) -> None:
        columns = (TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bars = _bars(*columns, is_wanted=is_wanted)
        self._activity = ExitStack()

    def __enter__(self) -> RowProgress:
        _show(self._bars)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._activity.close()
        _hide(self._bars)

    def note(self, text: str) -> None:
        """A line for the user, above the bars."""
        self._bars.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def stage(self, name: str, count: Callable[[], int]) -> Callable[[int], None]:
        """A new bar; yields the function to call with the number of rows just done. count: called only if a bar is
        shown."""
        if self._bars.disable:
            self._activity.close()
            doing = self._activity.enter_context(activity(name))
            return doing.advance
        task = self._bars.add_task(name, total=count())
        return lambda rows: self._bars.advance(task, rows)

    def watched(self, name: str, rows: Iterable[_Row], count: int) -> Iterator[_Row]:
        """`rows`, with a bar of their own."""
        advance = self.stage(name, lambda: count)
        for row in rows:
            yield row
            advance(1)


@contextmanager
def byte_progress(name: str, total: int, *, is_wanted: bool) -> Iterator[Callable[[int], None]]:
    """A bar of bytes; yields the function to call with the bytes just done."""
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bar = _bars(*columns, is_wanted=is_wanted)
    task = bar.add_task(name, total=total)
    _show(bar)
    try:
        with activity(name, total, "bytes") as doing:
            yield doing.advance if bar.disable else lambda num_bytes: bar.advance(task, num_bytes)
    finally:
        _hide(bar)


# ----- the bar of a run


_PHASES = {
    "start": "starting",
    "data": "reading data",
    "build": "building the model",
    "warm_up": "warming up",
    "gen": "generating",
    "reward": "scoring",
    "old_log_prob": "log-probs",
    "adv": "advantages",
    "update_actor": "updating",
    "update_weights": "handing weights over",
    "testing": "evaluating",
    "save_checkpoint": "saving",
    "export": "exporting",
}
_MEASURED_STEPS = 8


def enter_phase(phase: str) -> None:
    """Tell the phase of a run that begins, by the name of its timer."""
    if phase in _PHASES:
        _activities[0] = Activity(_PHASES[phase])


def count(done: int, total: int, unit: str) -> None:
    """Tell how much of the present activity is done, e.g. 24 of 256 responses."""
    doing = _activities[-1]
    doing.done, doing.total, doing.unit = done, total, unit


class RunBar:
    """Stages (a warm-up, the training), each with its own count of steps; the present activity; the time left,
    estimated from the last steps of the stage."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._ends = clock, deque[tuple[float, int]](maxlen=_MEASURED_STEPS + 1)
        columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), _Text(self._rest))
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=None, visible=False)
        _show(self._bar)

    def show(self, stage: str, done: int, total: int) -> None:
        """So many steps of a stage are done."""
        task = self._bar.tasks[0]
        if task.description != stage or done < task.completed:
            self._ends.clear()
        if not self._ends or done > self._ends[-1][1]:
            self._ends.append((self._clock(), done))
        self._bar.update(self._task, description=stage, completed=done, total=total, visible=True)

    def left(self) -> float | None:
        """Seconds until the stage ends; None before one of its steps has ended. Its first step here, which compiles,
        counts only while there is no other."""
        ends = list(self._ends)[1 if len(self._ends) > 2 else 0 :]
        total = self._bar.tasks[0].total
        if len(ends) < 2 or total is None:
            return None
        (first, begun), (last, done) = ends[0], ends[-1]
        per_step, rest = (last - first) / (done - begun), total - done
        return max(per_step * rest - (self._clock() - last), per_step * (rest - 1), 0.0)

    def _rest(self) -> str:
        seconds = self.left()
        left = "" if seconds is None else f"{duration(seconds)} left  "
        return f"{left}{_activities[-1]}"

    def close(self) -> None:
        """Take it from the screen."""
        _hide(self._bar)


class _Text(ProgressColumn):
    """A column of what a function says at each look."""

    def __init__(self, say: Callable[[], str]) -> None:
        super().__init__(Column(no_wrap=True, overflow="ellipsis"))
        self._say = say

    def render(self, task: Task) -> Text:
        return Text(self._say())
