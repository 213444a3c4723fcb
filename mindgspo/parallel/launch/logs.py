"""Reads the workers' logs: one is copied to the screen while it grows, of the others the end is shown after a failure.

What enters: log files. What leaves: bytes on the launcher's output, lines of text. Called by `launcher` and
`launch.failures`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

_TAIL_BYTES = 2**16
_MAX_TRACEBACK_LINES = 80
_CLEAR_LINE = b"\r\x1b[2K"
_SHOW_CURSOR = b"\x1b[?25h"


class LogFollower:
    """Copies a growing file to `output` as it is, the control codes of a progress bar included."""

    def __init__(self, path: Path, output: BinaryIO, *, is_terminal: bool) -> None:
        self._path = path
        self._output: BinaryIO | None = output
        self._is_terminal = is_terminal
        self._position = 0
        self._is_line_open = False

    def size(self) -> int:
        """Bytes that the file holds now; `copy` can be bounded by them."""
        return self._path.stat().st_size if self._path.exists() else 0

    def copy(self, end: int) -> None:
        """Copy what was not copied yet, up to byte `end`."""
        if self._output is None or end <= self._position:
            return
        with self._path.open("rb") as log:
            log.seek(self._position)
            piece = log.read(end - self._position)
        self._position += len(piece)
        self._write(piece)
        self._is_line_open = not piece.endswith(b"\n")

    def end_line(self) -> None:
        """Make room for a message of the launcher: a progress bar in the line is wiped, and draws itself again."""
        if self._is_line_open:
            self._write(_CLEAR_LINE if self._is_terminal else b"\n")
            self._is_line_open = False

    def close(self) -> None:
        """Leave the terminal as it was found; a progress bar hides the cursor."""
        self.end_line()
        if self._is_terminal:
            self._write(_SHOW_CURSOR)

    def _write(self, piece: bytes) -> None:
        if self._output is None:
            return
        try:
            self._output.write(piece)
            self._output.flush()
        except BrokenPipeError:  # nobody reads any more, e.g. `| head`; the run goes on, the log is complete
            self._output = None


def standard_output(path: Path) -> LogFollower:
    """Follows `path` on this process's standard output."""
    return LogFollower(path, sys.stdout.buffer, is_terminal=sys.stdout.isatty())


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines that are not empty; none if there is no file."""
    return [line for line in _tail(path) if line.strip()][-count:]


def last_traceback(path: Path) -> list[str]:
    """From the last traceback in a log to the log's end; none if it holds no traceback."""
    lines = _tail(path)
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    return lines[starts[-1] :][:_MAX_TRACEBACK_LINES] if starts else []


def _tail(path: Path) -> list[str]:
    if not path.exists():
        return []
    with path.open("rb") as log:
        log.seek(0, 2)
        log.seek(max(0, log.tell() - _TAIL_BYTES))
        return log.read().decode("utf-8", "replace").splitlines()
