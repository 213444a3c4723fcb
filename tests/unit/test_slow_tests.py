"""The list of slow tests names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def test_every_line_names_a_function() -> None:
    lines = (PROJECT / "tests/slow_tests.txt").read_text(encoding="utf-8").splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    assert names == sorted(set(names))
    for name in names:
        file, function = re.fullmatch(r"(tests/\S+\.py)::(\w+)(?:\[.*\])?", name).groups()
        assert f"def {function}(" in (PROJECT / file).read_text(encoding="utf-8"), name
