"""The pages about measuring a model: two languages with one content, and what they say is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from markdown_pages import code_spans, prose, shell_lines, tables

from mindgspo.cli import app
from mindgspo.config.messages import known_keys
from mindgspo.data.benchmarks import DATA_FOLDER, NAMES, NUM_GENERATED_ROWS, find_benchmark
from mindgspo.data.formats import PARSERS
from mindgspo.metrics.evaluation_statistics import wilson
from mindgspo.trainer.measured_experiments import MAX_NEW_TOKENS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [DOCS / "evaluation.md", DOCS / "evaluation_cn.md"]

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@each_page
def test_names_files_and_rewards_are_those_of_the_code(page: Path, tmp_path: Path) -> None:
    rows = {row[0].strip("`"): row[1:] for row in tables(text_of(page))[0][1:]}
    assert list(rows) == list(NAMES)
    for name, (files, ending, reward) in rows.items():
        assert tuple(re.findall(r"`([^`]+)`", files)) == NAMES[name].files
        (tmp_path / f"{name}.jsonl").touch()
        found = find_benchmark(name, folder=tmp_path, format=None)
        assert reward == f"`{found.function}`"
        assert ending == found.instruction_suffix.strip() or "`math500`" in ending
    assert str(NUM_GENERATED_ROWS) in "".join(rows["arithmetic"]) and f"`{DATA_FOLDER}`" in text_of(page)


@each_page
def test_every_format_is_told_by_columns(page: Path) -> None:
    shown = [row[1].strip("`") for row in tables(text_of(page))[1][1:]]
    assert sorted(shown) == sorted(PARSERS)


@each_page
def test_options_and_settings_exist(page: Path) -> None:
    command = typer.main.get_command(app).commands["eval"]
    options = {option for parameter in command.params for option in parameter.opts}
    text = text_of(page)
    named = {word for place in [*shell_lines(text), *code_spans(text)] for word in re.findall(r"--[a-z-]+", place)}
    assert named <= options and len(named) > 10, named - options
    assert set(re.findall(r"--set ([a-z_.]+)=", prose(text))) <= {key for key, _ in known_keys()}


@each_page
def test_numbers_in_the_text(page: Path) -> None:
    text = text_of(page)
    assert f"{wilson(0, 30).high:.3f}" in text and str(MAX_NEW_TOKENS) in text
