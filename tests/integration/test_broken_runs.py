"""Weights that hold an infinity, a full disk, kills, a damaged checkpoint, workers that die; the torture tool."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from running import PROJECT, environment, mindgspo, read_lines, reproducible, sets, training_lines, write_model
from torture_runs import write_experiment

from mindgspo import faults
from mindgspo.checkpoint.runs import RunState, overview
from mindgspo.errors import WeightsError


def put_infinity(weights: dict[str, np.ndarray]) -> None:
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = np.inf


def test_losses_that_are_never_finite_stop_the_run_with_the_batches_saved(experiment: Path) -> None:
    broken = write_model(experiment.parent / "broken", experiment, put_infinity)
    settings = (f"model.path={broken}", "warmup=", "trainer.on_nonfinite=skip", "trainer.max_nonfinite_skips=2")
    done = mindgspo("run", experiment, *sets(*settings), cwd=experiment.parent)
    root = experiment.parent / "runs" / "tiny"
    names = ("step_00000001_update_1", "step_00000001_update_2", "step_00000002_update_1")
    first, second, third = (root / "failures" / f"{name}_micro_batch_0.npz" for name in names)
    assert done.returncode == 1
    for name, saved, number in ((names[0], first, 1), (names[1], second, 2)):
        said = f"{name}: update 1: the loss of micro-batch 1 of 1 is nan; weights and optimizer are unchanged; "
        assert f"{said}the batch is saved as {saved}; the update is skipped, number {number}" in done.stderr
    assert f"error: {names[2]}: update 1: the loss of micro-batch 1 of 1 is nan" in done.stderr
    assert f"{third}. trainer.max_nonfinite_skips = 2 updates were skipped before" in done.stderr
    assert "Traceback" not in done.stderr
    with np.load(first, allow_pickle=False) as batch:
        # In one row, which has the room of eight: up to 26 prompt + 8 response tokens, rounded up to 32s.
        assert batch["ids_RT"].shape == batch["segments_RT"].shape == (1, 8 * 64)
        assert np.unique(batch["segments_RT"]).tolist() == list(range(9)), "eight samples and the room behind them"
        assert batch["mask_NK"].sum() == batch["num_tokens"]
        assert batch["num_sequences"] == 8
    assert [path.name for path in (root / "checkpoints").iterdir()] == ["step_00000000"]
    step_0, step_1 = read_lines(root / "metrics.jsonl")
    assert (step_0["step"], step_1["step"], step_1["samples/trained"], step_1["samples/dropped"]) == (0, 1, 0, 16)
    assert (step_1["actor/updates"], step_1["actor/updates_skipped"], step_1["training/updates"]) == (0, 2, 0)
    assert "actor/entropy" not in step_1, "it is nan"
    assert not (root / "summary.json").exists(), "the run is not finished"
    told = overview(root)
    assert told.state is RunState.FAILED and told.verdicts[0].startswith(f"{names[2]}: update 1: the loss of")


def test_a_warm_up_that_breaks_saves_its_batch_too(experiment: Path) -> None:
    broken = write_model(experiment.parent / "broken", experiment, put_infinity)
    done = mindgspo("sft", experiment, "--set", f"model.path={broken}", cwd=experiment.parent)
    saved = experiment.parent / "runs" / "tiny-sft" / "failures" / "warmup_00000001_micro_batch_0.npz"
    assert done.returncode == 1
    assert done.stderr.startswith("error: warmup_00000001: update 1: the loss of micro-batch 1 of 1 is nan")
    assert saved.is_file()


def test_log_probs_of_broken_weights_are_refused(experiment: Path, tmp_path: Path, cpu_runtime: None) -> None:
    from mindgspo.evaluation.log_probs import log_probs_of_file

    broken = write_model(tmp_path / "broken", experiment, put_infinity)
    (tmp_path / "rows.jsonl").write_text('{"ids": [1, 2, 3]}\n')
    with pytest.raises(WeightsError, match="log-probs of row 1 are not finite"):
        list(log_probs_of_file(broken, tmp_path / "rows.jsonl"))


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
    words = sets(f"run_dir={run_dir}", "resume=auto")
    return mindgspo("run", config, *words, cwd=config.parent, env={faults.VARIABLE: fault})


def steps_of(run_dir: Path) -> list[dict]:
    return reproducible(training_lines(run_dir))


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
    assert "step_00000002: cannot be written" in ended.stderr
    assert "the disk is full" in ended.stderr
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


def torture(tmp_path: Path, *options: object) -> tuple[list[str], dict]:
    command = [sys.executable, PROJECT / "tools" / "torture.py", "--report", tmp_path / "report.json", *options]
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=1500, env=environment())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines(), json.loads((tmp_path / "report.json").read_text())


@pytest.mark.slow
def test_killed_in_each_part_of_a_step(tmp_path: Path) -> None:
    lines, report = torture(tmp_path, "--kills", 5, "--seed", 2)
    assert lines[-1] == "survived 5 of 5, lost 0"
    assert {entry["kind"] for entry in report["kills"]} == {"save", "rollout", "reward", "update", "finish"}
    assert "killed_1: bit-equal to the uninterrupted run" in lines


@pytest.mark.slow
def test_one_rank_of_two_is_killed(tmp_path: Path) -> None:
    lines, report = torture(tmp_path, "--kills", 2, "--seed", 3, "--workers", 2)
    assert lines[-1] == "survived 2 of 2, lost 0"
    assert all(entry["exit_code"] == 137 for entry in report["kills"] if entry["fault"])
