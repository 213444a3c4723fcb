"""The pages about other suites' configurations: tables as in the code, an example that comes out as shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from markdown_pages import code_blocks, shell_lines, tables

from mindgspo.cli import app
from mindgspo.integrations.foreign_configs import TABLES, convert, report_lines
from mindgspo.integrations.foreign_configs.tables import Status

PROJECT = Path(__file__).resolve().parents[2]
ENGLISH, CHINESE = PROJECT / "docs" / "migrate.md", PROJECT / "docs" / "migrate_cn.md"
TOOL = PROJECT / "tools" / "write_migration.py"

each_page = pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=lambda path: path.name)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def block(page: Path, language: str) -> str:
    (found,) = (content for name, content in code_blocks(text_of(page)) if name == language)
    return found


def run_tool(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TOOL), *map(str, arguments)], capture_output=True, text=True)


def test_the_tables_are_those_of_the_code(tmp_path: Path) -> None:
    done = run_tool("--check")
    assert done.returncode == 0, done.stderr
    for page in (ENGLISH, CHINESE):
        (tmp_path / page.name).write_text(text_of(page).replace("`data.train_batch_size`", "`data.batch`"))
    stale = run_tool("--check", "--docs", tmp_path)
    assert stale.returncode == 1 and "migrate.md" in stale.stderr and "migrate_cn.md" in stale.stderr
    assert run_tool("--docs", tmp_path).returncode == 0
    assert [text_of(tmp_path / page.name) == text_of(page) for page in (ENGLISH, CHINESE)] == [True, True]


@each_page
def test_every_key_of_every_table_is_on_the_page(page: Path) -> None:
    text = text_of(page)
    for table in TABLES.values():
        assert f"\n## {table.title}\n" in text
        section = text.partition(f"\n## {table.title}\n")[2].partition("\n## ")[0]
        assert [row.source for row in table.rows if f"`{row.source}`" not in section] == []


@each_page
def test_the_example_comes_out_as_shown(page: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(block(page, "sh"))
    found = convert([path])
    assert found.yaml == block(page, "yaml")
    lines = list(report_lines(found))
    shown = block(page, "text").splitlines()
    assert lines[: len(shown)] == shown and lines[len(shown)].startswith("mapped (")


@each_page
def test_every_part_of_a_report_is_explained(page: Path) -> None:
    explained = {row[0] for table in tables(text_of(page)) for row in table}
    assert {status.value for status in Status} | {"still to be set", "refused here"} <= explained


@each_page
def test_commands_and_options_exist(page: Path) -> None:
    groups = typer.main.get_command(app).commands
    for line in shell_lines(text_of(page)):
        words = line.split()
        if words[:2] == ["python", "tools/prepare_data.py"]:
            command = groups["data"].commands["prepare"]
        else:
            assert words[0] == "mindgspo", line
            command = groups[words[1]].commands[words[2]] if hasattr(groups[words[1]], "commands") else groups[words[1]]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, line
