"""One run that meets a full disk, a kill within a save, a damaged newest checkpoint, and reward workers that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from mindgspo import faults
from mindgspo.torture.experiment import write_experiment

PROJECT = Path(__file__).resolve().parents[2]

# One response in about eleven ends its worker process. Worked solutions, which are tried at the start, do not.
REWARD = """
import os, signal

def score(data_source, solution_str, ground_truth, extra_info):
    number = sum(map(ord, solution_str))
    if "####" not in solution_str and number % 11 == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return number % 7 / 6
"""


def run(config: Path, run_dir: Path, fault: str = "") -> subprocess.CompletedProcess[str]:
    sets = [word for setting in (f"run_dir={run_dir}", "resume=auto") for word in ("--set", setting)]
    return subprocess.run(
        [sys.executable, "-m", "mindgspo.cli", "run", str(config), *sets],
        env={**os.environ, "PYTHONPATH": str(PROJECT), faults.VARIABLE: fault},
        capture_output=True,
        text=True,
        timeout=300,
    )


def steps_of(run_dir: Path) -> list[dict]:
    """The training lines of the metrics, without clocks and memory."""
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in record.items() if not key.startswith(("timing_s/", "perf/"))}
        for record in records
        if "samples/generated" in record
    ]


def checkpoints(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_a_run_survives_its_disk_its_checkpoint_and_its_reward(tmp_path: Path) -> None:
    config = write_experiment(tmp_path / "experiment", max_steps=4, workers=1)
    (config.parent / "reward.py").write_text(REWARD)
    run_dir = tmp_path / "run"

    # The disk is full when the second checkpoint, of step 2, is written.
    ended = run(config, run_dir, "save.rename:2=full_disk")
    assert ended.returncode == 1 and "Traceback" not in ended.stderr, ended.stderr
    assert f"warning: {faults.VARIABLE} is set" in ended.stdout
    assert "step_00000002: the checkpoint could not be written" in ended.stderr
    assert "No space left on device" in ended.stderr
    assert checkpoints(run_dir) == ["step_00000000"], "no half of a checkpoint is left"

    # The process is killed between two files of the next but one, of step 4.
    ended = run(config, run_dir, "save.rename:2=kill")
    assert ended.returncode == -signal.SIGKILL and "resumed at step 0" in ended.stdout, ended.stderr
    first = steps_of(run_dir)
    assert [record["step"] for record in first] == [1, 2, 3, 4]
    kept = [name for name in checkpoints(run_dir) if not name.startswith(".")]
    assert kept == ["step_00000000", "step_00000002"]

    # The newest checkpoint is damaged.
    damaged = run_dir / "checkpoints" / "step_00000002" / "optimizer.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    ended = run(config, run_dir)
    assert ended.returncode == 0, ended.stderr
    assert f"checkpoint passed over: {damaged}: its content changed" in ended.stderr
    assert "resumed at step 0" in ended.stdout
    assert [name for name in checkpoints(run_dir) if name.startswith(".")] == [], "leftovers are cleared away"
    assert json.loads((run_dir / "summary.json").read_text())["steps"] == 4

    # Three lives made the same steps; workers died in each, and cost their own response alone.
    assert steps_of(run_dir) == first
    lost = [record.get("samples/filtered/error", 0) for record in first]
    assert 0 < sum(lost) < 32, lost
    for record, number in zip(first, lost, strict=True):
        assert record["samples/generated"] == 16 == record["samples/trained"] + number
    assert "the worker was ended by signal 9" in ended.stderr
