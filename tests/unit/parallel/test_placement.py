"""Where a rank stands, what it computes, and with whom it adds gradients up."""

from __future__ import annotations

import pytest

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.parallel.plans.parameter_layouts import gradient_ranks, parameter_layouts
from mindgspo.parallel.plans.placement import ALONE, Placement, Ranks

SEED = ParallelPlan(model_parallel=4, pipeline_stage=2, micro_batch_num=2)
MODEL = ModelSection(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, tie_word_embeddings=True,
)  # fmt: skip
LAYER = "model.layers.2."
SHAPES = {
    "model.embed_tokens.weight": (64, 32),
    f"{LAYER}input_layernorm.weight": (32,),
    f"{LAYER}self_attn.q_proj.weight": (32, 32),
    f"{LAYER}self_attn.k_proj.weight": (16, 32),
    "model.norm.weight": (32,),
}


def test_alone_has_everything():
    assert (ALONE.at.stage, ALONE.at.data, ALONE.at.model) == (0, 0, 0)
    assert ALONE.is_first_stage and ALONE.is_last_stage and ALONE.is_replica_leader
    assert ALONE.own_layers(7) == range(7) and ALONE.share(12) == 12 and ALONE.replica_leaders() == (0,)


def test_rank_six_of_one_by_four_by_two():
    place = Placement(plan=SEED, rank=6)
    assert (place.at.stage, place.at.model) == (1, 2) and place.model_ranks == (4, 5, 6, 7)
    assert place.own_layers(28) == range(14, 28) and not place.is_first_stage and place.is_last_stage
    assert not place.is_replica_leader and place.replica_leaders() == (4,)
    assert place.share(3584) == 896


@pytest.mark.parametrize(("kv_heads", "expected"), [(2, 1), (4, 1), (8, 2)])
def test_few_key_value_heads_are_computed_by_several_ranks(kv_heads: int, expected: int):
    assert Placement(plan=SEED, rank=0).share(kv_heads, units=kv_heads) == expected


def test_features_that_do_not_divide_are_our_own_mistake():
    with pytest.raises(AssertionError, match="10 features over 4 slices"):
        Placement(plan=SEED, rank=0).share(10)


@pytest.mark.parametrize(("plan", "rank", "ranks", "experts"), [
    # Replicas 2 and 3 share the experts, each of them split over two ranks.
    ({"data_parallel": 4, "model_parallel": 2, "expert_parallel": 2}, 7, (4, 5, 6, 7), range(4, 8)),
    # Whole ones: over the four ranks of these replicas, over the two of one, over two of the four of one.
    ({"data_parallel": 4, "model_parallel": 2, "expert_parallel": 4, "expert_tensor_parallel": 1}, 6, (4, 5, 6, 7),
        range(4, 6)),
    ({"data_parallel": 4, "model_parallel": 2, "expert_parallel": 2, "expert_tensor_parallel": 1}, 7, (6, 7),
        range(4, 8)),
    ({"model_parallel": 4, "expert_parallel": 2, "expert_tensor_parallel": 1}, 2, (2, 3), range(0, 4)),
    ({"model_parallel": 4, "expert_tensor_parallel": 1}, 2, (2,), range(0, 8)),
    ({"model_parallel": 4}, 2, (0, 1, 2, 3), range(0, 8)),
    # Of two stages.
    ({"data_parallel": 2, "model_parallel": 4, "pipeline_stage": 2, "expert_parallel": 8, "expert_tensor_parallel": 1},
        13, tuple(range(8, 16)), range(5, 6)),
])  # fmt: skip
def test_a_block_of_consecutive_ranks_has_all_experts(plan: dict, rank: int, ranks: Ranks, experts: range):
    place = Placement(plan=ParallelPlan(**plan), rank=rank)
    assert (place.expert_ranks, place.own_experts(8)) == (ranks, experts)


def summed_over(plan: ParallelPlan, rank: int) -> dict[str, Ranks]:
    return gradient_ranks(parameter_layouts(SHAPES, MODEL, plan), MODEL, plan, rank)


def test_gradients_are_summed_over_those_who_found_a_part():
    # 2 x 4 (data x model): ranks 0-3 are replica 0, 4-7 replica 1; heads 0 and 1 are shared by two ranks each.
    plan = ParallelPlan(data_parallel=2, model_parallel=4)
    found = summed_over(plan, 5)
    assert found[f"{LAYER}input_layernorm.weight"] == (1, 5)  # found whole by all model ranks
    assert found[f"{LAYER}self_attn.q_proj.weight"] == (1, 5)
    assert found[f"{LAYER}self_attn.k_proj.weight"] == (0, 1, 4, 5)
    assert found["model.embed_tokens.weight"] == (0, 1, 2, 3, 4, 5, 6, 7)  # each has its own part of the vocabulary


def test_tied_tables_of_two_stages_are_summed_together():
    split = SEED.model_copy(update={"vocab_emb_dp": False})
    assert summed_over(SEED, 6)["model.embed_tokens.weight"] == tuple(range(8))
    assert summed_over(split, 6)["model.embed_tokens.weight"] == (2, 6)
    assert "model.norm.weight" not in summed_over(split, 2)
