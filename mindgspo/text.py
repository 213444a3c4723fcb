"""Pieces of messages: did you mean, shortened values, lists of names, tables, nearest legal numbers; and text from
outside made harmless for a terminal."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO


def closest(given: object, known: Iterable[object], *, cutoff: float = 0.6) -> str | None:
    """The known name that `given` may be a misspelling of. cutoff: similarity from 0 (any) to 1 (equal)."""
    return next(iter(difflib.get_close_matches(str(given), [str(name) for name in known], n=1, cutoff=cutoff)), None)


def did_you_mean(
    given: object, known: Iterable[object], *, otherwise: str = "", cutoff: float = 0.6, show: Callable = repr
) -> str:
    """The end of a message about an unknown name: "; did you mean 'k3'?", or `otherwise` if no name is close."""
    close = closest(given, known, cutoff=cutoff)
    return otherwise if close is None else f"; did you mean {show(close)}?"


_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
LOCAL_FOLDERS = {"checkpoints", "data", "export", "model", "models", "runs"}
"""Usual names of folders, which no name on a hub begins with."""


def hub_hint(path: Path, *, is_data: bool = False) -> str:
    """The end of a message about a folder that is not there and may have been meant as a name on a hub, such as
    Qwen/Qwen2.5-0.5B, or openai/gsm8k of a data set: how to fetch it. Empty for any other path."""
    name = "/".join(path.parts[-2:])
    if path.exists() or path.parent.exists() or path.parent.name in LOCAL_FOLDERS or not _HUB_NAME.fullmatch(name):
        return ""
    kind, then = ("--repo-type dataset ", "; then name one of its files") if is_data else ("", "")
    return f"; if {name} is a name on a hub, fetch it first: `hf download {kind}{name} --local-dir {path}`{then}"


def shorten(text: object, width: int = 60) -> str:
    """The text, cut to `width` characters with "..." at its end."""
    text = str(text)
    return text if len(text) <= width else f"{text[: width - 3]}..."


# Controls (C0 without tab and line feed, C1), marks and overrides of the writing direction, Unicode's line separators,
# half surrogate pairs.
_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def printable(text: str) -> str:
    """The text with escapes in place of whatever steers a terminal or hides what is written; lines stay lines."""
    return _STEERS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class PrintableStream:
    """A text stream that writes to another one what is printable of a text. raw: that one, for progress bars."""

    written_at = 0.0
    """When any of them wrote last, by time.monotonic."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        """All of it; returns the number of characters given."""
        self.raw.write(printable(text))
        PrintableStream.written_at = time.monotonic()
        return len(text)

    def flush(self) -> None:
        """As of any stream."""
        self.raw.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def raw_stream(stream: TextIO) -> TextIO:
    """The stream that a `PrintableStream` writes to; any other as it is."""
    return stream.raw if isinstance(stream, PrintableStream) else stream


def error_text(error: object) -> str:
    """Text of an error for the user: printable, no endless lines."""
    return "\n".join(map(_without_middle, printable(f"error: {error}").split("\n")))


def _without_middle(line: str, width: int = 2000) -> str:
    """A line that is too long keeps its beginning, which names the file, and its end, which says what to do."""
    return line if len(line) <= width else f"{line[: width // 2]} ... {line[-width // 2 :]}"


def listed(names: Sequence[object], most: int = 8) -> str:
    """ "a, b, c", with "and 4 more" after the first `most`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def counted(number: int, noun: str) -> str:
    """(2, "rank") -> "2 ranks"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds as people say them: 42 s, 3 min 5 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def either(values: Iterable[object]) -> str:
    """[2, 4] -> "2 or 4"."""
    return " or ".join(map(str, values))


def aligned(rows: Sequence[Sequence[str]], *, left: int | None = None) -> list[str]:
    """Rows of cells as lines of equal columns. left: that many columns are set to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = len(widths) if left is None else left
    return ["  ".join(map(_set, row, widths, [i < left for i in range(len(widths))])).rstrip() for row in rows]


def _set(cell: str, width: int, to_left: bool) -> str:
    return cell.ljust(width) if to_left else cell.rjust(width)


def divisors(number: int) -> list[int]:
    """All divisors of `number` (>= 1), ascending; takes sqrt(number) steps."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def nearest(legal: list[int], given: int) -> list[int]:
    """The neighbours of `given` among `legal` (ascending): the largest one below, the smallest one above."""
    below = [value for value in legal if value < given][-1:]
    above = [value for value in legal if value > given][:1]
    return below + above
