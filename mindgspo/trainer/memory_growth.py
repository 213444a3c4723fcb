"""Whether a series of memory figures grows steadily, and when it would hit a limit. Pure.

What enters: resident memory per step, in GB. What leaves: a `Growth`, or None. Called by `memory_alarm`.

The window is cut into four quarters, and the lowest figure of each is looked at: it must rise from quarter to quarter.
So what is freed again (a saw-tooth) is no growth, nor is what came once and stays (a graph compiled for another shape).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

QUARTER = 12
WINDOW = 4 * QUARTER
"""Steps that are looked at."""
# What a quarter must contribute to the growth, as a share of a quarter's mean contribution.
_LEAST_PART = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """gb: the latest figure. gb_per_step: between the lowest of the first and of the last quarter."""

    gb: float
    gb_per_step: float


def growth_of(figures: Sequence[float], share_per_100_steps: float) -> Growth | None:
    """Growth over the last `WINDOW` figures by more than this share of the level per 100 steps; None where it is less,
    not steady, or there are fewer figures."""
    if len(figures) < WINDOW:
        return None
    window = figures[-WINDOW:]
    lowest = [min(window[start : start + QUARTER]) for start in range(0, WINDOW, QUARTER)]
    rises = [later - earlier for earlier, later in pairwise(lowest)]
    mean_rise = sum(rises) / len(rises)
    gb_per_step = mean_rise / QUARTER
    if 100 * gb_per_step <= share_per_100_steps * lowest[0] or min(rises) < _LEAST_PART * mean_rise:
        return None
    return Growth(gb=window[-1], gb_per_step=gb_per_step)


def steps_until_full(room_gb: float, gb_per_step: float) -> int:
    """Whole steps until what is free is used up."""
    return max(0, math.floor(room_gb / gb_per_step))
