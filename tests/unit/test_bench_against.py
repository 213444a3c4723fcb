"""tools/bench_against.py: ratios by hand, and runs of two checkouts that only print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bench_against as tool
import pytest

BENCH = """
import json, sys
from mindgspo import SECONDS
work = {"scenario": "full", "tokens": int(sys.argv[1])}
print(json.dumps(work | dict.fromkeys(("step_s", "generation_s", "old_log_probs_s", "update_s"), SECONDS)))
"""


def report(step: float, **more: Any) -> dict[str, Any]:
    return {"scenario": "full", "tokens": 64.0, **dict.fromkeys(tool.PHASES, 1.0), "step_s": step, **more}


def checkout(folder: Path, seconds: float) -> Path:
    (folder / "tools").mkdir(parents=True)
    (folder / "mindgspo").mkdir()
    (folder / "tools/bench_step.py").write_text(BENCH)
    (folder / "mindgspo/__init__.py").write_text(f"SECONDS = {seconds}")
    return folder


def test_the_least_of_all_rounds_counts() -> None:
    found = tool.compared([report(3.0), report(2.4, update_s=0.5)], [report(2.0), report(2.5)])
    assert found["step_s"] == {"this": 2.4, "other": 2.0, "ratio": 1.2}
    assert found["update_s"] == {"this": 0.5, "other": 1.0, "ratio": 0.5} and found["generation_s"]["ratio"] == 1.0


def test_other_work_is_no_comparison() -> None:
    with pytest.raises(SystemExit, match="other work: tokens is 64.0 and 65.0"):
        tool.compared([report(1.0)], [report(1.0, tokens=65.0)])


def test_each_checkout_runs_its_own_code_and_a_slower_step_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "PROJECT", checkout(tmp_path / "this", 1.5))
    other = checkout(tmp_path / "other", 1.0)
    tool.run_against(other, ["64"], rounds=2, most_ratio=1.5)
    found = json.loads(capsys.readouterr().out)
    assert found["rounds"] == 2 and found["step_s"] == {"this": 1.5, "other": 1.0, "ratio": 1.5}
    with pytest.raises(SystemExit, match=r"1\.5 times as long as in .*; at most 1\.3 is allowed"):
        tool.run_against(other, ["64"], rounds=1, most_ratio=1.3)
    with pytest.raises(SystemExit, match="exit code 1"):
        tool.run_against(other, ["many"], rounds=1, most_ratio=1.3)
