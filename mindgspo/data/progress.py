"""Progress on stderr, of a preparation or an evaluation: bars where that is a terminal, and notes anywhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mindgspo.text import printable, raw_stream

Row = TypeVar("Row")


class PreparationProgress(AbstractContextManager["PreparationProgress"]):
    """One bar per stage (tokenizing, writing, reading back), gone when the preparation ends."""

    def __init__(self, *, is_wanted: bool) -> None:
        self._console = Console(file=raw_stream(sys.stderr))
        self._bars = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not (is_wanted and self._console.is_terminal),
        )

    def __enter__(self) -> PreparationProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def note(self, text: str) -> None:
        """A line for the user, above the bars."""
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

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
