"""The paged key/value cache of one rank: its blocks and their bytes; and the configurations of the two sides of an
experiment whose generation has cards of its own."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from mindgspo.config.model import ModelSection
from mindgspo.config.plan import ParallelPlan
from mindgspo.config.schema import ExperimentConfig, PlansSection, ServersSection

BLOCK = 128
"""Tokens per block, as PagedAttention has them on Ascend."""
_SCRATCH = 1  # the block that idle rows and padding write into
_GIB = 2**30
_TYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def cache_columns(config: ExperimentConfig) -> int:
    """Columns of the longest sequence: its prompt, rounded up, and its response."""
    return prompt_columns(config) + config.rollout.max_new_tokens


def prompt_columns(config: ExperimentConfig) -> int:
    """Columns of the longest prompt, rounded up."""
    multiple = config.trainer.length_multiple
    return -(-config.data.max_prompt_length // multiple) * multiple


def prefill_width(config: ExperimentConfig) -> int:
    """Prompts of one prefill: those whose siblings fill a replica's slots."""
    return max(1, slots_per_replica(config) // config.rollout.num_generations)


def slots_per_replica(config: ExperimentConfig) -> int:
    """Most sequences that a replica of the infer plan decodes at once."""
    return max(1, config.rollout.slots // config.plans.infer.data_parallel)


def block_bytes(config: ExperimentConfig) -> int:
    """Keys and values of one block on one rank of the infer plan; if there are more ranks than key/value heads, each
    rank has one head."""
    model = config.model
    assert config.rollout.cache_dtype is not None, "config.resolve fills it in"
    dims = cached_dims(model, is_fused=config.device == "Ascend")
    features = sum(dims) * max(1, cached_heads(model) // config.plans.infer.model_parallel)
    return BLOCK * features * model.num_hidden_layers * _TYPE_BYTES[config.rollout.cache_dtype]


def cached_heads(model: ModelSection) -> int:
    """Heads of a token's cached keys and values. Latent attention has one, which every rank holds."""
    return model.num_key_value_heads if model.kv_lora_rank is None else 1


def cached_dims(model: ModelSection, *, is_fused: bool) -> tuple[int, ...]:
    """Features of what is cached of a token and head: a key and a value. Latent attention caches a latent with the
    rotated key, and, where no fused operator finds the one in the other, the latent again."""
    if model.kv_lora_rank is not None:
        return (sum(model.latent_dims),) if is_fused else (sum(model.latent_dims), model.kv_lora_rank)
    assert model.head_dim is not None, "config.resolve fills it in"
    return model.head_dim, model.head_dim


def whole_cache_blocks(config: ExperimentConfig) -> int:
    """Number of blocks with which all slots can be at their longest at once, and as many episodes wait for their
    environment, including the scratch block."""
    sequences = slots_per_replica(config) * (1 if config.environment is None else 2)
    return sequences * ceil(cache_columns(config) / BLOCK) + _SCRATCH


def cache_blocks(config: ExperimentConfig) -> int:
    """Blocks of one rank: as many as fit in `rollout.cache_gb`, but no more than can ever be used."""
    whole, budget = whole_cache_blocks(config), config.rollout.cache_gb
    return whole if budget is None else min(whole, int(budget * _GIB) // block_bytes(config))


def sequences_at_once(config: ExperimentConfig, columns: int) -> int:
    """Number of sequences of this many columns that a replica decodes at once."""
    return min(slots_per_replica(config), (cache_blocks(config) - _SCRATCH) // ceil(columns / BLOCK))


def cache_budget_problems(config: ExperimentConfig) -> Iterator[str]:
    """A cache must hold one longest sequence, and on Ascend as many tokens as one prefill, since ReshapeAndCache takes
    no more."""
    columns, budget = cache_columns(config), config.rollout.cache_gb
    if budget is None or config.model.head_dim is None:
        return
    needed, given = ceil(columns / BLOCK) + _SCRATCH, int(budget * _GIB) // block_bytes(config)
    why = (
        f"the longest sequence, {columns:,} columns (data.max_prompt_length {config.data.max_prompt_length}, rounded "
        f"up, + rollout.max_new_tokens {config.rollout.max_new_tokens}), needs {needed}, with one for padding"
    )
    rows, length = prefill_width(config), prompt_columns(config)
    if config.device == "Ascend" and ceil(rows * length / BLOCK) > needed:
        needed = ceil(rows * length / BLOCK)
        why = f"ReshapeAndCache writes a prefill of {rows} x {length:,} tokens at once, which needs {needed}"
    if given >= needed:
        return
    smallest = ceil(needed * block_bytes(config) / _GIB * 1000) / 1000
    yield (
        f"rollout.cache_gb: {budget:g} pays for {given} blocks of {BLOCK} tokens, {block_bytes(config):,} bytes each "
        f"on a rank; {why}; smallest legal: {smallest:g}"
    )


def replica_config(config: ExperimentConfig) -> ExperimentConfig:
    """The same experiment on the cards of one replica of its infer plan, which only generates; its model has adapters
    where they are not merged."""
    infer = config.plans.infer.model_copy(update={"data_parallel": 1, "cards": None})
    train = ParallelPlan(model_parallel=infer.model_parallel)
    rollout = config.rollout.model_copy(update={"slots": slots_per_replica(config), "servers": ServersSection()})
    trainer = config.trainer.model_copy(update={"schedule": "sync"})
    plans = PlansSection(train=train, infer=infer)
    model = config.model if rollout.lora == "separate" else config.model.base
    return config.model_copy(update={"plans": plans, "rollout": rollout, "trainer": trainer, "model": model})


def training_config(config: ExperimentConfig) -> ExperimentConfig:
    """The same experiment on the cards that train. Its infer plan is not used, but as large as the train plan."""
    plans = config.plans.model_copy(update={"infer": ParallelPlan(data_parallel=config.plans.train.world_size)})
    return config.model_copy(update={"plans": plans})
