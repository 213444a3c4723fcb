"""Settings that change speed and memory alone: as many sequences at once as fit, and the largest speed-up that does.
Pure Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mindgspo.config import ExperimentConfig
from mindgspo.config.cache import cache_columns, sequences_at_once, slots_per_replica
from mindgspo.config.replica import replica_config, training_config
from mindgspo.config.rules import joined_problems, longest_row
from mindgspo.planner.cost import GENERATION
from mindgspo.planner.expected import PHASES, expected_memory, level_of
from mindgspo.planner.memory_plan import MemoryPlan
from mindgspo.planner.roofline import OLD_LOG_PROBS, REFERENCE, UPDATE
from mindgspo.planner.smallest_change import changed
from mindgspo.swap.states import Phase

SHARE = 0.9
"""Of the memory that a plan may take: it is an estimate."""
_LEAST_GAIN = 0.1
"""Share of a step from which on a change is worth a line."""
_SLOTS = {"CPU": (128, 64, 32, 16, 8), "Ascend": (256, 128, 64, 32, 16, 8)}  # of a replica; 256 is vLLM's default


def most_slots(config: ExperimentConfig, *, capacity: int | None = None) -> int:
    """The `rollout.slots` to set where nobody said how many: the most, over all replicas of plans.infer, of which each
    replica has a power of two, no more than its part of a step's responses, and holds the cache at their longest within
    SHARE of the memory. What is configured where no more than that fits, and where others' servers generate.

    config: resolved. capacity: bytes of a card, or on CPU of the machine; None: as in `expected_memory`.
    """
    rollout, replicas = config.rollout, config.plans.infer.data_parallel
    if config.has_servers and not config.has_own_servers:
        return rollout.slots  # their own business
    most = rollout.prompts_per_step * rollout.num_generations // replicas
    for number in _SLOTS[config.device]:
        if number <= slots_per_replica(config):
            break
        tried = changed(config, {"rollout.slots": number * replicas})
        if number <= most and _holds_whole_cache(tried, capacity):
            return number * replicas
    return rollout.slots


def largest_speedup(
    config: ExperimentConfig,
    phases: Mapping[str, float],
    expected: Callable[[ExperimentConfig], float],
    *,
    capacity: int | None,
) -> tuple[dict[str, Any], float] | None:
    """The change of one setting that leaves the results as they are (but for rounding), fits, and is expected to save
    most of a step, with the seconds that a step takes then; None where none saves a tenth.

    config: resolved. phases: seconds of its step, as `step_cost` names them. expected: of a step of another
    configuration.
    """
    present = _memory(config, capacity, generating=False)
    if not present.fits():
        return None
    limit = max(SHARE * present.capacity, present.peak()[1])
    now = sum(phases.values())
    best, least = None, _LEAST_GAIN * now
    for settings, at_most in _faster(config, phases, capacity):
        tried = changed(config, settings)
        if at_most <= least or joined_problems(tried):
            continue
        if _memory(tried, capacity, generating=False).peak()[1] <= limit:
            taken = expected(tried)
            if now - taken > least:
                best, least = (settings, taken), now - taken
    return best


def _faster(
    config: ExperimentConfig, phases: Mapping[str, float], capacity: int | None
) -> Iterator[tuple[dict[str, Any], float]]:
    """What is tried, each alone, with the seconds that it may save."""
    trainer, train = config.trainer, config.plans.train
    update = phases.get(UPDATE, 0.0)
    if (slots := most_slots(config, capacity=capacity)) > config.rollout.slots:
        yield {"rollout.slots": slots}, phases[GENERATION]
    if train.recompute == "full":  # the only one that the forecast knows
        for recompute in ("none", "selective"):
            yield {"plans.train.recompute": recompute}, update / 4
    if not trainer.packing:
        tokens = longest_row(config) * (trainer.samples_per_micro_batch or 1)
        batch = {"trainer.samples_per_micro_batch": None, "trainer.max_tokens_per_micro_batch": tokens}
        batch = {} if trainer.max_tokens_per_micro_batch else batch
        yield {"trainer.packing": True, **batch}, update + phases.get(OLD_LOG_PROBS, 0.0) + phases.get(REFERENCE, 0.0)


def _memory(config: ExperimentConfig, capacity: int | None, *, generating: bool) -> MemoryPlan:
    """Of the processes that generate, or of those that train, which may be the same."""
    side, phases = config, PHASES
    if config.has_servers and generating:
        side, phases = replica_config(config), (Phase.ROLLOUT,)
    elif config.has_servers:
        side, phases = training_config(config), (Phase.SCORE, Phase.UPDATE, Phase.SAVE)
    return expected_memory(side, capacity=capacity, phases=phases, levels=[level_of(side)])


def _holds_whole_cache(config: ExperimentConfig, capacity: int | None) -> bool:
    """Whether all slots can be at their longest at once."""
    if joined_problems(config) or sequences_at_once(config, cache_columns(config)) < slots_per_replica(config):
        return False
    memory = _memory(config, capacity, generating=True)
    return memory.peak()[1] <= SHARE * memory.capacity
