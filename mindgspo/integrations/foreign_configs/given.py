"""The settings of one foreign file as dotted keys, and values read from them.

What enters: a flat mapping, as the readers make it. What leaves: `Given`, which converters ask, and the readers of
single values: what they expect they say in a `ValueError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any


class Given:
    """What a file says, and what its suite takes for the rest."""

    def __init__(self, values: Mapping[str, Any], default: Callable[[str], Any], name: str) -> None:
        """values: by dotted key. default: of a key that is not given. name: what the report calls the file."""
        self._values = dict(values)
        self._default = default
        self.name = name

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __getitem__(self, key: str) -> Any:
        """The value that counts: the file's, else the suite's own."""
        return self._values[key] if key in self._values else self._default(key)

    def first(self, *keys: str) -> Any:
        """The value of the first of these keys that the file sets, else the suite's own of the first."""
        return self[next((key for key in keys if key in self._values), keys[0])]


_MOST = 10_000_000  # of anything that is counted; products of such numbers can still be searched for divisors


def whole(value: Any, given: Given | None = None, most: int = _MOST) -> int:
    """A whole number, also where it is written as text or as 8.0."""
    if isinstance(value, bool) or value is None:
        raise ValueError(f"expected a whole number, got {value!r}")
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not found.is_integer():
        raise ValueError(f"expected a whole number, got {str(value)[:60]!r}")
    if abs(found) > most:
        raise ValueError(f"expected a whole number of at most {most:,}, got {str(value)[:60]!r}")
    return int(found)


def seed(value: Any, given: Given | None = None) -> int:
    """A whole number of any usual size."""
    return whole(value, given, most=2**53)


def number(value: Any, given: Given | None = None) -> float:
    """A number, also where YAML 1.1 takes it for text, as 5e-7."""
    if isinstance(value, bool) or value is None:
        raise ValueError(f"expected a number, got {value!r}")
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"expected a number, got {str(value)[:60]!r}")
    return found


def flag(value: Any, given: Given | None = None) -> bool:
    """True or false, in any spelling."""
    words = {"true": True, "false": False}
    if isinstance(value, bool):
        return value
    if str(value).lower() not in words:
        raise ValueError(f"expected true or false, got {str(value)[:60]!r}")
    return words[str(value).lower()]


def text(value: Any, given: Given | None = None) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected a text, got {value!r}")
    return value


def local_path(value: Any, given: Given | None = None) -> str:
    """A path as this project wants it: absolute, the home folder spelt out; it counts from the current folder."""
    return str(Path(text(value)).expanduser().absolute())


def size(given: Given, key: str) -> int:
    """A whole number of at least 1; 1 where the file says something else, which the key's own row reports."""
    try:
        return max(1, whole(given[key]))
    except ValueError:
        return 1


def is_on(given: Given, key: str) -> bool:
    """Whether a switch is on; off where the file says something else, which the key's own row reports."""
    try:
        return flag(given[key])
    except ValueError:
        return False
