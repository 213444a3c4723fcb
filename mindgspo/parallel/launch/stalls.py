"""Notices that a job has stopped to move, and that a cluster does not form.

What enters: the heartbeats of all ranks, and the time. What leaves: what has begun or ended. Pure; `launch.watch`
asks, and tells the user.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from mindgspo.config.schema import WatchSection
from mindgspo.parallel.launch.heartbeat import MEETING, Record, State, awaited

_NUM_STEP_TIMES = 50  # of the last steps the median is taken, so that the limit follows growing responses
REPORT_MEETING_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """No rank has made progress for `seconds`; the others wait for `ranks`. limit_s: what `seconds` exceeds."""

    ranks: tuple[int, ...]
    seconds: float
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GoesOn:
    """The stall that was reported has ended after `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """The cluster has not formed after `seconds`; `ranks` of this node have not come, which may be none."""

    ranks: tuple[int, ...]
    seconds: float


class StallWatch:
    """Told about all ranks' records every now and then, says once that a stall has begun and once that it has ended."""

    def __init__(self, section: WatchSection, now: float) -> None:
        """now: seconds of any clock that does not jump, here and in `observe`."""
        self._section = section
        self._sequences: dict[int, tuple[int, int]] = {}
        self._moved_at = now
        self._is_reported = False
        self._steps = _StepTimes()

    def observe(self, records: Mapping[int, Record | None], now: float) -> Stall | GoesOn | None:
        """records: by rank, None for one that has not come."""
        self._steps.observe(records, now)
        sequences = {rank: record.sequence for rank, record in records.items() if record is not None}
        if sequences != self._sequences:
            return self._moves(sequences, now)
        seconds = now - self._moved_at
        ranks = awaited(records)
        limit = self.limit_s
        if self._is_reported or not ranks or seconds < limit:
            return None
        self._is_reported = True
        return Stall(ranks=ranks, seconds=seconds, limit_s=limit)

    def _moves(self, sequences: dict[int, tuple[int, int]], now: float) -> GoesOn | None:
        stood_still = now - self._moved_at
        was_reported = self._is_reported
        self._sequences, self._moved_at, self._is_reported = sequences, now, False
        return GoesOn(seconds=stood_still) if was_reported else None

    @property
    def limit_s(self) -> float:
        """Seconds without progress that count as a stall now."""
        return max(self._section.min_seconds, self._section.factor * self._steps.median_s)


class _StepTimes:
    """Seconds from one step to the next, as the foremost rank shows them. Step 0 is what comes before the first."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._began = 0.0
        self._seconds: deque[float] = deque(maxlen=_NUM_STEP_TIMES)

    def observe(self, records: Mapping[int, Record | None], now: float) -> None:
        entered = [record.step for record in records.values() if record is not None and record.entered > 0]
        step = max(entered, default=None)
        if step is None or step == self._step:
            return
        if self._step and step > self._step:
            self._seconds.append((now - self._began) / (step - self._step))
        self._step, self._began = step, now

    @property
    def median_s(self) -> float:
        """0 until a step has ended."""
        return median(self._seconds) if self._seconds else 0.0


class MeetingWatch:
    """Says every `REPORT_MEETING_S` who has not come, until all ranks of this node are past the meeting (is_over)."""

    def __init__(self, now: float) -> None:
        self._began = self._spoke = now
        self.is_over = False

    def observe(self, records: Mapping[int, Record | None], now: float) -> Meeting | None:
        """As `StallWatch.observe`."""
        if self.is_over:
            return None
        self.is_over = all(record is not None and _is_past(record) for record in records.values())
        if self.is_over or now - self._spoke < REPORT_MEETING_S:
            return None
        self._spoke = now
        absent = tuple(rank for rank, record in records.items() if record is None or record.entered == 0)
        return Meeting(ranks=absent, seconds=now - self._began)


def _is_past(record: Record) -> bool:
    return record.state is not State.STARTING and record.stage != MEETING
