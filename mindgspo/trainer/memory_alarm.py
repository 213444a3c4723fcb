"""The alarm about memory that grows from step to step, on any rank.

What enters: every rank's resident memory, measured at the same place of each step. What leaves: metrics, and one
warning per rank. Called by `loop`, on every rank; rank 0 speaks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from mindgspo.metrics import rss_gb
from mindgspo.parallel import runtime
from mindgspo.parallel.collectives import sum_over_world
from mindgspo.parallel.swap.mapped_memory import free_memory_bytes
from mindgspo.trainer.memory_growth import WINDOW, Growth, growth_of, steps_until_full

# Graphs are compiled, caches fill, and the first checkpoint and evaluation are made.
_SKIPPED_STEPS = 10


def resident_gb_of_ranks() -> list[float]:
    """Of every rank, now. All ranks call it."""
    figures = np.zeros(runtime.world_size(), np.float32)
    figures[runtime.rank()] = rss_gb()
    sum_over_world(figures)
    return figures.tolist()


class MemoryAlarm:
    """One per process. share: watch.memory_growth; None: no alarm."""

    def __init__(self, share: float | None) -> None:
        self._share = share
        self._series: deque[list[float]] = deque(maxlen=WINDOW)
        self._warned: set[int] = set()
        self._num_steps = 0

    def observe(self, resident_gb: Sequence[float], room_gb: float | None = None) -> str | None:
        """The figures of one more step, by rank. Returns a warning about ranks that were not warned of before.

        room_gb: what this machine has left; None: asked when it is needed.
        """
        self._num_steps += 1
        if self._share is None or self._num_steps <= _SKIPPED_STEPS:
            return None
        self._series.append(list(resident_gb))
        growing = {
            rank: growth
            for rank in range(len(resident_gb))
            if (growth := growth_of([figures[rank] for figures in self._series], self._share)) is not None
        }
        if not growing.keys() - self._warned:
            return None
        self._warned |= growing.keys()
        return _warning(growing, free_memory_bytes() / 2**30 if room_gb is None else room_gb)


def memory_metrics(resident_gb: Sequence[float]) -> dict[str, float]:
    """What the log gets where there are several ranks; rank 0's own figure is there anyway."""
    return {"perf/cpu_memory_used_max_gb": max(resident_gb)} if len(resident_gb) > 1 else {}


def _warning(growing: Mapping[int, Growth], room_gb: float) -> str:
    ranks = "; ".join(
        f"rank {rank} holds {growth.gb:.2f} GB and grows by {growth.gb_per_step * 1024:.1f} MB per step"
        for rank, growth in sorted(growing.items())
    )
    steps = steps_until_full(room_gb, sum(growth.gb_per_step for growth in growing.values()))
    return (
        f"warning: resident memory grows: {ranks}. The {room_gb:.1f} GB that are free for this process last for about "
        f"{steps} more steps. Ever more compiled graphs: raise trainer.length_multiple. Else it is a leak: report it, "
        "and meanwhile save often (trainer.save_every) and resume"
    )
