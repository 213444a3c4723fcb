"""Progress bars on stderr, gone when the work ends: of rows and of bytes. Notes go there whether bars do or not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from mindgspo.text import printable, raw_stream

Row = TypeVar("Row")


def _bars(*columns: ProgressColumn, is_wanted: bool) -> Progress:
    """Shown where that is wanted and stderr is a terminal."""
    console = Console(file=raw_stream(sys.stderr))
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
        """A new bar; the function to call with the number of rows just done. count: asked only if a bar is shown."""
        if self._bars.disable:
            return lambda rows: None
        task = self._bars.add_task(name, total=count())
        return lambda rows: self._bars.advance(task, rows)

    def watched(self, name: str, rows: Iterable[Row], count: int) -> Iterator[Row]:
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
