"""How many sequences at once fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.planner import GIB, expected_memory, most_slots
from mindgspo.planner.smallest_change import changed

PROJECT = Path(__file__).resolve().parents[3]
GSM8K = PROJECT / "examples" / "gsm8k" / "gspo_qwen2_5_3b.yaml"


def loaded(*overrides: str) -> ExperimentConfig:
    return load_config(GSM8K, overrides, check_files=False)


def test_slots_are_the_most_that_fit_with_the_cache_at_its_longest() -> None:
    """Two replicas of 4 cards; a slot's longest cache, 80 blocks of 128 tokens in 36 layers, takes 180 MiB."""
    config = loaded("rollout.slots=64")
    assert [most_slots(config, capacity=size * GIB) for size in (100, 64, 40, 32, 8)] == [512, 256, 128, 64, 64]
    assert expected_memory(changed(config, {"rollout.slots": 256})).peak()[1] <= 0.9 * 64 * GIB
    assert expected_memory(changed(config, {"rollout.slots": 512})).peak()[1] > 0.9 * 64 * GIB


@pytest.mark.parametrize(("overrides", "slots"), [
    (["rollout.prompts_per_step=8", "trainer.prompts_per_mini_batch=2"], 128),  # that many responses
    (["rollout.cache_gb=8"], 64),  # 128 want 11.3 GiB
    (["rollout.cache_gb=12"], 128),
    (["rollout.slots=4096"], 4096),
    (["trainer.schedule=one_step_off"], 512),  # a server's card holds nothing else
])  # fmt: skip
def test_slots_are_no_more_than_a_step_draws_a_budget_pays_for_or_is_set(overrides: list[str], slots: int) -> None:
    assert most_slots(loaded("rollout.slots=64", *overrides)) == slots
