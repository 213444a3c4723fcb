"""Rank arithmetic: MindSpore's order of axes, groups by hand and as partitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.config.plan import ParallelPlan
from mindgspo.errors import ConfigError
from mindgspo.parallel.ranks import Coordinates, RankGrid, device_coordinate


def grid(data: int, model: int, stages: int) -> RankGrid:
    return RankGrid.of(ParallelPlan(data_parallel=data, model_parallel=model, pipeline_stage=stages))


def test_pipeline_is_outermost_and_model_parallel_innermost():
    small = grid(2, 2, 2)
    at = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 1), (1, 1, 1)]
    expected = [Coordinates(stage=stage, data=data, model=model) for stage, data, model in at]
    assert [small.coordinates(rank) for rank in (0, 1, 2, 5, 7)] == expected
    assert small.stage_ranks(1) == (4, 5, 6, 7)


def test_groups_of_1_x_4_x_2_and_of_2_x_4_x_1():
    train, infer = grid(1, 4, 2), grid(2, 4, 1)
    assert train.model_groups() == infer.model_groups() == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert train.data_groups() == infer.pipeline_groups() == tuple((rank,) for rank in range(8))
    assert train.pipeline_groups() == infer.data_groups() == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_device_axes_are_counted_from_the_right():
    # Matrix (2, 3, 4): position 17 is (1, 1, 1).
    assert [device_coordinate(17, (2, 3, 4), axis) for axis in (0, 1, 2)] == [1, 1, 1]
    assert [device_coordinate(11, (2, 3, 4), axis) for axis in (0, 1, 2)] == [3, 2, 0]


@given(data=st.integers(1, 5), model=st.integers(1, 5), stages=st.integers(1, 5))
def test_coordinates_and_groups_are_consistent(data: int, model: int, stages: int):
    any_grid = grid(data, model, stages)
    assert any_grid.world_size == data * model * stages
    for rank in range(any_grid.world_size):
        at = any_grid.coordinates(rank)
        assert any_grid.rank(stage=at.stage, data=at.data, model=at.model) == rank
        assert rank in any_grid.stage_ranks(at.stage)
    for groups, size in (
        (any_grid.model_groups(), model),
        (any_grid.data_groups(), data),
        (any_grid.pipeline_groups(), stages),
    ):
        assert {len(group) for group in groups} == {size}
        assert sorted(rank for group in groups for rank in group) == list(range(any_grid.world_size))


def test_an_axis_without_a_layout_is_refused():
    with pytest.raises(ConfigError, match="context_parallel: 2 has no layout.*the only legal value is 1"):
        RankGrid.of(ParallelPlan(context_parallel=2))


def test_blocks_are_runs_of_a_stages_ranks():
    grid = RankGrid(data_parallel=4, model_parallel=2, pipeline_stage=2)
    assert [grid.block(rank, 4) for rank in (0, 3, 14)] == [(0, 1, 2, 3), (0, 1, 2, 3), (12, 13, 14, 15)]
    assert grid.block(9, 8) == grid.stage_ranks(1) and grid.block(9, 1) == (9,)
    with pytest.raises(AssertionError, match="runs of 3 ranks in a stage of 8"):
        grid.block(0, 3)
