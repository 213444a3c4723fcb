"""The pages about several processes and about Ascend: two languages with one content, and what they name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from markdown_pages import code_blocks, code_spans, headings, shell_lines

from mindgspo.cli import app
from mindgspo.config import load_config
from mindgspo.config.messages import known_keys
from mindgspo.errors import ConfigError

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"
PAIRS = [(DOCS / f"{name}.md", DOCS / f"{name}_cn.md") for name in ("parallel", "ascend")]
PAGES = [page for pair in PAIRS for page in pair]

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
each_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].stem)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for _, title in headings(text_of(page))}


@each_page
def test_files_named_exist(page: Path) -> None:
    places = [*code_spans(text_of(page)), *(line for _, block in code_blocks(text_of(page)) for line in block.split())]
    found = r"(?<![\w./<-])((?:examples|model_configs|mindgspo|tests|tools|docs)/[\w./-]*\w)"
    named = {name for place in places for name in re.findall(found, place)}
    assert [name for name in named if not (PROJECT / name).exists()] == []


@each_page
def test_settings_named_exist(page: Path) -> None:
    settings = {path for path, _ in known_keys()}
    sections = {path.split(".")[0] for path in settings if "." in path}
    named = set(re.findall(r"--set '?([a-z_0-9.]+)=", text_of(page)))
    spans = [span for span in code_spans(text_of(page)) if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", span)]
    named |= {span for span in spans if span.split(".")[0] in sections}
    assert named <= settings, named - settings


@each_page
def test_commands_and_their_options_exist(page: Path) -> None:
    commands = _commands(typer.main.get_command(app), "")
    for line in shell_lines(text_of(page)):
        words = line.split()
        if words[0] not in ("mindgspo", "./run_gspo.sh"):
            continue
        words = ["mindgspo", "run", *words[1:]] if words[0] == "./run_gspo.sh" else words
        name = next(name for name in (" ".join(words[1:3]), words[1]) if name in commands)
        options = {word.split("=")[0] for word in words if word.startswith("--")}
        assert options <= commands[name], line


def _commands(command: object, name: str) -> dict[str, set[str]]:
    if not hasattr(command, "commands"):
        return {name: {option for parameter in command.params for option in parameter.opts}}
    found = {}
    for key, below in command.commands.items():
        found |= _commands(below, f"{name} {key}".strip())
    return found


@each_page
def test_refusals_shown_are_the_real_ones(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    shown = "".join(block for language, block in code_blocks(text_of(page)) if language == "console")
    sessions = [part.replace("\\\n", " ").split("\n", 1) for part in re.split(r"^\$ ", shown, flags=re.MULTILINE)[1:]]
    refused = [(words.split(), output) for words, output in sessions if output.startswith("error: ")]
    assert refused
    for words, output in refused:
        overrides = [words[number + 1] for number, word in enumerate(words) if word == "--set"]
        overrides += ["device=Ascend"] if words[1] == "dryrun" else []
        with pytest.raises(ConfigError) as caught:
            load_config(words[2], overrides, check_files=False)
        assert output.rstrip() == f"error: {caught.value}"
