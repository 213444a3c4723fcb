"""The smoke test: its experiment is legal under every plan; wrong numbers are found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from running import mindgspo

from mindgspo.config import load_config
from mindgspo.doctor.smoke import write_experiment

PROJECT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted(PROJECT.glob("examples/*/*.yaml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_shipped_experiment_has_a_legal_smoke_test(tmp_path: Path, example: Path) -> None:
    config = load_config(example, [], check_files=False)
    smoke = load_config(write_experiment(tmp_path, config.device, config))
    assert smoke.plans.train.world_size == config.plans.train.world_size == smoke.plans.infer.world_size
    assert (smoke.device, smoke.reshard.verify) == (config.device, "full")
    assert smoke.plans.train.model_parallel == config.plans.train.model_parallel


def test_without_an_experiment_it_is_one_process(tmp_path: Path) -> None:
    smoke = load_config(write_experiment(tmp_path, "CPU", None))
    assert smoke.plans.train.world_size == 1 and smoke.run_dir == tmp_path / "run"


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [None, "_linear", "_rms_norm", "_attention", "_rotated"])
def test_an_operator_that_computes_something_else_is_found(
    cpu_runtime: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str | None
) -> None:
    from mindgspo.doctor import smoke_ranks

    if wrong is not None:
        right = getattr(smoke_ranks._Twin, wrong)
        monkeypatch.setattr(smoke_ranks._Twin, wrong, lambda *arguments: right(*arguments) * np.float32(1.001))
    config = load_config(write_experiment(tmp_path, "CPU", None))
    checks = list(smoke_ranks._kernel_checks(config))
    found = {check.name for check in checks if not check.is_right}
    named = {"_linear": "MatMul", "_rms_norm": "RmsNorm", "_attention": "FlashAttentionScore",
             "_rotated": "RotaryPositionEmbedding"}  # fmt: skip
    assert found == ({named[wrong]} if wrong else set()), [str(check) for check in checks]
    assert {"Gather", "MatMul", "RmsNorm", "Swiglu", "AdamW", "gradients"} <= {check.name for check in checks}


@pytest.mark.slow
def test_two_ranks_pass_the_smoke_test(tmp_path: Path) -> None:
    experiment = tmp_path / "two.yaml"
    experiment.write_text(
        f"include: {PROJECT}/examples/arithmetic/gspo.yaml\n"
        "plans: {train: {data_parallel: 2}, infer: {data_parallel: 1, model_parallel: 2}}\n"
        "trainer: {samples_per_micro_batch: 32}\n"
    )
    done = mindgspo("doctor", experiment, "--smoke", "--bundle", tmp_path / "bundle", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("ok    AllReduce, train world group of 2") for line in lines), lines
    assert (tmp_path / "bundle/smoke.txt").read_text().count(": ok (") == 2
