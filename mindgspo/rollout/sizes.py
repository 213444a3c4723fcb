"""Derives the sizes of the rollout's graphs and cache from the configuration; pure Python."""

from __future__ import annotations

from dataclasses import dataclass

from mindgspo.batches.rows import round_up
from mindgspo.config import ExperimentConfig
from mindgspo.config.cache import cache_blocks, cache_columns, slots_per_replica


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSizes:
    """Sizes of one replica."""

    num_slots: int
    """Maximum number of sequences decoded at once."""
    prefill_width: int
    """Prompts per prefill."""
    prompt_columns: int
    """Length of the longest prompt, padded."""
    cache_columns: int
    """Length of the longest sequence."""
    num_blocks: int
    """Blocks of the cache."""
    cache_dtype: str
    tokens_per_sync: int
    """Decode steps between two syncs with the host."""


def rollout_sizes(config: ExperimentConfig) -> RolloutSizes:
    """Share the slots between the replicas; one prefill has the prompts whose siblings fill a replica's slots."""
    rollout = config.rollout
    assert rollout.cache_dtype is not None and rollout.tokens_per_sync is not None, "config.resolve fills them in"
    slots = slots_per_replica(config)
    return RolloutSizes(
        num_slots=slots,
        prefill_width=max(1, slots // rollout.num_generations),
        prompt_columns=round_up(config.data.max_prompt_length, config.trainer.length_multiple),
        cache_columns=cache_columns(config),
        num_blocks=cache_blocks(config),
        cache_dtype=rollout.cache_dtype,
        tokens_per_sync=rollout.tokens_per_sync,
    )
