"""Layouts of Qwen3's parameters, and who adds the gradients of its head norms up; worked by hand."""

from __future__ import annotations

import pytest

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.models.names import parameter_shapes
from mindgspo.parallel.plans.layout import TensorSlice
from mindgspo.parallel.plans.parameter_layouts import gradient_ranks, moment_layouts, parameter_layouts

# 8 heads of 16 on a width of 64, which is no multiple of 8 x 16.
SMALL = ModelSection(
    architecture="qwen3", vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=4,
    num_attention_heads=8, num_key_value_heads=2, head_dim=16,
)  # fmt: skip
SHAPES = parameter_shapes(SMALL)
ATTENTION = "model.layers.3.self_attn."


def test_shapes_follow_the_head_and_not_the_width():
    assert {name.removeprefix(ATTENTION): shape for name, shape in SHAPES.items() if name.startswith(ATTENTION)} == {
        "q_proj.weight": (128, 64), "k_proj.weight": (32, 64), "v_proj.weight": (32, 64),
        "o_proj.weight": (64, 128), "q_norm.weight": (16,), "k_norm.weight": (16,),
    }  # fmt: skip


def test_head_norms_are_whole_on_every_rank_of_their_stage():
    train = parameter_layouts(SHAPES, SMALL, ParallelPlan(data_parallel=1, model_parallel=4, pipeline_stage=2))
    norm = train[f"{ATTENTION}k_norm.weight"]
    assert (norm.device_matrix, norm.tensor_map, norm.rank_list) == ((1, 4), (-1,), (4, 5, 6, 7))
    assert norm.slice_of(6) == TensorSlice((0,), (16,)) and norm.slice_of(2) is None
    # Two heads, 32 rows, per rank.
    assert train[f"{ATTENTION}q_proj.weight"].slice_of(6) == TensorSlice((64, 0), (96, 64))
    assert train[f"{ATTENTION}o_proj.weight"].slice_of(6) == TensorSlice((0, 64), (64, 96))
    # 2 kv heads for 4 ranks.
    assert train[f"{ATTENTION}k_proj.weight"].slice_of(6) == TensorSlice((16, 0), (32, 64))


@pytest.mark.parametrize("name", ["q_norm.weight", "k_norm.weight"])
def test_gradients_of_head_norms_are_summed_over_model_parallel_too(name: str):
    plan = ParallelPlan(data_parallel=2, model_parallel=2, pipeline_stage=2, micro_batch_num=2)
    layouts = parameter_layouts(SHAPES, SMALL, plan)
    # Rank 6 is replica 1, slice 0 of the last stage.
    found = gradient_ranks(layouts, SMALL, plan, 6)
    assert found[f"{ATTENTION}{name}"] == (4, 5, 6, 7)
    assert found["model.layers.3.input_layernorm.weight"] == found["model.norm.weight"] == (4, 6)
    assert f"model.layers.0.self_attn.{name}" not in found


def test_moments_of_head_norms_are_split_over_data_parallel():
    plan = ParallelPlan(data_parallel=2, model_parallel=2, optimizer_shard=True)
    moment = moment_layouts(SHAPES, SMALL, plan)[f"{ATTENTION}q_norm.weight"]
    assert [moment.slice_of(rank).starts for rank in range(4)] == [(0,), (0,), (8,), (8,)]
    assert moment.slice_shape == (8,)
