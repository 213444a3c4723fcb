"""What the ranks of Qwen3-30B-A3B hold and work with where experts are whole, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.config import ExperimentConfig, ModelSection, ParallelPlan, load_config
from mindgspo.parallel.plans.placement import Placement
from mindgspo.planner.rank_work import RankWidths, RankWork, held_bytes
from mindgspo.planner.smallest_change import changed
from mindgspo.swap.states import Holding

EXPERIMENT = Path(__file__).parents[3] / "examples" / "dapo_math" / "gspo_qwen3_30b_a3b.yaml"


@pytest.fixture(scope="module")
def published() -> ExperimentConfig:
    return load_config(EXPERIMENT, check_files=False)


def test_a_rank_has_the_slots_of_its_blocks_tokens(published: ExperimentConfig) -> None:
    """8 ranks, two replicas' rows of 10,240 tokens; 16 experts of 768 features; while sampling 32 of them, one
    replica's tokens."""
    work = RankWork.of(published, 31)
    assert (work.train.experts, work.train.inner, work.infer.experts, work.infer.inner) == (16, 768, 32, 768)
    block = work.train.feed_forward(10_240)
    slots = 2 * 10_240 * 8
    assert (block.routed, block.inner) == (slots * 2048, slots * 768) and slots == 163_840
    assert work.infer.feed_forward(100).routed == 100 * 8 * 2048


@pytest.mark.parametrize(("settings", "slots", "inner"), [
    # As many weights per rank, split by features over four ranks.
    ({"plans.train.expert_parallel": 2, "plans.train.expert_tensor_parallel": None}, 2, 192),
    # Two blocks in each replica: half of its tokens each.
    ({"plans.train.expert_parallel": 2}, 0.5, 768),
    ({"plans.train.expert_parallel": 4}, 1, 768),
])  # fmt: skip
def test_slots_grow_with_the_block(published: ExperimentConfig, settings: dict, slots: float, inner: int) -> None:
    work = RankWork.of(changed(published, settings), 0)
    block = work.train.feed_forward(10_240)
    assert (block.routed, work.train.inner) == (slots * 10_240 * 8 * 2048, inner)


def test_weights_of_a_stage_by_hand(published: ExperimentConfig) -> None:
    """A middle stage, 12 layers: 16 experts, a quarter of the attention, a whole router and norms. Nobody else has the
    experts; moments of attention are shared by two replicas, where they have 64 KB."""
    experts = 12 * 16 * 3 * 768 * 2048
    # 32 heads and 4 key/value heads of 128, queries, outputs, keys and values of a quarter of each.
    attention = 12 * (2 * 1024 * 2048 + 2 * 128 * 2048)
    routers, norms = 12 * 128 * 2048, 12 * (2 * 2048 + 2 * 128)
    held = held_bytes(RankWork.of(published, 8))
    moments = held[Holding.MOMENTS] // 8
    assert experts + (attention + routers + norms) // 2 == moments


DEEP = ModelSection(
    architecture="glm4_moe", vocab_size=64, hidden_size=32, intermediate_size=96, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16,
    n_shared_experts=3, first_k_dense_replace=3,
)  # fmt: skip


def test_stages_of_dense_layers_have_no_experts() -> None:
    """Two layers per stage: the first stage is dense, the second half dense."""
    plan = ParallelPlan(
        model_parallel=2, pipeline_stage=2, micro_batch_num=2, expert_parallel=2, expert_tensor_parallel=1
    )
    first, last = (RankWidths.of(DEEP, Placement(plan=plan, rank=rank)) for rank in (0, 3))
    assert (first.layers, first.dense_layers, first.experts, first.inner, first.shared_inner) == (2, 2, 0, 0, 0)
    assert (last.layers, last.dense_layers, last.experts, last.inner, last.shared_inner) == (2, 1, 4, 16, 24)
    dense, mixture = last.feed_forward(10, dense=True), last.feed_forward(10)
    assert first.feed_forward(10) == dense and (dense.inner, dense.routed) == (480, 0)
    # 20 slots of 16 features, and 10 tokens of 24.
    assert (mixture.inner, mixture.widest, mixture.routed) == (320 + 240, 320, 20 * 32)
