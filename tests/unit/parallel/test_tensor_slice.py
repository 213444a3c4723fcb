"""Blocks of tensors: intersections, shifts and cuts, against numpy's own indexing."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.parallel.plans.layout import TensorSlice


def test_blocks_by_hand():
    block = TensorSlice((4, 0), (6, 3))
    assert (block.shape, block.size) == ((2, 3), 6)
    assert np.arange(32).reshape(8, 4)[block.index].tolist() == [[16, 17, 18], [20, 21, 22]]
    rows = TensorSlice((0, 0), (4, 8))
    assert rows.intersection(TensorSlice((2, 4), (6, 8))) == TensorSlice((2, 4), (4, 8))
    assert rows.intersection(TensorSlice((4, 0), (8, 8))) is None, "neighbours share a border, no element"
    assert TensorSlice((6, 4), (8, 8)).relative_to((4, 4)) == TensorSlice((2, 0), (4, 4))
    scalar = TensorSlice((), ())
    assert (scalar.size, scalar.intersection(scalar), list(scalar.blocks(1))) == (1, scalar, [scalar])


def test_blocks_are_even_runs_of_rows_cut_only_where_a_row_is_too_large():
    for block, size, parts in (
        (TensorSlice((10, 0), (17, 3)), 9, [((10, 0), (12, 3)), ((12, 0), (14, 3)), ((14, 0), (17, 3))]),
        (TensorSlice((0, 0), (2, 5)), 3, [((0, 0), (1, 2)), ((0, 2), (1, 5)), ((1, 0), (2, 2)), ((1, 2), (2, 5))]),
    ):
        assert [(part.starts, part.stops) for part in block.blocks(size)] == parts


@st.composite
def blocks_of_tensors(draw: st.DrawFn) -> TensorSlice:
    bounds = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=3))
    return TensorSlice(tuple(start for start, _ in bounds), tuple(start + length for start, length in bounds))


@given(block=blocks_of_tensors(), max_size=st.integers(1, 200))
def test_blocks_cover_every_element_once_within_the_bound(block: TensorSlice, max_size: int):
    counts = np.zeros(block.stops, dtype=int)
    for part in block.blocks(max_size):
        assert 1 <= part.size <= max_size
        counts[part.index] += 1
    assert counts.sum() == block.size
    assert (counts[block.index] == 1).all()


@given(a=blocks_of_tensors(), b=blocks_of_tensors())
def test_intersection_is_that_of_the_elements(a: TensorSlice, b: TensorSlice):
    if len(a.starts) != len(b.starts):
        return
    marks = np.zeros(tuple(map(max, a.stops, b.stops)), dtype=int)
    marks[a.index] += 1
    marks[b.index] += 1
    common = a.intersection(b)
    assert (marks == 2).sum() == (common.size if common else 0)
    if common:
        assert (marks[common.index] == 2).all()
