"""The smoke test: its experiment is legal under every plan; wrong numbers are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import mindgspo

from mindgspo.config import load_config
from mindgspo.doctor.smoke import smoke_of_rank, write_smoke_experiment
from mindgspo.errors import TrainingError

PROJECT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted(PROJECT.glob("examples/*/*.yaml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_shipped_experiment_has_a_legal_smoke_test(tmp_path: Path, example: Path) -> None:
    config = load_config(example, [], check_files=False)
    smoke = load_config(write_smoke_experiment(tmp_path, config.device, config))
    assert smoke.plans.train.world_size == config.plans.train.world_size == smoke.plans.infer.world_size
    assert (smoke.device, smoke.reshard.verify) == (config.device, "full")
    assert (tmp_path / "first.yaml").exists() == (config.device == "Ascend")
    assert smoke.plans.train.model_parallel == config.plans.train.model_parallel


def test_without_an_experiment_it_is_one_process(tmp_path: Path) -> None:
    smoke = load_config(write_smoke_experiment(tmp_path, "CPU", None))
    assert smoke.plans.train.world_size == 1 and smoke.run_dir == tmp_path / "run"


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
    assert any(line.startswith("bit-equal: ") for line in lines), lines
    assert (tmp_path / "bundle/smoke.txt").read_text().count(": ok (") == 3


def test_a_rank_that_computes_something_else_is_named(cpu_runtime: None, tmp_path: Path) -> None:
    path = write_smoke_experiment(tmp_path, "CPU", None)
    with pytest.raises(TrainingError, match="rank 0 computes something else: forward: norm is off"):
        smoke_of_rank(path, lambda folder: ([], "forward: norm is off"), 0.0)
