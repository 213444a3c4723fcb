"""Weights that hold an infinity: training stops, says so, and keeps what helps to find out why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mindgspo.errors import WeightsError


def put_infinity(weights: dict[str, np.ndarray]) -> None:
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = np.inf


def test_losses_that_are_never_finite_stop_the_run_with_the_batches_saved(
    experiment: Path, write_model, mindgspo, read_lines
) -> None:
    broken = write_model(experiment.parent / "broken", experiment, put_infinity)
    settings = (f"model.path={broken}", "warmup=", "trainer.on_nonfinite=skip", "trainer.max_nonfinite_skips=2")
    sets = [word for setting in settings for word in ("--set", setting)]
    done = mindgspo("run", experiment, *sets, cwd=experiment.parent)
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
        assert batch["ids_RT"].shape == (8, 64)  # 26 prompt + 8 response tokens, rounded up to 32s
        assert batch["mask_NK"].sum() == batch["num_tokens"]
        assert batch["num_sequences"] == 8
    assert [path.name for path in (root / "checkpoints").iterdir()] == ["step_00000000"]
    step_0, step_1 = read_lines(root / "metrics.jsonl")
    assert (step_0["step"], step_1["step"], step_1["samples/trained"], step_1["samples/dropped"]) == (0, 1, 0, 16)
    assert (step_1["actor/updates"], step_1["actor/updates_skipped"], step_1["training/updates"]) == (0, 2, 0)
    assert "actor/entropy" not in step_1, "it is nan"
    assert not (root / "summary.json").exists(), "the run is not finished"


def test_a_warm_up_that_breaks_saves_its_batch_too(experiment: Path, write_model, mindgspo) -> None:
    broken = write_model(experiment.parent / "broken", experiment, put_infinity)
    done = mindgspo("sft", experiment, "--set", f"model.path={broken}", cwd=experiment.parent)
    saved = experiment.parent / "runs" / "tiny-sft" / "failures" / "warmup_00000001_micro_batch_0.npz"
    assert done.returncode == 1
    assert done.stderr.startswith("error: warmup_00000001: update 1: the loss of micro-batch 1 of 1 is nan")
    assert saved.is_file()


def test_log_probs_of_broken_weights_are_refused(
    experiment: Path, write_model, tmp_path: Path, cpu_runtime: None
) -> None:
    from mindgspo.trainer.logprobs import log_probs_of_file

    broken = write_model(tmp_path / "broken", experiment, put_infinity)
    (tmp_path / "rows.jsonl").write_text('{"ids": [1, 2, 3]}\n')
    with pytest.raises(WeightsError, match="log-probs of row 1 are not finite"):
        list(log_probs_of_file(broken, tmp_path / "rows.jsonl"))
