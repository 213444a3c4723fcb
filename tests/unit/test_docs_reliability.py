"""What the pages about failures say against the code: points, words, defaults, limits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_pages import tables

from mindgspo import faults
from mindgspo.config.schema import TrainerSection, WatchSection
from mindgspo.parallel.launch.watch import STALLED
from mindgspo.trainer.failures import MAX_SAVED_UPDATES
from mindgspo.trainer.memory_growth import WINDOW

DOCS = Path(__file__).resolve().parents[2] / "docs"

each_page = pytest.mark.parametrize("name", ["reliability.md", "reliability_cn.md"])


@each_page
def test_tables_are_those_of_the_code(name: str) -> None:
    keys, points, whats, _ = tables((DOCS / name).read_text("utf-8"))
    for key, default, _ in keys[1:]:
        assert str(TrainerSection.model_fields[key.strip("`").removeprefix("trainer.")].default) == default
    assert [row[0].strip("`") for row in points[1:]] == list(faults.POINTS)
    assert [row[0].strip("`") for row in whats[1:]] == list(faults.WHATS)


@each_page
def test_numbers_are_those_of_the_code(name: str) -> None:
    text = (DOCS / name).read_text("utf-8").replace("\n", " ")
    growth = WatchSection.model_fields["memory_growth"].default
    for number in (STALLED, MAX_SAVED_UPDATES, WINDOW, growth, faults.EXIT_CODE):
        assert re.search(rf"\D{re.escape(str(number))}[^\d.]", text), number
