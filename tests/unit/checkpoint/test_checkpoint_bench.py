"""The benchmark of the checkpoint tools, on a checkpoint that takes no time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[3] / "tools" / "bench_checkpoint.py"


def test_a_small_round(tmp_path: Path):
    command = [sys.executable, str(TOOL), "--gib", "0.05", "--runs", "1", "--folder", str(tmp_path), "--format", "ckpt"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["ranks"] == 8 and report["bytes"] / 8 < report["largest_shard"] < report["bytes"] / 4
    for way in ("shard", "merge"):
        figures = report[way]
        assert 0 < figures["seconds"] < figures["process_seconds"]
        assert figures["cp"] > 0 and figures["share_of_cp"] > 0 and figures["peak_rss"] > 1 << 20
    assert list(tmp_path.iterdir()) == []
