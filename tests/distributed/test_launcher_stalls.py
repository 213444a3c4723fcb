"""When a job counts as stalled, and a cluster as not formed: hand-made heartbeats and a clock by hand."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from mindgspo.config.schema import WatchSection
from mindgspo.parallel.launch.heartbeat import MEETING, Record, State
from mindgspo.parallel.launch.stalls import GoesOn, Meeting, MeetingWatch, Stall, StallWatch


def at(step: int, entered: int, ticks: int = 0, *, stage: str = "generate", state: State = State.RUNNING) -> Record:
    return Record(process_id=1, state=state, step=step, stage=stage, entered=entered, ticks=ticks, changed_at=0.0)


def test_before_the_first_step_has_ended_only_min_seconds_counts():
    watch = StallWatch(WatchSection(factor=10, min_seconds=300), now=0.0)
    records = {0: at(0, 1), 1: at(0, 1)}
    assert watch.observe(records, 100.0) is None  # the first sign of life is progress
    assert watch.observe(records, 399.0) is None
    assert watch.observe(records, 400.0) == Stall(ranks=(0, 1), seconds=300.0, limit_s=300.0)
    assert watch.observe(records, 900.0) is None  # told once


def test_factor_counts_when_steps_are_long():
    watch = StallWatch(WatchSection(factor=10, min_seconds=300), now=0.0)
    watch.observe({0: at(0, 1), 1: at(0, 1)}, 0.0)
    watch.observe({0: at(1, 2), 1: at(0, 1)}, 500.0)  # what comes before step 1 is no step
    watch.observe({0: at(2, 3), 1: at(1, 2)}, 540.0)  # 40 s
    watch.observe({0: at(3, 4), 1: at(2, 3)}, 640.0)  # 100 s
    watch.observe({0: at(4, 5), 1: at(3, 4)}, 690.0)  # 50 s
    records = {0: at(4, 5), 1: at(3, 4)}
    assert watch.limit_s == 500.0  # 10 x the median of 40, 50, 100
    assert watch.observe(records, 1189.0) is None
    assert watch.observe(records, 1190.0) == Stall(ranks=(1,), seconds=500.0, limit_s=500.0)


def test_any_progress_of_any_rank_counts():
    watch = StallWatch(WatchSection(min_seconds=10), now=0.0)
    for tick in range(20):
        assert watch.observe({0: at(1, 1), 1: at(1, 1, tick)}, 9.0 * tick) is None
    assert watch.observe({0: at(1, 1), 1: at(1, 1, 19)}, 9.0 * 19 + 10) == Stall(ranks=(0,), seconds=10.0, limit_s=10.0)


def test_end_of_a_stall_is_told_and_the_next_stall_again():
    watch = StallWatch(WatchSection(min_seconds=10), now=0.0)
    assert watch.observe({0: at(1, 1)}, 0.0) is None
    assert isinstance(watch.observe({0: at(1, 1)}, 12.0), Stall)
    assert watch.observe({0: at(1, 2)}, 15.0) == GoesOn(seconds=15.0)
    assert watch.observe({0: at(1, 3)}, 16.0) is None
    assert isinstance(watch.observe({0: at(1, 3)}, 26.0), Stall)


def test_finished_job_does_not_stall():
    watch = StallWatch(WatchSection(min_seconds=10), now=0.0)
    records = {0: at(1, 5, state=State.FINISHED), 1: at(1, 5, state=State.FINISHED)}
    watch.observe(records, 0.0)
    assert watch.observe(records, 100.0) is None


def test_meeting_names_who_has_not_come_every_30_seconds():
    watch = MeetingWatch(now=0.0)
    come = at(0, 1, stage=MEETING)
    records = {0: come, 1: None, 2: at(0, 0, state=State.STARTING), 3: come}
    assert watch.observe(records, 29.0) is None
    assert watch.observe(records, 30.0) == Meeting(ranks=(1, 2), seconds=30.0)
    assert watch.observe(records, 59.0) is None
    records = dict.fromkeys(range(4), come)
    assert watch.observe(records, 61.0) == Meeting(ranks=(), seconds=61.0)  # now for the scheduler, or other nodes
    assert not watch.is_over
    assert watch.observe(dict.fromkeys(range(4), at(0, 2, stage="setup")), 95.0) is None
    assert watch.is_over
    assert watch.observe(records, 1000.0) is None


@pytest.mark.parametrize("wrong", [{"factor": 0.5}, {"min_seconds": 0.0}, {"poll_seconds": 0.0}, {"seconds": 3.0}])
def test_section_refuses(wrong: dict[str, float]):
    with pytest.raises(ValidationError):
        WatchSection(**wrong)
