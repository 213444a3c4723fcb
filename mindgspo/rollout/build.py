"""Builds the rollout engine of the infer plan."""

from __future__ import annotations

from dataclasses import dataclass

from mindspore import Parameter, nn

from mindgspo.config import ExperimentConfig
from mindgspo.models.policy import build_model
from mindgspo.parallel.platform.cluster import infer_place
from mindgspo.rollout.engine import NativeEngine
from mindgspo.rollout.protocol import RolloutEngine
from mindgspo.rollout.replicated import ReplicatedEngine
from mindgspo.rollout.sizes import reads_trained_weights, rollout_sizes
from mindgspo.rollout.weight_transfer import WeightTransfer, hold_in_compute_type
from mindgspo.swap.swap import Swap
from mindgspo.tokenization import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    """engine: generates. model: whose parameters it reads. cache: its keys and values."""

    engine: RolloutEngine
    model: nn.Cell
    cache: tuple[Parameter, ...]


def build_engine(config: ExperimentConfig, trained: nn.Cell, tokenizer: Tokenizer, swap: Swap) -> BuiltEngine:
    """On the trained model's own parameters where both plans hold them alike, else on a model of its own that the
    trained weights are transferred to."""
    place = infer_place(config)
    if reads_trained_weights(config):
        native = native_engine(config, trained, tokenizer)
        replicated = ReplicatedEngine(native, place, lambda version: None)
        engine = native if place.plan.world_size == 1 else replicated
        return BuiltEngine(engine=engine, model=trained, cache=native.cache)
    model = build_model(config.model, place)
    hold_in_compute_type(model)
    native = native_engine(config, model, tokenizer)
    transfer = WeightTransfer(trained, model, config.model, config.reshard, swap.reshard_step)
    return BuiltEngine(engine=ReplicatedEngine(native, place, transfer.push), model=model, cache=native.cache)


def native_engine(config: ExperimentConfig, model: nn.Cell, tokenizer: Tokenizer) -> NativeEngine:
    """One replica's, on the parameters of `model`."""
    rollout, sizes = config.rollout, rollout_sizes(config)
    return NativeEngine(
        model,
        eos_ids=tokenizer.eos_ids,
        num_slots=sizes.num_slots,
        prefill_width=sizes.prefill_width,
        max_prompt_length=config.data.max_prompt_length,
        max_new_tokens=rollout.max_new_tokens,
        length_multiple=config.trainer.length_multiple,
        num_blocks=sizes.num_blocks,
        tokens_per_sync=sizes.tokens_per_sync,
        cache_dtype=sizes.cache_dtype,
        top_k=rollout.top_k,
        top_p=rollout.top_p,
        records_experts=rollout.record_experts,
    )
