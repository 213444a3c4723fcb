"""tools/mutants.py: the changes it makes, a draw that a seed decides, and its verdicts on tests of a small project."""

from __future__ import annotations

from pathlib import Path

import mutants as tool
import pytest

CODE = '''\
def clipped(values: list[int], high: int) -> list[int]:
    """Values up to high."""
    assert high > 0
    if high == 9:
        raise ValueError(f"{high + 1} is too much")
    return [one for one in values[:4] if one <= high]


class Door:
    def __init__(self, width: int) -> None:
        self.width = width

    def opens(self, key: str | None) -> bool:
        self.tried = True
        return key is not None and key == "7"
'''
TEST = "from mindgspo.doors import clipped\n\ndef test_clipped():\n    assert clipped([1, 2, 3], 2) == [1, 2]\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "mindgspo").mkdir()
    (tmp_path / "mindgspo/doors.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "test_doors.py").write_text(TEST, encoding="utf-8")
    return tmp_path


def test_the_changes_of_a_file(project: Path) -> None:
    found = [(one.line, one.operator, one.before, one.after) for one in tool.mutants_below(["mindgspo"], project)]
    assert sorted(found) == [
        (4, "comparison", "high == 9", "(high != 9)"),
        (4, "condition", "high == 9", "(not high == 9)"),
        (4, "constant", "9", "10"),
        (4, "constant", "9", "8"),
        (5, "statement", 'raise ValueError(f"{high + 1} is too much")', "pass"),
        (6, "comparison", "one <= high", "(one < high)"),
        (6, "condition", "one <= high", "(not one <= high)"),
        (6, "constant", "4", "3"),
        (6, "constant", "4", "5"),
        (6, "slice", "4", "4 + 1"),
        (6, "slice", "4", "4 - 1"),
        (14, "constant", "True", "False"),
        (14, "statement", "self.tried = True", "pass"),
        (15, "boolean", 'key is not None and key == "7"', "(key is not None or key == '7')"),
        (15, "comparison", 'key == "7"', "(key != '7')"),
        (15, "comparison", "key is not None", "(key is None)"),
        (15, "return", 'return key is not None and key == "7"', "return not (key is not None and key == '7')"),
    ]


def test_a_seed_draws_the_same_lines_each_once(project: Path) -> None:
    every = tool.mutants_below(["mindgspo"], project)
    drawn = tool.draw(every, 4, seed=3)
    assert drawn == tool.draw(every, 4, seed=3) != tool.draw(every, 4, seed=4)
    assert len({one.line for one in drawn}) == 4 and len(tool.draw(every, 99, seed=3)) == 5


def test_a_test_kills_the_mutants_it_can_tell_from_the_code(project: Path) -> None:
    every = {(one.before, one.after): one for one in tool.mutants_below(["mindgspo"], project)}
    outcome, by = tool.try_out(every["one <= high", "(one < high)"], project, ["test_doors.py"], cpu_seconds=60)
    assert outcome == "killed" and "test_clipped" in by
    assert tool.try_out(every["9", "10"], project, ["test_doors.py"], cpu_seconds=60)[0] == "survived"
    assert (project / "mindgspo/doors.py").read_text(encoding="utf-8") == CODE
