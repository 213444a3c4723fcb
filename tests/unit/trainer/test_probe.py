"""What a probe changes in the experiment that it measures; tests/unit/planner/test_cost.py has what becomes of it."""

from __future__ import annotations

from pathlib import Path

from mindgspo.config import load_config
from mindgspo.trainer.probe import bounded

ARITHMETIC = Path(__file__).resolve().parents[3] / "examples" / "arithmetic" / "gspo.yaml"


def test_a_probe_neither_warms_up_nor_ends_nor_draws_again() -> None:
    overrides = ["algorithm.filter_groups.metric=reward", "algorithm.filter_groups.refill=true"]
    config = bounded(load_config(ARITHMETIC, overrides, check_files=False))
    assert config.warmup is None and config.trainer.max_steps == 10_000
    assert config.algorithm.filter_groups.metric == "none" and config.rollout.prompts_per_step == 32


def test_large_steps_have_one_update() -> None:
    """256 sequences of 54 tokens by a model of 0.15 billion weights."""
    large = ["model.hidden_size=1024", "model.intermediate_size=4096", "model.num_hidden_layers=10"]
    config = bounded(load_config(ARITHMETIC, large, check_files=False))
    assert config.rollout.prompts_per_step == config.trainer.prompts_per_mini_batch == 8
