"""What a run needs can be installed on a Kunpeng server without compiling: pip finds a wheel for each dependency."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
# The newest glibc that wheels may ask for: that of openEuler 20.03, older than those of CANN's images.
GLIBC = 28
ABSENT = re.compile(r"connection|timed out|name resolution|ProxyError|Retrying", re.IGNORECASE)


@pytest.fixture(scope="module")
def new_pip(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a pip that reads the metadata of wheels without the wheels, which are 500 MB; older ones than
    23.3 cannot."""
    folder = tmp_path_factory.mktemp("pip")
    run_pip(dict(os.environ), "--quiet", f"--target={folder}", "pip>=25")
    return os.environ | {"PYTHONPATH": str(folder)}


def run_pip(environment: dict[str, str], *options: str) -> None:
    """pip install; skips without a package index."""
    command = [sys.executable, "-m", "pip", "install", "--retries=1", *options]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    if ended.returncode and ABSENT.search(ended.stderr):
        pytest.skip("needs a package index, which does not answer")
    assert ended.returncode == 0, ended.stderr[-3000:]


def requirements() -> list[str]:
    """Those of a run with MindSpore, without the packages of this repository."""
    tomllib = pytest.importorskip("tomllib", reason="of Python 3.11")
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    answers = tomllib.loads((PROJECT / "tools/math_answers/pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]["mindspore"], answers["optional-dependencies"]["symbolic"]
    return [one for some in (project["dependencies"], *extras) for one in some if f"=={project['version']}" not in one]


@pytest.mark.slow
@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12"])
def test_every_dependency_has_a_wheel_for_aarch64(new_pip: dict[str, str], tmp_path: Path, python: str) -> None:
    """Of MindSpore, too, whose wheel for aarch64 is called none-any."""
    report = tmp_path / "report.json"
    platforms = ["manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in range(17, GLIBC + 1))]
    run_pip(new_pip, "--dry-run", "--ignore-installed", "--quiet", "--only-binary=:all:", f"--python-version={python}",
            *(f"--platform={one}" for one in platforms), f"--target={tmp_path}", f"--report={report}",
            *requirements())  # fmt: skip
    found = json.loads(report.read_text())["install"]
    wheels = {one["metadata"]["name"]: one["download_info"]["url"].rpartition("/")[2] for one in found}
    assert {"mindspore", "numpy", "math-verify"} <= set(wheels)
    assert [name for name in wheels.values() if not re.search(r"(aarch64|none-any)\.whl$", name)] == []
    print(f"{len(wheels)} wheels for Python {python}")
