"""Runs on four processes go on bit for bit on four, and within rounding on one; the other way round, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from running import sets, succeeded, training_lines
from torture_runs import at_the_end, write_experiment

from mindgspo.checkpoint.store import step_folder
from mindgspo.tensor_files.writer import read_safetensors

FOUR = (
    "plans.train={data_parallel: 2, model_parallel: 2, optimizer_shard: true}",
    "plans.infer={data_parallel: 4}",
    "trainer.save_in_background=true",
)
ONE = ("plans.train={}", "plans.infer={}")
SETTINGS = (
    "algorithm.kl={placement: loss, coef: 0.05, target: 0.001, horizon: 100}",
    "optimizer.schedule=cosine",
    "trainer.save_every=1",
    "trainer.keep_checkpoints=9",
    "eval.every=null",
)


def run(config: Path, root: Path, *overrides: str) -> Path:
    succeeded("run", config, *sets(*SETTINGS, *overrides, f"run_dir={root}"), cwd=config.parent)
    return root


def checkpoint(root: Path, step: int) -> Path:
    return step_folder(root / "checkpoints", step)


def assert_close(ours: Path, theirs: Path) -> None:
    """Weights and moments of the last step, and its losses, within 1e-5."""
    for name in ("parameters.safetensors", "optimizer.safetensors"):
        one, other = (read_safetensors(checkpoint(root, 3) / name) for root in (ours, theirs))
        assert one.keys() == other.keys()
        for tensor in one:
            np.testing.assert_allclose(one[tensor], other[tensor], rtol=0, atol=1e-5, err_msg=tensor)
    steps = [[line for line in training_lines(root) if "actor/loss" in line] for root in (ours, theirs)]
    assert len(steps[0]) == len(steps[1]) == 3
    for one, other in zip(*steps, strict=True):
        assert one["actor/loss"] == pytest.approx(other["actor/loss"], abs=1e-5)
        assert one["actor/lr"] == other["actor/lr"], "the schedule does not know where the run stopped"


@pytest.mark.slow
def test_the_rest_of_a_run_is_the_same_on_the_same_plan_and_close_on_another(tmp_path: Path) -> None:
    config = write_experiment(tmp_path / "experiment", max_steps=3, workers=1)
    whole = run(config, tmp_path / "whole", *FOUR)
    same = run(config, tmp_path / "same", *FOUR, f"resume={checkpoint(whole, 1)}")
    assert at_the_end(same, whole) == []
    one = run(config, tmp_path / "one", *ONE, f"resume={checkpoint(whole, 1)}")
    assert_close(one, whole)
    four = run(config, tmp_path / "four", *FOUR, f"resume={checkpoint(one, 2)}")
    assert_close(four, one)


@pytest.mark.slow
def test_adapters_go_on_on_another_plan(tmp_path: Path) -> None:
    lora = "model.lora={rank: 4, alpha: 8.0, train_norms: true, init: pissa}"
    two = ("plans.train={model_parallel: 2}", "plans.infer={data_parallel: 2}")
    config = write_experiment(tmp_path / "experiment", max_steps=3, workers=1)
    whole = run(config, tmp_path / "whole", *two, lora)
    one = run(config, tmp_path / "one", *ONE, lora, f"resume={checkpoint(whole, 1)}")
    assert_close(one, whole)
