"""Rank arithmetic: MindSpore's order of axes, groups by hand and as partitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.config.plan import ParallelPlan
from mindgspo.parallel.plans.placement import (
    Coordinates,
    RankGrid,
    Ranks,
    device_coordinate,
    layers_of_stage,
    stage_of_layer,
)


def grid(data: int, model: int, stages: int, context: int = 1) -> RankGrid:
    return RankGrid(
        ParallelPlan(data_parallel=data, model_parallel=model, pipeline_stage=stages, context_parallel=context)
    )


def groups_of(any_grid: RankGrid, name: str) -> set[Ranks]:
    return {getattr(any_grid, name)(rank) for rank in range(any_grid.world_size)}


def test_pipeline_is_outermost_and_model_parallel_innermost():
    small = grid(2, 2, 2)
    at = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 1), (1, 1, 1)]
    expected = [Coordinates(stage=stage, data=data, model=model) for stage, data, model in at]
    assert [small.coordinates(rank) for rank in (0, 1, 2, 5, 7)] == expected
    assert small.stage_ranks(1) == (4, 5, 6, 7)


def test_groups_of_1_x_4_x_2_and_of_2_x_4_x_1():
    train, infer = grid(1, 4, 2), grid(2, 4, 1)
    for one, other in (("model", "model"), ("data", "pipeline"), ("pipeline", "data")):
        assert groups_of(train, f"{one}_group") == groups_of(infer, f"{other}_group")
    assert groups_of(train, "model_group") == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert groups_of(train, "data_group") == {(rank,) for rank in range(8)}
    assert groups_of(train, "pipeline_group") == {(0, 4), (1, 5), (2, 6), (3, 7)}


def test_device_axes_are_counted_from_the_right():
    # Matrix (2, 3, 4): position 17 is (1, 1, 1).
    assert [device_coordinate(17, (2, 3, 4), axis) for axis in (0, 1, 2)] == [1, 1, 1]
    assert [device_coordinate(11, (2, 3, 4), axis) for axis in (0, 1, 2)] == [3, 2, 0]


def test_parts_of_sequences_stand_between_replicas_and_slices():
    small = grid(2, 2, 2, context=2)
    assert small.coordinates(11) == Coordinates(stage=1, data=0, context=1, model=1)
    assert [small.context_group(rank) for rank in (0, 3, 13)] == [(0, 2), (1, 3), (13, 15)]
    assert small.model_group(11) == (10, 11) and small.pipeline_group(11) == (3, 11)
    # Gradients are summed over replicas and parts.
    assert small.data_group(11) == (9, 11, 13, 15)


@given(data=st.integers(1, 4), model=st.integers(1, 4), stages=st.integers(1, 4), context=st.integers(1, 4))
def test_coordinates_and_groups_are_consistent(data: int, model: int, stages: int, context: int):
    any_grid = grid(data, model, stages, context)
    assert any_grid.world_size == data * model * stages * context
    for rank in range(any_grid.world_size):
        at = any_grid.coordinates(rank)
        assert any_grid.rank(stage=at.stage, data=at.data, context=at.context, model=at.model) == rank
        assert any_grid.context_group(rank)[at.context] == rank and len(any_grid.context_group(rank)) == context
        assert rank in any_grid.stage_ranks(at.stage)
    for name, size in (("model_group", model), ("data_group", data * context), ("pipeline_group", stages)):
        groups = groups_of(any_grid, name)
        assert {len(group) for group in groups} == {size}
        assert sorted(rank for group in groups for rank in group) == list(range(any_grid.world_size))


def test_blocks_are_runs_of_a_stages_ranks():
    small = grid(4, 2, 2)
    assert [small.block(rank, 4) for rank in (0, 3, 14)] == [(0, 1, 2, 3), (0, 1, 2, 3), (12, 13, 14, 15)]
    assert small.block(9, 8) == small.stage_ranks(1) and small.block(9, 1) == (9,)
    with pytest.raises(AssertionError, match="runs of 3 ranks in a stage of 8"):
        small.block(0, 3)


def test_stages_have_equal_runs_of_layers_and_the_last_ones_fewer():
    def runs(num_layers: int, stages: int) -> list[range]:
        return [layers_of_stage(stage, stages=stages, num_layers=num_layers) for stage in range(stages)]

    assert runs(28, 4) == [range(0, 7), range(7, 14), range(14, 21), range(21, 28)]
    assert runs(7, 3) == [range(0, 3), range(3, 5), range(5, 7)]
    for num_layers in range(1, 30):
        for stages in range(1, num_layers + 1):
            of_stages = runs(num_layers, stages)
            assert [layer for run in of_stages for layer in run] == list(range(num_layers))
            lengths = list(map(len, of_stages))
            assert lengths == sorted(lengths, reverse=True) and max(lengths) - min(lengths) <= 1 <= min(lengths)
            for layer in range(num_layers):
                assert layer in of_stages[stage_of_layer(layer, stages=stages, num_layers=num_layers)]
