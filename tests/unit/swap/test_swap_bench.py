"""`tools/bench_swap.py`: its verdict by hand, and one real run of a small model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bench_swap as tool
import pytest
from running import python


def figures(**changes: Any) -> dict[str, Any]:
    """Pool 100; a rollout of 50 and an update of 300 MiB: 165 and 440 MiB are allowed."""
    phases = {
        "rollout": {"peak": 165.0, "ledger": 50.0, "seconds": 1.0, "moving": 0.1},
        "update": {"peak": 430.0, "ledger": 300.0, "seconds": 2.0, "moving": 0.2},
    }
    whole = {
        "parameters": 7, "base": 400.0, "built": 200.0, "peak": 440.0, "pool": 100.0,
        "first_step": {"update": 100.0},
    }  # fmt: skip
    return {**whole, "phases": phases, **changes}


def test_bounds_by_hand():
    report = tool.judged(figures())
    assert report["largest_phase"] == 400
    assert report["phases"]["rollout"]["allowed"] == pytest.approx(165)
    assert report["phases"]["update"]["allowed"] == pytest.approx(440)
    assert report["phases"]["rollout"]["met"] and report["phases"]["update"]["met"]


@pytest.mark.parametrize(("changes", "met"), [({}, True), ({"peak": 441.0}, False), ({"pool": 90.0}, False)])
def test_a_peak_or_a_phase_above_its_bound_is_a_miss(changes: dict[str, float], met: bool):
    report = tool.judged(figures(**{"peak": 439.0, **changes}))
    assert report["met"] is met
    assert ("OVER" in tool.as_text("with swap", report, "")) is (not report["phases"]["rollout"]["met"])


@pytest.mark.slow
def test_a_small_model_ends_with_the_same_bits_and_less_memory(tmp_path: Path):
    words = ("--parameters", 1, "--json", "--folder", tmp_path, "--reshard-level", 1)
    done = python(tool.__file__, *words, timeout=900)
    report = json.loads(done.stdout)
    assert report["same_bits"]
    swap, plain = report["swap"], report["plain"]
    assert swap["peak"] < plain["peak"]
    for name, entry in swap["phases"].items():
        assert entry["ledger"] < plain["phases"][name]["ledger"]
        assert entry["peak"] < plain["phases"][name]["peak"]
    assert done.returncode == 0, report
