"""Settings that have been renamed: what an older file says, in the words of today. Pure Python.

The config.yaml of a run begins with `schema: N`, the version of the names in it; a file that somebody writes may leave
the number out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mindgspo.errors import ConfigError
from mindgspo.text import shorten

SCHEMA = 3
"""Grows with every entry of RENAMES."""
SCHEMA_KEY = "schema"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """since: the first schema without the old name. old, new: dotted keys. value: of the new one, from the old one's;
    raises ValueError for one that the old setting could not have."""

    since: int
    old: str
    new: str
    value: Callable[[object], object] = lambda value: value


def _trackers(is_on: object) -> list[str]:
    if not isinstance(is_on, bool):
        raise ValueError("expected true or false")
    return ["tensorboard"] if is_on else []


RENAMES = (
    Rename(since=2, old="logging.tensorboard", new="logging.trackers", value=_trackers),
    Rename(since=3, old="rollout.tokens_per_look", new="rollout.tokens_per_sync"),
)


def migrated(mapping: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The mapping of a file or an override without `schema`, old names replaced; a line on standard error tells which
    in text without a number, that is in what a person keeps. where: what errors call it.

    Raises ConfigError: a number of a newer version, an old and its new name at once, a value that the old one could not
    have.
    """
    found = dict(mapping)
    number = found.pop(SCHEMA_KEY, None)
    if number is not None and (type(number) is not int or number < 1):
        raise ConfigError(f"{where}: {SCHEMA_KEY}: expected a whole number from 1, got {shorten(repr(number))}")
    if number is not None and number > SCHEMA:
        raise ConfigError(
            f"{where}: {SCHEMA_KEY}: {number} is of a newer mindgspo, this one reads up to {SCHEMA}; install that one, "
            f"or remove the line and whatever this version then names as unknown"
        )
    for rename in RENAMES:
        if (number is None or number < rename.since) and _has(found, rename.old):
            found, value = _taken(found, rename.old)
            if _has(found, rename.new):
                raise ConfigError(f"{where}: {rename.old} is called {rename.new} now, and both are set; remove it")
            try:
                new = rename.value(value)
            except ValueError as error:
                raise ConfigError(f"{where}: {rename.old}: {error}, got {shorten(repr(value))}") from None
            found = _put(found, rename.new, new)
            if number is None:
                print(f"note: {where}: {rename.old} is called {rename.new} now: {new}", file=sys.stderr)
    return found


def _has(mapping: Mapping[str, Any], key: str) -> bool:
    head, dot, rest = key.partition(".")
    below = mapping.get(head)
    return head in mapping and (not dot or (isinstance(below, Mapping) and _has(below, rest)))


def _taken(mapping: Mapping[str, Any], key: str) -> tuple[dict[str, Any], Any]:
    """Without the key, and its value."""
    head, dot, rest = key.partition(".")
    if not dot:
        return {name: value for name, value in mapping.items() if name != head}, mapping[head]
    below, value = _taken(mapping[head], rest)
    return {**mapping, head: below}, value


def _put(mapping: Mapping[str, Any], key: str, value: object) -> dict[str, Any]:
    head, dot, rest = key.partition(".")
    return {**mapping, head: _put(mapping.get(head, {}), rest, value) if dot else value}
