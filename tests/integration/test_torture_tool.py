"""The torture tool on its built-in experiment: a short one always, longer ones behind the marker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


def torture(tmp_path: Path, *options: object) -> tuple[list[str], dict]:
    command = [sys.executable, PROJECT / "tools" / "torture.py", "--report", tmp_path / "report.json", *options]
    ended = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        timeout=1500,
        env={"PYTHONPATH": str(PROJECT), "PATH": "/usr/bin:/bin"},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines(), json.loads((tmp_path / "report.json").read_text())


@pytest.mark.slow
def test_killed_in_each_part_of_a_step(tmp_path: Path) -> None:
    lines, report = torture(tmp_path, "--kills", 5, "--seed", 2)
    assert lines[-1] == "survived 5 of 5, lost 0"
    assert {entry["kind"] for entry in report["kills"]} == {"save", "rollout", "reward", "update", "finish"}
    assert "killed_1: bit-equal to the uninterrupted run" in lines


@pytest.mark.slow
def test_one_rank_of_two_is_killed(tmp_path: Path) -> None:
    lines, report = torture(tmp_path, "--kills", 2, "--seed", 3, "--workers", 2)
    assert lines[-1] == "survived 2 of 2, lost 0"
    assert all(entry["exit_code"] == 137 for entry in report["kills"] if entry["fault"])
