"""What the documents say against what is there: files, commands, options, settings, import rules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
import typer
from markdown_pages import code_blocks, code_spans, headings, prose, shell_lines, tables

from mindgspo.cli import app
from mindgspo.config import batch_table, load_config
from mindgspo.config.messages import known_keys
from mindgspo.errors import ConfigError
from mindgspo.trainer.preflight import check_experiment

PROJECT = Path(__file__).resolve().parents[2]
ENGLISH, CHINESE = PROJECT / "README.md", PROJECT / "README_CN.md"
READMES = [ENGLISH, CHINESE]
DOCUMENTS = [*READMES, PROJECT / "CONTRIBUTING.md", *sorted(PROJECT.glob("examples/*/README.md"))]

SETTINGS = {path for path, _ in known_keys()}
SECTIONS = {path.split(".")[0] for path in SETTINGS if "." in path}

each_readme = pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)
each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT)))


# ----- files and links


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for _, title in headings(text)}
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if target.startswith("#"):
            assert unquote(target[1:]) in anchors, f"{document.name}: no heading for {target}"
        elif "://" not in target:
            assert (document.parent / unquote(target)).exists(), f"{document.name}: {target} does not exist"


@each_document
def test_files_named_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    places = [line for _, content in code_blocks(text) for line in content.splitlines()] + code_spans(text)
    named = {
        name
        for place in places
        for name in re.findall(
            r"(?<![\w./<-])(?:\./)?"
            r"((?:examples|model_configs|mindgspo|tests|tools|docs)/[\w./-]*|[\w-]+\.(?:sh|toml|md))",
            place,
        )
    }
    for name in named:
        beside = (document.parent / name).exists()
        assert beside or (PROJECT / name).exists(), f"{document.name} names {name}, which does not exist"


@each_readme
def test_some_yaml_is_named_and_exists(readme: Path) -> None:
    named = set(re.findall(r"(?:examples|model_configs)/[\w/.-]+\.yaml", readme.read_text(encoding="utf-8")))
    assert {"examples/arithmetic/gspo.yaml", "examples/gsm8k/smoke.yaml"} <= named
    assert [name for name in named if not (PROJECT / name).is_file()] == []


@each_readme
def test_folders_of_the_drawing_exist(readme: Path) -> None:
    text = readme.read_text(encoding="utf-8")
    drawing = next(content for _, content in code_blocks(text) if "mindrecord" in content.lower())
    rooms = [name for line in re.findall(r"^   \|  (\S.*?)  ", drawing, re.MULTILINE) for name in line.split(", ")]
    assert len(rooms) >= 8
    assert [room for room in rooms if not (PROJECT / "mindgspo" / room).exists()] == []


@each_document
def test_nothing_is_left_to_fill_in(document: Path) -> None:
    assert re.findall(r"@@.*|\b(?:TODO|FIXME|XXX)\b", document.read_text(encoding="utf-8")) == []


# ----- commands


def commands_of_the_cli() -> dict[str, set[str]]:
    """{"data prepare": its options} of every command."""
    found: dict[str, set[str]] = {}

    def walk(command: object, name: str) -> None:
        if hasattr(command, "commands"):
            for key, below in command.commands.items():
                walk(below, f"{name} {key}".strip())
        else:
            found[name] = {option for parameter in command.params for option in parameter.opts} | {"--help"}

    walk(typer.main.get_command(app), "")
    return found


COMMANDS = commands_of_the_cli()


def command_named(words: list[str]) -> str:
    """The command that `mindgspo <words>` calls; an assertion fails if there is none."""
    candidates = [" ".join(words[:2]), " ".join(words[:1])]
    found = next((name for name in candidates if name in COMMANDS), None)
    assert found is not None, f"mindgspo {' '.join(words[:2])}: no such command; there are {sorted(COMMANDS)}"
    return found


def calls(text: str) -> Iterator[tuple[str, list[str]]]:
    """(command, further words) of every `mindgspo ...` and `./run_gspo.sh ...` in blocks and spans."""
    for line in [*shell_lines(text), *code_spans(text)]:
        words = line.split()
        if words[0] == "mindgspo" and len(words) > 1 and not words[1].startswith("-"):
            name = command_named(words[1:])
            yield name, words[1 + len(name.split()) :]
        elif words[0] == "./run_gspo.sh":
            yield "run", words[1:]


@each_document
def test_commands_and_their_options_exist(document: Path) -> None:
    for name, words in calls(document.read_text(encoding="utf-8")):
        options = {word.split("=")[0] for word in words if word.startswith("-")}
        assert options <= COMMANDS[name], f"{document.name}: {name} has no {options - COMMANDS[name]}"


FILE_ENDINGS = (".html", ".json", ".jsonl", ".md", ".png", ".py", ".safetensors", ".yaml")


@each_document
def test_settings_named_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    # Console blocks show refusals; the test below runs them.
    blocks = "".join(content for language, content in code_blocks(text) if language != "console")
    named = set(re.findall(r"--set '?([a-z_0-9.]+)=", blocks + prose(text)))
    for span in code_spans(text):
        is_dotted = re.fullmatch(r"[a-z_0-9.]+", span) and span.split(".")[0] in SECTIONS
        if is_dotted and not span.endswith(FILE_ENDINGS):
            named.add(span)
    assert named <= SETTINGS, f"{document.name}: {named - SETTINGS}"


@each_readme
def test_messages_shown_are_the_real_ones(readme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    shown = "".join(
        block for language, block in code_blocks(readme.read_text(encoding="utf-8")) if language == "console"
    )
    sessions = [part.split("\n", 1) for part in re.split(r"^\$ ", shown, flags=re.MULTILINE)[1:]]
    assert sessions
    for command, output in sessions:
        name, words = next(calls(f"`{command}`"))
        assert name == "check"
        overrides = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        with pytest.raises(ConfigError) as refused:
            load_config(words[0], overrides)
        assert output.rstrip() == f"error: {refused.value}"


@each_readme
def test_settings_of_the_table_exist(readme: Path) -> None:
    rows = next(
        table for table in tables(readme.read_text(encoding="utf-8")) if any("`rollout`" in row[0] for row in table)
    )
    described = set()
    for section_cell, keys_cell, _ in rows[1:]:
        section = section_cell.strip("`")
        described.add(section)
        prefix = f"{section}." if section in SECTIONS else ""
        keys = re.findall(r"`([a-z_0-9]+)`", keys_cell)
        assert keys and [key for key in keys if prefix + key not in SETTINGS] == [], section_cell
    assert described >= SECTIONS, f"{readme.name} leaves out {SECTIONS - described}"


@each_readme
def test_batch_sizes_shown_are_those_of_the_quickstart(readme: Path) -> None:
    lines = [line for _, block in code_blocks(readme.read_text(encoding="utf-8")) for line in block.splitlines()]
    table = dict(batch_table(load_config(PROJECT / "examples/arithmetic/gspo.yaml"), None))
    shown = [(name, line) for line in lines for name in table if re.match(rf"{name}  ", line)]
    assert len(shown) >= 3
    for name, line in shown:
        assert line.removeprefix(name).strip() == table[name]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_quickstart_passes_its_check(seed: int) -> None:
    config = load_config(PROJECT / "examples/arithmetic/gspo.yaml", [f"seed={seed}"])
    assert any("own solution" in line for line in check_experiment(config))


# ----- two languages, one content


def test_both_readmes_say_the_same() -> None:
    english, chinese = (readme.read_text(encoding="utf-8") for readme in READMES)
    assert [level for level, _ in headings(english)] == [level for level, _ in headings(chinese)]
    assert shell_lines(english) == shell_lines(chinese)
    assert [(len(table), len(table[0])) for table in tables(english)] == [
        (len(table), len(table[0])) for table in tables(chinese)
    ]
    assert {name for name, _ in calls(english)} == {name for name, _ in calls(chinese)}
    assert {span for span in code_spans(english) if span.isascii()} ^ {
        span for span in code_spans(chinese) if span.isascii()
    } == {"<run_dir>.old-<timestamp>"}, "what stands between backticks needs no translation"


def test_readmes_show_every_command_for_users() -> None:
    shown = {name for name, _ in calls(ENGLISH.read_text(encoding="utf-8"))}
    assert shown >= {"run", "check", "eval", "logprobs", "report", "data prepare", "data inspect"}


# ----- the import table of CONTRIBUTING.md


def floors() -> dict[str, int]:
    """{room: floor} from CONTRIBUTING.md."""
    table = next(t for t in tables((PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")) if "rooms" in t[0])
    return {room: int(floor) for floor, rooms in table[1:] for room in re.findall(r"`(\w+)`", rooms)}


def imported_rooms(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
        elif isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
    return {module.split(".")[1] for module in modules if module.startswith("mindgspo.")}


def test_imports_go_down_the_table_of_contributing() -> None:
    floor = floors()
    package = PROJECT / "mindgspo"
    upwards = []
    for path in sorted(package.rglob("*.py")):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        assert room in floor, f"CONTRIBUTING.md has no floor for {room}"
        for other in imported_rooms(path) - {room}:
            if floor[other] >= floor[room]:
                upwards.append(f"{path.relative_to(PROJECT)} imports {other}")
    assert upwards == []
