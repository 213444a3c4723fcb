"""Settings that change speed and memory alone: as many sequences at once as fit. Pure Python."""

from __future__ import annotations

from mindgspo.config import ExperimentConfig
from mindgspo.config.cache import cache_columns, sequences_at_once, slots_per_replica
from mindgspo.config.replica import replica_config
from mindgspo.config.rules import joined_problems
from mindgspo.parallel.swap.states import Phase
from mindgspo.planner.expected import PHASES, expected_memory, level_of
from mindgspo.planner.smallest_change import changed

SHARE = 0.9
"""Of the memory that a plan may take: it is an estimate."""
_SLOTS = {"CPU": (128, 64, 32, 16, 8), "Ascend": (256, 128, 64, 32, 16, 8)}  # of a replica; 256 is vLLM's default


def most_slots(config: ExperimentConfig, *, capacity: int | None = None) -> int:
    """The `rollout.slots` to set where nobody said how many: the most, over all replicas of plans.infer, of which each
    replica has a power of two, no more than its part of a step's responses, and holds the cache at their longest within
    SHARE of the memory. What is configured where no more than that fits.

    config: resolved. capacity: bytes of a card, or on CPU of the machine; None: as in `expected_memory`.
    """
    rollout, replicas = config.rollout, config.plans.infer.data_parallel
    most = rollout.prompts_per_step * rollout.num_generations // replicas
    for number in _SLOTS[config.device]:
        if number <= slots_per_replica(config):
            break
        tried = changed(config, {"rollout.slots": number * replicas})
        if number <= most and _holds_whole_cache(tried, capacity):
            return number * replicas
    return rollout.slots


def _holds_whole_cache(config: ExperimentConfig, capacity: int | None) -> bool:
    """Whether all slots can be at their longest at once."""
    if joined_problems(config) or sequences_at_once(config, cache_columns(config)) < slots_per_replica(config):
        return False
    generating, phases = (replica_config(config), (Phase.ROLLOUT,)) if config.has_servers else (config, PHASES)
    plan = expected_memory(generating, capacity=capacity, phases=phases, levels=[level_of(generating)])
    return plan.peak()[1] <= SHARE * plan.capacity
