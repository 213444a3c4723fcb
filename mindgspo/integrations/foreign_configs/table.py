"""The form of a mapping: one row per key of another suite, and what becomes of it.

What enters: nothing. What leaves: `Row`, `Table`, and the constructors that the tables (`*_rows`) are written
with. Read by `apply` and by the pages docs/migrate.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

from mindgspo.integrations.foreign_configs.given import Given
from mindgspo.text import closest, shorten


class Fate(Enum):
    """What became of a key, in the words of the report."""

    MAPPED = "mapped"
    ADJUSTED = "adjusted"
    NOT_NEEDED = "not needed here"
    NOT_BUILT = "not implemented here"
    UNKNOWN = "unknown key"
    UNREADABLE = "cannot be read"
    ASSUMED = "assumed"


class _Absent:
    """Type of ABSENT."""


ABSENT = _Absent()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a converter made of one value. values: by dotted key here, empty where nothing is set."""

    fate: Fate
    values: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""


Convert = Callable[[Any, Given], Any]
"""(value, all settings of the file) -> the value here, or an `Outcome`. Raises `ValueError` with what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a mapping.

    source: dotted key there, in which * stands for anything. target: keys here that it sets, comma separated; empty if
    none. default: what that suite does where the key is not given, if that has to be said here. note: for people.
    """

    source: str
    target: str = ""
    convert: Convert
    fate: Fate = Fate.MAPPED
    note: str = ""
    default: Any = ABSENT

    def outcome(self, value: Any, given: Given) -> Outcome:
        """What becomes of one value."""
        try:
            found = self.convert(value, given)
        except ValueError as error:
            return Outcome(fate=Fate.UNREADABLE, text=str(error))
        return found if isinstance(found, Outcome) else Outcome(fate=self.fate, values={self.target: found})


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All keys that are known of one suite. title: its name as people write it."""

    name: str
    title: str
    rows: Sequence[Row]

    def find(self, key: str) -> Row | None:
        """The row of a key: the one that names it, else the first whose pattern fits."""
        exact = next((row for row in self.rows if row.source == key), None)
        return exact or next((row for row in self.rows if "*" in row.source and fnmatchcase(key, row.source)), None)

    def default(self, key: str) -> Any:
        """What the suite takes for a key that is not given; None where that is not written down."""
        row = self.find(key)
        return None if row is None or row.default is ABSENT else row.default

    def closest(self, key: str) -> str | None:
        """A key that somebody may have meant."""
        known = [row.source for row in self.rows if "*" not in row.source]
        return closest(key, known, cutoff=0.8)


def same(value: Any, given: Given) -> Any:
    """The value as it stands."""
    return value


def to(source: str, target: str, convert: Convert = same, *, note: str = "", default: Any = ABSENT) -> Row:
    """A key that sets `target`."""
    return Row(source=source, target=target, convert=convert, note=note, default=default)


def joined(source: str, target: str, note: str, *, default: Any = ABSENT) -> Row:
    """A key that sets `target` together with others, which the suite's own module works out."""
    return Row(
        source=source,
        target=target,
        convert=lambda value, given: Outcome(fate=Fate.MAPPED),
        note=note,
        default=default,
    )


def needless(source: str, why: str) -> Row:
    """A key that this project has no use for."""
    return Row(
        source=source,
        convert=lambda value, given: Outcome(fate=Fate.NOT_NEEDED, text=why),
        fate=Fate.NOT_NEEDED,
        note=why,
    )


def unbuilt(source: str, instead: str, *, harmless: Sequence[Any] = (), default: Any = ABSENT) -> Row:
    """A key whose effect this project does not have. harmless: values with which it has none there either."""

    def convert(value: Any, given: Given) -> Outcome:
        if any(value == one and type(value) is type(one) for one in harmless):
            return Outcome(fate=Fate.NOT_NEEDED, text="as it is here")
        return Outcome(fate=Fate.NOT_BUILT, text=instead)

    return Row(source=source, convert=convert, fate=Fate.NOT_BUILT, note=instead, default=default)


def left_out(why: str, **values: Any) -> Outcome:
    """A value of no effect."""
    return Outcome(fate=Fate.NOT_NEEDED, text=why, values=values)


def not_built(instead: str) -> Outcome:
    """A value whose effect this project does not have."""
    return Outcome(fate=Fate.NOT_BUILT, text=instead)


def adjusted(values: Mapping[str, Any], why: str) -> Outcome:
    """Another value than stood there."""
    return Outcome(fate=Fate.ADJUSTED, values=values, text=why)


def mapped(values: Mapping[str, Any], note: str = "") -> Outcome:
    """Several keys here, or one with a remark."""
    return Outcome(fate=Fate.MAPPED, values=values, text=note)


def plain(text: str, longest: int = 200) -> str:
    """A text of a foreign file on one line of printable ASCII: it must end no comment and move no cursor."""
    line = text.encode("unicode_escape").decode("ascii")
    return shorten(line, longest)


def shown(value: Any) -> str:
    """A value on one short line, as YAML would have it."""
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    return plain(str(value), 60)
