"""The experiment that several tests of the planner look at."""

from __future__ import annotations

import pytest
from planned_experiments import QWEN2_5_7B, experiment_of

from mindgspo.config import ExperimentConfig


@pytest.fixture(scope="session")
def seven_billion() -> ExperimentConfig:
    """Qwen2.5-7B on 8 cards, as in examples/gsm8k/gspo_qwen2_5_7b.yaml."""
    return experiment_of(QWEN2_5_7B,
                         train={"model_parallel": 4, "pipeline_stage": 2, "micro_batch_num": 4, "recompute": "full"},
                         infer={"data_parallel": 2, "model_parallel": 4}, device="Ascend", rows=4, prompt=2048,
                         response=8192, slots=128, group=16, multiple=256, prompts=128)  # fmt: skip
