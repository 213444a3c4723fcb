"""Layouts in MindSpore's terms: slices by hand, their inverse, and what is refused."""

from __future__ import annotations

from itertools import permutations
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.errors import ConfigError
from mindgspo.parallel.plans.layout import Layout, TensorSlice


def layout(**changes: Any) -> Layout:
    """A matrix [8, 6] of 2 x 2 devices, rows over the inner device axis."""
    fields: dict[str, Any] = {
        "parameter": "w", "shape": (8, 6), "device_matrix": (2, 2), "tensor_map": (0, -1),
        "rank_list": (0, 1, 2, 3),
    }  # fmt: skip
    return Layout(**{**fields, **changes})


def rows(start: int, stop: int) -> TensorSlice:
    return TensorSlice((start, 0), (stop, 6))


@pytest.mark.parametrize(("tensor_map", "slices"), [
    ((0, -1), [rows(0, 4), rows(4, 8), rows(0, 4), rows(4, 8)]),  # over the inner device axis
    ((1, -1), [rows(0, 4), rows(0, 4), rows(4, 8), rows(4, 8)]),  # over the outer one
    # A tuple splits one axis twice, by its first device axis outermost.
    (((0, 1), -1), [rows(0, 2), rows(4, 6), rows(2, 4), rows(6, 8)]),
    (((1, 0), -1), [rows(0, 2), rows(2, 4), rows(4, 6), rows(6, 8)]),
])  # fmt: skip
def test_rows_over_device_axes(tensor_map: tuple, slices: list[TensorSlice]):
    assert [layout(tensor_map=tensor_map).slice_of(rank) for rank in range(4)] == slices
    for ranks in permutations((3, 5, 8, 9)):  # the rank list says who the devices are
        moved = layout(tensor_map=tensor_map, rank_list=ranks)
        assert [moved.slice_of(rank) for rank in ranks] == slices
    assert moved.slice_of(0) is None, "the parameter does not live there"


def test_replicas_and_holders():
    inner = layout()
    assert (inner.splits, inner.slice_shape, inner.replicas) == ((2, 1), (4, 6), 2)
    assert (inner.holders((0, 0)), inner.holders((1, 0))) == ((0, 2), (1, 3))
    both = layout(tensor_map=(1, 0))
    assert both.slice_of(1) == TensorSlice((0, 3), (4, 6))
    assert both.slice_of(2) == TensorSlice((4, 0), (8, 3)) and both.replicas == 1
    # Few heads, (data 1, heads 2, ranks per head 4): eight ranks, two distinct slices.
    few = layout(device_matrix=(1, 2, 4), tensor_map=(1, -1), rank_list=tuple(range(8)))
    assert (few.holders((0, 0)), few.holders((1, 0)), few.replicas) == ((0, 1, 2, 3), (4, 5, 6, 7), 4)
    scalar = layout(shape=(), tensor_map=())
    assert scalar.replicas == 4 and scalar.slice_of(3) == TensorSlice((), ())


def test_placements_are_compared_by_slices_not_by_spelling():
    assert layout().same_placement(layout(device_matrix=(2, 2, 1), tensor_map=(1, -1)))
    assert not layout().same_placement(layout(tensor_map=(1, -1)))
    assert layout() == layout(parameter="another"), "two parameters laid out alike"


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    matrix = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    free = draw(st.permutations(range(len(matrix))))
    num_axes = draw(st.integers(0, 3))
    taken = [draw(st.integers(0, 2)) for _ in range(num_axes)]
    tensor_map: list[int | tuple[int, ...]] = []
    for count in taken:
        axes, free = tuple(free[:count]), free[count:]
        tensor_map.append(axes if len(axes) > 1 else axes[0] if axes else -1)
    axes_of = [entry if isinstance(entry, tuple) else (entry,) for entry in tensor_map]
    shape = tuple(draw(st.integers(1, 3)) * prod(matrix[-1 - axis] for axis in axes if axis >= 0) for axes in axes_of)
    ranks = draw(st.permutations(range(prod(matrix) + 2)))[: prod(matrix)]
    return Layout(
        parameter="w", shape=shape, device_matrix=matrix, tensor_map=tuple(tensor_map), rank_list=tuple(ranks)
    )


@given(any_layout=layouts())
def test_slices_tile_the_tensor_and_holders_are_the_inverse(any_layout: Layout):
    counts = np.zeros(any_layout.shape, dtype=int)
    for index in any_layout.slice_indices():
        block = any_layout.slice_at(index)
        counts[block.index] += 1
        assert len(any_layout.holders(index)) == any_layout.replicas
        assert {any_layout.slice_of(rank) for rank in any_layout.holders(index)} == {block}
    assert (counts == 1).all()
    held = [rank for index in any_layout.slice_indices() for rank in any_layout.holders(index)]
    assert sorted(held) == sorted(any_layout.rank_list)


@pytest.mark.parametrize(("changes", "message"), [
    ({"shape": (10, 6), "device_matrix": (1, 4)},
        r"w axis 0: 10 elements do not divide into 4 equal slices .*; nearest legal: 2 or 5"),
    ({"shape": (8, 3), "tensor_map": (-1, (0, 1))},
        r"w axis 1: 3 elements do not divide into 4 equal slices .*; nearest legal: 3"),
    ({"tensor_map": (0,)}, r"w: tensor map \(0,\) has 1 entries for 2 axes"),
    ({"tensor_map": (2, -1)}, r"w: tensor map \(2, -1\) may name the device axes 0 to 1"),
    ({"tensor_map": (-2, -1)}, r"may name the device axes 0 to 1"),
    ({"tensor_map": (0, 0)}, r"splits by one device axis twice"),
    ({"device_matrix": (2, 3)}, r"arranges 6 ranks, the rank list has 4"),
    ({"rank_list": (0, 1, 1, 2)}, r"must name every rank once"),
    ({"rank_list": (-1, 1, 0, 2)}, r"must name every rank once"),
    ({"shape": (0, 6)}, r"must have sizes of at least 1"),
])  # fmt: skip
def test_a_layout_that_cannot_be_is_refused_with_the_numbers(changes: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        layout(**changes)
