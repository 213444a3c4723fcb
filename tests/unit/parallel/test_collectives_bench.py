"""`tools/bench_collectives.py`: one real run of two ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[3] / "tools" / "bench_collectives.py"


@pytest.mark.slow
def test_every_collective_is_timed() -> None:
    command = [sys.executable, str(TOOL), "--ranks", "2", "--kib", "1", "64", "--runs", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (report,) = json.loads(done.stdout).values()
    assert set(report) == {
        "one call", "all_reduce", "all_to_all", "reduce_scatter and all_gather by turns", "MindSpore's AllReduce",
    }  # fmt: skip
    for times in report.values():
        assert set(times) == {"1 KiB", "64 KiB"} and min(times.values()) > 0.0
