"""A finished run goes on: four steps and two more are six."""

from __future__ import annotations

from pathlib import Path

from running import read_lines, sets, succeeded, write_experiment
from torture_runs import at_the_end

from mindgspo.metrics import read_summary


def test_four_steps_and_two_more_are_six_bit_for_bit(tmp_path: Path) -> None:
    config = write_experiment(tmp_path)
    common = ("optimizer.warmup_ratio=0", "logging.groups_per_step=null")
    six, four = tmp_path / "six", tmp_path / "four"

    def run(root: Path, *settings: str) -> str:
        done = succeeded("run", config, *sets(*common, f"run_dir={root}", *settings), cwd=tmp_path)
        return done.stdout

    run(six, "trainer.max_steps=6")
    run(four)
    output = run(four, "resume=auto", "trainer.max_steps=6")
    assert "the run goes on to step 6 instead of 4; learning rate 0.001 at step 5 and after" in output
    assert "resumed at step 4" in output and "warm-up" not in output
    assert at_the_end(four, six) == []
    assert read_summary(four)["steps"] == 6 and (four / "summary_step_4.json").is_file()
    assert [line["step"] for line in read_lines(four / "environment.jsonl")] == [0, 4]
    assert "this run is finished" in run(four, "resume=auto", "trainer.max_steps=6")
