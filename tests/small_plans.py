"""Small and published Qwen2 models, plans in one word, and the layouts of weights and moments under them."""

from __future__ import annotations

from typing import Any

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.models.names import weight_shapes
from mindgspo.parallel.plans.layout import Layout
from mindgspo.parallel.plans.parameter_layouts import moment_layouts, parameter_layouts

TINY = ModelSection(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=8,
    num_key_value_heads=2,
)  # fmt: skip
TIED = TINY.model_copy(update={"tie_word_embeddings": True})
# Numbers of the published config.json.
QWEN_7B = ModelSection(
    vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
    num_key_value_heads=4,
)  # fmt: skip


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
