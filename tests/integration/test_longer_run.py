"""Runs that end earlier or later than planned: four steps and two more are six, and two of four may be enough."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from running import read_lines, sets, succeeded, write_experiment
from torture_runs import at_the_end

from mindgspo.metrics import read_summary
from mindgspo.tensor_files.writer import read_safetensors


def test_four_steps_and_two_more_are_six_bit_for_bit(tmp_path: Path) -> None:
    config = write_experiment(tmp_path)
    common = ("optimizer.warmup_ratio=0", "logging.groups_per_step=null")
    six, four = tmp_path / "six", tmp_path / "four"

    def run(root: Path, *settings: str) -> str:
        done = succeeded("run", config, *sets(*common, f"run_dir={root}", *settings), cwd=tmp_path)
        return done.stdout

    run(six, "trainer.max_steps=6")
    run(four)
    output = run(four, "resume=auto", "trainer.max_steps=6")
    assert "the run goes on to step 6 instead of 4; learning rate 0.001 at step 5 and after" in output
    assert "resumed at step 4" in output and "warm-up" not in output
    assert at_the_end(four, six) == []
    assert read_summary(four)["steps"] == 6 and (four / "summary_step_4.json").is_file()
    assert [line["step"] for line in read_lines(four / "environment.jsonl")] == [0, 4]
    assert "this run is finished" in run(four, "resume=auto", "trainer.max_steps=6")


@pytest.mark.slow
def test_a_run_without_a_gain_stops_early_and_exports_its_best_weights(tmp_path: Path) -> None:
    """No evaluation rises by 2; the accuracy at step 0, or a later one that is higher, is the best."""
    config, root = write_experiment(tmp_path), tmp_path / "run"
    common = (f"run_dir={root}", "eval.every=1", "resume=auto", "trainer.export=best", "optimizer.lr=1e-4")
    stop = "eval.stop={patience: 2, min_delta: 2.0}"

    def run(*settings: str) -> list[str]:
        return succeeded("run", config, *sets(*common, *settings), cwd=tmp_path).stdout.splitlines()

    said, summary = run(stop), read_summary(root)
    reason = summary["stopped_early"]
    assert f"stopped early at step 2 of 4: {reason}" in said
    assert str(reason).startswith("val-core/acc/mean@1 has not risen by 2 in 2 evaluations since ")
    assert (summary["finished"], summary["steps"]) == (True, 2)
    best = summary["exported_step"]
    assert best == summary["best_step"] and best in (0, 1), "otherwise nothing is shown here"
    exported = read_safetensors(root / "export" / "model.safetensors")
    kept = {step: read_safetensors(root / f"checkpoints/step_{step:08d}/parameters.safetensors") for step in (best, 2)}
    assert exported.keys() == kept[best].keys()
    assert all(np.array_equal(exported[name], kept[best][name]) for name in exported)
    assert not all(np.array_equal(exported[name], kept[2][name]) for name in exported)
    before = (root / "metrics.jsonl").read_bytes()
    for more in (stop,), (stop, "trainer.max_steps=6", "optimizer.schedule_steps=4"):
        assert f"it stopped early at step 2: {reason}; another setting of eval.stop continues it" in run(*more)
    assert (root / "metrics.jsonl").read_bytes() == before and read_summary(root) == summary
    (root / "summary.json").unlink()  # killed while it exported
    assert f"stopped early at step 2 of 4: {reason}" in run(stop)
    said = run("eval.stop.patience=9", "trainer.export=last")
    assert not any("stopped early" in line for line in said), said
    assert (read_summary(root)["steps"], read_summary(root)["stopped_early"]) == (4, None)
    assert read_summary(root)["exported_step"] == 4
