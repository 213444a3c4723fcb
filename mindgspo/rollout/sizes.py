"""Derives the sizes of the rollout's graphs and cache from the configuration; pure Python."""

from __future__ import annotations

from dataclasses import dataclass

from mindgspo.config import ExperimentConfig
from mindgspo.config.cache import cache_blocks, cache_columns, prefill_width, prompt_columns, slots_per_replica


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
    """The sizes of one replica of the infer plan."""
    rollout = config.rollout
    assert rollout.cache_dtype is not None and rollout.tokens_per_sync is not None, "config.resolve fills them in"
    return RolloutSizes(
        num_slots=slots_per_replica(config),
        prefill_width=prefill_width(config),
        prompt_columns=prompt_columns(config),
        cache_columns=cache_columns(config),
        num_blocks=cache_blocks(config),
        cache_dtype=rollout.cache_dtype,
        tokens_per_sync=rollout.tokens_per_sync,
    )
