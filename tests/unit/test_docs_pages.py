"""What holds for every page below docs/: links, one content in two languages, nothing left to fill in."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown_pages import code_blocks, code_spans, headings, prose, shell_lines, tables

DOCS = Path(__file__).resolve().parents[2] / "docs"
ENGLISH = sorted(page for page in DOCS.glob("*.md") if not page.stem.endswith("_cn"))

each_page = pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
each_pair = pytest.mark.parametrize("page", ENGLISH, ids=lambda page: page.name)


def anchors_of(page: Path) -> set[str]:
    """The names by which headings are linked to."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for _, title in headings(page.read_text("utf-8"))}


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text("utf-8"))):
        if "://" in target:
            continue
        name, _, anchor = unquote(target).partition("#")
        other = (page.parent / name).resolve() if name else page
        assert other.exists(), f"{page.name}: {target} does not exist"
        assert not anchor or anchor in anchors_of(other), f"{page.name}: no heading for {target}"


@each_page
def test_nothing_is_left_to_fill_in(page: Path) -> None:
    assert re.findall(r"@@.*|\b(?:TODO|FIXME|XXX)\b", page.read_text("utf-8")) == []


@each_pair
def test_both_languages_say_the_same(page: Path) -> None:
    texts = [path.read_text("utf-8") for path in (page, page.with_name(f"{page.stem}_cn.md"))]
    for of in (
        lambda text: [level for level, _ in headings(text)],
        shell_lines,
        lambda text: [language for language, _ in code_blocks(text)],
        lambda text: [(len(table), len(table[0])) for table in tables(text)],
        lambda text: {link.removesuffix("/en") for link in re.findall(r"\]\((https://[^)]+)\)", prose(text))},
        # What stands between backticks needs no translation.
        lambda text: {span.replace("_cn.md", ".md") for span in code_spans(text) if span.isascii()},
    ):
        english, chinese = map(of, texts)
        assert english == chinese
    assert texts[0] != texts[1]
