"""Samples laid one behind another into rows of one length, as few rows as a simple rule finds.

What enters: lengths. What leaves: for every row the indices of its samples. Called by `micro_batches`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence


def packed(lengths: Sequence[int], *, row_length: int, samples_per_row: int | None = None) -> list[list[int]]:
    """Best fit, longest first: each sample goes into the fullest row that has room for it. Never more than 11/9 of the
    fewest rows and one (Johnson, 1973).

    samples_per_row: at most so many samples in a row. A row of n samples then keeps samples_per_row - n slots free
    beside them, for segments of padding that make the number of segments equal in all rows; in other words a sample
    counts as one slot less than it has, and a row as samples_per_row less.
    """
    spared = 0 if samples_per_row is None else 1
    capacity = row_length - spared * (samples_per_row or 0)
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    rows: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (room, row) of rows that take more samples, ascending
    for index in order:
        needed = lengths[index] - spared
        assert needed <= capacity, f"{lengths[index]} tokens, rows of {row_length} for {samples_per_row} samples"
        found = bisect_left(rooms, (needed, -1))
        if found == len(rooms):
            room, row = capacity, len(rows)
            rows.append([])
        else:
            room, row = rooms.pop(found)
        rows[row].append(index)
        if len(rows[row]) != samples_per_row:
            insort(rooms, (room - needed, row))
    return rows
