"""The auto_parallel path's words, strategies and stages: what the compiler is told of a plan."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from mindspore import ops

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.models.policy import build_model
from mindgspo.parallel.placement import ALONE, AutoParallelPlacement, Placement, auto_parallel_placement
from mindgspo.parallel.ranks import DATA, EXPERT, EXPERT_FEATURES, KEY_VALUE, MODEL, REPLICA, SEQUENCE, WHOLE, Axis

WORDS = (WHOLE, REPLICA, DATA, SEQUENCE, MODEL, KEY_VALUE, EXPERT, EXPERT_FEATURES)


class RecordingOp:
    """Stands in for an op of MindSpore."""

    def __init__(self) -> None:
        self.strategies: tuple | None = None

    def shard(self, *strategies) -> RecordingOp:
        assert self.strategies is None, "sharded twice"
        self.strategies = strategies
        return self


def parts(plan: ParallelPlan, num_kv_heads: int) -> tuple[int, ...]:
    place = auto_parallel_placement(plan, num_kv_heads)
    return tuple(place.parts(word) for word in WORDS)


@pytest.mark.parametrize(("plan", "num_kv_heads", "expected"), [
    # whole, replica, data, sequence, model, key/value, expert, expert's features
    ({}, 2, (1, 1, 1, 1, 1, 1, 1, 1)),
    ({"data_parallel": 4}, 2, (1, 4, 4, 4, 1, 1, 1, 1)),
    ({"data_parallel": 4, "expert_parallel": 2}, 2, (1, 4, 4, 4, 1, 1, 2, 1)),
    ({"data_parallel": 2, "model_parallel": 4}, 8, (1, 2, 2, 2, 4, 4, 1, 4)),
    ({"data_parallel": 2, "model_parallel": 4, "expert_parallel": 8, "expert_tensor_parallel": 1}, 8,
        (1, 2, 2, 2, 4, 4, 8, 1)),
    # two heads for four ranks: each head is cut off once and computed by two
    ({"data_parallel": 2, "model_parallel": 4}, 2, (1, 2, 2, 2, 4, 2, 1, 4)),
    ({"data_parallel": 2, "model_parallel": 4, "use_seq_parallel": True}, 2, (1, 2, 2, 8, 4, 2, 1, 4)),
    ({"model_parallel": 4, "use_seq_parallel": True}, 4, (1, 1, 1, 4, 4, 4, 1, 4)),
    # parts of sequences are data's, as tokens are, but no replicas
    ({"data_parallel": 2, "context_parallel": 4, "model_parallel": 2, "use_seq_parallel": True}, 2,
        (1, 2, 8, 16, 2, 2, 1, 2)),
    # stages and shards of the optimizer do not cut an op
    ({"data_parallel": 2, "model_parallel": 2, "pipeline_stage": 2, "optimizer_shard": True}, 2,
        (1, 2, 2, 2, 2, 2, 1, 2)),
])  # fmt: skip
def test_every_word_has_a_number_of_parts(plan: dict, num_kv_heads: int, expected: tuple[int, ...]):
    assert parts(ParallelPlan(**plan), num_kv_heads) == expected
    assert set(WORDS) == set(Axis)


def test_a_process_with_its_own_slices_tells_the_compiler_nothing():
    rank = Placement(plan=ParallelPlan(data_parallel=2, model_parallel=4), rank=5)
    for place in (ALONE, rank):
        op = RecordingOp()
        assert place.split(op, (DATA, MODEL), (WHOLE,), output=(SEQUENCE, WHOLE)) is op
        assert op.strategies is None
        assert [place.parts(word) for word in WORDS] == [1] * 8
        model = staged_model(4)
        place.assign_stages(model)
        assert not any(hasattr(cell, "pipeline_stage") for cell in cells(model))


def test_a_strategy_has_a_number_for_every_axis_of_every_input():
    place = auto_parallel_placement(ParallelPlan(data_parallel=2, model_parallel=4, use_seq_parallel=True), 2)
    op = RecordingOp()
    assert place.split(op, (DATA, MODEL, WHOLE), (KEY_VALUE,), (SEQUENCE, WHOLE), ()) is op
    assert op.strategies == (((2, 4, 1), (2,), (8, 1), ()),)
    op = place.split(RecordingOp(), (DATA, MODEL), (WHOLE, MODEL), output=(SEQUENCE, WHOLE))
    assert op.strategies == (((2, 4), (1, 4)), ((8, 1),)), "an output has one of its own where it is named"


def test_mindspore_takes_the_strategies(cpu_runtime):
    place = auto_parallel_placement(ParallelPlan(data_parallel=2, model_parallel=4), 2)
    op = place.split(ops.MatMul(transpose_b=True), (DATA, MODEL), (WHOLE, MODEL), output=(SEQUENCE, WHOLE))
    assert isinstance(op, ops.MatMul)
    assert op.in_strategy == ((2, 4), (1, 4)) and op.out_strategy == ((2, 1),)


def test_to_the_layers_it_is_a_process_that_holds_everything():
    plan = ParallelPlan(data_parallel=2, model_parallel=4, pipeline_stage=2, micro_batch_num=2, vocab_emb_dp=False)
    place = auto_parallel_placement(plan, 2)
    assert isinstance(place, AutoParallelPlacement) and place.divided is plan
    assert place.plan == ALONE.plan and place.model_parallel == 1
    assert place.is_first_stage and place.is_last_stage and place.is_speaker
    assert place.own_layers(6) == range(6) and place.share(12) == 12 and place.share(2, units=2) == 2


@pytest.mark.parametrize(("plan", "is_whole"), [
    ({"model_parallel": 4}, True),
    ({"model_parallel": 4, "vocab_emb_dp": False}, False),
    ({"data_parallel": 4, "vocab_emb_dp": False}, True),
])  # fmt: skip
def test_the_table_is_split_where_the_plan_says_so(plan: dict, is_whole: bool):
    assert auto_parallel_placement(ParallelPlan(**plan), 2).is_embedding_whole == is_whole
    assert Placement(plan=ParallelPlan(**plan), rank=0).is_embedding_whole == is_whole


def staged_model(num_layers: int) -> SimpleNamespace:
    layers = [SimpleNamespace() for _ in range(num_layers)]
    return SimpleNamespace(embed_tokens=SimpleNamespace(), layers=layers, norm=SimpleNamespace())


def cells(model: SimpleNamespace) -> list[SimpleNamespace]:
    return [model.embed_tokens, *model.layers, model.norm]


@pytest.mark.parametrize(
    ("stages", "num_layers", "expected"),
    [(2, 4, [0, 0, 0, 1, 1, 1]), (4, 4, [0, 0, 1, 2, 3, 3]), (2, 6, [0, 0, 0, 0, 1, 1, 1, 1])],
)
def test_layers_belong_to_stages_in_equal_runs(stages: int, num_layers: int, expected: list[int]):
    plan = ParallelPlan(model_parallel=2, pipeline_stage=stages, micro_batch_num=stages)
    model = staged_model(num_layers)
    auto_parallel_placement(plan, 2).assign_stages(model)
    assert [cell.pipeline_stage for cell in cells(model)] == expected
    # They are the layers that a rank of each stage builds where a process holds its own.
    for stage in range(stages):
        own = Placement(plan=plan, rank=stage * 2).own_layers(num_layers)
        assert [number for number in range(num_layers) if expected[number + 1] == stage] == list(own)
    one_stage = staged_model(2)
    auto_parallel_placement(ParallelPlan(model_parallel=2), 2).assign_stages(one_stage)
    assert not any(hasattr(cell, "pipeline_stage") for cell in cells(one_stage))


def test_a_model_is_built_with_its_stages(cpu_runtime):
    section = ModelSection(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip
    plan = ParallelPlan(pipeline_stage=2, micro_batch_num=2)
    model = build_model(section, auto_parallel_placement(plan, 1))
    assert [cell.pipeline_stage for cell in cells(model)] == [0, 0, 0, 1, 1, 1]
