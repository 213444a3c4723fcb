"""The pages about the neighbours: two languages with one content, and what they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from markdown_pages import code_spans, prose, shell_lines

from mindgspo.cli import app
from mindgspo.config import load_config
from mindgspo.config.device_rules import backend_problems
from mindgspo.config.messages import known_keys
from mindgspo.integrations.mindformers import WANTED

PROJECT = Path(__file__).resolve().parents[2]
PAGES = [PROJECT / "docs" / "integrations.md", PROJECT / "docs" / "integrations_cn.md"]

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@each_page
def test_settings_files_and_links_exist(page: Path) -> None:
    text = text_of(page)
    settings = {path for path, _ in known_keys()}
    named = {span for span in code_spans(text) if re.fullmatch(r"(?:model|data|rollout)\.[a-z_]+", span)}
    named -= {"models.weights"}
    assert len(named) >= 5 and named <= settings, named - settings
    for place in code_spans(text):
        if re.match(r"(?:mindgspo|tests|examples)/", place):
            assert (PROJECT / place).exists(), place
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        assert "://" in target or (page.parent / target).exists(), target


@each_page
def test_commands_shown_exist(page: Path) -> None:
    commands = typer.main.get_command(app).commands
    shown = [line.split() for line in shell_lines(text_of(page)) if line.startswith("mf/bin/mindgspo")]
    assert [words[1] for words in shown] == ["logprobs", "run"]
    for words in shown:
        options = {option for parameter in commands[words[1]].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options
    (setting,) = (words[-1] for words in shown if words[1] == "run")
    config = load_config(PROJECT / shown[1][2], [setting])
    assert config.model.backend == "mindformers" and list(backend_problems(config)) == []


@each_page
def test_the_pair_of_versions_is_the_one_that_is_asked_for(page: Path) -> None:
    extra = 'mindformers = ["mindformers==' + WANTED["mindformers"] + '"]'
    assert extra in (PROJECT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    text = text_of(page)
    assert all(f"{name} {WANTED[name.lower()]}" in text for name in ("MindFormers", "MindSpore"))
