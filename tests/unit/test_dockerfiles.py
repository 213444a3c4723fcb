"""The Dockerfiles against pyproject.toml and each other; they are not built here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mindgspo.doctor.software import CANN_SERIES, PYTHONS

tomllib = pytest.importorskip("tomllib", reason="of Python 3.11")

PROJECT = Path(__file__).resolve().parents[2]
FILES = sorted((PROJECT / "tools" / "docker").glob("*.Dockerfile"))


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_a_dockerfile_installs_what_the_project_takes(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert re.search(r"^FROM \S*py(?:thon:)?(3\.\d+)", text, re.MULTILINE)[1] in PYTHONS
    for extra in re.findall(r"-e \"\.\[(\w+)\]\"", text):
        assert extra in project["optional-dependencies"]
    for wanted in re.findall(r"\"(mindspore[^\"]*)\"", text):
        assert [wanted] == project["optional-dependencies"]["mindspore"]
    for series in re.findall(r"^ARG CANN=(\d+\.\d+)", text, re.MULTILINE):
        assert series in CANN_SERIES and text.startswith("# UNVERIFIED")
    ignored = file.with_name(f"{file.name}.dockerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv*", "runs"} <= set(ignored)
    assert f"docker build -f tools/docker/{file.name}" in text


def test_there_is_one_for_cpu_and_one_for_cards() -> None:
    assert [file.name for file in FILES] == ["cann.Dockerfile", "cpu.Dockerfile"]
