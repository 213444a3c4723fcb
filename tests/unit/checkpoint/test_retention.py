"""Which checkpoints stay: the newest and the best, whatever is killed or damaged in between."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mindgspo.checkpoint import Keep, newest_checkpoint, save_checkpoint
from mindgspo.checkpoint.store import best_first, evaluation_of, steps_newest_first
from mindgspo.checkpoint.verify import list_lines

VALUES = {0: 0.25, 1: 0.5, 2: 0.75, 3: 0.75, 4: None, 5: 0.5, 6: 0.625}


def save(folder: Path, step: int, keep: Keep, value: float | None = None) -> Path:
    latest = None if value is None else {"step": step, "value": value}
    arrays = {"w": np.full(3, step, np.float32)}
    state = {"progress": {"latest": latest}}
    return save_checkpoint(folder, step=step, parameters=arrays, optimizer={}, state=state, keep=keep)


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in steps_newest_first(folder))


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (Keep(last=1), [6]),
        (Keep(last=2), [5, 6]),
        (Keep(last=1, best=1), [2, 6]),  # of equals the first
        (Keep(last=1, best=2), [2, 3, 6]),
        (Keep(last=2, best=3), [2, 3, 5, 6]),  # 6 is the third best and among the newest
        (Keep(last=9, best=1), [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_the_newest_and_the_best_stay(tmp_path: Path, keep: Keep, left: list[int]) -> None:
    for step, value in VALUES.items():
        save(tmp_path, step, keep, value)
    assert steps(tmp_path) == left


def test_a_better_one_takes_the_place_of_the_best(tmp_path: Path) -> None:
    keep = Keep(last=1, best=1)
    for step, value in ((1, 0.5), (2, 0.25), (3, 0.75), (4, 0.25)):
        save(tmp_path, step, keep, value)
    assert steps(tmp_path) == [3, 4]


def test_an_evaluation_of_an_earlier_step_does_not_count(tmp_path: Path) -> None:
    path = save_checkpoint(
        tmp_path,
        step=4,
        parameters={},
        optimizer={},
        state={"progress": {"latest": {"step": 2, "value": 0.9}}},
        keep=Keep(last=1),
    )
    assert evaluation_of(path) is None and best_first([path]) == []


KILLED_SAVER = """
import sys
from pathlib import Path
import numpy as np
from mindgspo import faults
from mindgspo.checkpoint import Keep, save_checkpoint
faults.arm(0, sys.argv[2])
state = {"progress": {"latest": {"step": 3, "value": 0.25}}}
save_checkpoint(Path(sys.argv[1]), step=3, parameters={"w": np.zeros(3)}, optimizer={}, state=state,
                keep=Keep(last=1, best=1))
"""


@pytest.mark.parametrize(
    ("fault", "newest", "left"),
    [
        ("save.inside:1=kill", 2, [1, 2]),
        ("save.inside:3=kill", 2, [1, 2]),
        ("save.rename=kill", 2, [1, 2]),
        ("save.remove=kill", 3, [1, 2, 3]),
    ],
)
def test_a_kill_at_any_point_of_a_save_keeps_the_best_and_the_newest(
    tmp_path: Path, fault: str, newest: int, left: list[int]
) -> None:
    for step, value in ((1, 0.75), (2, 0.5)):
        save(tmp_path, step, Keep(last=1, best=1), value)
    ended = subprocess.run([sys.executable, "-c", KILLED_SAVER, str(tmp_path), fault], check=False, timeout=60)
    assert ended.returncode == -9
    assert newest_checkpoint(tmp_path) == tmp_path / f"step_{newest:08d}"
    assert steps(tmp_path) == left
    save(tmp_path, 4, Keep(last=1, best=1), 0.5)
    assert steps(tmp_path) == [1, 4]


def test_the_list_shows_evaluations_and_the_best(tmp_path: Path) -> None:
    for step, value in VALUES.items():
        save(tmp_path, step, Keep(last=9), value)
    lines = {line.split()[0]: line for line in list_lines(tmp_path)}
    assert "0.7500" in lines["step_00000002"] and lines["step_00000002"].endswith("complete, best")
    assert "best" not in lines["step_00000003"] and lines["step_00000006"].endswith("complete, newest")
    assert "-" in lines["step_00000004"]
