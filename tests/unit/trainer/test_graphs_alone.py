"""Whatever a step computes are graphs that `runtime.call_compiled` makes, in MindSpore's own mode: PyNative."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import mindspore
import pytest
from mindspore import nn

from mindgspo.config import load_config
from mindgspo.trainer.build import build_experiment

ARITHMETIC = Path(__file__).resolve().parents[3] / "examples" / "arithmetic" / "gspo.yaml"
SMALL = (
    "rollout.prompts_per_step=2", "rollout.num_generations=4", "rollout.slots=8", "trainer.prompts_per_mini_batch=1",
    "trainer.samples_per_micro_batch=4", "model.num_hidden_layers=1", "data.eval.max_rows=16",
    "algorithm.kl.placement=loss", "warmup=null",
)  # fmt: skip


@pytest.fixture
def pynative(cpu_runtime) -> None:
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    yield
    mindspore.set_context(mode=mindspore.GRAPH_MODE)


def test_no_cell_of_a_step_is_called_as_it_is(pynative, tmp_path: Path, monkeypatch) -> None:
    """Where it were, each of its operators would be launched from Python."""
    config = load_config(ARITHMETIC, SMALL)
    experiment = build_experiment(
        config, data_dir=tmp_path / "data", failures_dir=tmp_path / "failures", swap_dir=tmp_path / "swap"
    )

    def refuse(cell: nn.Cell, *inputs: object) -> None:
        raise AssertionError(f"{type(cell).__name__} was called as it is")

    monkeypatch.setattr(nn.Cell, "__call__", refuse)
    trainer = experiment.trainer
    with experiment.scorer, closing(trainer.swap):
        trainer.weights.push()
        trainer.scorer.reference.freeze(trainer.model, tmp_path / "reference", version=0)
        metrics = trainer.train_step(1).metrics
    assert metrics["training/updates"] == 2
    assert metrics["training/rollout_logprob_diff_max"] < 1e-4
