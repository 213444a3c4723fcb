"""The pages about weights and checkpoints: two languages with one content, and what they name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from markdown_pages import code_blocks, code_spans, shell_lines, tables

from mindgspo.cli import app
from mindgspo.models.mindformers_names import mindformers_name

PROJECT = Path(__file__).resolve().parents[2]
ENGLISH, CHINESE = PROJECT / "docs" / "checkpoints.md", PROJECT / "docs" / "checkpoints_cn.md"

each_page = pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=lambda path: path.name)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def commands() -> dict[str, set[str]]:
    """{"convert weights": its options} of every command."""
    found: dict[str, set[str]] = {}

    def walk(command: object, name: str) -> None:
        if hasattr(command, "commands"):
            for key, below in command.commands.items():
                walk(below, f"{name} {key}".strip())
        else:
            found[name] = {option for parameter in command.params for option in parameter.opts}

    walk(typer.main.get_command(app), "")
    return found


@each_page
def test_commands_and_their_options_exist(page: Path) -> None:
    known, shown = commands(), 0
    for line in shell_lines(text_of(page)):
        words = line.split()
        if words[0] == "mindgspo":
            name = next(name for name in (" ".join(words[1:3]), words[1]) if name in known)
            options = {word.split("=")[0] for word in words if word.startswith("--")}
            assert options <= known[name], line
            shown += 1
    assert shown >= 3


@each_page
def test_every_option_of_the_conversion_has_its_row(page: Path) -> None:
    rows = next(table for table in tables(text_of(page)) if any("--dtype" in row[0] for row in table))
    assert {row[0].strip("`") for row in rows[1:]} == {
        option for option in commands()["convert weights"] if option.startswith("--")
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


@each_page
def test_files_named_exist(page: Path) -> None:
    places = [*code_spans(text_of(page)), *(line for _, block in code_blocks(text_of(page)) for line in block.split())]
    found = r"(?<![\w./<-])((?:examples|model_configs|mindgspo|tests|tools|docs)/[\w./-]*\w)"
    named = {name for place in places for name in re.findall(found, place)}
    assert "tools/convert_weights.py" in named
    assert [name for name in named if not (PROJECT / name).exists()] == []
