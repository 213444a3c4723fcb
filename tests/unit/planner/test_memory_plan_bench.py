"""`tools/bench_memory_plan.py`: a plan against the resident set of a real process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[3] / "tools" / "bench_memory_plan.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [["--alone"], ["--recompute", "full", "--reference"]], ids=["as it is", "recompute"]
)
def test_five_million_parameters_need_what_is_planned(options: list[str]) -> None:
    command = [sys.executable, str(TOOL), "--parameters", "5000000", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=900, check=False)
    report = json.loads(done.stdout)
    figures = [(process["process"], process["phases"]) for process in report["processes"]]
    assert done.returncode == 0 and report["within"], figures
    assert report["tolerance"] == 0.15
    (whole,) = (phases for name, phases in figures if name == "run")
    assert set(whole) == {"rollout", "score", "update", "save"}
    # What was measured is memory of this process: more than the weights, gradients and moments alone.
    assert all(phase["measured"] > 4 * 18 for phase in whole.values())
