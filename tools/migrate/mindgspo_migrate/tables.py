"""Tables of another suite's keys: one YAML file per suite (verl.yaml, ...), special cases in the module of that name.

    renamed          key, or start of keys, of another form of the files -> the one in the rows
    conditions       condition -> why a key that depends on it sets nothing where it does not hold
    mapped           keys there -> {to: keys here, and how}
    not_implemented  keys there -> {instead: what to do here, harmless: values without effect}
    not_needed       why -> keys there

A * in a key stands for anything; where several keys fit a setting, the longest start before a * counts.
A mapped key may have

    read       a reader of `READERS`, or a function of the suite's module; `together`: that module sets it with others
    choices    value there -> value here, or keys and values; `otherwise` says what to do about any other value,
               and `adjusted` why one has only a near counterpart
    if_true, if_false   what a switch sets; a text for `if_false` says why nothing is set
    if_null    why nothing is set by null
    when       a condition, which is a function of the suite's module; `unless`: another reason than under `conditions`
    default    what that suite does where the key is not given
    note       for the report where it is mapped (`say`), or for the pages alone (`note`)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from mindgspo.text import closest, shorten


class Status(Enum):
    """What became of a key, in the words of the report."""

    MAPPED = "mapped"
    ADJUSTED = "adjusted"
    NOT_NEEDED = "not needed here"
    NOT_IMPLEMENTED = "not implemented here"
    UNKNOWN = "unknown key"
    UNREADABLE = "cannot be read"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one value became. values: by dotted key here, empty where nothing is set. text: why, or a remark."""

    status: Status
    values: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report. source: key there; value: what stood there; targets: keys here; text: why."""

    status: Status
    source: str
    value: Any = ""
    targets: tuple[str, ...] = ()
    text: str = ""
    file: str = ""


@dataclass(slots=True, kw_only=True)
class Reading:
    """A foreign file as it was read. values: by dotted key. unread_keys: those whose value is not in the file, so that
    no default stands for them. unread_words: each may hold any key, so that no default stands for any. findings:
    remarks on what is no value. program: the module or file that the command runs."""

    values: dict[str, Any] = field(default_factory=dict)
    unread_keys: set[str] = field(default_factory=set)
    unread_words: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    program: str = ""

    def remark(self, source: str, value: Any, text: str, status: Status = Status.NOT_NEEDED) -> None:
        """Something that is no setting, or not the one that counts."""
        self.findings.append(Finding(status=status, source=source, value=value, text=text))

    def unread(self, source: str, value: Any, text: str) -> None:
        """A setting whose value is not in the file."""
        self.unread_keys.add(source)
        self.values.pop(source, None)
        self.remark(source, value, text, Status.UNREADABLE)

    def is_unread(self, key: str) -> bool:
        """Whether the key may be set to a value that is not in the file."""
        return key in self.unread_keys or (bool(self.unread_words) and key not in self.values)


class Settings:
    """What a file says, and the suite's defaults for the rest. name: what the report calls the file."""

    def __init__(self, table: Table, reading: Reading, name: str) -> None:
        self._table, self._reading, self.name = table, reading, name
        self._values = {table.canonical(key): value for key, value in reading.values.items()}

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> Any:
        """The file's value, else the suite's default; None for a key that could not be read."""
        if key in self._values:
            return self._values[key]
        return None if self._reading.is_unread(key) else self._table.default(key)

    def first(self, *keys: str) -> Any:
        """The value of the first of these keys that the file sets, else the default of the first."""
        return self[next((key for key in keys if key in self), keys[0])]

    def size(self, key: str) -> int:
        """A whole number of at least 1; 1 where the file says something else, which the report has."""
        try:
            return max(1, whole(self[key]))
        except ValueError:
            return 1

    def is_on(self, key: str) -> bool:
        """Whether a switch is on; off where the file says something else, which the report has."""
        try:
            return flag(self[key])
        except ValueError:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One key of a table. target: keys here that it sets, comma separated; note: for people.
    convert: (value, settings) -> what it becomes; raises ValueError with what was expected."""

    source: str
    status: Status
    convert: Callable[[Any, Settings], Outcome]
    target: str = ""
    note: str = ""
    default: Any = None
    has_default: bool = False

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(filter(None, self.target.split(", ")))

    def outcome(self, value: Any, settings: Settings) -> Outcome:
        """What becomes of one value."""
        try:
            return self.convert(value, settings)
        except ValueError as error:
            return Outcome(status=Status.UNREADABLE, text=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All keys that are known of one suite. title: its name as people write it."""

    name: str
    title: str
    rows: Sequence[Row]
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Key, or start of keys that ends in a dot, of another form of the suite's files -> the one in the rows."""

    def canonical(self, key: str) -> str:
        """The key as the rows have it."""
        starts = [one for one in self.renamed if key == one or (one.endswith(".") and key.startswith(one))]
        longest = max(starts, key=len, default="")
        return self.renamed.get(longest, "") + key.removeprefix(longest)

    def find(self, key: str) -> Row | None:
        """The row that names the key, else the pattern with the longest start that fits it."""
        key = self.canonical(key)
        fitting = [
            row for row in self.rows if row.source == key or ("*" in row.source and fnmatchcase(key, row.source))
        ]
        return max(
            fitting, key=lambda row: len(row.source.partition("*")[0]) + 1000 * (row.source == key), default=None
        )

    def default(self, key: str) -> Any:
        """The suite's default of a key; None where the table has none."""
        row = self.find(key)
        return None if row is None else row.default

    def closest(self, key: str) -> str | None:
        """A key that somebody may have meant."""
        known = [row.source for row in self.rows if "*" not in row.source]
        return closest(key, known, cutoff=0.8)


