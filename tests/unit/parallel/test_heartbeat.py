"""Records on real files, and who is awaited by hand-made ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mindgspo.parallel.platform import heartbeat
from mindgspo.parallel.platform.heartbeat import Heartbeat, Record, State, awaited, read_record

MEETS = "barrier over ranks 0-2, for rank 1"


def record(entered: int, ticks: int = 0, state: State = State.RUNNING, *, waits_in: str = "") -> Record:
    return Record(
        process_id=1, state=state, step=1, stage="s", entered=entered, ticks=ticks, changed_at=0.0, waits_in=waits_in
    )


def test_what_is_written_is_read(tmp_path: Path):
    path = tmp_path / "beat"
    before = time.monotonic()
    beat = Heartbeat(path)
    first = read_record(path)
    assert (first.process_id, first.state, first.stage, first.sequence) == (os.getpid(), State.STARTING, "", (0, 0))
    beat.enter("generate", 7)
    beat.tick()
    beat.tick()
    second = read_record(path)
    assert (second.state, second.stage, second.step, second.sequence) == (State.RUNNING, "generate", 7, (1, 2))
    assert before <= first.changed_at <= second.changed_at <= time.monotonic()
    beat.waiting.value = MEETS.encode()
    assert read_record(path).waits_in == MEETS and read_record(path) == beat.record
    beat.waiting.value = b""
    assert not read_record(path).waits_in and read_record(path).sequence == (1, 2), "to wait is no progress"
    beat.enter("update", 8)
    beat.end(State.FINISHED)
    last = read_record(path)
    assert (last.state, last.stage, last.step, last.sequence) == (State.FINISHED, "update", 8, (2, 0))
    beat.end(State.FAILED)
    assert read_record(path).state is State.FAILED


def test_long_stage_names_are_cut_between_characters(tmp_path: Path):
    beat = Heartbeat(tmp_path / "beat")
    beat.enter("é" * 40, 1)  # 80 bytes
    assert read_record(tmp_path / "beat").stage == "é" * 32
    beat.enter("x" + "é" * 40, 1)
    assert read_record(tmp_path / "beat").stage == "x" + "é" * 31


def test_no_record_without_a_whole_file(tmp_path: Path):
    path = tmp_path / "beat"
    assert read_record(path) is None
    Heartbeat(path).enter("generate", 1)
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:20] + bytes([whole[20] ^ 1]) + whole[21:], whole):
        path.write_bytes(content)
        assert (read_record(path) is not None) == (content == whole)


def test_reader_never_sees_half_a_write(tmp_path: Path):
    """A child writes without pause records whose fields belong together."""
    path = tmp_path / "beat"
    code = (
        "import sys; from pathlib import Path; from mindgspo.parallel.platform.heartbeat import Heartbeat\n"
        "beat = Heartbeat(Path(sys.argv[1]))\n"
        "for step in range(10**9): beat.enter(f'stage {step}', step)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)])
    try:
        give_up = time.monotonic() + 30
        while ((found := read_record(path)) is None or found.entered == 0) and time.monotonic() < give_up:
            time.sleep(0.01)
        for _ in range(3000):
            found = read_record(path)
            assert found is not None
            assert (found.stage, found.entered) == (f"stage {found.step}", found.step + 1)
    finally:
        child.kill()
        child.wait()


def test_process_that_is_alone_writes_nothing():
    heartbeat.enter("generate", 1)
    heartbeat.tick()
    heartbeat.mark_ended(heartbeat.State.FINISHED)
    heartbeat.mark_ended(heartbeat.State.FAILED)


@pytest.mark.parametrize(("records", "expected"), [
    ({}, ()),
    ({0: record(3), 1: record(2), 2: record(3)}, (1,)),
    ({0: record(3, 5), 1: record(3, 4), 2: record(3, 5)}, (1,)),
    ({0: record(2, 900), 1: record(3, 0)}, (0,)),  # ticks of an earlier stage do not count
    ({0: record(3, 1), 1: record(3, 1)}, (0, 1)),  # nobody is behind
    ({0: record(3), 1: None, 2: record(1)}, (1,)),  # who has not come
    ({2: record(1), 0: record(1), 1: record(4)}, (0, 2)),
    ({0: record(9), 1: record(2, state=State.FINISHED)}, (0,)),  # the finished are awaited by nobody
    ({0: record(9, state=State.FAILED), 1: record(9, state=State.FINISHED)}, ()),
    ({0: record(1), 1: record(0, state=State.STARTING)}, (1,)),
    ({0: record(3, 1), 1: record(3, 1, waits_in=MEETS), 2: record(3, 1, waits_in=MEETS)}, (0,)),
    ({0: record(3, 2, waits_in=MEETS), 1: record(3, 9)}, (1,)),  # it drew fewer tokens, and is done
    ({0: record(3, waits_in=MEETS), 1: record(2, waits_in=MEETS)}, (1,)),  # all wait: a defect of ours
])  # fmt: skip
def test_awaited(records: dict[int, Record | None], expected: tuple[int, ...]):
    assert awaited(records) == expected
