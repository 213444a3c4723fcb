"""Code blocks of every document, without running them: syntax, settings, commands; why one is not run."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_pages import blocks, code_blocks, shell_lines

from mindgspo.config import load_config
from mindgspo.config.messages import known_keys
from mindgspo.errors import ConfigError

PROJECT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    PROJECT / "README.md", PROJECT / "README_CN.md", PROJECT / "CONTRIBUTING.md", PROJECT / "AGENTS.md",
    *sorted(PROJECT.glob("examples/*/README.md")), *sorted(PROJECT.glob("docs/**/*.md")),
]  # fmt: skip
TUTORIALS = sorted(path for path in PROJECT.glob("docs/tutorials/*.md") if not path.stem.endswith("_cn"))
SETTINGS = {path for path, _ in known_keys()}
ENDS = {path.partition(".")[2] for path in SETTINGS} | {path.rpartition(".")[2] for path in SETTINGS}

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT)))


@each_document
def test_shell_python_and_json_can_be_read(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
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
def test_settings_of_commands_and_of_yaml_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    bash = "".join(f"```bash\n{content}```\n" for language, content in code_blocks(text) if language == "bash")
    for line in shell_lines(bash):  # console blocks show refusals
        if re.match(r"(?:\./run_gspo\.sh|mindgspo (?:run|sft|check|plan|dryrun|serve)) ", line):
            keys = re.findall(r" '?([a-z_]+(?:\.\w+)*)=", re.sub(r"--(?!set)[a-z-]+ [^-\s]\S*", "", line))
            keys = [re.sub(r"^(data\.eval)\.\w+\.(\w+)$", r"\1.\2", key) for key in keys]
            assert [key for key in keys if key not in SETTINGS] == [], f"{document.name}: {line}"
    for language, content in code_blocks(text):
        if language == "yaml":
            found = list(paths(yaml.safe_load(content)))
            assert found and [path for path in found if path not in SETTINGS | ENDS] == [], document.name


def paths(value: Any, prefix: str = "") -> Iterator[str]:
    """Dotted paths of the keys of a YAML text. A set of held-out problems has a name of the user's."""
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
    text = page.read_text(encoding="utf-8")
    for block in blocks(text):
        if block.file.endswith(".yaml"):
            path = tmp_path / block.file
            path.write_text(block.content, encoding="utf-8")
            folder = PROJECT / "examples/arithmetic/warmed_up"  # for one that a tutorial makes
            try:
                load_config(path, [f"model.path={folder}", f"tokenizer.path={folder}"], check_files=False)
            except ConfigError as error:
                raise AssertionError(f"{page.name}: {error}") from error
