"""The launcher with workers that form a real cluster: clean ends, failures while the others wait in a collective."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from pathlib import Path

import pytest

END_S = 10.0  # from an event until all processes have ended


def test_clean_run_uses_the_running_interpreter(start_launcher, tmp_path: Path):
    other = tmp_path / "bin" / "python"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 77\n")
    other.chmod(other.stat().st_mode | stat.S_IXUSR)
    launched = start_launcher("toy_training.py", 3, env={"PATH": f"{other.parent}{os.pathsep}/usr/bin{os.pathsep}/bin"})
    ended = launched.end()
    assert (ended.code, ended.errors) == (0, "")
    # rank + step summed over ranks 0 and 1
    lines = [f"rank 0 of 2 with {sys.executable}", "step 1 sum 3", "step 2 sum 5", "step 3 sum 7"]
    assert ended.output.splitlines() == lines
    assert launched.log(1).splitlines()[1:] == lines[1:]
    assert (launched.log_dir / "scheduler.log").exists()
    assert launched.processes() == []


def test_first_failing_rank_is_named_with_its_traceback(start_launcher):
    launched = start_launcher("toy_training.py", 3, "raise", 1, 2)
    ended = launched.end()
    finished = time.time()
    assert ended.code == 1
    lines = ended.errors.splitlines()
    assert lines[0] == "rank 1 failed first (step 2, generate): ValueError: the toy broke"
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-3] == "ValueError: the toy broke"
    assert lines[-2] == f"log: {launched.log_dir / 'rank_1.log'}"
    assert lines[-1] == "the others: rank 0 at step 2, update"
    assert "ValueError: the toy broke" in launched.log(1)
    failure = json.loads((launched.log_dir / "failure_1.json").read_text())
    assert finished - failure["time"] < END_S
    assert launched.processes() == []


def test_killed_rank_is_named_with_the_signal(start_launcher):
    launched = start_launcher("toy_training.py", 100, "sleep", 1, 3, workers=4)
    launched.wait_for(1, "dozing")
    launched.kill_rank(2)
    ended = launched.end()
    assert ended.code == 128 + signal.SIGKILL
    assert ended.errors.startswith("rank 2 failed first (step 3, update): ended by SIGKILL")
    assert "  step 2 sum 14\n" in ended.errors  # the last that it printed: (0 + 1 + 2 + 3) + 4 * 2
    assert "the others: ranks 0, 3 at step 3, update; rank 1 at step 3, generate" in ended.errors
    assert ended.seconds < END_S
    assert launched.processes() == []


def test_interrupt_ends_ranks_that_wait_in_a_collective(start_launcher):
    launched = start_launcher("toy_training.py", 100, "sleep", 1, 2)
    launched.wait_for(1, "dozing")
    launched.process.send_signal(signal.SIGINT)
    ended = launched.end()
    assert (ended.code, ended.errors) == (130, "stopped by SIGINT; ranks 0-1 ended\n")
    assert ended.seconds < END_S
    assert launched.processes() == []


@pytest.mark.slow
def test_cluster_does_not_outlive_the_launcher(start_launcher):
    """The scheduler hangs in C code and holds Python's lock; rank 0 hangs in a collective."""
    launched = start_launcher("toy_training.py", 100, "sleep", 1, 2)
    launched.wait_for(1, "dozing")
    launched.process.kill()
    launched.end()
    give_up = time.monotonic() + END_S
    while launched.processes() and time.monotonic() < give_up:
        time.sleep(0.1)
    assert launched.processes() == []


@pytest.mark.slow
def test_nodes_meet_and_end_together(start_launcher, free_port):
    """Two launchers on this machine stand for two nodes."""
    nodes = [
        start_launcher("toy_training.py", 3, "kill", 1, 2, workers=4, nodes=2, node_rank=node, master_port=free_port)
        for node in (0, 1)
    ]
    first, second = (node.end() for node in nodes)
    assert "rank 0 of 4" in first.output
    assert second.output == ""
    assert first.code == 128 + signal.SIGKILL
    assert first.errors.startswith("rank 1 failed first")
    assert second.code == 1
    assert second.errors.startswith("the run has ended on node 0")
    assert [node.processes() for node in nodes] == [[], []]


@pytest.mark.slow
def test_nodes_end_well(start_launcher, free_port):
    nodes = [
        start_launcher("toy_training.py", 2, workers=4, nodes=2, node_rank=node, master_port=free_port)
        for node in (1, 0)
    ]
    ends = [node.end() for node in nodes]
    assert [(ended.code, ended.errors) for ended in ends] == [(0, ""), (0, "")]
    assert ends[1].output.splitlines()[1:] == ["step 1 sum 10", "step 2 sum 14"]
    assert [node.processes() for node in nodes] == [[], []]
