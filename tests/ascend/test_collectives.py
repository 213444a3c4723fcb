"""Collectives between emulated cards equal numpy; of those that never end it is told who waits where."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from running import python

WORKERS = Path(__file__).parent / "workers"


def job(
    num_cards: int, script: str, log_dir: Path, *, limit_s: int | None = None, **watch: object
) -> subprocess.CompletedProcess[str]:
    """limit_s: of a collective; default: none."""
    command = [WORKERS / "launch_cards.py", str(num_cards), log_dir, WORKERS / script]
    environment = os.environ | {"WATCH": json.dumps(watch)}
    if limit_s is not None:
        environment["HCCL_EXEC_TIMEOUT"] = str(limit_s)
    return python(*command, env=environment)


@pytest.mark.parametrize("num_cards", [pytest.param(3, marks=pytest.mark.smoke), 4, 8])
def test_collectives_of_groups_of_any_size_equal_numpy(cards: None, tmp_path: Path, num_cards: int) -> None:
    done = job(num_cards, "collectives.py", tmp_path)
    assert done.returncode == 0, (done.stdout + done.stderr)[-20000:]


@pytest.mark.smoke
def test_a_ring_that_waits_is_told_with_ranks_groups_and_lines(cards: None, tmp_path: Path) -> None:
    script = (WORKERS / "waiting_ring.py").read_text(encoding="utf-8").splitlines()
    words = "synchronize", "compile_and_run"
    waits, sums = (1 + max(i for i, line in enumerate(script) if word in line) for word in words)
    done = job(3, "waiting_ring.py", tmp_path, min_seconds=6, on_stall="stop")
    assert done.returncode == 124, (done.stdout + done.stderr)[-20000:]
    lines = done.stderr.splitlines()
    for rank in (0, 1):
        start = lines.index(f"rank {rank} in Send to rank {1 - rank} (group of ranks 0 1 2)")
        end = lines.index(f"log: {tmp_path / f'rank_{rank}.log'}", start)
        assert any(f'waiting_ring.py", line {waits} in work' in line for line in lines[start:end]), lines
    start = lines.index("rank 2 in AllReduce (group of ranks 0 1 2): waits for rank 0")
    assert lines[start + 1].endswith(f'waiting_ring.py", line {sums} in work')


@pytest.mark.slow
def test_nobody_waits_inside_a_collective_for_a_rank_that_compiles(cards: None, tmp_path: Path) -> None:
    done = job(2, "late_compile.py", tmp_path, limit_s=3)
    assert done.returncode == 0, (done.stdout + done.stderr)[-20000:]
