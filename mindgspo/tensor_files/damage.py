"""What readers say of files that cannot be used.

What enters: the file and what is wrong. What leaves: a WeightsError with path, size and remedy, or parts of its text.
Called by all readers of this room and by the check of weight names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from mindgspo.errors import WeightsError
from mindgspo.text import printable, shorten

# How many names of one kind a message shows.
LISTED = 8


def damaged(path: Path, what: object) -> WeightsError:
    """The error for a file that is not whole."""
    return WeightsError(
        f"{path}: truncated, damaged or unreadable ({_shown(str(what))}); its size is {_size(path)}. "
        "Copy or download the file again and compare its size and checksum with the source"
    )


def listed(title: str, names: Sequence[str], describe: Callable[[str], str] = str) -> list[str]:
    """A titled block with the first few names and how many more there are; nothing where there are none."""
    if not names:
        return []
    more = [f"    ... and {len(names) - LISTED} more"] if len(names) > LISTED else []
    return [f"  {title} ({len(names)}):", *(f"    {_shown(describe(name))}" for name in names[:LISTED]), *more]


def refused_dtypes(path: Path, dtypes: Sequence[tuple[str, str]]) -> WeightsError:
    """The error for (name, dtype) pairs that no reader here takes."""
    of = dict(dtypes)
    return WeightsError(
        f"{path}: dtypes that cannot be read here (use float32, float16 or bfloat16 weights)\n"
        + "\n".join(listed("refused", list(of), lambda name: f"{name}: {of[name]}"))
    )


def _shown(text: str) -> str:
    """Text out of a file for a message: no control characters for the terminal, no endless names."""
    return printable(shorten(text, 400))


def _size(path: Path) -> str:
    try:
        return f"{os.stat(path).st_size:,} bytes"
    except OSError:
        return "unknown"
