"""Every document against the code: links, files, commands, settings, metrics, messages, code blocks; twins of equal
structure."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import markdown_pages
import pytest
import yaml
from markdown_pages import blocks, code_blocks, code_spans, headings, prose, shell_lines, tables

from mindgspo import faults
from mindgspo.config import DataSourceSection, batch_table, load_config
from mindgspo.config.data import MixedSourceSection
from mindgspo.config.messages import known_keys
from mindgspo.errors import ConfigError
from mindgspo.metrics.glossary import glossary_name, metrics
from mindgspo.metrics.target import load_target
from mindgspo.sweep import SweepFile
from mindgspo.trainer.check import check_experiment

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"
READMES = [PROJECT / "README.md", PROJECT / "README_CN.md"]
PAGES = sorted(DOCS.rglob("*.md"))
DOCUMENTS = [
    *READMES, PROJECT / "CONTRIBUTING.md", PROJECT / "AGENTS.md", PROJECT / "SECURITY.md",
    *sorted(PROJECT.glob("examples/*/README.md")), *PAGES,
]  # fmt: skip
PAIRS = [tuple(READMES)] + [
    (page, page.with_name(f"{page.stem}_cn.md")) for page in PAGES if not page.stem.endswith("_cn")
]

TUTORIALS = sorted(path for path in PAGES if path.parent.name == "tutorials" and not path.stem.endswith("_cn"))
SETTINGS = {path for path, _ in known_keys()}
ENDS = {path.partition(".")[2] for path in SETTINGS} | {path.rpartition(".")[2] for path in SETTINGS}
SECTIONS = {path.split(".")[0] for path in SETTINGS if "." in path}

each_readme = pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)
each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT)))
each_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].name)


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def anchors(document: Path) -> set[str]:
    """The names by which headings are linked to."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for _, title in headings(text_of(document))}


@each_document
def test_links_and_files_named_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text_of(document))):
        if "://" in target:
            continue
        name, _, anchor = unquote(target).partition("#")
        other = (document.parent / name).resolve() if name else document
        assert other.exists(), f"{document.name}: {target} does not exist"
        assert not anchor or anchor in anchors(other), f"{document.name}: no heading for {target}"
    text = text_of(document)
    places = [line for _, content in code_blocks(text) for line in content.splitlines()] + code_spans(text)
    named = {
        name
        for place in places
        for name in re.findall(
            r"(?<![\w./<-])(?:\./)?"
            r"((?:examples|model_configs|mindgspo|tests|tools|docs)/[\w./-]*\w|[A-Za-z][\w-]+\.(?:toml|md))",
            place,
        )
    }
    missing = [name for name in named if not (document.parent / name).exists() and not (PROJECT / name).exists()]
    assert missing == [], document.name
    # `parallel/plans/placement.py` is mindgspo/parallel/plans/placement.py, where mindgspo/parallel is a package.
    named = {span for span in code_spans(text_of(document)) if re.fullmatch(r"[a-z_]+/[\w/]*\w\.(?:py|yaml)", span)}
    packages = {path.parent.name for path in (PROJECT / "mindgspo").glob("*/__init__.py")}
    missing = [name for name in named if name.split("/")[0] in packages and not (PROJECT / "mindgspo" / name).exists()]
    assert missing == [], document.name
    assert re.findall(r"@@.*|\b(?:TODO|FIXME|XXX)\b", text_of(document)) == []


def test_folders_of_the_drawing_and_packages_of_the_table_exist() -> None:
    for page in (DOCS / "architecture.md", DOCS / "architecture_cn.md"):
        drawing = next(content for _, content in code_blocks(text_of(page)) if "mindrecord" in content.lower())
        named = [name for line in re.findall(r"^   \|  (\S.*?)  ", drawing, re.MULTILINE) for name in line.split(", ")]
        assert len(named) >= 8
        (packages,) = (table for table in tables(text_of(page)) if any("`config`" in row[0] for row in table))
        described = {name for row in packages[1:] for name in re.findall(r"`(\w+)`", row[0])}
        assert [name for name in named if not (PROJECT / "mindgspo" / name).exists()] == []
        assert described == {path.parent.name for path in (PROJECT / "mindgspo").glob("*/__init__.py")}


COMMANDS = {
    " ".join(words): markdown_pages.options_of(*words) | {"--help"}
    for words, command in markdown_pages.COMMANDS.items()
    if not hasattr(command, "commands")
}


def calls(text: str) -> Iterator[tuple[str, list[str]]]:
    """(command, further words) of every `mindgspo ...` and `./run_gspo.sh ...` in blocks and spans."""
    for line in [*shell_lines(text), *code_spans(text)]:
        words = re.split(r" (?:\|+|2>&1|&&)( |$)", line)[0].split()
        if words[0] == "mindgspo" and len(words) > 1 and not words[1].startswith("-"):
            candidates = [" ".join(words[1:3]), words[1]]
            name = next((name for name in candidates if name in COMMANDS), None)
            is_group = any(command.startswith(f"{words[1]} ") for command in COMMANDS)
            assert name is not None or (is_group and len(words) == 2), f"{line}: no such command"
            if name is not None:
                yield name, words[1 + len(name.split()) :]
        elif words[0] == "./run_gspo.sh":
            yield "run", words[1:]


