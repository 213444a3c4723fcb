"""examples/mindrlhf inside the real MindRLHF, on the CPU.

    export MINDGSPO_MINDFORMERS_PYTHON=$PWD/mf/bin/python
    MINDGSPO_MINDRLHF_SOURCE=/path/to/mindrlhf MINDGSPO_MINDFORMERS_SOURCE=/path/to/mindformers \
        ./run_tests.sh tests/integrations_mindformers/test_mindrlhf.py

The two source trees are MindRLHF's at e8a8fc1 and MindFormers' of July 2025, with its folder `research`. Skipped
without them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

from mindgspo.config import load_model_and_plans
from mindgspo.planner.strategy_files import write_plan_files
from mindgspo.strategy.file import read_strategy

Run = Callable[..., CompletedProcess[str]]
SOURCES = ("MINDGSPO_MINDRLHF_SOURCE", "MINDGSPO_MINDFORMERS_SOURCE")
CHILD = Path(__file__).with_name("mindrlhf_child.py")
# The model of the child, in our words.
MODEL = """
model:
  {vocab_size: 61, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4,
   num_key_value_heads: 2}
plans: {train: {}, infer: {}}
"""
NUM_WEIGHTS = 3 + 2 * 12


@pytest.fixture(scope="module")
def child(run: Run, mindformers_python: str, tmp_path_factory: pytest.TempPathFactory):
    """child(what): the arrays that the program saves."""
    missing = [name for name in SOURCES if not os.environ.get(name)]
    if missing:
        pytest.skip(
            f"needs {' and '.join(missing)}, source trees of MindRLHF and MindFormers: see docs/integrations.md"
        )

    def call(what: str) -> dict[str, np.ndarray]:
        folder = tmp_path_factory.mktemp(what)
        done = run(mindformers_python, CHILD, what, folder / "found.npz", cwd=folder)
        assert done.returncode == 0, done.stderr[-3000:]
        with np.load(folder / "found.npz") as found:
            return dict(found)

    return call


def test_loss_and_gradients_are_those_of_its_own_cell(child) -> None:
    """GRPOModel with its KL term and clipping, against GSPOModel with name="grpo"."""
    found = child("compare")
    assert found["ours.loss"] == pytest.approx(found["theirs.loss"], abs=1e-6)
    gradients = [name.partition(".")[2] for name in found if name.startswith("theirs.grad.")]
    assert len(gradients) == NUM_WEIGHTS
    for name in gradients:
        theirs, ours = found[f"theirs.{name}"], found[f"ours.{name}"]
        assert np.abs(theirs).max() > 1e-3, f"{name}: nothing to compare"
        assert np.abs(ours - theirs).max() <= 1e-6 * max(1.0, np.abs(theirs).max()), name


def test_its_train_worker_makes_an_update_of_gspo(child) -> None:
    """lr is 1e-3, and Adam's first step moves every weight by nearly that."""
    moved = child("train")
    assert len(moved) == NUM_WEIGHTS
    assert {name: step for name, step in moved.items() if not 5e-4 < step < 2e-3} == {}


def test_strategy_files_bear_the_names_of_what_it_saves(child, tmp_path: Path) -> None:
    saved = {
        name.partition(".")[2]: tuple(shape) for name, shape in child("names").items() if name.startswith("weight.")
    }
    (tmp_path / "model.yaml").write_text(MODEL, encoding="utf-8")
    write_plan_files(*load_model_and_plans(tmp_path / "model.yaml"), tmp_path, suffix=".json", naming="mindrlhf")
    written = read_strategy(tmp_path / "train" / "ckpt_strategy_rank_0.json").stages[0]
    shapes = {name: stored.shape for name, stored in written.items()}
    assert {name: shape for name, shape in shapes.items() if not name.startswith("adam_")} == saved
    assert {name.removeprefix("adam_m.") for name in shapes if name.startswith("adam_m.")} == set(saved)
