"""The launcher with real workers: clean ends, failures, signals, stalls; no process is left."""

from __future__ import annotations

import json
import os
import pty
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from running import python

from mindgspo.parallel.platform import heartbeat

END_S = 10.0  # from an event until all processes have ended


@pytest.mark.smoke
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


def test_interrupt_ends_ranks_that_wait_in_a_collective(start_launcher):
    launched = start_launcher("toy_training.py", 100, "sleep", 1, 2)
    launched.wait_for(1, "dozing")
    launched.process.send_signal(signal.SIGINT)
    ended = launched.end()
    assert (ended.code, ended.errors) == (130, "stopped by SIGINT; ranks 0-1 ended\n")
    assert ended.seconds < END_S


@pytest.mark.slow
def test_cluster_does_not_outlive_the_launcher(start_launcher):
    """The scheduler hangs in C code and holds Python's lock; rank 0 hangs in a collective."""
    launched = start_launcher("toy_training.py", 100, "sleep", 1, 2)
    launched.wait_for(1, "dozing")
    launched.process.kill()
    launched.end()
    assert_all_end(launched)


@pytest.fixture
def nodes(start_launcher, free_port):
    """nodes(order, *words): two launchers on this machine, which stand for two nodes, started in this order."""

    def start(order: tuple[int, int], *words: object) -> list:
        options = {"workers": 4, "nodes": 2, "master_port": free_port}
        return [start_launcher("toy_training.py", *words, node_rank=node, **options) for node in order]

    return start


@pytest.mark.slow
def test_nodes_meet_and_end_together(nodes):
    started = nodes((0, 1), 3, "kill", 1, 2)
    first, second = (node.end() for node in started)
    assert "rank 0 of 4" in first.output and second.output == ""
    assert first.code == 128 + signal.SIGKILL and first.errors.startswith("rank 1 failed first")
    assert second.code == 1 and second.errors.startswith("the run has ended on node 0")


@pytest.mark.slow
def test_nodes_end_well(nodes):
    started = nodes((1, 0), 2)
    ends = [node.end() for node in started]
    assert [(ended.code, ended.errors) for ended in ends] == [(0, ""), (0, "")]
    assert ends[1].output.splitlines()[1:] == ["step 1 sum 10", "step 2 sum 14"]


@pytest.mark.smoke
def test_user_error_is_one_message(start_launcher):
    launched = start_launcher("toy_alone.py", "user_error", 0)
    ended = launched.end()
    # Rank 0's log is copied to the output, but not what is told already.
    assert (ended.code, ended.output, ended.errors) == (1, "", "error: rows.jsonl:3: no answer\n")
    assert launched.log(0) == ended.errors


@pytest.mark.parametrize(("action", "rank", "code", "said"), [
    ("exit", 0, 3, "rank 0 failed first (step 2, generate): exit code 3\nit printed nothing\n"),
    ("thread", 1, 0, ""),
], ids=["exit code", "a thread that goes on"])  # fmt: skip
def test_exit_code_without_a_traceback(start_launcher, action: str, rank: int, code: int, said: str):
    ended = start_launcher("toy_alone.py", action, rank).end(30)
    assert ended.code == code and ended.errors.startswith(said) and (said or not ended.errors)


@pytest.mark.slow
def test_finished_work_is_a_success_whatever_hangs_afterwards(start_launcher):
    launched = start_launcher("toy_alone.py", "exit_function", 1)
    ended = launched.end(60)
    assert (ended.code, ended.errors) == (0, "")
    assert "Timeout (0:00:15)!" in launched.log(1)


def test_module_that_cannot_be_imported(start_launcher, tmp_path: Path):
    script = tmp_path / "broken.py"
    script.write_text("import module_that_is_not_there\n")
    ended = start_launcher(script).end()
    assert ended.code == 1
    assert "ModuleNotFoundError: No module named 'module_that_is_not_there'" in ended.errors


def assert_all_end(launched) -> None:
    give_up = time.monotonic() + END_S
    while launched.processes() and time.monotonic() < give_up:
        time.sleep(0.1)
    assert launched.processes() == []


