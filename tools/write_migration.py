#!/usr/bin/env python3
"""Write the tables of docs/migrate.md and docs/migrate_cn.md from tools/migrate/mindgspo_migrate.

    python tools/write_migration.py            rewrite both pages below their marker
    python tools/write_migration.py --check    change nothing; exit code 1 if a page is stale

What stands above the marker is written by hand and kept.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import yaml
from generated_pages import write_pages

from mindgspo_migrate.convert import TABLES
from mindgspo_migrate.tables import Row, Status, Table, shown

MARKER = "<!-- Everything below is written by tools/write_migration.py; edit the tables of the code instead. -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a page says in its own language. notes: those of the tables, which are English; without an entry as they
    are."""

    taken_over: str
    not_implemented: str
    not_needed: str
    columns: tuple[str, str, str]
    columns_of_not_implemented: tuple[str, str]
    columns_of_not_needed: tuple[str, str]
    default: str
    separator: str
    notes: Mapping[str, str] = field(default_factory=dict)

    def note(self, text: str) -> str:
        """A note of the tables, with what a table cell needs escaped."""
        return self.notes.get(text, text).replace("|", r"\|").replace("*", r"\*").replace("<", "&lt;")


CHINESE_NOTES = Path(__file__).with_name("migration_cn.yaml")
ENGLISH = Words(
    taken_over="Taken over",
    not_implemented="Not implemented here",
    not_needed="Not needed here",
    columns=("key there", "key here", "how"),
    columns_of_not_implemented=("key there", "instead"),
    columns_of_not_needed=("why", "keys there"),
    default="default there: {}",
    separator="; ",
)
CHINESE = Words(
    taken_over="转换的键",
    not_implemented="本项目未实现",
    not_needed="本项目不需要",
    columns=("原来的键", "本项目的键", "说明"),
    columns_of_not_implemented=("原来的键", "替代办法"),
    columns_of_not_needed=("原因", "原来的键"),
    default="原默认值：{}",
    separator="；",
    notes=yaml.safe_load(CHINESE_NOTES.read_text(encoding="utf-8")),
)


def table_lines(table: Table, words: Words) -> Iterator[str]:
    """A section of a page: the title, then the three tables."""
    yield f"## {table.title}"
    mapped = [row for row in table.rows if row.status is Status.MAPPED]
    yield from _table(words.taken_over, words.columns, [_mapped(row, words) for row in mapped])
    missing = [row for row in table.rows if row.status is Status.NOT_IMPLEMENTED]
    rows = [(_code(row.source), words.note(row.note)) for row in missing]
    yield from _table(words.not_implemented, words.columns_of_not_implemented, rows)
    yield from _table(words.not_needed, words.columns_of_not_needed, _by_reason(table, words))


def _mapped(row: Row, words: Words) -> tuple[str, ...]:
    targets = ", ".join(map(_code, row.targets)) or "-"
    default = words.default.format(shown(row.default)) if row.has_default else ""
    return _code(row.source), targets, words.separator.join(filter(None, (words.note(row.note), default)))


def _by_reason(table: Table, words: Words) -> list[tuple[str, ...]]:
    keys: dict[str, list[str]] = {}
    for row in table.rows:
        if row.status is Status.NOT_NEEDED:
            keys.setdefault(row.note, []).append(_code(row.source))
    return [(words.note(reason), ", ".join(sources)) for reason, sources in keys.items()]


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from ("", f"### {title}", "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}")
    yield from (f"| {' | '.join(cells)} |" for cells in rows)


def _code(text: str) -> str:
    return f"`{text}`"


PAGES = {"migrate.md": ENGLISH, "migrate_cn.md": CHINESE}


def sections(words: Words) -> str:
    """All tables of a page."""
    return "\n\n".join("\n".join(table_lines(table, words)) for table in TABLES.values())


if __name__ == "__main__":
    assert __doc__ is not None
    sys.exit(write_pages(__doc__, MARKER, {page: partial(sections, words) for page, words in PAGES.items()}))
