"""The list of slow tests names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def test_every_line_names_a_function_of_its_folder() -> None:
    lines = (PROJECT / "tests/slow_tests.txt").read_text(encoding="utf-8").splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    assert names == sorted(set(names))
    missing = []
    for name in names:
        folder, function = re.fullmatch(r"((?:tests|tools)/[\w/]+)::(\w+)(?:\[.*\])?", name).groups()
        sources = (path.read_text(encoding="utf-8") for path in (PROJECT / folder).glob("test_*.py"))
        if not any(f"def {function}(" in source for source in sources):
            missing.append(name)
    assert missing == []
