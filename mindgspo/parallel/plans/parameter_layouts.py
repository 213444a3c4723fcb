"""Layouts of a model's parameters and of their optimizer moments under a parallel plan.

Matrices are [out, in], those of experts [experts, out, in]. Column-parallel matrices are split by out, with their
biases, row-parallel ones by in, the output table by vocabulary, the input table as `vocab_emb_dp` says. Norms and
routers are whole on every rank, also norms of heads (Qwen3), which each rank applies to its own heads only. Of a
low-rank adapter the matrix on the side that its layer splits is split with it, and the other one is whole.

`placement.layers_of_stage` assigns layers to pipeline stages. The input table is on the first stage, the last norm and
the output table are on the last, and a table that is both (tied embeddings) is on the first and the last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, auto
from math import prod

from mindgspo.config.model import FAMILIES, Family, ModelSection
from mindgspo.config.plan import ParallelPlan
from mindgspo.errors import ConfigError, WeightsError
from mindgspo.parallel.plans.layout import NOT_SPLIT, Layout, Shape
from mindgspo.parallel.plans.placement import RankGrid, Ranks, stage_of_layer
from mindgspo.text import did_you_mean, divisors, either, nearest


class Split(Enum):
    """Ways in which a plan splits a parameter."""

    WHOLE = auto()
    """Every rank of the stage holds all of it and sees whole activations with it."""
    WHOLE_FOR_OWN_PART = auto()
    """Every rank of the stage holds all of it and finds the part of its gradient from its own heads or features (norms
    of heads, routers)."""
    COLUMN = auto()
    """Axis 0 (output features) over model_parallel."""
    KEY_VALUE = auto()
    """Axis 0 by key/value heads: over model_parallel, or, where heads are fewer than that, over the heads only."""
    ROW = auto()
    """Axis 1 (input features) over model_parallel."""
    EXPERT_COLUMN = auto()
    """Axis 0 (experts) over expert_parallel, axis 1 (output features of each) over expert_tensor_parallel."""
    EXPERT_ROW = auto()
    """Axis 0 (experts) over expert_parallel, axis 2 (input features of each) over expert_tensor_parallel."""
    EXPERT_WHOLE = auto()
    """Axis 0 (experts) over expert_parallel; as `WHOLE_FOR_OWN_PART` for the slices of an expert."""
    INPUT_TABLE = auto()
    """Axis 0 (vocabulary) over model_parallel, or whole under vocab_emb_dp."""


_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")

# By parameter name without its prefix `model.layers.{i}.`.
_ALL: Mapping[str, Split] = {
    "model.embed_tokens.weight": Split.INPUT_TABLE,
    "input_layernorm.weight": Split.WHOLE,
    "self_attn.q_proj.weight": Split.COLUMN,
    "self_attn.q_proj.bias": Split.COLUMN,
    "self_attn.q_norm.weight": Split.WHOLE_FOR_OWN_PART,
    "self_attn.k_proj.weight": Split.KEY_VALUE,
    "self_attn.k_proj.bias": Split.KEY_VALUE,
    "self_attn.k_norm.weight": Split.WHOLE_FOR_OWN_PART,
    "self_attn.v_proj.weight": Split.KEY_VALUE,
    "self_attn.v_proj.bias": Split.KEY_VALUE,
    "self_attn.q_a_proj.weight": Split.WHOLE_FOR_OWN_PART,
    "self_attn.q_a_layernorm.weight": Split.WHOLE_FOR_OWN_PART,
    "self_attn.q_b_proj.weight": Split.COLUMN,
    "self_attn.kv_a_proj_with_mqa.weight": Split.WHOLE_FOR_OWN_PART,
    "self_attn.kv_a_layernorm.weight": Split.WHOLE_FOR_OWN_PART,
    "self_attn.kv_b_proj.weight": Split.COLUMN,
    "self_attn.o_proj.weight": Split.ROW,
    "post_self_attn_layernorm.weight": Split.WHOLE,
    "post_attention_layernorm.weight": Split.WHOLE,
    "post_mlp_layernorm.weight": Split.WHOLE,
    "mlp.gate_proj.weight": Split.COLUMN,
    "mlp.up_proj.weight": Split.COLUMN,
    "mlp.down_proj.weight": Split.ROW,
    "mlp.gate.weight": Split.WHOLE_FOR_OWN_PART,
    "mlp.gate.e_score_correction_bias": Split.WHOLE,
    "mlp.experts.gate_proj.weight": Split.EXPERT_COLUMN,
    "mlp.experts.up_proj.weight": Split.EXPERT_COLUMN,
    "mlp.experts.down_proj.weight": Split.EXPERT_ROW,
    "mlp.shared_experts.gate_proj.weight": Split.COLUMN,
    "mlp.shared_experts.up_proj.weight": Split.COLUMN,
    "mlp.shared_experts.down_proj.weight": Split.ROW,
    "model.norm.weight": Split.WHOLE,
    "lm_head.weight": Split.COLUMN,
}


_LATENT = ("q_a_", "q_b_", "kv_a_", "kv_b_")


def _has(family: Family, name: str) -> bool:
    if name.startswith("self_attn.") and name.split(".")[1] in ("k_proj", "v_proj"):
        return not family.has_latent_attention and (family.has_attention_bias is not False or not name.endswith("bias"))
    if name.startswith(tuple(f"self_attn.{one}" for one in _LATENT)):
        return family.has_latent_attention
    if "shared_experts" in name or name.endswith("correction_bias"):
        return family.has_shared_experts
    if "experts" in name or name == "mlp.gate.weight":
        return family.has_experts
    if name in ("post_self_attn_layernorm.weight", "post_mlp_layernorm.weight"):
        return family.has_sandwich_norms
    if name.startswith("mlp."):
        return family.has_shared_experts or not family.has_experts
    if name.endswith(".bias"):
        return family.has_attention_bias is not False
    return family.has_head_norms is not False or name not in ("self_attn.q_norm.weight", "self_attn.k_norm.weight")


SPLITS: Mapping[str, Mapping[str, Split]] = {
    architecture: {name: split for name, split in _ALL.items() if _has(family, name)}
    for architecture, family in FAMILIES.items()
}
# The axis that model_parallel splits where it is not the first.
_LATER_AXIS = {Split.ROW: 1, Split.EXPERT_COLUMN: 1, Split.EXPERT_ROW: 2}
_EXPERTS = (Split.EXPERT_COLUMN, Split.EXPERT_ROW, Split.EXPERT_WHOLE)
_ROWS = (Split.ROW, Split.EXPERT_ROW)
# Not split over model_parallel.
_WHOLE = (Split.WHOLE, Split.WHOLE_FOR_OWN_PART)


def parameter_layouts(shapes: Mapping[str, Shape], model: ModelSection, plan: ParallelPlan) -> dict[str, Layout]:
    """Return {name: layout} of every weight, in the order of `shapes` ({our parameter name: full shape}).

    Raises ConfigError if the plan does not fit the model, WeightsError for a name that the architecture does not have.
    """
    grid = RankGrid(plan)
    _require_whole_heads_and_layers(model, plan)
    return {name: _layout(name, shape, model, plan, grid) for name, shape in shapes.items()}


def moment_layouts(shapes: Mapping[str, Shape], model: ModelSection, plan: ParallelPlan) -> dict[str, Layout]:
    """Return {name: layout} of each weight's optimizer moments; errors as `parameter_layouts`.

    Without `optimizer_shard` it is the weight's layout. With it, axis 0 of the weight's slice is split further over the
    ranks of data_parallel x context_parallel; if it does not divide, the moment is kept whole and the layout's remark
    says so.
    """
    weights = parameter_layouts(shapes, model, plan)
    if not plan.optimizer_shard or plan.token_parts == 1:
        return weights
    return {
        name: _over_replicas(layout, _inner_axes(_split(name, model), model, plan)) for name, layout in weights.items()
    }


def gradient_ranks(
    layouts: Mapping[str, Layout], model: ModelSection, plan: ParallelPlan, rank: int
) -> dict[str, Ranks]:
    """Return {name: ranks over which its gradient is summed, including `rank`} of the weights that `rank` holds.

    Norms of the residual stream see whole activations unless use_seq_parallel splits these too: all model-parallel
    ranks find the same gradient, which is summed over the ranks with other tokens. For any other weight, including
    norms of heads, a rank finds only the contribution of its own tokens, heads, vocabulary or stage, so the gradient is
    summed over all holders of the slice.
    """
    grid = RankGrid(plan)
    held = {name: layout.ranks_with_slice_of(rank) for name, layout in layouts.items()}
    return {
        name: grid.data_group(rank) if _split(name, model) is Split.WHOLE and not plan.use_seq_parallel else ranks
        for name, ranks in held.items()
        if ranks
    }


def _layout(name: str, shape: Shape, model: ModelSection, plan: ParallelPlan, grid: RankGrid) -> Layout:
    split = _split(name, model)
    stages = _stages(name, model, plan)
    inner = _inner_axes(split, model, plan)
    replicas = plan.token_parts * plan.model_parallel // prod(inner)
    outer = (len(stages), replicas) if len(stages) > 1 else (replicas,)
    ranks: Ranks = sum((grid.stage_ranks(stage) for stage in stages), ())
    return Layout(
        parameter=name,
        shape=shape,
        device_matrix=(*outer, *inner),
        tensor_map=_tensor_map(split, len(shape), len(inner), plan),
        rank_list=ranks,
    )


def _split(name: str, model: ModelSection) -> Split:
    in_layer = _LAYER.fullmatch(name)
    key = in_layer.group(2) if in_layer else name
    table = SPLITS[model.architecture]
    layer, _, ending = key.rpartition(".lora_")
    layer = layer.replace("gate_up_proj", "gate_proj")  # whose A both have
    if ending in ("A.weight", "B.weight") and f"{layer}.weight" in table:
        split = table[f"{layer}.weight"]
        whole = Split.EXPERT_WHOLE if split in _EXPERTS else Split.WHOLE_FOR_OWN_PART
        return split if (split in _ROWS) == (ending == "A.weight") else whole
    if key not in table:
        known = f"; known: {', '.join(table)}"
        fix = did_you_mean(key, table, otherwise=known, show=lambda close: f"{name.removesuffix(key)}{close}")
        raise WeightsError(f"{name}: no parameter of {model.architecture}{fix}")
    return table[key]


def _stages(name: str, model: ModelSection, plan: ParallelPlan) -> tuple[int, ...]:
    """Return the pipeline stages that hold a parameter."""
    last = plan.pipeline_stage - 1
    in_layer = _LAYER.fullmatch(name)
    if in_layer:
        layer = int(in_layer.group(1))
        if layer >= model.num_hidden_layers:
            raise WeightsError(
                f"{name}: the model has {model.num_hidden_layers} layers, 0 to {model.num_hidden_layers - 1}"
            )
        return (stage_of_layer(layer, stages=plan.pipeline_stage, num_layers=model.num_hidden_layers),)
    if _split(name, model) is not Split.INPUT_TABLE:
        return (last,)
    return (0, last) if model.tie_word_embeddings and last > 0 else (0,)


def _inner_axes(split: Split, model: ModelSection, plan: ParallelPlan) -> tuple[int, ...]:
    """Return the lengths of the device axes inside the replicas.

    They are (model_parallel,); (kv heads, ranks per kv head) if there are fewer kv heads than ranks; for experts
    (expert_parallel, expert_tensor_parallel), after the number of blocks of ranks that together have all experts if
    model_parallel contains several.
    """
    kv_heads = model.num_key_value_heads
    if split is Split.KEY_VALUE and plan.model_parallel > kv_heads:
        return (kv_heads, plan.model_parallel // kv_heads)
    if split in _EXPERTS and plan.expert_block < plan.model_parallel:
        return (plan.model_parallel // plan.expert_block, plan.expert_parallel, plan.expert_slices)
    if split in _EXPERTS and plan.expert_parallel > 1:
        return (plan.expert_parallel, plan.expert_slices)
    return (plan.model_parallel,)


def _tensor_map(split: Split, num_axes: int, num_inner: int, plan: ParallelPlan) -> tuple[int, ...]:
    whole = (NOT_SPLIT,) * num_axes
    if split in _WHOLE or (split is Split.INPUT_TABLE and plan.vocab_emb_dp):
        return whole
    first = 1 if num_inner > 1 else NOT_SPLIT  # experts
    if split is Split.EXPERT_WHOLE:
        return (first, *whole[1:])
    if split in _LATER_AXIS:
        axis = _LATER_AXIS[split]
        return (first, *whole[1:axis], 0, *whole[axis + 1 :])
    # The outermost inner axis: model_parallel, or the kv heads.
    return (num_inner - 1, *whole[1:])


def _over_replicas(layout: Layout, inner: tuple[int, ...]) -> Layout:
    rows, data_axis = layout.slice_shape[0], len(inner)
    replicas = layout.device_matrix[-1 - data_axis]
    if replicas == 1:
        return layout
    if rows % replicas:
        remark = f"optimizer_shard: axis 0 of the slice, {rows}, does not divide over {replicas} replicas; kept whole"
        return replace(layout, remark=remark)
    axis = layout.tensor_map[0]
    first = data_axis if axis == NOT_SPLIT else (axis, data_axis)
    return replace(layout, tensor_map=(first, *layout.tensor_map[1:]))


def _require_whole_heads_and_layers(model: ModelSection, plan: ParallelPlan) -> None:
    """Raise ConfigError if heads were cut or a stage had no layer, which shapes alone would not show."""
    size, heads, kv_heads = plan.model_parallel, model.num_attention_heads, model.num_key_value_heads
    legal = [ranks for ranks in divisors(heads) if kv_heads % ranks == 0 or ranks % kv_heads == 0]
    if size not in legal:
        raise ConfigError(
            f"model.layers.*.self_attn: {heads} attention heads and {kv_heads} key/value heads do not divide over "
            f"model_parallel {size}; nearest legal: {either(nearest(legal, size))}"
        )
    if plan.pipeline_stage > model.num_hidden_layers:
        raise ConfigError(
            f"model.layers: {model.num_hidden_layers} layers are fewer than pipeline_stage {plan.pipeline_stage}"
        )
