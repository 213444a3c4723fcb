"""`tools/release.py`: one version everywhere, and a section of the change log for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import PROJECT

FILES = ("pyproject.toml", "CITATION.cff", "README.md", "README_CN.md", "CHANGELOG.md", "tools/release.py")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the tool reads."""
    for name in (*FILES, *(path.relative_to(PROJECT) for path in PROJECT.glob("tools/*/pyproject.toml"))):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / name, tmp_path / name)
    return tmp_path


def release(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, tree / "tools/release.py", *words], capture_output=True, text=True, cwd=tree)


def test_this_tree_names_one_version() -> None:
    checked = release(PROJECT, "check")
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_version_is_set_everywhere_and_wants_its_section(tree: Path) -> None:
    before = {path: path.read_text("utf-8") for path in tree.rglob("pyproject.toml")}
    assert release(tree, "set", "0.31.4").returncode == 0
    for path, text in before.items():
        assert path.read_text("utf-8").count("0.31.4") == text.count("0.2.0") > 0, path
        assert path.read_text("utf-8").replace("0.31.4", "0.2.0") == text
    checked = release(tree, "check")
    assert checked.returncode == 1
    assert checked.stderr == "error: CHANGELOG.md: no section '## 0.31.4 - YYYY-MM-DD'\n"
    log = tree / "CHANGELOG.md"
    log.write_text("# Changes\n\n## 0.31.4 - 2027-02-03\n\nNew: all.\n\n## 0.2.0 - 2026-12-01\n\nOld.\n")
    assert "does not say 'schema " in release(tree, "check").stderr
    assert release(tree, "notes").stdout == "New: all.\n"


def test_a_file_that_disagrees_is_named(tree: Path) -> None:
    path = tree / "tools/kernels/pyproject.toml"
    path.write_text(path.read_text("utf-8").replace('version = "0.2.0"', 'version = "0.1.0"'))
    checked = release(tree, "check")
    assert checked.returncode == 1
    assert checked.stderr == "error: tools/kernels/pyproject.toml: names 0.1.0; pyproject.toml: 0.2.0\n"


def test_a_tag_wants_a_tree_without_changes(tree: Path) -> None:
    def git(*words: str) -> str:
        own = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        return subprocess.run(["git", *own, *words], cwd=tree, check=True, capture_output=True, text=True).stdout

    git("init", "--quiet")
    assert "the tree has changes" in release(tree, "tag").stderr
    git("add", "--all")
    git("commit", "--quiet", "--message", "all")
    git("config", "user.name", "t")
    git("config", "user.email", "t@example.org")
    assert release(tree, "tag").returncode == 0
    assert "schema 3" in git("tag", "--list", "v0.2.0", "--format", "%(contents)")


def test_other_words_are_told_the_usage() -> None:
    assert release(PROJECT, "set", "1.0").returncode == 2
