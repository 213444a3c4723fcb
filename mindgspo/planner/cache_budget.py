"""The key/value cache's budget where the configuration leaves it open: what the plan says is left. Pure Python."""

from __future__ import annotations

from math import floor

from mindgspo.config import ExperimentConfig
from mindgspo.config.cache import block_bytes, cache_blocks, cache_budget_problems
from mindgspo.config.replica import replica_config
from mindgspo.config.schema import SwapSection
from mindgspo.planner.expected import expected_memory, level_of
from mindgspo.planner.memory_plan import GIB, Part
from mindgspo.planner.smallest_change import changed

_ROUNDS = 3  # a smaller cache may ask for a longer prefill


def with_cache_budget(config: ExperimentConfig, *, capacity: int | None = None) -> ExperimentConfig:
    """The resolved configuration, with `rollout.cache_gb` set where a card does not hold the cache for all slots at
    their longest. As it is where that is said already, where other processes generate, where nothing need be done, and
    where no cache is small enough.

    capacity: as that of `expected_memory`.
    """
    if config.device == "CPU" or config.rollout.cache_gb is not None or config.has_servers:
        return config
    smaller = config
    for _ in range(_ROUNDS):
        missing = _missing(smaller, capacity)
        if missing <= 0:
            return smaller
        left = cache_blocks(smaller) * block_bytes(smaller) - missing
        budget = floor(left / GIB * 100) / 100
        if budget <= 0:
            return config
        smaller = changed(smaller, {"rollout.cache_gb": budget})
        if any(cache_budget_problems(smaller)):
            return config
    return config


def replica_with_cache_budget(config: ExperimentConfig, *, capacity: int | None = None) -> ExperimentConfig:
    """`replica_config`, with the budget of a card that holds the replica's weights and cache alone."""
    replica = replica_config(config)
    # What a rollout needs where everything else is swapped out.
    alone = replica.model_copy(update={"swap": SwapSection(enabled=True)})
    budget = with_cache_budget(alone, capacity=capacity).rollout.cache_gb
    return replica.model_copy(update={"rollout": replica.rollout.model_copy(update={"cache_gb": budget})})


def _missing(config: ExperimentConfig, capacity: int | None) -> int:
    """Bytes that the fullest card has not while it holds the cache."""
    level = level_of(config)
    plan = expected_memory(config, capacity=capacity, levels=[level])
    phases = [memory for each in plan.classes for memory in each.levels[level] if Part.KV_CACHE in memory.parts]
    return max((memory.total for memory in phases), default=0) - plan.capacity
