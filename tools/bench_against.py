"""A training step of this checkout beside another's, on one machine: both run in turns, and only their ratio counts.

Called by `bench_step --against`. Each run is a process of its own with the code of its checkout and the packages of
this Python. Of the rounds the least seconds are taken, since whatever else the machine does only adds to them. Runs
that did other work are refused: an older `bench_step` may have timed another model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
PHASES = ("step_s", "generation_s", "old_log_probs_s", "update_s")
WORK = ("scenario", "model", "dtype", "lora", "max_new_tokens", "slots", "threads", "counted_steps", "tokens")
"""What must be equal in all reports."""
Report = Mapping[str, Any]


def run_against(other: Path, words: Sequence[str], *, rounds: int, most_ratio: float) -> None:
    """Print the comparison as JSON. Exits with an error if a step takes more than `most_ratio` times as long as in the
    checkout `other`. words: further options of `bench_step`."""
    these: list[Report] = []
    others: list[Report] = []
    for _ in range(rounds):
        others.append(_run_in(other, words))
        these.append(_run_in(PROJECT, words))
    found = compared(these, others)
    print(json.dumps({"against": str(other), "rounds": rounds, **found}, indent=2))
    ratio = found["step_s"]["ratio"]
    if ratio > most_ratio:
        sys.exit(f"error: a step takes {ratio:g} times as long as in {other}; at most {most_ratio:g} is allowed")


def compared(these: Sequence[Report], others: Sequence[Report]) -> dict[str, dict[str, float]]:
    """Per phase the least seconds of this checkout, of the other, and their ratio. Exits with an error if the reports
    are not of the same work."""
    for key in WORK:
        values = {json.dumps(report.get(key)) for report in (*these, *others)}
        if len(values) > 1:
            sys.exit(f"error: the checkouts did other work: {key} is {' and '.join(sorted(values))}")
    found = {}
    for phase in PHASES:
        this, other = (min(report[phase] for report in reports) for reports in (these, others))
        found[phase] = {"this": this, "other": other, "ratio": round(this / other, 3)}
    return found


def _run_in(folder: Path, words: Sequence[str]) -> Report:
    tools = folder.resolve() / "tools"
    packages = [str(folder.resolve()), *(str(path.parent) for path in tools.glob("*/pyproject.toml"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(packages)}
    command = [sys.executable, str(tools / "bench_step.py"), *words]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"error: {command[1]}: exit code {done.returncode}, with the message above")
    return json.loads(done.stdout)
