"""Weights that hold an infinity: training stops, says so, and keeps what helps to find out why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mindgspo.errors import WeightsError


def put_infinity(weights: dict[str, np.ndarray]) -> None:
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = np.inf


def test_a_loss_that_is_not_finite_stops_the_run_with_its_batch_saved(
    experiment: Path, write_model, mindgspo, read_lines
) -> None:
    broken = write_model(experiment.parent / "broken", experiment, put_infinity)
    done = mindgspo("run", experiment, "--set", f"model.path={broken}", "--set", "warmup=", cwd=experiment.parent)
    root = experiment.parent / "runs" / "tiny"
    saved = root / "failures" / "step_00000001_micro_batch_0.npz"
    assert done.returncode == 1
    assert done.stderr.startswith("error: step_00000001: update 1: the loss of micro-batch 1 of 1 is nan")
    assert str(saved) in done.stderr and "Traceback" not in done.stderr

    with np.load(saved, allow_pickle=False) as batch:
        assert batch["ids_RT"].shape == (8, 64)  # 26 prompt + 8 response tokens, rounded up to 32s
        assert batch["mask_NK"].sum() == batch["num_tokens"]
        assert batch["num_sequences"] == 8
    assert [path.name for path in (root / "checkpoints").iterdir()] == ["step_00000000"]
    assert [line["step"] for line in read_lines(root / "metrics.jsonl")] == [0]
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
