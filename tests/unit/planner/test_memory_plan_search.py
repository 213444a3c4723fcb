"""The smallest change that fits: it fits, it is legal, and nothing cheaper does; and the most slots that fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from planned_experiments import experiment_of, qwen2

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.config.rules import joined_problems
from mindgspo.planner import GIB, MIB, SwapLevel, expected_memory, most_slots, set_options, smallest_change
from mindgspo.planner.smallest_change import changed
from mindgspo.swap.states import Phase

GSM8K = Path(__file__).resolve().parents[3] / "examples" / "gsm8k" / "gspo_qwen2_5_3b.yaml"


def within(config: ExperimentConfig, capacity: int) -> ExperimentConfig:
    """The same on cards whose pool, 15/16 of what is free, has so many bytes; on CPU, on a machine that has."""
    share = 1 if config.device == "CPU" else 15 / 16
    return changed(config, {"memory.device_gb": (capacity + 0.5) / share / GIB, "memory.reserve_gb": 0.0})


def fits(config: ExperimentConfig, capacity: int) -> bool:
    return expected_memory(within(config, capacity)).fits()


def test_the_ends_of_the_search_and_how_settings_are_spelled(seven_billion: ExperimentConfig) -> None:
    assert smallest_change(within(seven_billion, 100 * GIB)) == {}
    assert smallest_change(within(seven_billion, GIB)) is None
    settings = {"swap.enabled": True, "trainer.samples_per_micro_batch": 2, "plans.train.recompute": "full"}
    spelled = "--set swap.enabled=true --set trainer.samples_per_micro_batch=2 --set plans.train.recompute=full"
    assert set_options(settings) == spelled


@pytest.mark.parametrize("capacity", [40, 35, 29, 27])
def test_the_change_fits_and_is_legal(seven_billion: ExperimentConfig, capacity: int) -> None:
    assert not fits(seven_billion, capacity * GIB)
    change = smallest_change(within(seven_billion, capacity * GIB))
    assert change
    config = changed(seven_billion, change)
    assert fits(config, capacity * GIB)
    assert joined_problems(config) == []


def test_every_setting_of_a_change_is_needed(seven_billion: ExperimentConfig) -> None:
    config = changed(seven_billion, {"plans.train.recompute": "none"})
    change = smallest_change(within(config, 40 * GIB))
    assert len(change) == 2
    for key in change:
        rest = {other: value for other, value in change.items() if other != key}
        assert not fits(changed(config, rest), 40 * GIB), key


def test_one_cheap_setting_is_preferred_to_a_dear_one(seven_billion: ExperimentConfig) -> None:
    """Splitting the sequence costs nothing; swap, half a micro-batch and other plans would do as well."""
    kept = changed(seven_billion, {"plans.train.recompute": "none"})
    capacity = expected_memory(kept).peak()[1] - MIB
    assert smallest_change(within(kept, capacity)) == {"plans.train.use_seq_parallel": True}
    for dearer in ({"swap.enabled": True}, {"trainer.samples_per_micro_batch": 2}):
        assert fits(changed(kept, dearer), capacity)
    change = smallest_change(within(seven_billion, 19 * GIB))
    config = changed(seven_billion, change)
    assert config.plans.train.world_size == config.plans.infer.world_size > 8, "more cards are the last resort"
    assert fits(config, 19 * GIB)


def test_slices_split_the_embedding_table_that_is_the_output_table_too() -> None:
    tied = {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "vocab_size": 65536,
        "num_attention_heads": 16, "tie_word_embeddings": True, "dtype": "bfloat16",
    }  # fmt: skip
    config = experiment_of(
        qwen2(**tied), train={"data_parallel": 8, "vocab_emb_dp": True}, infer={"data_parallel": 8}, device="Ascend"
    )
    change = smallest_change(within(config, 6 * GIB))
    assert (change["plans.train.model_parallel"], change["plans.train.vocab_emb_dp"]) == (4, False)
    assert fits(changed(config, change), 6 * GIB) and joined_problems(changed(config, change)) == []


def test_activations_that_overflow_are_computed_again(seven_billion: ExperimentConfig) -> None:
    """Where micro-batches cannot be halved, and swap alone does not do."""
    config = changed(seven_billion, {
        "plans.train.recompute": "none",
        "plans.train.use_seq_parallel": True,
        "trainer.samples_per_micro_batch": 1,
        "rollout.max_new_tokens": 16_384,
        "swap.enabled": True,
    })  # fmt: skip
    capacity = expected_memory(config).peak()[1] - MIB
    assert smallest_change(within(config, capacity)) == {"plans.train.recompute": "selective"}


def test_moments_are_sharded_before_anything_else() -> None:
    model = qwen2(hidden_size=2048, intermediate_size=8192, num_attention_heads=16)
    config = experiment_of(model, train={"data_parallel": 4}, infer={"data_parallel": 4}, device="Ascend", slots=64)
    needed = expected_memory(config).peak()[1]
    assert smallest_change(within(config, needed - MIB)) == {"plans.train.optimizer_shard": True}


def test_a_cache_that_overflows_gets_fewer_slots() -> None:
    """Without swap: it would make room for the cache too, and is cheaper than three halvings."""
    config = experiment_of(qwen2(), slots=512, group=4, prompts=128, response=1024, rows=1, multiple=64)
    smaller = changed(config, {"rollout.slots": 256})
    capacity = expected_memory(smaller).peak()[1]
    assert smallest_change(within(config, capacity)) == {"rollout.slots": 256}


# ----- Slots
def loaded(*overrides: str) -> ExperimentConfig:
    return load_config(GSM8K, ["rollout.slots=64", *overrides], check_files=False)


def test_slots_are_the_most_that_fit_with_the_cache_at_its_longest() -> None:
    """Two replicas of 4 cards; a slot's longest cache, 80 blocks of 128 tokens in 36 layers, takes 180 MiB."""
    config = loaded()
    assert [most_slots(within(config, size * GIB)) for size in (100, 64, 44, 32, 8)] == [512, 256, 128, 64, 64]
    assert expected_memory(changed(config, {"rollout.slots": 256})).peak()[1] <= 0.9 * 64 * GIB
    assert expected_memory(changed(config, {"rollout.slots": 512})).peak()[1] > 0.9 * 64 * GIB


def test_an_update_that_does_not_fit_leaves_the_slots_of_a_rollout_that_does() -> None:
    """With swap the cache is gone before the update, whatever that needs."""
    config = loaded("swap.enabled=true", "plans.train.recompute=none", "trainer.samples_per_micro_batch=4")
    level = SwapLevel.BY_PHASE
    plan = expected_memory(config, levels=[level])
    assert plan.needed(level, Phase.UPDATE) > plan.capacity > plan.needed(level, Phase.ROLLOUT)
    assert most_slots(config) == 512


@pytest.mark.parametrize(("overrides", "slots"), [
    (["rollout.prompts_per_step=8", "trainer.prompts_per_mini_batch=2"], 128),  # that many responses
    (["rollout.cache_gb=8"], 64),  # 128 want 11.3 GiB
    (["rollout.cache_gb=12"], 128),
    (["rollout.slots=4096"], 4096),
    (["trainer.schedule=one_step_off", "rollout.servers.urls=[http://there:8000]"], 64),  # not ours
    (["trainer.schedule=one_step_off"], 512),  # a server's card holds nothing else
])  # fmt: skip
def test_slots_are_no_more_than_a_step_draws_a_budget_pays_for_or_is_set(overrides: list[str], slots: int) -> None:
    assert most_slots(loaded(*overrides)) == slots
