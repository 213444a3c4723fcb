"""A progress bar for work measured in bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from mindgspo.text import raw_stream


@contextmanager
def byte_progress(name: str, total: int, *, is_wanted: bool) -> Iterator[Callable[[int], None]]:
    """The function to call with the bytes just done. The bar is gone when the block ends."""
    console = Console(file=raw_stream(sys.stderr))
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not (is_wanted and console.is_terminal))
    with bar:
        task = bar.add_task(name, total=total)
        yield lambda num_bytes: bar.advance(task, num_bytes)
