"""The launcher without processes: refusals, the workers' environment, which failure is first, when a job stalls."""

from __future__ import annotations

import io
import os
import socket
from pathlib import Path

import pytest
from pydantic import ValidationError
from running import python

from mindgspo.config.schema import WatchSection
from mindgspo.errors import ConfigError, DataError
from mindgspo.launch import failures
from mindgspo.launch.failures import SCHEDULER, FailureRecord, LaunchFolder, LogFollower, RankFailure, failure_lines
from mindgspo.launch.processes import ClusterPlan, plan_cluster
from mindgspo.launch.watch import AbsentRanks, GoesOn, Stall, StallWatch, StartWatch
from mindgspo.launch.worker import _tell_failure
from mindgspo.parallel.platform import worker_process
from mindgspo.parallel.platform.heartbeat import MEETING, Record, State


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
    found = failures.read_failure(path)
    assert found is not None
    return found


def test_record_survives_its_file(folder: LaunchFolder):
    assert failures.read_failure(folder.failure(0)) is None
    found = failure_of(ValueError("twelve\nlines"), folder.failure(0))
    assert (found.error, found.message) == ("ValueError", "twelve\nlines")
    assert (found.is_user_error, found.log_bytes) == (False, 12)
    assert found.traceback.startswith("Traceback (most recent call last)")
    assert found.traceback.endswith("ValueError: twelve\nlines\n")
    record = failure_of(DataError("rows.jsonl:3: no answer"), folder.failure(1))
    assert record.is_user_error
    assert [path.name for path in folder.log_dir.iterdir()] == ["failure_0.json", "failure_1.json"]
    said = failure_lines(RankFailure(rank=0, time=1.0, record=record), {0: None}, folder)
    assert said == ["error: rows.jsonl:3: no answer"], "one line"


def test_first_by_time_not_by_rank_and_the_scheduler_last():
    late, early = RankFailure(rank=0, time=5.2, exit_code=1), RankFailure(rank=3, time=5.1, exit_code=-9)
    assert failures.first_failure([late, early]) is early
    assert failures.first_failure([]) is None
    lost, rank = RankFailure(rank=SCHEDULER, time=5.0, exit_code=1), RankFailure(rank=1, time=5.0, exit_code=-9)
    assert failures.first_failure([lost, rank]) is rank


@pytest.mark.parametrize(("code", "expected"), [(-9, 137), (-11, 139), (3, 3), (143, 143)])
def test_exit_codes(code: int, expected: int):
    assert RankFailure(rank=0, time=0.0, exit_code=code).launcher_exit_code == expected


def test_exception_is_told_with_its_traceback(folder: LaunchFolder):
    record = failure_of(ValueError("broken\nin two lines"), folder.failure(2))
    records = {0: at(4, "update"), 1: None, 2: at(4, "generate"), 3: at(4, "update")}
    lines = failure_lines(RankFailure(rank=2, time=record.time, record=record), records, folder)
    assert lines[0] == "rank 2 failed first (step 4, generate): ValueError: broken"
    assert lines[1:-2] == record.traceback.splitlines()
    assert lines[-2] == f"log: {folder.log(2)}"
    assert lines[-1] == "the others: ranks 0, 3 at step 4, update; rank 1 without a sign of life"


def test_killed_rank_is_told_by_its_last_lines(folder: LaunchFolder):
    folder.log(1).write_text("Traceback (most recent call last):\n  handled long ago\n" + "line\n" * 40 + "\nlast\n")
    lines = failure_lines(
        RankFailure(rank=1, time=1.0, exit_code=-11), {0: at(2, "update"), 1: at(2, "update")}, folder
    )
    assert lines[0] == "rank 1 failed first (step 2, update): ended by SIGSEGV, a crash in compiled code"
    assert lines[1:-2] == ["there is no traceback; it printed last:", *["  line"] * 19, "  last"]


def test_traceback_in_the_log_is_found(folder: LaunchFolder):
    traceback = ["Traceback (most recent call last):", "  File ...", "ImportError: x"]
    folder.log(0).write_text("\n".join(["Traceback (most recent call last):", "  another", "noise", *traceback]) + "\n")
    lines = failure_lines(RankFailure(rank=0, time=1.0, exit_code=1), {0: None}, folder)
    assert lines == ["rank 0 failed first: exit code 1", *traceback, f"log: {folder.log(0)}"]


def test_ranks_in_words():
    assert failures.names([3]) == "rank 3"
    assert failures.names([5, 0, 2, 3, 4, 9]) == "ranks 0, 2-5, 9"
    records = {0: at(0, ""), 1: at(2, "update", State.FINISHED), 2: at(2, "update"), 3: at(2, "update")}
    assert failures.positions(records) == "rank 0 starting; rank 1 finished; ranks 2-3 at step 2, update"


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