@each_document
def test_commands_options_and_settings_exist(document: Path) -> None:
    for name, words in calls(text_of(document)):
        options = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert options <= COMMANDS[name], f"{document.name}: {name} has no {options - COMMANDS[name]}"
    text = text_of(document)
    # Console blocks show refusals; the test below runs them.
    blocks = "".join(content for language, content in code_blocks(text) if language != "console")
    named = set(re.findall(r"--set '?([a-z_0-9.]+)=", blocks + prose(text)))
    if document.stem.removesuffix("_cn") not in ("migrate", "checkpoints", "settings"):  # these name keys of others
        for span in code_spans(text):
            is_dotted = re.fullmatch(r"[a-z_0-9.]+", span) and span.split(".")[0] in SECTIONS
            if is_dotted and not span.endswith(FILE_ENDINGS):
                named.add(span)
    named = {re.sub(r"^data\.eval\.\w+\.(\w+)$", r"data.eval.\1", name) for name in named} - set(faults.POINTS)
    sections = {name for name in named if any(key.startswith(f"{name}.") for key in SETTINGS)}
    assert named - sections <= SETTINGS, f"{document.name}: {named - sections - SETTINGS}"


@each_document
def test_metrics_named_are_those_of_the_glossary(document: Path) -> None:
    kinds = {name.partition("/")[0] for name in metrics()} - {"data", "reward", "rollout", "eval"}  # also folders
    spans = {span for span in code_spans(text_of(document)) if re.fullmatch(r"[a-z_]+/[\w/<>@-]+", span)}
    named = {span for span in spans if span.partition("/")[0] in kinds and not span.endswith(FILE_ENDINGS)}
    unknown = [name for name in named if glossary_name(name) is None]
    assert [name for name in unknown if not any(metric.startswith(f"{name}/") for metric in metrics())] == []


def test_every_command_is_shown_and_the_entry_pages_are_short() -> None:
    shown = {name for page in ("commands.md", "checkpoints.md", "ascend.md") for name, _ in calls(text_of(DOCS / page))}
    assert shown | {"run"} >= COMMANDS.keys(), COMMANDS.keys() - shown
    limits = {"README.md": 180, "README_CN.md": 180, "AGENTS.md": 80}
    assert [name for name, limit in limits.items() if len(text_of(PROJECT / name).splitlines()) > limit] == []


FILE_ENDINGS = (".html", ".json", ".jsonl", ".md", ".png", ".py", ".safetensors", ".yaml", ".so", ".parquet")


