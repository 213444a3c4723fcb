"""Codes of CANN, HCCL and MindSpore in logs: found, told with cause and fix, the cause before what followed from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.launch import error_codes
from mindgspo.launch.error_codes import Kind, find, find_in_file, table, told
from mindgspo.launch.failures import FailureRecord, LaunchFolder, RankFailure, failure_lines

LOGS = sorted((Path(__file__).resolve().parents[2] / "data" / "ascend_logs").glob("*.log"))


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_an_archived_log_is_explained_by_its_code(log: Path) -> None:
    expected = log.name.removeprefix("MS_NO_").split("_")[0]
    expected = f"MS_NO_{expected}" if log.name.startswith("MS_") else expected
    lines = told(find_in_file(log))
    assert lines[0] == f"{expected}: {table()[expected].says}"
    assert lines[2:4] == [f"  cause  {table()[expected].cause}", f"  fix    {table()[expected].fix}"]


def test_there_are_logs_of_ten_kinds() -> None:
    assert len(LOGS) >= 10


@pytest.mark.parametrize(("line", "codes"), [
    ("Call rt api rtStreamSynchronize failed, ret: 507011", ["507011"]),
    ("rtStreamSynchronize:ErrCode=507899, desc=[driver error], InnerCode=0x7020010", ["507899"]),
    ("AclrtSynchronizeStreamWithTimeout(copy_stream), error code is 107020", ["107020"]),
    ("Malloc device memory failed, size[32212254720], ret[207001], Device 6", ["207001"]),
    ("device_address_utils.cc:1300 MallocForOutputs] Allocate memory failed", ["207001"]),
    ("(id:0) memory isn't enough and alloc failed, kernel name: Default/MatMul-op3", ["207001"]),
    ("launch failed for MoeInitRoutingV2, errno:561103.", ["561103"]),
    ("[SetMachinePara]call trace: hcclRet -> 9", ["HCCL_9"]),
    ("errNo[0x0000000005000015] rank", ["HCCL_21"]),
    ("HCCL function error: hcclCommInitRootInfoConfig(numRanks, rank), error code is 4", ["HCCL_4"]),
    ("Ascend Error: log.asc:88 code=507035 EZ9999: Inner Error!", ["EZ9999", "507035"]),
    ("the 507015th sample of 207001 has 107002 tokens", []),
    ("sha256 1E199990a, FEI0006, EI00061, EI0006x, SEL0004", []),
    ("ImportError: libascendcl.so: cannot open shared object file", ["MS_NO_CANN"]),
    ("OSError: [Errno 28] No space left on device", ["HOST_DISK"]),
], ids=lambda value: value[:30] if isinstance(value, str) else "")  # fmt: skip
def test_a_code_is_read_from_a_line(line: str, codes: list[str]) -> None:
    assert [one.error.code for one in find([line])] == codes


def test_the_cause_comes_before_what_follows_from_it() -> None:
    seen = find(
        ["E19999: Inner Error", "EI0006: Getting socket times out", "EL0004: Failed to allocate", "ret: 507011"]
    )
    assert [one.error.code for one in seen] == ["EL0004", "EI0006", "E19999", "507011"]
    lines = told(seen)
    assert lines[0].startswith("EL0004: ") and lines[1] == "  seen   line 3: EL0004: Failed to allocate"
    assert lines[-1] == "also in it: EI0006, E19999, 507011"
    assert told([]) == [] == find(["all is well"])


def test_every_entry_says_all_and_no_message_stands_for_two_codes() -> None:
    for entry in table().values():
        assert entry.says and entry.cause and entry.fix and entry.kind in Kind
    pieces = [text for entry in table().values() for text in entry.text]
    assert len(set(pieces)) == len(pieces) and [text for text in pieces if text != text.lower()] == []
    documented = ["EI0001", "EI0006", "EI0015", "EJ0001", "EL0004", "E19999", "107002", "107003", "107020", "207001",
                  "207018", "507011", "507015", "507018", "507035", "ERR00100"]  # fmt: skip
    assert [code for code in documented if code not in table()] == []


def test_only_the_end_of_a_huge_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_codes, "MOST_BYTES", 1000)
    log = tmp_path / "rank_0.log"
    log.write_text("EI0001: early\n" + "x" * 2000 + "\nret: 507015\n" + "code " + " " * 500 + "\n")
    assert [one.error.code for one in find_in_file(log)] == ["507015"]


def test_a_launcher_explains_by_the_rank_that_says_most(tmp_path: Path) -> None:
    folder = LaunchFolder(log_dir=tmp_path, state_dir=tmp_path)
    folder.log(0).write_text("EI0006: Getting socket times out. Reason: no answer of rank 1\n")
    folder.log(1).write_text("compiling\nEL0004: [PID: 7] Failed to allocate memory.\n")
    record = FailureRecord(
        time=1.0, error="RuntimeError", message="Launch failed", traceback="RuntimeError: Launch failed\n",
        is_user_error=False, log_bytes=0,
    )  # fmt: skip
    lines = failure_lines(RankFailure(rank=0, time=1.0, record=record), {0: None, 1: None}, folder)
    assert lines[0] == "rank 0 failed first: RuntimeError: Launch failed"
    assert "  seen   rank 1: EL0004: [PID: 7] Failed to allocate memory." in lines
    assert any("mindgspo plan" in line for line in lines)
    folder.log(1).write_text("fine\n")
    lines = failure_lines(RankFailure(rank=0, time=1.0, record=record), {0: None, 1: None}, folder)
    assert lines[-4].startswith("EI0006: ") and lines[-3].startswith("  seen   rank 0: EI0006")
