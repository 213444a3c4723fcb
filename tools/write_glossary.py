#!/usr/bin/env python3
"""Write the tables of docs/metrics.md and docs/metrics_cn.md from the metrics that modules declare
(mindgspo/metrics/glossary.py).

    python tools/write_glossary.py            rewrite both pages below their marker
    python tools/write_glossary.py --check    change nothing; exit code 1 if a page is stale

The introduction above the marker is written by hand and kept.
"""

from __future__ import annotations

import sys
from functools import partial

from generated_pages import marked_up, row, write_pages

from mindgspo.metrics.glossary import chinese_glossary, glossary

MARKER = "<!-- Everything below is written by tools/write_glossary.py from the metrics that modules declare. -->"
HEADERS = {
    "metrics.md": ("metric", "meaning", "unit", "healthy", "outside of that"),
    "metrics_cn.md": ("指标", "含义", "单位", "正常范围", "超出时怎么办"),
}


def tables(page: str) -> str:
    """The sections and tables of a page, by its file name."""
    parts = []
    for title, metrics in (chinese_glossary() if page == "metrics_cn.md" else glossary()).items():
        parts += [f"## {title}", "", row(HEADERS[page]), row(["---"] * 5)]
        for name, info in metrics.items():
            meaning, healthy, action = (marked_up(text) for text in (info.meaning, info.healthy, info.action))
            parts.append(row((f"`{name}`", meaning, info.unit, healthy, action)))
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    assert __doc__ is not None
    sys.exit(write_pages(__doc__, MARKER, {page: partial(tables, page) for page in HEADERS}))
