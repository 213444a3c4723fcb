"""The documentation as a site: both languages build without a warning, lead to one another and need no network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"

pytest.importorskip("mkdocs", reason="needs the extra docs")


@pytest.fixture(scope="module")
def site(once: Callable[..., Path]) -> Path:
    """What tools/build_docs.sh makes."""

    def build(folder: Path) -> None:
        for name, place in (("mkdocs.yml", folder), ("mkdocs_cn.yml", folder / "zh")):
            command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(place)]
            command += ["--config-file", str(PROJECT / "tools/site" / name)]
            environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            assert done.returncode == 0, done.stdout + done.stderr

    return once("docs_site", build)


def pages(site: Path) -> dict[str, str]:
    return {str(path.relative_to(site)): path.read_text(encoding="utf-8") for path in sorted(site.rglob("*.html"))}


def test_every_document_is_a_page_of_its_language(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        is_chinese = page.stem.endswith("_cn")
        place = site / ("zh" if is_chinese else "") / page.relative_to(DOCS).with_name(page.stem.removesuffix("_cn"))
        text = place.with_suffix(".html").read_text(encoding="utf-8")
        assert f'<html lang="{"zh" if is_chinese else "en"}"' in text, place
    assert (site / "index.html").exists() and (site / "zh/examples/gsm8k.html").exists()


def test_links_lead_to_files_and_the_switch_stays_on_the_page(site: Path) -> None:
    for name, text in pages(site).items():
        if name.endswith("404.html"):
            continue
        for target in re.findall(r'(?:href|src)="([^"#?]+)', text):
            if not re.match(r"\w+:", target):
                assert (site / name).parent.joinpath(unquote(target)).exists(), f"{name}: {target}"
        (to_english,) = re.findall(r'href="([^"]+)" hreflang="en" class="md-select', text)
        (to_chinese,) = re.findall(r'href="([^"]+)" hreflang="zh" class="md-select', text)
        both = [os.path.normpath((site / name).parent / target) for target in (to_english, to_chinese)]
        page = name.removeprefix("zh/")
        assert both == [str(site / page), str(site / "zh" / page)]


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for name, text in pages(site).items():
        fetched = re.findall(r'<(?:script|img|iframe)[^>]+src="(\w+:[^"]+)"', text)
        fetched += re.findall(r'<link[^>]+(?:stylesheet|preconnect)[^>]+href="(\w+:[^"]+)"', text)
        assert [url for url in fetched if not url.startswith("data:")] == [], name
