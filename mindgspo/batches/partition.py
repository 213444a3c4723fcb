"""Numbers spread over parts with nearly equal sums, and samples packed into rows.

Equal input gives equal output on every rank.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

# Content of a part while it grows: nothing, an index, or two such contents.
_Tree = None | int | tuple["_Tree", "_Tree"]
_Sums = list[tuple[int, _Tree]]


def partition(costs: Sequence[int], num_parts: int, *, equal_counts: bool = False) -> list[list[int]]:
    """num_parts lists of indices, ascending, every index in one of them; parts may be empty.

    equal_counts: the parts' lengths differ by at most one. The spread, largest minus smallest sum, is never more than
    that of `dealt`. About n p log(n p) steps for n costs and p parts.
    """
    assert num_parts > 0 and all(cost >= 0 for cost in costs), f"{num_parts} parts of {list(costs)[:8]} ..."
    if not costs:
        return [[] for _ in range(num_parts)]
    found = _differenced(costs, num_parts, equal_counts)
    return min(found, dealt(costs, num_parts), key=lambda parts: _spread(costs, parts))


def dealt(costs: Sequence[int], num_parts: int) -> list[list[int]]:
    """Parts made by dealing costs out in turn, largest first; `partition` is measured against it."""
    order = _largest_first(costs)
    return [sorted(order[part::num_parts]) for part in range(num_parts)]


def _spread(costs: Sequence[int], parts: Sequence[Sequence[int]]) -> int:
    sums = [sum(costs[index] for index in part) for part in parts]
    return max(sums) - min(sums)


def _largest_first(costs: Sequence[int]) -> list[int]:
    return sorted(range(len(costs)), key=lambda index: (-costs[index], index))


def _differenced(costs: Sequence[int], num_parts: int, equal_counts: bool) -> list[list[int]]:
    """Solutions for few items are joined until one is left: always the two with the largest spreads, the large parts
    of one with the small parts of the other, so that their differences cancel."""
    heap = [(-_width(sums), number, sums) for number, sums in enumerate(_starts(costs, num_parts, equal_counts))]
    heapq.heapify(heap)
    for number in range(len(heap), 2 * len(heap) - 1):
        _, _, first = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        pairs = zip(first, reversed(second), strict=True)
        joined = [(a + b, _both(left, right)) for (a, left), (b, right) in pairs]
        joined.sort(key=lambda part: -part[0])
        heapq.heappush(heap, (-_width(joined), number, joined))
    ((_, _, sums),) = heap
    return [sorted(_indices(tree)) for _, tree in sums]


def _starts(costs: Sequence[int], num_parts: int, equal_counts: bool) -> Iterator[_Sums]:
    """One item each; with equal counts one for every part, neighbours in size."""
    order = _largest_first(costs)
    size = num_parts if equal_counts else 1
    for start in range(0, len(order), size):
        items: _Sums = [(costs[index], index) for index in order[start : start + size]]
        yield [*items, *[(0, None)] * (num_parts - len(items))]


def _width(sums: _Sums) -> int:
    return sums[0][0] - sums[-1][0]


def _both(left: _Tree, right: _Tree) -> _Tree:
    if left is None or right is None:
        return right if left is None else left
    return (left, right)


def _indices(tree: _Tree) -> Iterator[int]:
    open_trees = [tree]
    while open_trees:
        tree = open_trees.pop()
        if isinstance(tree, tuple):
            open_trees += tree
        elif tree is not None:
            yield tree


def pack_rows(lengths: Sequence[int], *, row_length: int) -> list[list[int]]:
    """Best fit, longest first: each sample goes into the fullest row that it fits into, else into a new one. Never
    more than 11/9 of the fewest rows and one (Johnson, 1973)."""
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    rows: list[list[int]] = []
    free_slots: list[tuple[int, int]] = []  # (free, row), ascending
    for index in order:
        needed = lengths[index]
        assert needed <= row_length, f"{needed} tokens, rows of {row_length}"
        found = bisect_left(free_slots, (needed, -1))
        if found < len(free_slots):
            free, row = free_slots.pop(found)
        else:
            free, row = row_length, len(rows)
            rows.append([])
        rows[row].append(index)
        insort(free_slots, (free - needed, row))
    return rows
