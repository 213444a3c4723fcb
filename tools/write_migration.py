#!/usr/bin/env python3
"""Write the tables of docs/migrate.md and docs/migrate_cn.md from mindgspo/integrations/foreign_configs.

    python tools/write_migration.py            rewrite both pages below their marker
    python tools/write_migration.py --check    change nothing; exit code 1 if a page is stale

What stands above the marker is written by hand and kept.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mindgspo.integrations.foreign_configs import TABLES
from mindgspo.integrations.foreign_configs.markdown import CHINESE, ENGLISH, table_lines

DOCS = Path(__file__).resolve().parents[1] / "docs"
MARKER = "<!-- Everything below is written by tools/write_migration.py; edit the tables of the code instead. -->"
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