@each_document
def test_refusals_shown_are_the_real_ones(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    shown = "".join(block for language, block in code_blocks(text_of(document)) if language == "console")
    sessions = [part.replace("\\\n", " ").split("\n", 1) for part in re.split(r"^\$ ", shown, flags=re.MULTILINE)[1:]]
    for command, output in sessions:
        words = command.split()
        if not output.startswith("error: ") or words[1] not in ("check", "plan", "dryrun", "run"):
            continue
        overrides = [word for word in words[3:] if re.match(r"[a-z_]+(?:\.\w+)*=", word)]
        overrides += ["device=Ascend"] if words[1] == "dryrun" else []
        with pytest.raises(ConfigError) as refused:
            load_config(words[2], overrides, check_files=False)
        assert output.rstrip() == f"error: {refused.value}"


@each_readme
def test_batch_sizes_shown_are_those_of_the_quickstart(readme: Path) -> None:
    lines = [line for _, block in code_blocks(text_of(readme)) for line in block.splitlines()]
    table = dict(batch_table(load_config(PROJECT / "examples/arithmetic/gspo.yaml"), None))
    shown = [(name, line) for line in lines for name in table if re.match(rf"{name}  ", line)]
    assert len(shown) >= 3
    for name, line in shown:
        assert line.removeprefix(name).strip() == table[name]


def test_the_quickstart_passes_its_check() -> None:
    config = load_config(PROJECT / "examples/arithmetic/gspo.yaml")
    assert any("own solution" in line for line in check_experiment(config))


@each_pair
def test_both_languages_have_the_same_structure(pair: tuple[Path, Path]) -> None:
    texts = [text_of(page) for page in pair]
    for of in (
        lambda text: [level for level, _ in headings(text)],
        shell_lines,
        lambda text: [language for language, _ in code_blocks(text)],
        lambda text: [(len(table), len(table[0])) for table in tables(text)],
    ):
        english, chinese = map(of, texts)
        assert english == chinese


def imported_packages(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
        elif isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
    return {module.split(".")[1] for module in modules if module.startswith("mindgspo.")}


def test_imports_go_down_the_table_of_contributing() -> None:
    table = next(t for t in tables(text_of(PROJECT / "CONTRIBUTING.md")) if t[0] == ["level", "packages"])
    level = {package: int(number) for number, packages in table[1:] for package in re.findall(r"`(\w+)`", packages)}
    root = PROJECT / "mindgspo"
    upwards, found = [], set()
    for path in sorted(root.rglob("*.py")):
        package = path.relative_to(root).parts[0].removesuffix(".py")
        if package == "__init__":
            continue
        found.add(package)
        assert package in level, f"CONTRIBUTING.md has no level for {package}"
        for other in imported_packages(path) - {package}:
            if level[other] >= level[package]:
                upwards.append(f"{path.relative_to(PROJECT)} imports {other}")
    assert upwards == []
    assert level.keys() == found, "packages of the table that do not exist"


@each_document
def test_shell_python_and_json_can_be_read(document: Path) -> None:
    text = text_of(document)
    shell = [content for language, content in code_blocks(text) if language in ("bash", "sh")]
    done = subprocess.run(["bash", "-n"], input="\n".join(shell), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for block in blocks(text):
        if block.language == "python":
            ast.parse(block.content)
        if block.file.endswith(".jsonl"):
            assert all(isinstance(yaml.safe_load(line), dict) for line in block.content.splitlines())
    marked = re.findall(r"^<!-- not run.*\n.*", text, flags=re.MULTILINE)
    assert [one for one in marked if not re.match(r"<!-- not run: \S.* -->\n```", one)] == []


@each_document
def test_settings_of_commands_and_of_yaml_exist(document: Path, tmp_path: Path) -> None:
    text = text_of(document)
    bash = "".join(f"```bash\n{content}```\n" for language, content in code_blocks(text) if language == "bash")
    for line in shell_lines(bash):  # console blocks show refusals
        if re.match(r"(?:\./run_gspo\.sh|mindgspo (?:run|sft|check|plan|dryrun|serve)) ", line):
            keys = re.findall(r" '?([a-z_]+(?:\.\w+)*)=", re.sub(r"--(?!set)[a-z-]+ [^-\s]\S*", "", line))
            keys = [re.sub(r"^(data\.eval)\.\w+\.(\w+)$", r"\1.\2", key) for key in keys]
            assert [key for key in keys if key not in SETTINGS] == [], f"{document.name}: {line}"
        if found := re.match(r"mindgspo sweep (\S+\.yaml)", line):
            assert (PROJECT / found[1]).is_file() or f"`{found[1]}`" in text, f"{document.name}: {line}"
    for language, content in code_blocks(text):
        if language == "yaml" and "metrics" in yaml.safe_load(content):
            (tmp_path / "target.yaml").write_text(content)
            assert load_target(tmp_path / "target.yaml").metrics
        elif language == "yaml" and "settings" in (sweep := yaml.safe_load(content)):
            assert sweep.keys() <= SweepFile.model_fields.keys()
            named = {f"data.eval.{key.rpartition('.')[2]}" for key in sweep["settings"] if key.startswith("data.eval.")}
            keys = {key for one in (sweep["settings"], *sweep.get("runs", ())) for key in one} - named
            wrong = ["trainer.max_step"] if "fast" in content else []  # which the page shows to be refused
            assert sorted(keys - SETTINGS) == wrong, f"{document.name}: {sweep}"
        elif language == "yaml":
            found = list(paths(yaml.safe_load(content)))
            assert found and [path for path in found if path not in SETTINGS | ENDS] == [], document.name


def paths(value: Any, prefix: str = "") -> Iterator[str]:
    """Dotted paths of the keys of a YAML text. A set of held-out problems has a name of the user's."""
    if prefix == "data.train." and isinstance(value, list):
        own = MixedSourceSection.model_fields.keys() - DataSourceSection.model_fields.keys()
        for one in value:
            yield from paths({key: below for key, below in one.items() if key not in own}, prefix)
    if not isinstance(value, dict):
        return
    for key, below in value.items():
        if prefix == "data.eval." and isinstance(below, dict) and key != "columns":
            yield from paths(below, prefix)
        else:
            if key != "include":
                yield f"{prefix}{key}"
            yield from paths(below, f"{prefix}{key}.")


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda path: path.stem)
def test_yaml_files_of_a_tutorial_are_legal(page: Path, tmp_path: Path) -> None:
    text = text_of(page)
    for block in blocks(text):
        if block.file.endswith(".yaml"):
            path = tmp_path / block.file
            path.write_text(block.content, encoding="utf-8")
            folder = PROJECT / "examples/arithmetic/warmed_up"  # for one that a tutorial makes
            try:
                load_config(path, [f"model.path={folder}", f"tokenizer.path={folder}"], check_files=False)
            except ConfigError as error:
                raise AssertionError(f"{page.name}: {error}") from error
