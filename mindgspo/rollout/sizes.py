"""The sizes of the rollout's graphs and cache, from the configuration; pure Python."""

from __future__ import annotations

from dataclasses import dataclass

from mindgspo.config import ExperimentConfig
from mindgspo.data.rows import round_up

BLOCK = 128
"""Positions per block of the paged cache on Ascend; a slot has whole blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSizes:
    """Of one replica. num_slots: sequences decoded at once. prefill_width: prompts per prefill. prompt_columns: the
    longest prompt, padded. cache_columns: positions of a slot that are asked for; see `BLOCK`. cache_dtype: of keys and
    values."""

    num_slots: int
    prefill_width: int
    prompt_columns: int
    cache_columns: int
    cache_dtype: str


def rollout_sizes(config: ExperimentConfig) -> RolloutSizes:
    """Slots are dealt out to the replicas; a prefill takes as many prompts as fill them with their siblings once."""
    assert config.rollout.cache_dtype is not None, "config.resolve fills it in"
    slots = max(1, config.rollout.slots // config.plans.infer.data_parallel)
    columns = round_up(config.data.max_prompt_length, config.trainer.length_multiple)
    return RolloutSizes(
        num_slots=slots,
        prefill_width=max(1, slots // config.rollout.num_generations),
        prompt_columns=columns,
        cache_columns=columns + config.rollout.max_new_tokens,
        cache_dtype=config.rollout.cache_dtype,
    )


def reads_trained_weights(config: ExperimentConfig) -> bool:
    """Whether generation reads the trained weights where they lie: where every rank holds the same slices under both
    plans and computes on them in the same way. Slices that the compiler of a graph cut are that graph's own, and so are
    the parameters of another suite's cells."""
    if config.model.backend != "native":
        return False
    train, infer = config.plans.train, config.plans.infer
    if train.world_size == 1:
        return True
    sizes = ("data_parallel", "model_parallel", "pipeline_stage", "vocab_emb_dp")
    return config.device != "Ascend" and all(getattr(train, size) == getattr(infer, size) for size in sizes)
