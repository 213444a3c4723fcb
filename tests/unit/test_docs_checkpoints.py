"""The pages about weights and checkpoints: two languages with one content, and what they name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from markdown_pages import tables

from mindgspo.cli import app
from mindgspo.models.mindformers_names import mindformers_name

PROJECT = Path(__file__).resolve().parents[2]
ENGLISH, CHINESE = PROJECT / "docs" / "checkpoints.md", PROJECT / "docs" / "checkpoints_cn.md"

each_page = pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=lambda path: path.name)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@each_page
def test_every_option_of_the_conversion_has_its_row(page: Path) -> None:
    rows = next(table for table in tables(text_of(page)) if any("--dtype" in row[0] for row in table))
    assert {row[0].strip("`") for row in rows[1:]} == {
        option
        for parameter in typer.main.get_command(app).commands["convert"].commands["weights"].params
        for option in parameter.opts
        if option.startswith("--")
    }


@each_page
def test_the_table_of_names_is_the_programs(page: Path) -> None:
    (rows,) = (table for table in tables(text_of(page)) if table[0] == ["Hugging Face", "MindFormers"])
    for left, right in rows[1:]:
        ours, theirs = (re.findall(r"`([^`]+)`", cell) for cell in (left, right))
        for name, expected in zip(ours, theirs, strict=True):
            if name.endswith(".weight"):
                assert mindformers_name(name) == expected
            else:  # of the second on, the page gives the end alone
                room = ours[0].rsplit(".", 1)[0] + "." if "." in ours[0] and "." not in name else ""
                assert mindformers_name(f"model.layers.1.{room}{name}.weight").endswith(f"{expected}.weight")
