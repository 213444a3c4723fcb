"""Code blocks of the documentation, run: what they show is what comes out, up to numbers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_pages import Block, blocks

PROJECT = Path(__file__).resolve().parents[2]
SHARED_DATA = PROJECT.parent / "shared" / "data"
LINKED = ("examples", "model_configs", "tools", "tests", "mindgspo", "docs", "pyproject.toml")
SHELL = ("bash", "console")


def pages() -> list[str]:
    """English documents with something to run; their Chinese twins have the same commands, which is tested."""
    documents = [PROJECT / "README.md", *PROJECT.glob("examples/*/README.md"), *PROJECT.glob("docs/**/*.md")]
    english = sorted(path for path in documents if not path.stem.endswith("_cn"))
    return [str(path.relative_to(PROJECT)) for path in english if any(runs(block) for block in of(path))]


def of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    if page.name == "README.md" and page.parent != PROJECT:
        text = text.partition("\n---\n\n# ")[0]  # the Chinese half
    return blocks(text)


def runs(block: Block) -> bool:
    return block.language in (*SHELL, "python") and not block.file and not block.reason


def sessions(block: Block) -> list[tuple[str, str]]:
    """(command, what it prints) of a block; a console block may have several."""
    if block.language == "bash":
        return [(block.content, block.output)]
    return re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block.content, flags=re.MULTILINE)


def masked(line: str) -> str:
    """A line without what another machine may change: numbers, blanks, the folder in front of a path, and how many more
    problems a configuration has there."""
    return re.sub(r"problems?$|[+-]?\d[\d.,:]*(?:e[+-]?\d+)?|\s+|nan|/\S+/(?=(?:runs|out)/)", "", line)


class Place:
    """A folder in which the commands of the documentation work as in the project's, and what they write stays. `data`:
    the published data sets, or None where they are absent; pages call them /data, and their tokenizer a model."""

    def __init__(self, folder: Path, data: Path | None) -> None:
        self.folder, self.data, self.done = folder, data, set()
        for name in LINKED:
            (folder / name).symlink_to(PROJECT / name)
        self._script("bin/mindgspo", f'exec "{sys.executable}" -m mindgspo.cli "$@"')
        self._script("bin/python", f'exec "{sys.executable}" "$@"')
        self._script("run_gspo.sh", 'exec mindgspo run "$@"')
        self.environment = {
            **os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(PROJECT), "COLUMNS": "80",
        }  # fmt: skip

    def _script(self, name: str, line: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    def run(self, page: str) -> None:
        """All blocks of a page, after those of the pages that it needs."""
        if page in self.done:
            return
        self.done.add(page)
        for needed in re.findall(r"^Needs .*", (PROJECT / page).read_text(encoding="utf-8"), flags=re.MULTILINE):
            for link in re.findall(r"\]\((\w+\.md)\)", needed):
                self.run(str(Path(page).with_name(link)))
        program = ""  # the Python blocks of a page go on with each other's names
        for block in of(PROJECT / page):
            if block.file:
                (self.folder / block.file).write_text(block.content, encoding="utf-8")
            elif runs(block) and block.language == "python":
                program += block.content
            elif runs(block):
                for command, shown in sessions(block):
                    self._run(page, command, shown)
        if program:
            self._run(page, f"python - <<'PYTHON'\n{program}PYTHON", "")

    def _run(self, page: str, command: str, shown: str) -> None:
        if re.search(r"(?<![\w.])/(?:data|models)/", command):
            if self.data is None:
                pytest.skip(f"{page} needs the shared data folder")
            places = {"/data": str(self.data), "/models/Qwen2.5-0.5B": str(self.data / "qwen2.5-tokenizer")}
            command = re.sub(r"(?<![\w.])/(?:data(?=/)|models/Qwen2\.5-0\.5B)", lambda found: places[found[0]], command)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=self.folder, env=self.environment, timeout=3600,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        printed = done.stdout.decode("utf-8", "replace")
        is_shown = bool(
            shown.strip(" .\n")
        )  # then what is printed says more than the code, which may be that of a refusal
        assert is_shown or done.returncode == 0, f"{page}: {command}\n{printed[-4000:]}"
        lines = {masked(line) for line in printed.splitlines()}
        missing = [line for line in shown.splitlines() if line.strip(" .") and masked(line) not in lines]
        assert missing == [], f"{page}: {command}\nprinted\n{printed[-8000:]}"


@pytest.fixture(scope="module")
def tutorials(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Tutorials go on with what earlier ones made."""
    return Place(tmp_path_factory.mktemp("tutorials"), None)


@pytest.mark.slow
@pytest.mark.parametrize("page", pages())
def test_the_commands_of_a_page_run_and_print_what_it_shows(page: str, tutorials: Place, tmp_path: Path) -> None:
    data = SHARED_DATA.resolve() if SHARED_DATA.is_dir() else None
    place = tutorials if page.startswith("docs/tutorials/") else Place(tmp_path, data)
    place.run(page)
