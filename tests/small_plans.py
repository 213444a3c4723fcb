"""Small and published models, plans in one word, and the layouts of weights and moments under them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.models.names import weight_shapes
from mindgspo.parallel.plans.layout import Layout
from mindgspo.parallel.plans.parameter_layouts import moment_layouts, parameter_layouts
from mindgspo.parallel.plans.placement import ALONE, Placement, RankGrid
from mindgspo.strategy.file import save_strategy
from mindgspo.strategy.layouts import compiled_strategy, stage_strategy, strategy_layouts
from mindgspo.strategy.record import Strategy

TINY = ModelSection(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=8,
    num_key_value_heads=2,
)  # fmt: skip
TIED = TINY.model_copy(update={"tie_word_embeddings": True})
MIXTURE = {
    "architecture": "qwen3_moe", "head_dim": 12, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "norm_topk_prob": True,
}  # fmt: skip
# Numbers of the published config.json.
QWEN_7B = ModelSection(
    vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
    num_key_value_heads=4,
)  # fmt: skip


GLM4 = {"architecture": "glm4", "head_dim": 12, "partial_rotary_factor": 0.5}
SHARED_EXPERTS = MIXTURE | {
    "architecture": "glm4_moe", "partial_rotary_factor": 0.5, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
LATENTS = {
    "architecture": "deepseek_v3", "num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 24,
    "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "norm_topk_prob": True, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip


def small_model(**changes: Any) -> ModelSection:
    """Of a vocabulary, a width and a number of positions that differ."""
    sizes = {
        "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    return ModelSection(**sizes | changes)


def drawn_model(section: ModelSection, seed: int, place: Placement = ALONE) -> Any:
    """A model with random weights."""
    from mindgspo.models.policy import build_model
    from mindgspo.models.weights import initialize_weights

    model = build_model(section, place)
    initialize_weights(model, section, seed=seed)
    return model


def plan(data: int, model: int, stages: int = 1, **changes: Any) -> ParallelPlan:
    return ParallelPlan(data_parallel=data, model_parallel=model, pipeline_stage=stages, **changes)


def weights(parallel_plan: ParallelPlan, model: ModelSection = TINY) -> dict[str, Layout]:
    return parameter_layouts(weight_shapes(model), model, parallel_plan)


def moments(parallel_plan: ParallelPlan, model: ModelSection = TINY) -> dict[str, Layout]:
    return moment_layouts(weight_shapes(model), model, parallel_plan)


def weights_and_moments(parallel_plan: ParallelPlan, model: ModelSection = TINY) -> dict[str, Layout]:
    """Weights, and one moment of each."""
    of_moments = {f"adam_m.{name}": layout for name, layout in moments(parallel_plan, model).items()}
    return {**weights(parallel_plan, model), **of_moments}


def write_strategy(path: Path, layouts: Mapping[str, Layout], *, plan: ParallelPlan, rank: int) -> None:
    """The file of one rank: the parameters of its pipeline stage."""
    save_strategy(path, stage_strategy(layouts, plan=plan, rank=rank))


def compiled_layouts(layouts: Mapping[str, Layout], *, plan: ParallelPlan) -> dict[str, Layout]:
    """The layouts with the cuts of `compiled_strategy` in them: what every rank of a compiled graph really holds."""
    stages = range(plan.pipeline_stage)
    ranks = [RankGrid(plan).stage_ranks(stage)[0] for stage in stages]
    records = [compiled_strategy(layouts, plan=plan, rank=rank) for rank in ranks]
    merged = Strategy(stages={stage: entries for record in records for stage, entries in record.stages.items()})
    return strategy_layouts(merged, {name: layout.shape for name, layout in layouts.items()})
