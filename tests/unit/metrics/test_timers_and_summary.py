"""Timers with a fake clock, memory figures, the summary file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindgspo.errors import RunFolderError
from mindgspo.metrics import Timers, peak_rss_mb, read_summary, rss_gb, write_summary


def test_timers_sum_by_phase_nest_and_start_again() -> None:
    ticks = iter([0.0, 10.0, 11.5, 20.0, 30.0, 32.0])
    timers = Timers(clock=lambda: next(ticks))
    with timers("step"), timers("gen"):  # step 0 to 20, gen 10 to 11.5
        pass
    with timers("gen"):  # 30 to 32
        pass
    assert timers.seconds("gen") == 3.5
    assert timers.collect() == {"timing_s/gen": 3.5, "timing_s/step": 20.0}
    assert timers.collect() == {} and timers.seconds("gen") == 0.0


def test_a_timer_counts_a_phase_that_raised() -> None:
    ticks = iter([1.0, 4.0])
    timers = Timers(clock=lambda: next(ticks))
    with pytest.raises(KeyError), timers("reward"):
        raise KeyError
    assert timers.collect() == {"timing_s/reward": 3.0}


def test_memory_figures_are_in_their_units() -> None:
    # A Python process with numpy needs more than 10 MB and, here, less than 100 GB.
    assert 0.01 < rss_gb() < 100
    assert rss_gb() * 1024 <= peak_rss_mb() * 1.05


def test_summary_round_trip(tmp_path: Path) -> None:
    path = write_summary(tmp_path, accuracy_before=0.5, accuracy_after=None, steps=3, device="CPU", finished=True)
    assert path == tmp_path / "summary.json"
    assert json.loads(path.read_text()) == {
        "accuracy_before": 0.5,
        "accuracy_after": None,
        "steps": 3,
        "device": "CPU",
        "finished": True,
    }
    write_summary(tmp_path, steps=4)
    assert read_summary(tmp_path) == {"steps": 4}
    assert list(tmp_path.iterdir()) == [path]


def test_a_summary_that_is_not_finite_leaves_the_old_one(tmp_path: Path) -> None:
    write_summary(tmp_path, seconds=1.0)
    with pytest.raises(AssertionError, match="tokens_per_second"):
        write_summary(tmp_path, seconds=2.0, tokens_per_second=float("inf"))
    assert read_summary(tmp_path) == {"seconds": 1.0}


def test_reading_an_absent_or_broken_summary(tmp_path: Path) -> None:
    assert read_summary(tmp_path) == {}
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"summary\.json: not JSON"):
        read_summary(tmp_path)
