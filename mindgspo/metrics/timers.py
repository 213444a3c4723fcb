"""Wall-clock timers and memory readings of this process.

Metrics:
  Progress, time and memory:
    timing_s/<phase>:
      meaning: 'wall time of a phase: gen, reward, old_log_prob, adv, update_actor, update_weights, step, testing,
        warm_up'
      unit: s
      healthy: gen and update_actor are the largest
      action: 'reward large: a slow verifier; update_weights large: see the parallel plans'
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil


class Timers:
    """Sums wall time by phase: `with timers("gen"): ...` adds to timing_s/gen. Phases may nest.

    clock: seconds from an arbitrary origin; a fake in tests. on_enter: called with the name of every phase that begins.
    on_exit: with the name of every one that ends without an error, its start by the clock, and its seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        on_enter: Callable[[str], None] = lambda phase: None,
        on_exit: Callable[[str, float, float], None] = lambda phase, start, seconds: None,
    ) -> None:
        self._clock, self._on_enter, self._on_exit = clock, on_enter, on_exit
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self._on_enter(phase)
        start = self._clock()
        try:
            yield
        finally:
            seconds = self._clock() - start
            self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds
        self._on_exit(phase, start, seconds)

    def seconds(self, phase: str) -> float:
        """Seconds summed for `phase` since the last `collect`, 0 if it was not entered."""
        return self._seconds.get(phase, 0.0)

    def collect(self) -> dict[str, float]:
        """Metrics timing_s/<phase>; the sums start again from 0."""
        metrics = {f"timing_s/{phase}": seconds for phase, seconds in self._seconds.items()}
        self._seconds = {}
        return metrics


def peak_rss_mb() -> float:
    """Largest resident memory of this process since its start, in MB (2**20 bytes); children not included."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    # Not getrusage's, which on Linux begins with what the parent held when it forked.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 2**10


def rss_gb() -> float:
    """Resident memory of this process now, in GB (2**30 bytes)."""
    return psutil.Process().memory_info().rss / 2**30
