#!/usr/bin/env python3
"""Write the tables of docs/migrate.md and docs/migrate_cn.md from mindgspo/integrations/foreign_configs.

    python tools/write_migration.py            rewrite both pages below their marker
    python tools/write_migration.py --check    change nothing; exit code 1 if a page is stale

What stands above the marker is written by hand and kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mindgspo.integrations.foreign_configs import TABLES
from mindgspo.integrations.foreign_configs.tables import Row, Status, Table, shown

DOCS = Path(__file__).resolve().parents[1] / "docs"
MARKER = "<!-- Everything below is written by tools/write_migration.py; edit the tables of the code instead. -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a page says in its own language. Notes are in the words of the program, which are English."""

    taken_over: str
    not_implemented: str
    not_needed: str
    columns: tuple[str, str, str]
    columns_of_not_implemented: tuple[str, str]
    columns_of_not_needed: tuple[str, str]
    default: str


ENGLISH = Words(
    taken_over="Taken over",
    not_implemented="Not implemented here",
    not_needed="Not needed here",
    columns=("key there", "key here", "how"),
    columns_of_not_implemented=("key there", "instead"),
    columns_of_not_needed=("why", "keys there"),
    default="default there",
)
CHINESE = Words(
    taken_over="转换的键",
    not_implemented="本项目未实现",
    not_needed="本项目不需要",
    columns=("原来的键", "本项目的键", "说明"),
    columns_of_not_implemented=("原来的键", "替代办法"),
    columns_of_not_needed=("原因", "原来的键"),
    default="原默认值",
)


def table_lines(table: Table, words: Words) -> Iterator[str]:
    """A section of a page: the title, then the three tables."""
    yield f"## {table.title}"
    mapped = [row for row in table.rows if row.status is Status.MAPPED]
    yield from _table(words.taken_over, words.columns, [_mapped(row, words) for row in mapped])
    missing = [row for row in table.rows if row.status is Status.NOT_IMPLEMENTED]
    rows = [(_code(row.source), _escaped(row.note)) for row in missing]
    yield from _table(words.not_implemented, words.columns_of_not_implemented, rows)
    yield from _table(words.not_needed, words.columns_of_not_needed, _by_reason(table))


def _mapped(row: Row, words: Words) -> tuple[str, ...]:
    targets = ", ".join(map(_code, row.targets)) or "-"
    default = f"{words.default}: {shown(row.default)}" if row.has_default else ""
    return _code(row.source), targets, "; ".join(filter(None, (_escaped(row.note), default)))


def _by_reason(table: Table) -> list[tuple[str, ...]]:
    keys: dict[str, list[str]] = {}
    for row in table.rows:
        if row.status is Status.NOT_NEEDED:
            keys.setdefault(row.note, []).append(_code(row.source))
    return [(_escaped(reason), ", ".join(sources)) for reason, sources in keys.items()]


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from ("", f"### {title}", "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}")
    yield from (f"| {' | '.join(cells)} |" for cells in rows)


def _code(text: str) -> str:
    return f"`{text}`"


def _escaped(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*").replace("<", r"\<")


PAGES = {"migrate.md": ENGLISH, "migrate_cn.md": CHINESE}


def written(page: Path) -> str:
    """The page with fresh tables below its marker. ValueError if it has none."""
    introduction, marker, _ = page.read_text(encoding="utf-8").partition(MARKER)
    if not marker:
        raise ValueError(f"{page}: the line `{MARKER}` is missing, so the place of the tables is unknown")
    sections = ["\n".join(table_lines(table, PAGES[page.name])) for table in TABLES.values()]
    return "\n\n".join([f"{introduction}{MARKER}", *sections]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the pages are up to date")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the two pages")
    arguments = parser.parse_args()
    stale = []
    for name in PAGES:
        page = arguments.docs / name
        try:
            fresh = written(page)
        except (OSError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        if page.read_text(encoding="utf-8") == fresh:
            continue
        stale.append(page)
        if not arguments.check:
            page.write_text(fresh, encoding="utf-8")
            print(f"wrote {page}")
    if stale and arguments.check:
        print(f"stale: {', '.join(map(str, stale))}; run `python tools/write_migration.py`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
