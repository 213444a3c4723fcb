"""Warns of resident memory that grows from step to step, on any rank.

The window of the latest steps is cut into four quarters, and the lowest reading of each is compared: it must rise from
quarter to quarter. So memory that is freed again (a saw-tooth) is not growth, nor is memory that is taken once and kept
(a graph compiled for another shape).

Metrics:
  Progress, time and memory:
    perf/cpu_memory_used_max_gb:
      meaning: the largest resident memory of any rank, where there are several
      unit: GB
      healthy: steady after a few steps
      action: steady growth is told with its rank (watch.memory_growth)
    perf/max_memory_allocated_gb:
      meaning: on Ascend, the most that tensors have taken on any card since the run began, generation included
      unit: GB
      healthy: steady after the first steps, near what `mindgspo plan` counts without the framework
      action: far above it, see the phases of `mindgspo plan`
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mindgspo.metrics import rss_gb
from mindgspo.parallel.collectives.host import sum_over_world
from mindgspo.parallel.platform import runtime
from mindgspo.swap.mapped_memory import free_memory_bytes

QUARTER = 12  # steps; the lowest reading of so many leaves out memory that is freed again
WINDOW = 4 * QUARTER
"""Steps that are looked at."""
# Least growth of each quarter, as a share of the quarters' mean growth.
_LEAST_PART = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Steady growth of one rank's resident memory."""

    gb: float
    """Latest reading."""
    gb_per_step: float
    """Rise between the lowest readings of the first and of the last quarter, per step."""


def growth_of(readings: Sequence[float], share_per_100_steps: float) -> Growth | None:
    """Growth over the last `WINDOW` readings by more than this share of the level per 100 steps; None if it is less,
    not steady, or there are fewer readings."""
    if len(readings) < WINDOW:
        return None
    window = readings[-WINDOW:]
    lowest = [min(window[start : start + QUARTER]) for start in range(0, WINDOW, QUARTER)]
    rises = [later - earlier for earlier, later in pairwise(lowest)]
    mean_rise = sum(rises) / len(rises)
    gb_per_step = mean_rise / QUARTER
    if 100 * gb_per_step <= share_per_100_steps * lowest[0] or min(rises) < _LEAST_PART * mean_rise:
        return None
    return Growth(gb=window[-1], gb_per_step=gb_per_step)


# Graphs are compiled, caches fill, and the first checkpoint and evaluation are made.
_SKIPPED_STEPS = 10


def resident_gb_of_ranks() -> list[float]:
    """Return the resident memory of every rank, in GB. All ranks call it."""
    return _of_ranks(rss_gb())


def allocated_gb_of_ranks() -> list[float]:
    """Return the most that tensors have taken on the card of every rank, in GB; [] on a CPU. All ranks call it."""
    peak = runtime.peak_device_bytes()
    return [] if peak is None else _of_ranks(peak / 2**30)


def _of_ranks(own: float) -> list[float]:
    readings = np.zeros(runtime.world_size(), np.float32)
    readings[runtime.rank()] = own
    sum_over_world(readings)
    return readings.tolist()


class MemoryAlarm:
    """One per process. share: watch.memory_growth; None: no alarm."""

    def __init__(self, share: float | None) -> None:
        self._share = share
        self._series: deque[list[float]] = deque(maxlen=WINDOW)
        self._warned: set[int] = set()
        self._num_steps = 0

    def observe(self, resident_gb: Sequence[float], room_gb: float | None = None) -> str | None:
        """Record the readings of a step, by rank. Returns a warning about ranks that no earlier warning named.

        room_gb: memory that this machine has left; None: read when it is needed.
        """
        self._num_steps += 1
        if self._share is None or self._num_steps <= _SKIPPED_STEPS:
            return None
        self._series.append(list(resident_gb))
        growing = {
            rank: growth
            for rank in range(len(resident_gb))
            if (growth := growth_of([readings[rank] for readings in self._series], self._share)) is not None
        }
        if not growing.keys() - self._warned:
            return None
        self._warned |= growing.keys()
        return _warning(growing, free_memory_bytes() / 2**30 if room_gb is None else room_gb)


def memory_metrics(resident_gb: Sequence[float], allocated_gb: Sequence[float]) -> dict[str, float]:
    """Largest readings of all ranks. A single rank's resident memory is logged anyway; allocated_gb: [] on a CPU."""
    resident = {"perf/cpu_memory_used_max_gb": max(resident_gb)} if len(resident_gb) > 1 else {}
    return resident | ({"perf/max_memory_allocated_gb": max(allocated_gb)} if allocated_gb else {})


def _warning(growing: Mapping[int, Growth], room_gb: float) -> str:
    ranks = "; ".join(
        f"rank {rank} holds {growth.gb:.2f} GB and grows by {growth.gb_per_step * 1024:.1f} MB per step"
        for rank, growth in sorted(growing.items())
    )
    steps = math.floor(room_gb / sum(growth.gb_per_step for growth in growing.values()))
    return (
        f"warning: resident memory grows: {ranks}. The {room_gb:.1f} GB that are free for this process last for about "
        f"{steps} more steps. Ever more compiled graphs: raise trainer.length_multiple. Else it is a leak: report it, "
        "and meanwhile save often (trainer.save_every) and resume"
    )
