"""`tools/bench_swap.py`: its verdict by hand, and one real run of a small model."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOL = Path(__file__).resolve().parents[3] / "tools" / "bench_swap.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_swap", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_bounds_by_hand(tool: ModuleType):
    report = tool.judged(figures())
    assert report["largest_phase"] == 400
    assert report["phases"]["rollout"]["allowed"] == pytest.approx(165)
    assert report["phases"]["update"]["allowed"] == pytest.approx(440)
    assert report["phases"]["rollout"]["met"] and report["phases"]["update"]["met"]


@pytest.mark.parametrize(("changes", "met"), [({}, True), ({"peak": 441.0}, False), ({"pool": 90.0}, False)])
def test_a_peak_or_a_phase_above_its_bound_is_a_miss(tool: ModuleType, changes: dict[str, float], met: bool):
    report = tool.judged(figures(**{"peak": 439.0, **changes}))
    assert report["met"] is met
    assert ("OVER" in tool.as_text("with swap", report, "")) is (not report["phases"]["rollout"]["met"])


@pytest.mark.slow
def test_a_small_model_ends_with_the_same_bits_and_less_memory(tmp_path: Path):
    command = [
        sys.executable, str(TOOL), "--parameters", "1", "--json", "--folder", str(tmp_path), "--reshard-level", "1",
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=900, check=False)
    report = json.loads(done.stdout)
    assert report["same_bits"]
    swap, plain = report["swap"], report["plain"]
    assert swap["peak"] < plain["peak"]
    for name, entry in swap["phases"].items():
        assert entry["ledger"] < plain["phases"][name]["ledger"]
        assert entry["peak"] < plain["phases"][name]["peak"]
    assert done.returncode == 0, report
