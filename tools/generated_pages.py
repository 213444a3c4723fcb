"""Pages of docs/ whose end is written by a tool: everything below a marker; what stands above it is kept."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"

# Names of metrics, settings and files: words of latin letters joined by dots, slashes or underscores. And one formula.
_NAME = re.compile(r"sum_t \|d loss / d logp_t\||(?<![A-Za-z0-9-])[a-z][a-z0-9-]*(?:[./_@](?:<[a-z]+>|[A-Za-z0-9-]+))+")


def row(cells: Iterable[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Characters that Markdown would read inside a table."""
    return re.sub(r"([|*_\\])", r"\\\1", text).replace("<", "&lt;")


def marked_up(text: str) -> str:
    """Names as code; what is outside of them is escaped."""
    found, kept, end = _NAME.finditer(text), [], 0
    for match in found:
        kept += [escaped(text[end : match.start()]), "`" + match.group().replace("|", r"\|") + "`"]
        end = match.end()
    return "".join(kept) + escaped(text[end:])


def write_pages(description: str, marker: str, ends: dict[str, Callable[[], str]]) -> int:
    """The command line of such a tool: `ends` makes for each page, by its path below docs/, the text under `marker`.
    Returns the exit code."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the pages are up to date")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the pages")
    arguments = parser.parse_args()
    stale = []
    for name, end in ends.items():
        page = arguments.docs / name
        try:
            text = page.read_text(encoding="utf-8")
        except OSError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        introduction, found, _ = text.partition(marker)
        if not found:
            reason = f"the line `{marker}` is missing, so the place of what follows it is unknown"
            print(f"error: {page}: {reason}", file=sys.stderr)
            return 2
        fresh = f"{introduction}{marker}\n\n{end().rstrip()}\n"
        if text == fresh:
            continue
        stale.append(page)
        if not arguments.check:
            page.write_text(fresh, encoding="utf-8")
            print(f"wrote {page}")
    if stale and arguments.check:
        print(f"stale: {', '.join(map(str, stale))}; run `python {sys.argv[0]}`", file=sys.stderr)
        return 1
    return 0
