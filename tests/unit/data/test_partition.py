"""Numbers spread over parts: a case worked by hand, and what must hold for any."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.data.partition import dealt, partition


def sums(costs: list[int], parts: list[list[int]]) -> list[int]:
    return [sum(costs[index] for index in part) for part in parts]


def spread(costs: list[int], parts: list[list[int]]) -> int:
    return max(sums(costs, parts)) - min(sums(costs, parts))


def test_the_textbook_case_in_two_parts() -> None:
    # 8, 7, 6, 5, 4: differencing takes 8 - 7 = 1 and 6 - 5 = 1, then 4 - 1 = 3, then 3 - 1 = 2: sums 16 and 14. Dealing
    # gives 8 + 6 + 4 = 18 and 12.
    costs = [8, 7, 6, 5, 4]
    assert sorted(sums(costs, partition(costs, 2))) == [14, 16]
    assert sums(costs, dealt(costs, 2)) == [18, 12]


def test_three_parts_come_out_even_where_dealing_does_not() -> None:
    # The two widest solutions are joined crosswise: (9, 0, 0) with (8, 0, 0) is (9, 8, 0), with 7 it is (9, 8, 7); then
    # (6, 0, 0) goes to the 7, (5, 0, 0) to the 8, (4, 0, 0) to the 9: 13 each.
    costs = [4, 9, 6, 8, 5, 7]
    assert sums(costs, partition(costs, 3)) == [13, 13, 13]
    assert spread(costs, dealt(costs, 3)) == 4


@given(
    costs=st.lists(st.integers(0, 1000), max_size=40),
    num_parts=st.integers(1, 9),
    equal_counts=st.booleans(),
)
def test_every_index_once_and_never_worse_than_dealing(costs, num_parts, equal_counts) -> None:
    parts = partition(costs, num_parts, equal_counts=equal_counts)
    assert len(parts) == num_parts
    assert sorted(index for part in parts for index in part) == list(range(len(costs)))
    assert all(part == sorted(part) for part in parts)
    assert spread(costs, parts) <= spread(costs, dealt(costs, num_parts))
    if equal_counts:
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert partition(costs, num_parts, equal_counts=equal_counts) == parts, "ranks that disagree would hang"


@pytest.mark.parametrize("equal_counts", [False, True])
def test_many_lengths_come_out_nearly_even(equal_counts: bool) -> None:
    costs = np.random.default_rng(0).integers(50, 2000, 4096).tolist()
    found = partition(costs, 32, equal_counts=equal_counts)
    assert spread(costs, found) < 0.001 * sum(costs) / 32
    assert spread(costs, dealt(costs, 32)) > 0.01 * sum(costs) / 32
