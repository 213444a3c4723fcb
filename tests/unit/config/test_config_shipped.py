"""Experiments that come with the package, installed or not."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

from mindgspo.config import load_config, paths
from mindgspo.errors import ConfigError

try:
    import tomllib
except ImportError:
    tomllib = pytest.importorskip("tomli")

PROJECT = Path(__file__).resolve().parents[3]


def test_the_wheel_has_every_file_of_the_examples() -> None:
    listed = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    found = {
        path.relative_to(PROJECT)
        for folder, patterns in listed.items()
        for pattern in patterns
        for path in PROJECT.glob(pattern)
        if folder == f"share/mindgspo/{Path(pattern).parent}"
    }
    command = ["git", "ls-files", "examples", "model_configs"]
    tracked = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.split()
    # For an environment with MindRLHF, beside a checkout of it.
    assert {Path(name) for name in tracked if not name.startswith("examples/mindrlhf/")} <= found


def test_a_file_of_the_user_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quickstart = PROJECT / "examples" / "arithmetic" / "gspo.yaml"
    assert paths.experiment_file(Path("quickstart")) == quickstart
    assert paths.experiment_file(Path("examples/arithmetic/gspo.yaml")) == quickstart
    assert paths.experiment_file(Path("gsm8k/smoke")) == PROJECT / "examples/gsm8k/smoke.yaml"
    assert paths.experiment_file(Path("nowhere.yaml")) == Path("nowhere.yaml")
    with pytest.raises(ConfigError, match=r"quickstrat: no such file; did you mean quickstart\?"):
        load_config(Path("quickstrat"))
    Path("quickstart").write_text("")
    assert paths.experiment_file(Path("quickstart")) == Path("quickstart")


def test_installed_files_lie_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "__file__", str(tmp_path / "site-packages" / "mindgspo" / "config" / "paths.py"))
    assert paths.shipped_folder() == Path(sysconfig.get_path("data"), "share", "mindgspo")
