"""A process without a launcher that stalls: it says so itself, and ends itself where that is wanted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from mindgspo.parallel.launch import heartbeat

TOY = Path(__file__).parent / "workers" / "toy_own_watch.py"


def stalled(on_stall: str, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOY), on_stall, str(seconds)], capture_output=True, text=True, timeout=120
    )


def test_a_stall_is_told_with_its_place_and_so_is_its_end() -> None:
    ended = stalled("report", 1.5)
    assert (ended.returncode, ended.stdout.split()[1:]) == (0, ["went", "on"])
    lines = ended.stderr.splitlines()
    assert lines[0].startswith("stalled: no progress for ") and lines[0].endswith("at step 3, reward")
    assert lines[1] == "it is here, innermost first:"
    assert lines[2].startswith(f'  File "{TOY}", line ') and lines[2].endswith(" in held_up")
    assert lines[3].endswith(" in <module>")
    assert lines[4] == "nothing was ended; Ctrl-C ends the run (watch.on_stall=stop would)"
    assert lines[5].startswith("the run goes on, after ") and len(lines) == 6, "ticks are progress"


def test_a_stall_ends_the_process_and_its_children_where_that_is_wanted() -> None:
    ended = stalled("stop", 600)
    assert ended.returncode == 124 and "went on" not in ended.stdout
    assert ended.stderr.splitlines()[-1].startswith("the run is ended (watch.on_stall=stop, exit code 124)")
    child = int(ended.stdout)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_heartbeat_may_be_in_memory_only() -> None:
    beat = heartbeat.start(None)
    try:
        heartbeat.begin_step(4)
        heartbeat.enter_stage("gen")
        heartbeat.tick()
        assert (beat.record.step, beat.record.stage, beat.record.sequence) == (4, "gen", (1, 1))
    finally:
        heartbeat.stop()
        heartbeat.begin_step(0)
    heartbeat.tick()
    assert beat.record.ticks == 1
