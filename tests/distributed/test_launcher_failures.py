"""Which failure comes first and how it is told, with hand-made records and logs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from mindgspo.errors import DataError
from mindgspo.parallel.launch.failure_record import FailureRecord, read_failure
from mindgspo.parallel.launch.failures import Failure, explain, first_failure
from mindgspo.parallel.launch.folder import SCHEDULER, LaunchFolder
from mindgspo.parallel.launch.heartbeat import Record, State
from mindgspo.parallel.launch.logs import LogFollower
from mindgspo.parallel.launch.positions import names, positions


def at(step: int, stage: str, state: State = State.RUNNING) -> Record:
    return Record(process_id=1, state=state, step=step, stage=stage, entered=step, ticks=0, changed_at=0.0)


@pytest.fixture
def folder(tmp_path: Path) -> LaunchFolder:
    return LaunchFolder(log_dir=tmp_path, state_dir=tmp_path)


def failure_of(error: Exception, path: Path) -> FailureRecord:
    try:
        raise error
    except Exception as raised:
        FailureRecord.of(raised, log_bytes=12).write(path)
    found = read_failure(path)
    assert found is not None
    return found


def test_record_survives_its_file(folder: LaunchFolder):
    assert read_failure(folder.failure(0)) is None
    found = failure_of(ValueError("twelve\nlines"), folder.failure(0))
    assert (found.error, found.message, found.is_user_error, found.log_bytes) == (
        "ValueError",
        "twelve\nlines",
        False,
        12,
    )
    assert found.traceback.startswith("Traceback (most recent call last)")
    assert found.traceback.endswith("ValueError: twelve\nlines\n")
    assert failure_of(DataError("row 3"), folder.failure(1)).is_user_error
    assert [path.name for path in folder.log_dir.iterdir()] == ["failure_0.json", "failure_1.json"]


def test_first_by_time_not_by_rank():
    late, early = Failure(rank=0, time=5.2, exit_code=1), Failure(rank=3, time=5.1, exit_code=-9)
    assert first_failure([late, early]) is early
    assert first_failure([]) is None


def test_scheduler_comes_after_ranks_of_the_same_time():
    lost, rank = Failure(rank=SCHEDULER, time=5.0, exit_code=1), Failure(rank=1, time=5.0, exit_code=-9)
    assert first_failure([lost, rank]) is rank


@pytest.mark.parametrize(("code", "expected"), [(-9, 137), (-11, 139), (3, 3), (143, 143)])
def test_exit_codes(code: int, expected: int):
    assert Failure(rank=0, time=0.0, exit_code=code).launcher_exit_code == expected


def test_exception_is_told_with_its_traceback(folder: LaunchFolder):
    record = failure_of(ValueError("broken\nin two lines"), folder.failure(2))
    records = {0: at(4, "update"), 1: None, 2: at(4, "generate"), 3: at(4, "update")}
    lines = explain(Failure(rank=2, time=record.time, record=record), records, folder)
    assert lines[0] == "rank 2 failed first (step 4, generate): ValueError: broken"
    assert lines[1:-2] == record.traceback.splitlines()
    assert lines[-2] == f"log: {folder.log(2)}"
    assert lines[-1] == "the others: ranks 0, 3 at step 4, update; rank 1 without a sign of life"


def test_user_error_is_one_line(folder: LaunchFolder):
    record = failure_of(DataError("rows.jsonl:3: no answer"), folder.failure(0))
    assert explain(Failure(rank=0, time=1.0, record=record), {0: None}, folder) == ["error: rows.jsonl:3: no answer"]


def test_killed_rank_is_told_by_its_last_lines(folder: LaunchFolder):
    folder.log(1).write_text("Traceback (most recent call last):\n  handled long ago\n" + "line\n" * 40 + "\nlast\n")
    lines = explain(Failure(rank=1, time=1.0, exit_code=-11), {0: at(2, "update"), 1: at(2, "update")}, folder)
    assert lines[0] == "rank 1 failed first (step 2, update): ended by SIGSEGV, a crash in compiled code"
    assert lines[1:-2] == ["there is no traceback; it printed last:", *["  line"] * 19, "  last"]


def test_traceback_in_the_log_is_found(folder: LaunchFolder):
    traceback = ["Traceback (most recent call last):", "  File ...", "ImportError: x"]
    folder.log(0).write_text("\n".join(["Traceback (most recent call last):", "  another", "noise", *traceback]) + "\n")
    lines = explain(Failure(rank=0, time=1.0, exit_code=1), {0: None}, folder)
    assert lines == ["rank 0 failed first: exit code 1", *traceback, f"log: {folder.log(0)}"]


def test_ranks_in_words():
    assert names([3]) == "rank 3"
    assert names([5, 0, 2, 3, 4, 9]) == "ranks 0, 2-5, 9"
    records = {0: at(0, ""), 1: at(2, "update", State.FINISHED), 2: at(2, "update"), 3: at(2, "update")}
    assert positions(records) == "rank 0 starting; rank 1 finished; ranks 2-3 at step 2, update"


def test_log_is_copied_as_it_grows(tmp_path: Path):
    path, output = tmp_path / "rank_0.log", io.BytesIO()
    follower = LogFollower(path, output, is_terminal=True)
    assert follower.size() == 0
    path.write_bytes(b"step 1\n\rbar 10%")
    follower.copy(7)
    assert output.getvalue() == b"step 1\n"
    follower.end_line()  # nothing is open
    follower.copy(follower.size())
    follower.end_line()
    path.write_bytes(path.read_bytes() + b"\rbar 20%")
    follower.copy(follower.size())
    assert output.getvalue() == b"step 1\n\rbar 10%\r\x1b[2K\rbar 20%"


def test_run_goes_on_when_nobody_reads(tmp_path: Path):
    class Closed(io.BytesIO):
        def write(self, piece: object) -> int:
            raise BrokenPipeError

    (tmp_path / "log").write_bytes(b"text\n")
    follower = LogFollower(tmp_path / "log", Closed(), is_terminal=False)
    follower.copy(5)
    follower.copy(5)
    follower.close()