def load_table(name: str, functions: Mapping[str, Any]) -> Table:
    """The table of `<name>.yaml`. functions: of the suite's module, (value, settings, row) for `read` and (settings)
    for `when`."""
    content = yaml.safe_load(Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8"))
    unless = content.get("conditions", {})
    rows = [
        _mapped_row(key, {"unless": unless.get(entry.get("when")), **entry}, functions)
        for keys, entry in content["mapped"].items()
        for key in keys.split(", ")
    ]
    rows += [
        _not_implemented_row(key, entry)
        for keys, entry in content["not_implemented"].items()
        for key in keys.split(", ")
    ]
    rows += [_not_needed_row(key, why) for why, keys in content["not_needed"].items() for key in keys]
    return Table(name=name, title=content["title"], rows=rows, renamed=content.get("renamed", {}))


def _mapped_row(key: str, entry: Mapping[str, Any], functions: Mapping[str, Any]) -> Row:
    assert entry.keys() <= {"to", "note", "say", "default", "when", "unless", "if_null", *_WAYS}, f"{key}: {entry}"
    assert entry.get("read", "whole") in {*READERS, *functions}, f"{key}: no function {entry['read']}"
    target, say = entry.get("to", ""), entry.get("say", "")
    way = next((one for one in _WAYS if one in entry), None)
    special = functions.get(entry["read"]) if way == "read" and entry["read"] not in READERS else None
    condition = functions[entry["when"]] if "when" in entry else None

    def convert(value: Any, settings: Settings) -> Outcome:
        if value is None and "if_null" in entry:
            return not_needed(entry["if_null"])
        if condition is not None and not condition(settings):
            return not_needed(entry["unless"])
        if way is None:
            found = value
        elif way == "read":
            found = special(value, settings, row) if special else READERS[entry["read"]](value)
        elif way == "choices":
            name = str(value).lower() if isinstance(value, bool) else value
            if not isinstance(name, str) or name not in entry["choices"]:
                return not_implemented(entry["otherwise"])
            choice = entry["choices"][name]
            values = choice if isinstance(choice, dict) else {target: choice}
            why = entry.get("adjusted", {}).get(name)
            found = adjusted(values, why) if why else mapped(values, say)
        else:
            found = entry["if_true"] if flag(value) else not_needed(entry["if_false"])
        return found if isinstance(found, Outcome) else mapped({target: found}, say)

    row = Row(
        source=key,
        status=Status.MAPPED,
        convert=convert,
        target=target,
        note=entry.get("note", say),
        default=entry.get("default"),
        has_default="default" in entry,
    )
    return row  # the converter reads it


_WAYS = ("read", "choices", "otherwise", "adjusted", "if_true", "if_false")


def _not_implemented_row(key: str, entry: Mapping[str, Any]) -> Row:
    def convert(value: Any, settings: Settings) -> Outcome:
        if any(value == one and type(value) is type(one) for one in entry.get("harmless", ())):
            return not_needed("as it is here")
        return not_implemented(entry["instead"])

    return Row(
        source=key,
        status=Status.NOT_IMPLEMENTED,
        convert=convert,
        note=entry["instead"],
        default=entry.get("default"),
        has_default="default" in entry,
    )


def _not_needed_row(key: str, why: str) -> Row:
    return Row(source=key, status=Status.NOT_NEEDED, convert=lambda value, settings: not_needed(why), note=why)


def mapped(values: Mapping[str, Any], text: str = "") -> Outcome:
    """Keys here, and a remark."""
    return Outcome(status=Status.MAPPED, values=values, text=text)


def adjusted(values: Mapping[str, Any], why: str) -> Outcome:
    """Other values than stood there."""
    return Outcome(status=Status.ADJUSTED, values=values, text=why)


def not_needed(why: str) -> Outcome:
    """A value without effect here."""
    return Outcome(status=Status.NOT_NEEDED, text=why)


def not_implemented(instead: str) -> Outcome:
    """A value whose effect this project does not have."""
    return Outcome(status=Status.NOT_IMPLEMENTED, text=instead)


# Readers of single values. Each raises ValueError with what it expects.

_MOST = 10_000_000  # of anything that is counted; products of such numbers can still be searched for divisors


def whole(value: Any, most: int = _MOST) -> int:
    """A whole number, also where it is written as text or as 8.0."""
    found = _float(value, "a whole number")
    if not found.is_integer():
        raise ValueError(f"expected a whole number, got {str(value)[:60]!r}")
    if abs(found) > most:
        raise ValueError(f"expected a whole number of at most {most:,}, got {str(value)[:60]!r}")
    return int(found)


def whole_list(value: Any) -> list[int]:
    """A list of whole numbers."""
    if not isinstance(value, list):
        raise ValueError(f"expected a list of whole numbers, got {str(value)[:60]!r}")
    return [whole(one) for one in value]


def number(value: Any) -> float:
    """A number, also where YAML 1.1 takes it for text, as 5e-7."""
    found = _float(value, "a number")
    if not math.isfinite(found):
        raise ValueError(f"expected a number, got {str(value)[:60]!r}")
    return found


def _float(value: Any, expected: str) -> float:
    if isinstance(value, bool) or value is None:
        raise ValueError(f"expected {expected}, got {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def flag(value: Any) -> bool:
    """True or false, in any spelling."""
    words = {"true": True, "false": False}
    if isinstance(value, bool):
        return value
    if str(value).lower() not in words:
        raise ValueError(f"expected true or false, got {str(value)[:60]!r}")
    return words[str(value).lower()]


def text(value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected a text, got {value!r}")
    return value


def local_path(value: Any) -> str:
    """An absolute path, the home folder spelt out; relative ones count from the current folder."""
    path = Path(text(value))
    if any(len(part) > 255 or "\0" in part for part in path.parts):
        raise ValueError(f"expected a path, got {value[:60]!r}")
    with suppress(RuntimeError):  # ~name of nobody on this machine
        path = path.expanduser()
    return str(path.absolute())


def texts(value: Any) -> list[str]:
    """One text, or a list of them."""
    entries = value if isinstance(value, list) else [value]
    if not entries:
        raise ValueError("expected a text, or a list of texts, got an empty list")
    return [text(entry) for entry in entries]


def at_least_one(value: Any) -> int:
    """A count of at least 1."""
    count = whole(value)
    if count < 1:
        raise ValueError(f"expected a number of at least 1, got {count}")
    return count


def count_if_positive(value: Any) -> int | Outcome:
    """A count; 0, -1 and null stand for none."""
    if value is None or whole(value) < 1:
        return not_needed("none is set, as by default here")
    return whole(value)


def betas(value: Any) -> Outcome:
    """The two of AdamW."""
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"expected two numbers, got {value!r}")
    return mapped({"optimizer.beta1": number(value[0]), "optimizer.beta2": number(value[1])})


def run_name(value: Any) -> str | Outcome:
    """A name that a folder can have."""
    given_name = text(str(value))
    name = _as_name(given_name)
    if not name:
        raise ValueError(f"expected a name with letters or digits, got {given_name[:60]!r}")
    return name if name == given_name else adjusted({"experiment": name}, "a folder is named after it")


def name_of_file(file: str) -> str:
    """An experiment's name after a file's."""
    return _as_name(file.rpartition(".")[0] or file) or "converted"


def _as_name(given_name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", given_name).strip("-._")[:100]


READERS: Mapping[str, Callable[[Any], Any]] = {
    "whole": whole,
    "seed": lambda value: whole(value, most=2**53),
    "number": number,
    "flag": flag,
    "tensorboard": lambda value: ["tensorboard"] if flag(value) else [],
    "text": text,
    "text_list": lambda value: [text(value)],
    "path": local_path,
    "at_least_one": at_least_one,
    "count_if_positive": count_if_positive,
    "betas": betas,
    "run_name": run_name,
    "top_k": lambda value: max(0, whole(value)),
    "together": lambda value: mapped({}),
}


def one_line(line: str, longest: int = 200) -> str:
    """A text of a foreign file on one line of printable ASCII: it must end no comment and move no cursor."""
    return shorten(line.encode("unicode_escape").decode("ascii"), longest)


def shown(value: Any) -> str:
    """A value on one short line, as YAML would have it."""
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    return one_line(str(value), 60)


def dotted(section: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf of nested sections."""
    for key, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
