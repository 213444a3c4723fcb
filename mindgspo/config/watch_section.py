"""The section `watch`: when a run counts as stalled, and when its memory counts as growing.

What enters: plain values from `config.load`. What leaves: a frozen `WatchSection`. Read by `parallel.launch.stalls` and
`trainer.memory_alarm`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mindgspo.config.section import Section


class WatchSection(Section):
    """A stall is reported with the ranks that the others wait for and the Python lines where they are."""

    factor: float = Field(default=10.0, ge=1.0)
    """Multiple of the median step time without progress of any worker that is a stall. 10: evaluations and
    checkpoints take a few steps' time, and a report is no harm. Below 1 every step would be one."""
    min_seconds: float = Field(default=300.0, gt=0.0)
    """Seconds without progress before which nothing is a stall; before the first step has ended this alone counts.
    300: graphs of large models take minutes to compile."""
    on_stall: Literal["report", "stop"] = "report"
    """What follows a report. report: nothing, the run may go on. stop: all workers of this machine are ended and the
    exit code is 124, so that whatever started the run can start it again with resume=auto. With stop, min_seconds must
    exceed the longest compilation and the longest job of a reward function."""
    memory_growth: float | None = Field(default=0.05, gt=0.0)
    """Share of its resident memory by which a worker may grow per 100 steps; a steady growth beyond it, over 48 steps
    from the 11th of a process on, is told once per worker. 0.05: runs that compile no new graphs grow by less than
    0.01. None: no alarm."""
    poll_seconds: float = Field(default=1.0, gt=0.0)
    """Seconds between two looks at the workers' heartbeats. 1: a look reads one small file per worker."""
