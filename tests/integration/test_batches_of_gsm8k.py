"""The mini-batch of 512 sequences with GSM8K's lengths: even replicas, little padding, one graph."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SHARED_DATA = PROJECT / ".." / "shared" / "data"


@pytest.mark.shared_data
def test_packed_batches_are_even_and_dense() -> None:
    if not SHARED_DATA.is_dir():
        pytest.skip(f"{SHARED_DATA} is absent: the real data sets and the tokenizer lie beside the project")
    command = [sys.executable, "tools/bench_batches.py"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["sequences"], report["replicas"]) == (512, 8)
    layouts = report["layouts"]
    assert layouts["in order"]["spread"] > 0.1 and layouts["rows of one sample"]["spread"] > 0.1
    for name in ("packed, balanced", "packed in one row (Ascend), balanced"):
        found = layouts[name]
        assert found["spread"] < 0.02 and found["padding"] < 0.1 and found["prediction_padding"] < 0.15
        assert found["shapes"] == 1 and found["passes"] <= layouts["rows of one sample"]["passes"]
