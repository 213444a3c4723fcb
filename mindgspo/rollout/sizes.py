"""The sizes of the rollout's graphs and cache, from the configuration; pure Python.

What enters: sections of an experiment. What leaves: a frozen record. Called where an engine is built, where its graphs
are compiled dry, and where memory is planned.
"""

from __future__ import annotations

from dataclasses import dataclass

from mindgspo.config import ExperimentConfig
from mindgspo.data.rows import round_up


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSizes:
    """Of one replica. num_slots: sequences decoded at once. prefill_width: prompts per prefill. prompt_columns: the
    longest prompt, padded. cache_columns: positions of a slot."""

    num_slots: int
    prefill_width: int
    prompt_columns: int
    cache_columns: int


def rollout_sizes(config: ExperimentConfig) -> RolloutSizes:
    """Slots are dealt out to the replicas; a prefill takes as many prompts as fill them with their siblings once."""
    slots = max(1, config.rollout.slots // config.plans.infer.data_parallel)
    columns = round_up(config.data.max_prompt_length, config.trainer.length_multiple)
    return RolloutSizes(
        num_slots=slots,
        prefill_width=max(1, slots // config.rollout.num_generations),
        prompt_columns=columns,
        cache_columns=columns + config.rollout.max_new_tokens,
    )