@pytest.mark.parametrize("event", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_launcher(start_launcher, event: signal.Signals):
    launched = start_launcher("toy_alone.py", "child", 1)
    launched.wait_for(0, "lingers")
    launched.wait_for(1, "lingers")
    assert len(launched.processes()) >= 4  # two workers, the scheduler, a child in a session of its own
    launched.process.send_signal(event)
    ended = launched.end()
    assert ended.seconds < END_S
    if event is signal.SIGKILL:
        return assert_all_end(launched)
    assert (ended.code, ended.errors) == (143, "stopped by SIGTERM; ranks 0-1 ended\n")


def test_orphans_of_a_killed_rank_end_too(start_launcher):
    launched = start_launcher("toy_alone.py", "child", 1)
    launched.wait_for(1, "lingers")
    launched.kill_rank(1)
    ended = launched.end()
    assert ended.code == 128 + signal.SIGKILL
    assert ended.seconds < END_S


def test_signal_before_any_worker_runs(start_launcher):
    launched = start_launcher("toy_alone.py", "linger", 0)
    give_up = time.monotonic() + END_S
    while not (launched.log_dir / "scheduler.log").exists() and time.monotonic() < give_up:
        time.sleep(0.02)
    launched.process.send_signal(signal.SIGTERM)
    ended = launched.end()
    assert (ended.code, ended.seconds < END_S) == (143, True)


SOON = {"min_seconds": 1.5, "factor": 1, "poll_seconds": 0.1}


def test_stall_is_told_once_and_its_end(start_launcher):
    ended = start_launcher("toy_alone.py", "stall", 1, env={"TOY_SLEEP_S": "4"}, watch=SOON).end()
    assert ended.code == 0
    told = [line for line in ended.errors.splitlines() if line.startswith(("stalled", "awaited", "waiting", "the run"))]
    assert told[0].startswith("stalled: no rank has made progress for 2 s (limit")
    assert told[1:3] == ["awaited: rank 1 at step 2, generate", "waiting: rank 0 at step 2, update"]
    assert told[3].startswith("the run goes on, after ")
    assert 'toy_alone.py", line' in ended.errors  # where rank 1 sleeps


@pytest.mark.slow
def test_a_stall_names_the_collective_of_a_graph_and_the_line_of_a_rank_that_waits(start_launcher):
    ended = start_launcher("toy_waiting.py", "4", watch=SOON).end()
    assert ended.code == 0
    lines = ended.errors.splitlines()
    at = lines.index("rank 0 waits in all_reduce of float32 [3] over ranks 0-1, number 1, for rank 1")
    assert 'toy_waiting.py", line' in lines[at + 1], lines
    awaited = lines.index("rank 1 is here, innermost first:")
    assert 'toy_waiting.py", line' in lines[awaited + 1], lines


@pytest.mark.slow
def test_graphs_in_different_collectives_end_with_a_line_that_names_both(start_launcher):
    ended = start_launcher("toy_waiting.py", "0", "gather").end()
    assert ended.code == 1
    sides = ["all_reduce of float32 [3] over ranks 0-1, number 1", "all_gather of float32 [3] over ranks 0-1, number 2"]
    told = [
        f"{operator}: rank {rank} is in {sides[rank]}, but rank {1 - rank} in {sides[1 - rank]}"
        for rank, operator in enumerate(("all_reduce", "all_gather"))
    ]
    assert any(line in ended.errors.splitlines()[0] for line in told), ended.errors


def test_stall_ends_all_ranks_where_that_is_wanted(start_launcher):
    ended = start_launcher("toy_alone.py", "stop", 1, watch={**SOON, "on_stall": "stop"}).end()
    assert ended.code == 124
    told = "awaited: rank 1 at step 2, generate\nwaiting: rank 0 at step 2, update\nrank 1 is stopped by a signal\n"
    assert told in ended.errors
    assert ended.errors.endswith("the run is ended (watch.on_stall=stop, exit code 124); resume=auto continues it\n")


def test_rank_0_writes_for_the_terminal_of_the_launcher(tmp_path: Path):
    script, toy = TOY.with_name("launch_toy.py"), TOY.with_name("toy_alone.py")
    master, terminal = pty.openpty()
    command = [sys.executable, script, '{"num_workers": 2}', tmp_path, toy, "none", "0"]
    launcher = subprocess.Popen(command, stdout=terminal, stderr=subprocess.PIPE)
    os.close(terminal)
    assert launcher.wait(60) == 0, launcher.communicate()
    assert os.read(master, 1000).startswith(b"terminal\r\n")
    os.close(master)
    assert (tmp_path / "rank_1.log").read_text() == "no terminal\n"


def test_logs_of_an_earlier_launch_are_kept(start_launcher, tmp_path: Path):
    earlier = tmp_path / "logs_0" / "rank_0.log"
    earlier.parent.mkdir()
    earlier.write_text("what happened before\n")
    launched = start_launcher("toy_alone.py", "none", 0)
    assert launched.end().code == 0
    assert launched.log(0) == "no terminal\n"
    assert (launched.log_dir / "earlier_1" / "rank_0.log").read_text() == "what happened before\n"


TOY = Path(__file__).parent / "workers" / "toy_own_watch.py"


def stalled(on_stall: str, seconds: float) -> subprocess.CompletedProcess[str]:
    return python(TOY, on_stall, seconds, timeout=120)


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


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_stall_ends_the_process_and_its_children_where_that_is_wanted() -> None:
    ended = stalled("stop", 600)
    assert ended.returncode == 124 and "went on" not in ended.stdout
    assert ended.stderr.splitlines()[-1].startswith("the run is ended (watch.on_stall=stop, exit code 124)")
    child, deadline = int(ended.stdout), time.monotonic() + 30
    while is_running(child) and time.monotonic() < deadline:  # a killed process is gone a moment later
        time.sleep(0.05)
    assert not is_running(child)


def test_a_heartbeat_may_be_in_memory_only() -> None:
    beat = heartbeat.start_beating(None)
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
