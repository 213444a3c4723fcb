"""A real run on a disk of its own, which is copied whenever a checkpoint has just got its name: what a power cut at
that moment leaves."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from loop_disk import loop_disk
from running import command, environment, sets, succeeded
from torture_runs import Life, after_kill, at_the_end, write_experiment

STEPS = 10


@pytest.mark.slow
def test_nothing_that_a_checkpoint_covers_is_missing_after_a_power_cut(tmp_path: Path) -> None:
    config = write_experiment(tmp_path, max_steps=STEPS, workers=1)
    settings = ("trainer.save_every=1", "trainer.keep_checkpoints=99")
    whole, disk, image = tmp_path / "whole", tmp_path / "mounted", tmp_path / "disk"
    succeeded("run", config, *sets(f"run_dir={whole}", *settings), cwd=tmp_path)
    with loop_disk(image, disk, size_mb=100):
        process = subprocess.Popen(command("run", config, *sets(f"run_dir={disk / 'run'}", *settings)), cwd=tmp_path,
                                   env=environment(), stdout=subprocess.DEVNULL)  # fmt: skip
        for step in range(1, STEPS + 1):
            while not (disk / "run" / "checkpoints" / f"step_{step:08d}").exists():
                assert process.poll() is None
                time.sleep(0.0005)
            process.send_signal(signal.SIGSTOP)
            shutil.copyfile(image, tmp_path / f"copy_{step}")
            process.send_signal(signal.SIGCONT)
        assert process.wait(300) == 0
    newest = []
    for step in range(1, STEPS + 1):
        with loop_disk(tmp_path / f"copy_{step}", tmp_path / "after") as after:
            life = Life(exit_code=-9, seconds=0.0, was_hit=True, seen=frozenset(range(step)), is_left=False, text="")
            found, problems = after_kill(after / "run", whole, life, newest_before=None)
            assert problems == [], f"after step {step}"
            newest.append(found)
            if step in (1, STEPS // 2):
                words = sets(f"run_dir={after / 'run'}", "resume=auto", *settings)
                done = succeeded("run", config, *words, cwd=tmp_path)
                assert f"resumed at step {found}" in done.stdout and "warning" not in done.stdout
                assert at_the_end(after / "run", whole) == []
    print("newest complete step of the copies:", newest)
