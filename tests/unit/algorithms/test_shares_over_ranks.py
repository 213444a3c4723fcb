"""Which ranks add up and share out the gradient of which weight, and in what order they meet. Plain Python."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mindgspo.algorithms.optim.over_ranks import Share, buckets_of, shares_of
from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.models.names import parameter_shapes
from mindgspo.parallel.plans.parameter_layouts import gradient_ranks, moment_layouts, parameter_layouts
from mindgspo.parallel.plans.placement import Ranks

DENSE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip
EXPERTS = DENSE | {
    "architecture": "qwen3_moe", "head_dim": 8, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24
}  # fmt: skip
STAGES = {"pipeline_stage": 2, "micro_batch_num": 2}
SHARDED = {"optimizer_shard": True}
PLANS = [
    (DENSE, {"data_parallel": 2, "model_parallel": 2, "vocab_emb_dp": False} | STAGES | SHARDED),
    (DENSE, {"data_parallel": 2, "model_parallel": 2} | STAGES),
    (DENSE, {"data_parallel": 2, "model_parallel": 4} | STAGES | SHARDED),  # 2 ranks to a key/value head
    (DENSE, {"data_parallel": 3, "model_parallel": 2} | STAGES | SHARDED),  # no weight has rows for 3
    (DENSE, {"data_parallel": 2, "context_parallel": 2, "model_parallel": 2} | SHARDED),
    # Every rank has other tokens at norms.
    (DENSE, {"data_parallel": 2, "model_parallel": 2, "use_seq_parallel": True} | STAGES | SHARDED),
    (EXPERTS, {"data_parallel": 2, "model_parallel": 2, "expert_tensor_parallel": 1} | STAGES | SHARDED),
    (EXPERTS, {"data_parallel": 4, "model_parallel": 2, "expert_parallel": 2} | SHARDED),
    (EXPERTS, {"data_parallel": 4, "model_parallel": 2, "expert_parallel": 4, "expert_tensor_parallel": 1} | SHARDED),
]


def everybody(model: dict, plan: dict) -> tuple[list[dict[str, Share]], list[dict[str, Ranks]], dict[str, int]]:
    """Shares and gradient ranks by rank, and bytes by weight."""
    section, plan = ModelSection(**model), ParallelPlan(**plan)
    shapes = parameter_shapes(section)
    layouts, moments = parameter_layouts(shapes, section, plan), moment_layouts(shapes, section, plan)
    ranks = [gradient_ranks(layouts, section, plan, rank) for rank in range(plan.world_size)]
    shares = [shares_of(layouts, moments, over, rank) for rank, over in enumerate(ranks)]
    return shares, ranks, {name: 4 * layout.slice_of(layout.rank_list[0]).size for name, layout in layouts.items()}


def test_tables_norms_and_matrices_by_hand() -> None:
    # Ranks 0 2 and 1 3 are the replicas of stage 0, 4 6 and 5 7 those of stage 1, which has the table, too.
    shares, _, _ = everybody(*PLANS[0])
    assert shares[3]["model.embed_tokens.weight"] == Share((1, 3), (3, 7))
    assert shares[3]["model.layers.0.self_attn.q_proj.weight"] == Share((1, 3), ())
    assert shares[3]["model.layers.0.input_layernorm.weight"] == Share((1, 3), ())
    assert "model.layers.1.self_attn.q_proj.weight" not in shares[3]
    # Kept whole; the table is on all ranks of both stages.
    shares, _, _ = everybody(*PLANS[1])
    assert shares[6]["model.embed_tokens.weight"] == Share((), (0, 1, 2, 3, 4, 5, 6, 7))
    assert shares[6]["model.norm.weight"] == Share((), (4, 6))
    shares, _, _ = everybody(*PLANS[5])
    assert shares[6]["model.norm.weight"] == Share((4, 6), (6, 7))
    # Ranks 0 1 and 4 5 have the first key/value head.
    shares, _, _ = everybody(*PLANS[2])
    assert shares[5]["model.layers.0.self_attn.k_proj.weight"] == Share((1, 5), (4, 5))


@pytest.mark.parametrize(("model", "plan"), PLANS)
def test_the_two_sums_together_are_over_the_ranks_of_the_gradient(model: dict, plan: dict) -> None:
    shares, ranks, _ = everybody(model, plan)
    for rank, of_rank in enumerate(shares):
        for name, share in of_rank.items():
            summed = share.sum_ranks or (rank,)
            added = {other for same in summed for other in shares[same][name].shard_ranks or (same,)}
            assert added == set(ranks[rank][name]), (rank, name, share)
            assert {shares[other][name].shard_ranks for other in share.shard_ranks} <= {share.shard_ranks}
            assert {shares[other][name].sum_ranks for other in share.sum_ranks} <= {share.sum_ranks}


@pytest.mark.parametrize("bucket_bytes", [1, 20_000])
@pytest.mark.parametrize(("model", "plan"), PLANS)
def test_all_ranks_come_to_the_same_buckets_and_nobody_waits_in_a_ring(
    model: dict, plan: dict, bucket_bytes: int
) -> None:
    shares, _, num_bytes = everybody(model, plan)
    sequences = []
    for of_rank in shares:
        held = {
            name: SimpleNamespace(
                name=name, gradient=SimpleNamespace(nbytes=num_bytes[name]),
                weight=SimpleNamespace(dtype="bfloat16" if "_proj.weight" in name else "float32"),
            ) for name in of_rank
        }  # fmt: skip
        meetings = []
        for bucket, share in buckets_of(held, of_rank, bucket_bytes):
            names = tuple(one.name for one in bucket)
            meetings += [(group, names) for group in (share.shard_ranks, share.sum_ranks) if group]
        sequences.append(meetings)
    while any(sequences):
        rounds = {own[0] for own in sequences if own}
        ready = [round for round in rounds if all(sequences[rank][:1] == [round] for rank in round[0])]
        assert ready, [own[:1] for own in sequences]
        for group, names in ready:
            for rank in group:
                assert sequences[rank].pop(0) == (group, names)
