"""Samples laid one behind another into rows of one length, as few rows as a simple rule finds.

What enters: lengths. What leaves: for every row the indices of its samples. Called by `micro_batches`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence


def packed(lengths: Sequence[int], *, row_length: int, max_rows: int | None = None) -> list[list[int]]:
    """Best fit, longest first: each sample goes into the fullest row that has room for it, else into a new one. Never
    more than 11/9 of the fewest rows and one (Johnson, 1973).

    max_rows: samples that need more rows are in none of them.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    rows: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (room, row), ascending
    for index in order:
        needed = lengths[index]
        assert needed <= row_length, f"{needed} tokens, rows of {row_length}"
        found = bisect_left(rooms, (needed, -1))
        if found < len(rooms):
            room, row = rooms.pop(found)
        elif max_rows is None or len(rows) < max_rows:
            room, row = row_length, len(rows)
            rows.append([])
        else:
            continue
        rows[row].append(index)
        insort(rooms, (room - needed, row))
    return rows
