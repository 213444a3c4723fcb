"""Derives the sizes of the rollout's graphs and cache from the configuration; pure Python."""

from __future__ import annotations

from dataclasses import dataclass

from mindgspo.batches.rows import round_up
from mindgspo.config import ExperimentConfig, ModelSection
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


def reads_trained_weights(config: ExperimentConfig) -> bool:
    """Whether generation reads the trained weights in place, without a copy.

    It does where every rank holds the same slices under both plans and computes with them in the same way. Several
    cards generate from a copy in their compute type, unless adapters leave the weights in that; so do all from weights
    that adapters are merged into. A backend other than native has parameters of its own.
    """
    lora, is_card = config.model.lora, config.device == "Ascend"
    if config.model.backend != "native" or (is_card and lora is not None and config.rollout.lora == "merged"):
        return False
    train, infer = config.plans.train, config.plans.infer
    if train.world_size == 1:
        return True
    sizes = ("data_parallel", "model_parallel", "pipeline_stage", "vocab_emb_dp", "expert_parallel", "expert_slices")
    return (lora is not None or not is_card) and all(getattr(train, size) == getattr(infer, size) for size in sizes)


def merges_adapters(config: ExperimentConfig) -> bool:
    """Whether generation computes with weights that the adapters are merged into; see `RolloutSection.lora`."""
    if config.model.lora is None:
        return False
    if config.rollout.lora != "auto":
        return config.rollout.lora == "merged"
    return config.has_servers or not reads_trained_weights(config)


def generating_model(config: ExperimentConfig) -> ModelSection:
    """The model whose parameters generation holds where they are its own. On Ascend merged weights take the place of
    the base; on CPU they are packed beside it (`graphs.PackedWeights`), so that only adapters travel."""
    return config.model.base if config.device == "Ascend" and merges_adapters(config) else config.model
