"""Resumes that cannot be meant so, with a real run behind them: each ends with one message, and none touches the
run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def far_step(finished_run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that lies in no run folder, so that nothing but itself can be compared."""
    path = tmp_path_factory.mktemp("far") / "step_00000002"
    shutil.copytree(finished_run.root / "checkpoints" / "step_00000002", path)
    return path


def sets(*overrides: str) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("model.intermediate_size=96",), "mlp.down_proj.weight: the model has (32, 96), the file (32, 64)"),
        (("model.num_hidden_layers=3",), "model.layers.2.mlp.down_proj.weight"),
        (("data.train.max_rows=8",), "it was trained on other rows of data.train (10, here 8, with other content)"),
        (("trainer.max_steps=1",), "has 2 steps behind it, the run asks for 1, so there is nothing to train"),
    ],
    ids=["shapes", "names", "data", "steps"],
)
def test_a_checkpoint_of_something_else_is_refused_before_a_folder_holds_a_run(
    finished_run, far_step: Path, mindgspo, tmp_path: Path, overrides: tuple[str, ...], said: str
) -> None:
    root = tmp_path / "run"
    done = mindgspo(
        "run",
        finished_run.config,
        *sets(f"resume={far_step}", f"run_dir={root}", "warmup=null", *overrides),
        cwd=finished_run.folder,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stderr and str(far_step) in done.stderr
    assert "Traceback" not in done.stderr
    assert not (root / "config.yaml").exists() and not (root / "checkpoints").exists(), "another start may use it"


def test_another_tokenizer_is_refused_also_for_weights_alone(
    finished_run, far_step: Path, mindgspo, tmp_path: Path
) -> None:
    shutil.copytree(finished_run.folder / "tokenizer", tmp_path / "tokenizer")
    path = next((tmp_path / "tokenizer").glob("tokenizer_config.json"))
    path.write_text(path.read_text().rstrip() + "\n\n")
    overrides = (f"resume={far_step}", "restore=weights", f"run_dir={tmp_path / 'run'}")
    done = mindgspo(
        "run",
        finished_run.config,
        *sets(*overrides, f"tokenizer.path={tmp_path / 'tokenizer'}"),
        cwd=finished_run.folder,
    )
    assert done.returncode == 1
    assert "with another tokenizer" in done.stderr and "tokenizer_config.json: another content" in done.stderr


def test_a_finished_run_that_is_asked_for_more_steps_is_not_called_finished(finished_run, mindgspo, tree) -> None:
    before = tree(finished_run.folder)
    done = mindgspo("run", finished_run.config, *sets("resume=auto", "trainer.max_steps=6"), cwd=finished_run.folder)
    assert done.returncode == 1 and "trainer.max_steps: 6, the run has 4" in done.stderr
    assert tree(finished_run.folder) == before


def test_another_reward_is_told_and_the_run_goes_on(finished_run, mindgspo, tmp_path: Path) -> None:
    root = tmp_path / "run"
    step = finished_run.root / "checkpoints" / "step_00000004"
    done = mindgspo(
        "run",
        finished_run.config,
        *sets(f"resume={step}", f"run_dir={root}", "reward.weights=[0.5]"),
        cwd=finished_run.folder,
    )
    assert done.returncode == 0, done.stderr
    assert "warning: reward.weights: [0.5], the run has [1.0]" in done.stdout
    assert json.loads((root / "summary.json").read_text())["steps"] == 4


def test_weights_alone_begin_a_run_at_step_0_without_a_warm_up(
    finished_run, mindgspo, tmp_path: Path, read_lines
) -> None:
    root = tmp_path / "run"
    more = ("trainer.max_steps=1", "optimizer.lr=1e-4", "seed=7")  # another experiment
    done = mindgspo(
        "run",
        finished_run.config,
        *sets(f"resume={finished_run.root}", "restore=weights", f"run_dir={root}", *more),
        cwd=finished_run.folder,
    )
    assert done.returncode == 0, done.stderr
    newest = finished_run.root / "checkpoints" / "step_00000004"
    assert f"restore=weights: weights of step 4 from {newest}" in done.stdout
    assert "warm-up " not in done.stdout.replace("without a warm-up", "")
    assert {line["step"] for line in read_lines(root / "metrics.jsonl")} == {0, 1}
    before = read_lines(finished_run.root / "metrics.jsonl")[-1]
    first = read_lines(root / "metrics.jsonl")[0]
    assert first["val-core/acc/mean@1"] == before["val-core/acc/mean@1"], "the same weights"
