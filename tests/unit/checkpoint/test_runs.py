"""The list of runs: states, figures and verdicts of folders written by hand."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from mindgspo.checkpoint.run_folder import RunLock, is_open
from mindgspo.checkpoint.runs import RunState, age, overview, overviews, run_table
from mindgspo.cli import main
from mindgspo.config.data import OVERALL
from mindgspo.errors import RunFolderError
from mindgspo.launch.failures import FailureRecord


def write_run(folder: Path, *, accuracies: tuple[float, ...] = (0.25, 0.75, 0.5), summary: dict | None = None) -> Path:
    """Step i has the accuracy number i; its files were last written an hour ago."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"run_id": "1"}')
    (folder / "config.yaml").write_text("trainer: {max_steps: 9}\n")
    lines = [json.dumps({"step": step, OVERALL: value}) + "\n" for step, value in enumerate(accuracies)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    for name in ("run.json", "metrics.jsonl"):
        os.utime(folder / name, (time.time() - 3600,) * 2)
    return folder


def write_failure(folder: Path, message: str, *, time_s: float, is_user_error: bool) -> None:
    record = FailureRecord(
        time=time_s, error="KeyError", message=message, traceback="", is_user_error=is_user_error, log_bytes=0
    )
    record.write(folder / "logs" / f"failure_{int(is_user_error)}.json")


def test_a_run_is_described_by_its_latest_and_best_evaluation(tmp_path: Path) -> None:
    found = overview(write_run(tmp_path / "one"))
    assert (found.name, found.state) == ("one", RunState.STOPPED)
    assert (found.step, found.total_steps) == (2, 9)
    assert (found.accuracy, found.best, found.best_step) == (0.5, 0.75, 1)
    assert 3600 <= found.age_s < 4000


def test_a_run_is_finished_by_its_summary_and_running_while_its_lock_is_held(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", summary={"finished": True, "steps": 2})
    assert (overview(folder).state, overview(folder).total_steps) == (RunState.FINISHED, 2)
    assert not is_open(folder)
    lock = RunLock(folder / ".lock")
    assert is_open(folder) and overview(folder).state is RunState.RUNNING
    lock.release()
    assert not is_open(folder)
    (folder / ".lock").write_text("process 999999999 on another\n")
    assert not is_open(folder)


def test_a_run_failed_if_a_worker_said_so_after_the_last_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one")
    (folder / "logs").mkdir()
    write_failure(folder, "of an earlier start", time_s=time.time() - 7200, is_user_error=False)
    assert overview(folder).state is RunState.STOPPED
    write_failure(folder, "reward.functions: no such file", time_s=time.time() - 1800, is_user_error=True)
    assert overview(folder).state is RunState.FAILED
    assert overview(folder).verdicts[0] == "reward.functions: no such file"
    write_failure(folder, "'x'", time_s=time.time() - 1900, is_user_error=False)
    assert overview(folder).verdicts[0] == "KeyError: 'x'", "the first of both"


def test_broken_and_young_runs_stand_beside_the_others(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_run(tmp_path / "good")
    (write_run(tmp_path / "bad") / "metrics.jsonl").write_text("no JSON\n")
    (write_run(tmp_path / "worse") / "summary.json").write_text("[]")
    young = write_run(tmp_path / "young")
    (young / "metrics.jsonl").write_text('{"step": 0, "half')
    (tmp_path / "no_run").mkdir()
    states = {one.name: one.state for one in overviews(tmp_path)}
    assert states == {
        "good": RunState.STOPPED, "young": RunState.STOPPED, "bad": RunState.BROKEN, "worse": RunState.BROKEN,
    }  # fmt: skip
    assert overviews(tmp_path)[-1].age_s > 3000, "the latest comes first"
    lines = run_table(overviews(tmp_path))
    assert len({len(line) - len(line.lstrip()) for line in lines}) == 1 and len(lines) == 5
    assert main(["runs", str(tmp_path), "--json"]) == 0
    told = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert "metrics.jsonl, line 1" in told["bad"]["verdicts"][0] and told["good"]["best"] == 0.75
    assert main(["runs", str(tmp_path / "good")]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("good  stopped  2/9   50.0%     0.750 at 1  60 min ago")


def test_a_folder_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no run folders here"):
        overviews(tmp_path)
    with pytest.raises(RunFolderError, match="no such folder"):
        overviews(tmp_path / "runs")


@pytest.mark.parametrize(("seconds", "text"), [(3.2, "3 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"),
                                               (200_000, "2 days")])  # fmt: skip
def test_ages_are_rounded_down(seconds: float, text: str) -> None:
    assert age(seconds) == text
