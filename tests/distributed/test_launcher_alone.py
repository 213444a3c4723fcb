"""The launcher with workers that do not meet: its messages, exit codes, and that no process is left."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

END_S = 10.0


def test_user_error_is_one_message(start_launcher):
    launched = start_launcher("toy_alone.py", "user_error", 0)
    ended = launched.end()
    assert (ended.code, ended.errors) == (1, "error: rows.jsonl:3: no answer\n")
    assert ended.output == ""  # rank 0's log is copied there, but not what is told already
    assert launched.log(0) == "error: rows.jsonl:3: no answer\n"
    assert launched.processes() == []


def test_exit_code_and_last_lines_without_a_traceback(start_launcher):
    ended = start_launcher("toy_alone.py", "exit", 0).end()
    assert ended.code == 3
    assert ended.errors.startswith("rank 0 failed first (step 2, generate): exit code 3\nit printed nothing\n")


def test_threads_do_not_hold_up_the_end(start_launcher):
    launched = start_launcher("toy_alone.py", "thread", 1)
    ended = launched.end(30)
    assert (ended.code, ended.errors) == (0, "")
    assert launched.processes() == []


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


@pytest.mark.parametrize("event", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_launcher(start_launcher, event: signal.Signals):
    launched = start_launcher("toy_alone.py", "child", 1)
    launched.wait_for(0, "lingers")
    launched.wait_for(1, "lingers")
    assert len(launched.processes()) >= 4  # two workers, the scheduler, a child in a session of its own
    launched.process.send_signal(event)
    ended = launched.end()
    assert ended.seconds < END_S
    if event is signal.SIGTERM:
        assert (ended.code, ended.errors) == (143, "stopped by SIGTERM; ranks 0-1 ended\n")
    else:
        give_up = time.monotonic() + END_S
        while launched.processes() and time.monotonic() < give_up:
            time.sleep(0.1)
    assert launched.processes() == []


def test_orphans_of_a_killed_rank_end_too(start_launcher):
    launched = start_launcher("toy_alone.py", "child", 1)
    launched.wait_for(1, "lingers")
    launched.kill_rank(1)
    ended = launched.end()
    assert ended.code == 128 + signal.SIGKILL
    assert ended.seconds < END_S
    assert launched.processes() == []


def test_signal_before_any_worker_runs(start_launcher):
    launched = start_launcher("toy_alone.py", "linger", 0)
    give_up = time.monotonic() + END_S
    while not (launched.log_dir / "msrun.log").exists() and time.monotonic() < give_up:
        time.sleep(0.02)
    launched.process.send_signal(signal.SIGTERM)
    ended = launched.end()
    assert (ended.code, ended.seconds < END_S) == (143, True)
    assert launched.processes() == []


def test_stall_is_told_once_and_its_end(start_launcher):
    launched = start_launcher(
        "toy_alone.py",
        "stall",
        1,
        env={"TOY_SLEEP_S": "4"},
        watch={"min_seconds": 1.5, "factor": 1, "poll_seconds": 0.1},
    )
    ended = launched.end()
    assert ended.code == 0
    told = [line for line in ended.errors.splitlines() if line.startswith(("stalled", "awaited", "waiting", "the run"))]
    assert told[0].startswith("stalled: no rank has made progress for 2 s (limit")
    assert told[1:3] == ["awaited: rank 1 at step 2, generate", "waiting: rank 0 at step 2, update"]
    assert told[3].startswith("the run goes on, after ")
    assert 'toy_alone.py", line' in ended.errors  # where rank 1 sleeps


def test_stall_ends_all_ranks_where_that_is_wanted(start_launcher):
    launched = start_launcher(
        "toy_alone.py",
        "stop",
        1,
        watch={"min_seconds": 1.5, "factor": 1, "poll_seconds": 0.1, "on_stall": "stop"},
    )
    ended = launched.end()
    assert ended.code == 124
    assert (
        "awaited: rank 1 at step 2, generate\nwaiting: rank 0 at step 2, update\nrank 1 is stopped by a signal\n"
        in (ended.errors)
    )
    assert ended.errors.endswith("the run is ended (watch.on_stall=stop, exit code 124); resume=auto continues it\n")
    assert launched.processes() == []


def test_rank_0_writes_for_the_terminal_of_the_launcher(tmp_path: Path):
    workers = Path(__file__).parent / "workers"
    master, terminal = pty.openpty()
    launcher = subprocess.Popen(
        [
            sys.executable,
            workers / "launch_toy.py",
            '{"num_workers": 2}',
            tmp_path,
            workers / "toy_alone.py",
            "none",
            "0",
        ],
        stdout=terminal,
        stderr=subprocess.PIPE,
    )
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
