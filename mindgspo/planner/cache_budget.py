"""The key/value cache's budget and the number of slots if the configuration leaves them open: what remains by the
memory plan. Pure Python."""

from __future__ import annotations

from collections.abc import Collection
from math import floor

from mindgspo.config import ExperimentConfig
from mindgspo.config.cache import (
    block_bytes,
    cache_blocks,
    cache_budget_problems,
    cache_columns,
    replica_config,
    sequences_at_once,
    slots_per_replica,
)
from mindgspo.config.rules import joined_problems
from mindgspo.config.schema import SwapSection
from mindgspo.planner.expected import PHASES, expected_memory, level_of
from mindgspo.planner.memory_plan import GIB, Part
from mindgspo.planner.smallest_change import changed
from mindgspo.swap.states import Phase

SHARE = 0.9
"""Share of the memory that a proposed plan may take: it is an estimate."""
BARELY = 0.95
"""Share from which on a plan fits barely: dry runs differ from it by a few percent."""
_ROUNDS = 3  # a smaller cache may ask for a longer prefill
_SLOTS = {"CPU": (128, 64, 32, 16, 8), "Ascend": (256, 128, 64, 32, 16, 8)}  # of a replica; 256 is vLLM's default


def with_cache_budget(config: ExperimentConfig) -> ExperimentConfig:
    """The resolved configuration, with `rollout.cache_gb` set if a card cannot hold the cache for all slots at their
    longest: then it takes the memory up to BARELY, or up to all of it if the rest leaves no less. Unchanged if it is
    set already, if other processes generate, if the cache fits, or if no cache is small enough."""
    if config.device == "CPU" or config.rollout.cache_gb is not None or config.has_servers:
        return config
    fitting = (_with_smaller_cache(config, share) for share in (BARELY, 1.0))
    return next((found for found in fitting if found is not None), config)


def _with_smaller_cache(config: ExperimentConfig, share: float) -> ExperimentConfig | None:
    """The configuration with the largest cache with which it takes this share of the memory; None if there is none."""
    for _ in range(_ROUNDS):
        missing = _missing(config, share)
        if missing <= 0:
            return config
        left = cache_blocks(config) * block_bytes(config) - missing
        budget = floor(left / GIB * 100) / 100
        if budget <= 0:
            return None
        config = changed(config, {"rollout.cache_gb": budget})
        if any(cache_budget_problems(config)):
            return None
    return None


def replica_with_cache_budget(config: ExperimentConfig) -> ExperimentConfig:
    """`replica_config`, with the budget of a card that holds the replica's weights and cache alone."""
    replica = replica_config(config)
    # What a rollout needs if everything else is swapped out.
    alone = replica.model_copy(update={"swap": SwapSection(enabled=True)})
    budget = with_cache_budget(alone).rollout.cache_gb
    return replica.model_copy(update={"rollout": replica.rollout.model_copy(update={"cache_gb": budget})})


def most_slots(config: ExperimentConfig) -> int:
    """The largest `rollout.slots` worth setting, over all replicas of plans.infer.

    Each replica gets a power of two, at most its part of a step's responses, whose cache at the longest fits within
    SHARE of the memory. The configured number if no more fit, or if other servers generate.

    config: resolved.
    """
    rollout, replicas = config.rollout, config.plans.infer.data_parallel
    if config.has_servers and not config.has_own_servers:
        return rollout.slots
    most = rollout.prompts_per_step * rollout.num_generations // replicas
    for number in _SLOTS[config.device]:
        if number <= slots_per_replica(config):
            break
        if number <= most and _holds_whole_cache(changed(config, {"rollout.slots": number * replicas})):
            return number * replicas
    return rollout.slots


def _holds_whole_cache(config: ExperimentConfig) -> bool:
    """Whether all slots can be at their longest at once, beside all else that is resident then."""
    if joined_problems(config) or sequences_at_once(config, cache_columns(config)) < slots_per_replica(config):
        return False
    side, phases = (replica_config(config), (Phase.ROLLOUT,)) if config.has_servers else (config, PHASES)
    return _missing(side, SHARE, phases) <= 0


def _missing(config: ExperimentConfig, share: float, phases: Collection[Phase] = PHASES) -> int:
    """Bytes that are lacking of this share of the memory in phases that hold the cache."""
    level = level_of(config)
    plan = expected_memory(config, phases=phases, levels=[level])
    resident = {memory.phase for each in plan.classes for memory in each.levels[level] if Part.KV_CACHE in memory.parts}
    return max((plan.needed(level, phase) for phase in resident), default=0) - int(share * plan.capacity)
