"""The tables as Markdown, for docs/migrate.md and docs/migrate_cn.md.

What enters: a `Table`. What leaves: lines. Called by tools/write_migration.py and the test that compares the pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mindgspo.integrations.foreign_configs.table import ABSENT, Fate, Row, Table, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a page says in its own language. Notes are in the words of the program, which are English."""

    taken_over: str
    not_built: str
    not_needed: str
    columns: tuple[str, str, str]
    columns_of_not_built: tuple[str, str]
    columns_of_not_needed: tuple[str, str]
    default: str


ENGLISH = Words(
    taken_over="Taken over",
    not_built="Not implemented here",
    not_needed="Not needed here",
    columns=("key there", "key here", "how"),
    columns_of_not_built=("key there", "instead"),
    columns_of_not_needed=("why", "keys there"),
    default="default there",
)
CHINESE = Words(
    taken_over="转换的键",
    not_built="本项目未实现",
    not_needed="本项目不需要",
    columns=("原来的键", "本项目的键", "说明"),
    columns_of_not_built=("原来的键", "替代办法"),
    columns_of_not_needed=("原因", "原来的键"),
    default="原默认值",
)


def table_lines(table: Table, words: Words) -> Iterator[str]:
    """A section of a page: the title, then the three tables."""
    yield f"## {table.title}"
    mapped = [row for row in table.rows if row.fate is Fate.MAPPED]
    yield from _table(words.taken_over, words.columns, [_mapped(row, words) for row in mapped])
    unbuilt = [row for row in table.rows if row.fate is Fate.NOT_BUILT]
    rows = [(_code(row.source), _escaped(row.note)) for row in unbuilt]
    yield from _table(words.not_built, words.columns_of_not_built, rows)
    yield from _table(words.not_needed, words.columns_of_not_needed, _by_reason(table))


def _mapped(row: Row, words: Words) -> tuple[str, ...]:
    targets = ", ".join(_code(target) for target in row.target.split(", ") if target) or "-"
    default = "" if row.default is ABSENT else f"{words.default}: {shown(row.default)}"
    return _code(row.source), targets, "; ".join(filter(None, (_escaped(row.note), default)))


def _by_reason(table: Table) -> list[tuple[str, ...]]:
    keys: dict[str, list[str]] = {}
    for row in table.rows:
        if row.fate is Fate.NOT_NEEDED:
            keys.setdefault(row.note, []).append(_code(row.source))
    return [(_escaped(reason), ", ".join(sources)) for reason, sources in keys.items()]


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from ("", f"### {title}", "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}")
    yield from (f"| {' | '.join(cells)} |" for cells in rows)


def _code(text: str) -> str:
    return f"`{text}`"


def _escaped(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*").replace("<", r"\<")
