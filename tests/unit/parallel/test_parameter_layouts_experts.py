"""Layouts of a mixture of experts, and who adds its gradients up; worked by hand."""

from __future__ import annotations

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.models.names import parameter_shapes
from mindgspo.parallel.plans.layout import TensorSlice
from mindgspo.parallel.plans.parameter_layouts import gradient_ranks, moment_layouts, parameter_layouts

SMALL = ModelSection(
    architecture="qwen3_moe", vocab_size=64, hidden_size=16, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=12,
)  # fmt: skip
SHAPES = parameter_shapes(SMALL)
MLP = "model.layers.1.mlp."
GATE, DOWN, ROUTER = (f"{MLP}{name}.weight" for name in ("experts.gate_proj", "experts.down_proj", "gate"))


def test_experts_are_stacked() -> None:
    assert {name: SHAPES[name] for name in (GATE, DOWN, ROUTER)} == {
        GATE: (8, 12, 16), DOWN: (8, 16, 12), ROUTER: (8, 16),
    }  # fmt: skip
    assert f"{MLP}gate_proj.weight" not in SHAPES


def test_model_parallel_splits_the_features_of_every_expert() -> None:
    plan = ParallelPlan(data_parallel=2, model_parallel=2, pipeline_stage=2, micro_batch_num=2)
    layouts = parameter_layouts(SHAPES, SMALL, plan)
    # Rank 7 is replica 1, slice 1 of the last stage.
    assert layouts[GATE].slice_of(7) == TensorSlice((0, 6, 0), (8, 12, 16))
    assert layouts[DOWN].slice_of(7) == TensorSlice((0, 0, 6), (8, 16, 12))
    assert layouts[ROUTER].slice_of(7) == TensorSlice((0, 0), (8, 16))
    assert layouts[GATE].slice_of(3) is None
    found = gradient_ranks(layouts, SMALL, plan, 7)
    assert (found[GATE], found[DOWN]) == ((5, 7), (5, 7))
    # Through the weights of the experts' outputs each slice finds a part of the router's gradient.
    assert found[ROUTER] == (4, 5, 6, 7)


def test_expert_parallel_gives_runs_of_experts_to_consecutive_replicas() -> None:
    plan = ParallelPlan(data_parallel=4, model_parallel=2, expert_parallel=2)
    layouts = parameter_layouts(SHAPES, SMALL, plan)
    assert (layouts[GATE].device_matrix, layouts[GATE].tensor_map) == ((2, 2, 2), (1, 0, -1))
    assert (layouts[DOWN].device_matrix, layouts[DOWN].tensor_map) == ((2, 2, 2), (1, -1, 0))
    # Replicas 0 and 2 have the first four experts, 1 and 3 the others.
    assert layouts[GATE].slice_of(0) == layouts[GATE].slice_of(4) == TensorSlice((0, 0, 0), (4, 6, 16))
    assert layouts[GATE].slice_of(3) == layouts[GATE].slice_of(7) == TensorSlice((4, 6, 0), (8, 12, 16))
    assert gradient_ranks(layouts, SMALL, plan, 3)[GATE] == (3, 7)
    assert layouts["model.layers.1.self_attn.q_proj.weight"].device_matrix == (4, 2)


def test_moments_of_experts_are_split_over_the_replicas_that_share_them() -> None:
    plan = ParallelPlan(data_parallel=4, model_parallel=2, expert_parallel=2, optimizer_shard=True)
    moments = moment_layouts(SHAPES, SMALL, plan)
    assert moments[GATE].tensor_map == ((1, 2), 0, -1)
    slices = [moments[GATE].slice_of(rank) for rank in (0, 4, 2, 6)]
    assert [piece.index[0].start for piece in slices] == [0, 2, 4, 6]
    everywhere = ParallelPlan(data_parallel=4, expert_parallel=4, optimizer_shard=True)
    alone = moment_layouts(SHAPES, SMALL, everywhere)[GATE]
    assert alone.slice_of(1) == TensorSlice((2, 0, 0), (4, 12, 16)) and not alone.remark


def whole_experts(data: int, model: int, experts: int, **more) -> ParallelPlan:
    return ParallelPlan(
        data_parallel=data, model_parallel=model, expert_parallel=experts, expert_tensor_parallel=1, **more
    )


def experts_of(plan: ParallelPlan, rank: int) -> tuple[int, int]:
    """The first expert of a rank and the first it has no more, of both matrices, whole."""
    layouts = parameter_layouts(SHAPES, SMALL, plan)
    gate, down = layouts[GATE].slice_of(rank), layouts[DOWN].slice_of(rank)
    assert gate.shape[1:] == (12, 16) and down.shape[1:] == (16, 12)
    assert (gate.starts[0], gate.stops[0]) == (down.starts[0], down.stops[0])
    return gate.starts[0], gate.stops[0]


def test_whole_experts_go_to_runs_of_ranks() -> None:
    # Two replicas of two ranks have all experts together, and two others again.
    wide = whole_experts(4, 2, 4)
    assert [experts_of(wide, rank) for rank in (0, 1, 2, 3, 6)] == [(0, 2), (2, 4), (4, 6), (6, 8), (4, 6)]
    # Two of a replica's four ranks.
    narrow = whole_experts(2, 4, 2)
    assert [experts_of(narrow, rank) for rank in (0, 1, 2, 7)] == [(0, 4), (4, 8), (0, 4), (4, 8)]
    assert experts_of(whole_experts(2, 4, 1), 5) == (0, 8)
    assert experts_of(whole_experts(1, 4, 4, pipeline_stage=2, micro_batch_num=2), 7) == (6, 8)


def test_gradients_of_whole_experts_come_from_all_who_have_them() -> None:
    def ranks(plan: ParallelPlan, rank: int) -> tuple:
        found = gradient_ranks(parameter_layouts(SHAPES, SMALL, plan), SMALL, plan, rank)
        return found[GATE], found[DOWN], found[ROUTER]

    everyone = tuple(range(8))
    assert ranks(whole_experts(4, 2, 4), 6) == ((2, 6), (2, 6), everyone)
    assert ranks(whole_experts(2, 4, 2), 7) == ((1, 3, 5, 7), (1, 3, 5, 7), everyone)
    assert ranks(whole_experts(2, 4, 8), 5) == ((5,), (5,), everyone)


def test_moments_of_whole_experts_are_split_over_replicas_not_within_them() -> None:
    """As everything else: over data_parallel, also where several ranks of a replica have the same experts."""
    plan = whole_experts(2, 4, 2, optimizer_shard=True)
    moments = moment_layouts(SHAPES, SMALL, plan)[GATE]
    assert [moments.slice_of(rank).starts[0] for rank in range(8)] == [0, 4, 0, 4, 2, 6, 2, 6]
    assert moments.slice_shape == (2, 12, 16)
    # 32 ranks of Qwen3-30B-A3B: nobody else has a rank's experts.
    alone = moment_layouts(SHAPES, SMALL, whole_experts(2, 4, 8, optimizer_shard=True))[GATE]
    assert alone.slice_shape == (1, 12, 16)