def plan(**changed: object) -> ClusterPlan:
    settings = {"num_workers": 8, "nodes": 1, "node_rank": 0, "master_addr": "127.0.0.1", "master_port": None}
    return plan_cluster(**(settings | changed))


@pytest.mark.parametrize(("changed", "message"), [
    ({"num_workers": 7, "nodes": 2}, "--nodes 2: the plans need 7 workers.*legal ones are 1 or 7"),
    ({"num_workers": 2, "nodes": 3}, "--nodes 3: the plans need 2 workers.*legal ones are 2"),
    ({"nodes": 2, "node_rank": 2}, "--node-rank 2: of 2 nodes; legal values are 0 to 1"),
    ({"node_rank": -1}, "--node-rank -1: of 1 nodes"),
    ({"nodes": 2}, "--master-port: none is given, and 2 nodes must agree"),
    ({"master_port": 80}, "--master-port 80: legal ports are 1024 to 65535"),
    ({"master_addr": "192.0.2.1"}, "cannot listen at 192.0.2.1:0 .*; --master-addr must be node 0's own"),
    ({"master_addr": "host.invalid"}, "--master-addr host.invalid: not known"),
])  # fmt: skip
def test_what_cannot_be_is_refused(changed: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        plan(**changed)


def test_port_in_use_is_refused_on_node_0_alone():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1:{port} .*; choose another port"):
            plan(master_port=port)
        assert plan(nodes=2, node_rank=1, master_port=port).master_port == port  # there it is node 0 that listens
    assert plan(master_port=port).master_port == port
    assert 1024 <= plan().master_port <= 65535, "a free one is found"
    assert plan(master_addr="localhost").master_port > 0


def test_ranks_of_a_node():
    assert plan().members == (SCHEDULER, 0, 1, 2, 3, 4, 5, 6, 7)
    assert plan(nodes=4, node_rank=2, master_port=9000).members == (4, 5)


def environment_of(rank: int | None, **numbers: int) -> dict[str, str]:
    orders = worker_process.LaunchOrders(log_dir="logs", state_dir="state", launcher=1, is_terminal=False)
    return worker_process.worker_environment(orders, rank=rank, scheduler=("10.1.2.3", 8118), **numbers)


def test_environment_of_a_rank_of_the_second_of_two_nodes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MS_NODE_TIMEOUT", "7")
    worker, scheduler = (environment_of(rank, num_workers=8, num_local_workers=4) for rank in (6, None))
    own = {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": "6", "RANK_ID": "6", "DEVICE_ID": "2"}
    of_all = {"MS_WORKER_NUM": "8", "MS_SCHED_HOST": "10.1.2.3", "MS_SCHED_PORT": "8118", "MS_NODE_TIMEOUT": "7"}
    assert worker.items() >= (own | of_all).items() and scheduler.items() >= of_all.items()
    assert scheduler["MS_ROLE"] == "MS_SCHED" and "MS_NODE_ID" not in scheduler


def test_a_silent_process_is_waited_for_longer_on_one_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MS_NODE_TIMEOUT", raising=False)
    limits = [environment_of(1, num_workers=8, num_local_workers=local)["MS_NODE_TIMEOUT"] for local in (8, 4)]
    assert limits == ["86400", "1800"]


def test_hccl_waits_for_ranks_that_compile_unless_the_user_says_otherwise():
    names = ("HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT", "MS_ENABLE_LCCL")
    code = f"import os, mindgspo.parallel.platform.runtime; print(*[os.environ[name] for name in {names}])"
    for own, expected in (({}, "7200 7200 off"), ({"HCCL_CONNECT_TIMEOUT": "300"}, "300 7200 off")):
        bare = {name: value for name, value in os.environ.items() if name not in names}
        done = python("-c", code, env=bare | own)
        assert done.stdout.split() == expected.split(), done.stderr


def test_a_server_may_have_sixteen_devices():
    ranks = plan(num_workers=32, nodes=2, node_rank=1, master_port=8118).ranks
    assert ranks == range(16, 32)
    devices = [environment_of(rank, num_workers=32, num_local_workers=16)["DEVICE_ID"] for rank in ranks]
    assert devices == [str(number) for number in range(16)]


def beat(step: int, entered: int, ticks: int = 0, *, stage: str = "generate", state: State = State.RUNNING) -> Record:
    return Record(process_id=1, state=state, step=step, stage=stage, entered=entered, ticks=ticks, changed_at=0.0)


def test_before_the_first_step_has_ended_only_min_seconds_counts():
    watch = StallWatch(WatchSection(factor=10, min_seconds=300), now=0.0)
    records = {0: beat(0, 1), 1: beat(0, 1)}
    assert watch.observe(records, 100.0) is None  # the first sign of life is progress
    assert watch.observe(records, 399.0) is None
    assert watch.observe(records, 400.0) == Stall(ranks=(0, 1), seconds=300.0, limit_s=300.0)
    assert watch.observe(records, 900.0) is None  # told once


def test_factor_counts_when_steps_are_long():
    watch = StallWatch(WatchSection(factor=10, min_seconds=300), now=0.0)
    watch.observe({0: beat(0, 1), 1: beat(0, 1)}, 0.0)
    watch.observe({0: beat(1, 2), 1: beat(0, 1)}, 500.0)  # what comes before step 1 is no step
    watch.observe({0: beat(2, 3), 1: beat(1, 2)}, 540.0)  # 40 s
    watch.observe({0: beat(3, 4), 1: beat(2, 3)}, 640.0)  # 100 s
    watch.observe({0: beat(4, 5), 1: beat(3, 4)}, 690.0)  # 50 s
    records = {0: beat(4, 5), 1: beat(3, 4)}
    assert watch.limit_s == 500.0  # 10 x the median of 40, 50, 100
    assert watch.observe(records, 1189.0) is None
    assert watch.observe(records, 1190.0) == Stall(ranks=(1,), seconds=500.0, limit_s=500.0)


def test_any_progress_of_any_rank_counts():
    watch = StallWatch(WatchSection(min_seconds=10), now=0.0)
    for tick in range(20):
        assert watch.observe({0: beat(1, 1), 1: beat(1, 1, tick)}, 9.0 * tick) is None
    found = watch.observe({0: beat(1, 1), 1: beat(1, 1, 19)}, 9.0 * 19 + 10)
    assert found == Stall(ranks=(0,), seconds=10.0, limit_s=10.0)


def test_end_of_a_stall_is_told_and_the_next_stall_again():
    watch = StallWatch(WatchSection(min_seconds=10), now=0.0)
    assert watch.observe({0: beat(1, 1)}, 0.0) is None
    assert isinstance(watch.observe({0: beat(1, 1)}, 12.0), Stall)
    assert watch.observe({0: beat(1, 2)}, 15.0) == GoesOn(seconds=15.0)
    assert watch.observe({0: beat(1, 3)}, 16.0) is None
    assert isinstance(watch.observe({0: beat(1, 3)}, 26.0), Stall)


def test_finished_job_does_not_stall():
    watch = StallWatch(WatchSection(min_seconds=10), now=0.0)
    records = dict.fromkeys((0, 1), beat(1, 5, state=State.FINISHED))
    watch.observe(records, 0.0)
    assert watch.observe(records, 100.0) is None


@pytest.mark.parametrize("wrong", [{"factor": 0.5}, {"min_seconds": 0.0}, {"poll_seconds": 0.0}, {"seconds": 3.0}])
def test_section_refuses(wrong: dict[str, float]):
    with pytest.raises(ValidationError):
        WatchSection(**wrong)


def test_meeting_names_who_has_not_come_every_30_seconds():
    watch = StartWatch(now=0.0)
    come = beat(0, 1, stage=MEETING)
    records = {0: come, 1: None, 2: beat(0, 0, state=State.STARTING), 3: come}
    assert watch.observe(records, 29.0) is None
    assert watch.observe(records, 30.0) == AbsentRanks(ranks=(1, 2), seconds=30.0)
    assert watch.observe(records, 59.0) is None
    records = dict.fromkeys(range(4), come)
    assert watch.observe(records, 61.0) == AbsentRanks(ranks=(), seconds=61.0)  # now for the scheduler, or other nodes
    assert not watch.is_over
    assert watch.observe(dict.fromkeys(range(4), beat(0, 2, stage="setup")), 95.0) is None
    assert watch.is_over
    assert watch.observe(records, 1000.0) is None


def test_a_failure_is_recorded_although_the_disk_of_the_logs_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = LaunchFolder(log_dir=tmp_path / "absent", state_dir=tmp_path)
    monkeypatch.setenv("MS_NODE_ID", "2")
    _tell_failure(DataError("metrics.jsonl: cannot be written"), full)
    record = failures.read_failure(full.failure_beside_logs(2))
    assert failures.read_failure(full.failure(2)) is None and record is not None
    assert record.message == "metrics.jsonl: cannot be written" and record.is_user_error
    assert capsys.readouterr().err == "error: metrics.jsonl: cannot be written\n"
