#!/usr/bin/env python3
"""Write the tables of docs/metrics.md and docs/metrics_cn.md from mindgspo/metrics/glossary_*.yaml.

    python tools/write_glossary.py            rewrite both pages below their marker
    python tools/write_glossary.py --check    change nothing; exit code 1 if a page is stale

The introduction above the marker is written by hand and kept.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from mindgspo.metrics.glossary import SECTIONS, chinese_sections

DOCS = Path(__file__).resolve().parents[1] / "docs"
MARKER = "<!-- Everything below is written by tools/write_glossary.py from mindgspo/metrics/glossary_*.yaml. -->"
HEADERS = {
    "metrics.md": ("metric", "meaning", "unit", "healthy", "outside of that"),
    "metrics_cn.md": ("指标", "含义", "单位", "正常范围", "超出时怎么办"),
}

# Names of metrics, settings and files: words of latin letters joined by dots, slashes or underscores. And one formula.
_NAME = re.compile(r"sum_t \|d loss / d logp_t\||(?<![A-Za-z0-9-])[a-z][a-z0-9-]*(?:[./_@](?:<[a-z]+>|[A-Za-z0-9-]+))+")


def glossary(page: str) -> str:
    """The sections and tables of a page, by its file name."""
    parts = []
    for section in chinese_sections() if page == "metrics_cn.md" else SECTIONS:
        parts += [f"## {section.title}", "", _row(HEADERS[page]), _row(["---"] * 5)]
        for name, info in section.metrics.items():
            meaning, healthy, action = (_marked_up(text) for text in (info.meaning, info.healthy, info.action))
            parts.append(_row((f"`{name}`", meaning, info.unit, healthy, action)))
        parts.append("")
    return "\n".join(parts)


def _marked_up(text: str) -> str:
    """Names as code; outside of them, characters that Markdown would read are escaped."""
    found, kept, end = _NAME.finditer(text), [], 0
    for match in found:
        kept += [_escaped(text[end : match.start()]), "`" + match.group().replace("|", r"\|") + "`"]
        end = match.end()
    return "".join(kept) + _escaped(text[end:])


def _escaped(text: str) -> str:
    return re.sub(r"([|*_<\\])", r"\\\1", text)


def _row(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def written(page: Path) -> str:
    """The page with a fresh glossary below its marker. ValueError if it has no marker."""
    introduction, marker, _ = page.read_text(encoding="utf-8").partition(MARKER)
    if not marker:
        raise ValueError(f"{page}: the line `{MARKER}` is missing, so the place of the glossary is unknown")
    return f"{introduction}{MARKER}\n\n{glossary(page.name).rstrip()}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the pages are up to date")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the two pages")
    arguments = parser.parse_args()
    stale = []
    for name in HEADERS:
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
        names = ", ".join(str(page) for page in stale)
        print(f"stale: {names}; run `python tools/write_glossary.py`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
