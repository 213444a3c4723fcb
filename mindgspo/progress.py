"""Progress bars, which disappear when the work ends: of rows and bytes on stderr, which also takes notes, and of a run,
with the current phase of its step."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
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

from mindgspo.text import duration, printable, raw_stream

_Row = TypeVar("_Row")


def console_of(stream: TextIO) -> Console:
    """A console that writes to a stream. To a notebook it writes lines of text, as to a file: each HTML piece and each
    move of a bar would be an output of its cell."""
    console = Console(file=raw_stream(stream))
    return Console(file=console.file, force_jupyter=False, force_terminal=False) if console.is_jupyter else console


def _bars(*columns: ProgressColumn, is_wanted: bool) -> Progress:
    """Shown where that is wanted and stderr is a terminal."""
    console = console_of(sys.stderr)
    return Progress(*columns, console=console, transient=True, disable=not (is_wanted and console.is_terminal))


class RowProgress(AbstractContextManager["RowProgress"]):
    """One bar per stage, such as tokenizing, writing and reading back."""

    def __init__(self, *, is_wanted: bool) -> None:
        columns = (TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bars = _bars(*columns, is_wanted=is_wanted)

    def __enter__(self) -> RowProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def note(self, text: str) -> None:
        """A line for the user, above the bars."""
        self._bars.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def stage(self, name: str, count: Callable[[], int]) -> Callable[[int], None]:
        """A new bar; yields the function to call with the number of rows just done. count: called only if a bar is
        shown."""
        if self._bars.disable:
            return lambda rows: None
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
    with _bars(*columns, is_wanted=is_wanted) as bar:
        task = bar.add_task(name, total=total)
        yield lambda num_bytes: bar.advance(task, num_bytes)


# ----- the bar of a run


_PHASES = {
    "gen": "generating",
    "reward": "scoring",
    "old_log_prob": "log-probs",
    "adv": "advantages",
    "update_actor": "updating",
    "update_weights": "handing weights over",
    "testing": "evaluating",
    "save_checkpoint": "saving",
}
_MEASURED_STEPS = 8

_run_bar: RunBar | None = None


def enter_phase(phase: str) -> None:
    """Show the phase that begins on the run's bar, by the name of its timer."""
    if _run_bar is not None and phase in _PHASES:
        _run_bar.doing = _PHASES[phase]


def count(done: int, total: int, what: str) -> None:
    """Show how much of the present phase is done, e.g. 24 of 256 responses."""
    if _run_bar is not None:
        _run_bar.counted = f" {done}/{total} {what}"


class RunBar:
    """Stages (a warm-up, the training), each with its own count of steps; the current phase; the time left, estimated
    from the last steps of the stage. One bar per process is updated by `enter_phase` and `count`."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        global _run_bar
        self._clock, self._ends = clock, deque[tuple[float, int]](maxlen=_MEASURED_STEPS + 1)
        self._doing = self.counted = ""
        columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), _Text(self._rest))
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=None, visible=False)
        self._bar.start()
        _run_bar = self

    @property
    def doing(self) -> str:
        """Activity of the present step."""
        return self._doing

    @doing.setter
    def doing(self, phase: str) -> None:
        self._doing, self.counted = phase, ""

    def show(self, stage: str, done: int, total: int) -> None:
        """So many steps of a stage are done."""
        task = self._bar.tasks[0]
        if task.description != stage or done < task.completed:
            self._ends.clear()
        if not self._ends or done > self._ends[-1][1]:
            self._ends.append((self._clock(), done))
        self.counted = ""
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
        return f"{left}{self._doing}{self.counted}"

    def close(self) -> None:
        """Take it from the screen."""
        global _run_bar
        _run_bar = None
        self._bar.stop()


class _Text(ProgressColumn):
    """A column of what a function says at each look."""

    def __init__(self, say: Callable[[], str]) -> None:
        super().__init__(Column(no_wrap=True, overflow="ellipsis"))
        self._say = say

    def render(self, task: Task) -> Text:
        return Text(self._say())
