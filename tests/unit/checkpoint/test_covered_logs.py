"""What a checkpoint says of the run's logs: on disk before it counts, checked when it is resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import xxhash
from loop_disk import loop_disk
from planned_checkpoints import save_small
from rich.console import Console

from mindgspo.checkpoint.manifest import MANIFEST_FILE
from mindgspo.checkpoint.store import newest_checkpoint, open_checkpoint
from mindgspo.errors import CheckpointError
from mindgspo.metrics import RunLog
from mindgspo.metrics.files import LOGS, LogFile
from mindgspo.trainer.resume_checks import intact_logs, log_warnings


def open_log(run: Path) -> RunLog:
    return RunLog(run, progress=False, console=Console(quiet=True))


def train(run: Path, *, steps: range, save_every: int) -> RunLog:
    """What a run leaves of its steps: lines of metrics, and checkpoints."""
    run.mkdir(exist_ok=True)
    log = open_log(run)
    for step in steps:
        log.log_metrics(step, {"actor/pg_loss": step / 7})
        if step % save_every == 0:
            save_small(run / "checkpoints", step, keep=9, logs=log.records())
    return log


def checked(run: Path) -> tuple[Path, dict[str, int], list[str]]:
    """The newest checkpoint, the logs that are whole up to it, and the warnings."""
    newest = newest_checkpoint(run / "checkpoints")
    assert newest is not None
    with open_checkpoint(newest) as saved:
        intact = intact_logs(run, saved.logs)
        return newest, intact, log_warnings(run, newest, saved.logs, intact=intact)


def logged_steps(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_bytes().splitlines()]


def test_a_growing_log_is_hashed_once(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "metrics.jsonl")
    assert (log.record().size, log.record().digest) == (0, xxhash.xxh3_128(b"").hexdigest())
    log.append([{"step": 1}])
    assert log.record().digest == xxhash.xxh3_128(b'{"step": 1}\n').hexdigest()
    with log.path.open("r+b") as file:
        file.write(b"[")  # whoever read it again would see this
    log.append([{"step": 2}])
    expected = xxhash.xxh3_128(b'{"step": 1}\n{"step": 2}\n').hexdigest()
    assert (log.record().size, log.record().digest) == (24, expected)


def test_whole_logs_are_cut_behind_the_checkpoint_whatever_lies_there(tmp_path: Path) -> None:
    train(tmp_path, steps=range(5), save_every=2)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b"\0\0\0\n\xff{\n")  # what a power cut may leave of lines that were never flushed
    newest, intact, warnings = checked(tmp_path)
    assert newest.name == "step_00000004" and intact.keys() == set(LOGS) and warnings == []
    log = open_log(tmp_path)
    log.truncate_after(4, intact)
    assert logged_steps(tmp_path) == [0, 1, 2, 3, 4]
    log.log_metrics(5, {"actor/pg_loss": 1.0})
    content = (tmp_path / "metrics.jsonl").read_bytes()
    assert log.records()[tmp_path / "metrics.jsonl"].digest == xxhash.xxh3_128(content).hexdigest()


def test_missing_records_are_told_with_what_can_be_done(tmp_path: Path) -> None:
    train(tmp_path, steps=range(7), save_every=2)
    path = tmp_path / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    size = sum(map(len, lines))
    path.write_bytes(b"".join(lines[:4]) + lines[4][:9])
    newest, intact, warnings = checked(tmp_path)
    assert warnings == [
        f"{path}: {sum(map(len, lines[:4])) + 9} of the {size} bytes that step_00000006 covers are there",
        "the run goes on without these records; to have them, restore the files from a copy, or train these steps "
        f"again with resume={newest.parent / 'step_00000002'}, up to which nothing is missing",
    ]
    open_log(tmp_path).truncate_after(6, intact)
    assert logged_steps(tmp_path) == [0, 1, 2, 3]
    path.write_bytes(b"".join(lines).replace(b"0.14", b"0.41"))
    assert f"{path}: its first {size} bytes are not what they were when step_00000006 was saved" in checked(tmp_path)[2]
    path.unlink()
    assert checked(tmp_path)[2][0] == f"{path}: missing, with the {size} bytes that step_00000006 covers"


def test_a_checkpoint_that_records_no_logs_is_resumed_without_the_check(tmp_path: Path) -> None:
    path = save_small(tmp_path / "checkpoints", 1)
    assert "logs" not in json.loads((path / MANIFEST_FILE).read_text()), "as before they were recorded"
    _, intact, (warning,) = checked(tmp_path)
    assert intact == {} and warning.startswith(f"{path} does not record")


def test_a_manifest_that_names_other_files_as_logs_is_damaged(tmp_path: Path) -> None:
    train(tmp_path, steps=range(1), save_every=1)
    manifest = tmp_path / "checkpoints" / "step_00000000" / MANIFEST_FILE
    content = json.loads(manifest.read_text())
    content["logs"]["../../../etc/passwd"] = {"size": 1, "xxh3_128": "0"}
    manifest.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="strange names"), open_checkpoint(manifest.parent):
        pass


TRAIN = """
import sys
from pathlib import Path
from importlib.machinery import SourceFileLoader
sys.path[:0] = sys.argv[3:]
tests = SourceFileLoader("covered_logs", sys.argv[1]).load_module()
tests.train(Path(sys.argv[2]), steps=range(1, 1000), save_every=2)
"""


def test_what_a_checkpoint_covers_outlives_a_power_cut(tmp_path: Path) -> None:
    """The disk is copied as soon as a checkpoint has its name: 10 times."""
    image, run = tmp_path / "disk", tmp_path / "mounted" / "runs" / "power"
    with loop_disk(image, tmp_path / "mounted"):
        run.parent.mkdir()
        os.sync()
        process = subprocess.Popen([sys.executable, "-c", TRAIN, __file__, run, *sys.path])
        try:
            for moment in range(1, 11):
                wanted = run / "checkpoints" / f"step_{4 * moment:08d}"
                while not wanted.exists():
                    assert process.poll() is None
                    time.sleep(0.0005)
                process.send_signal(signal.SIGSTOP)
                shutil.copyfile(image, tmp_path / f"copy_{moment}")
                process.send_signal(signal.SIGCONT)
        finally:
            process.kill()
            process.wait()
    for moment in range(1, 11):
        with loop_disk(tmp_path / f"copy_{moment}", tmp_path / "after") as after:
            if not (after / "runs" / "power" / "checkpoints").exists():
                assert moment == 1, "a folder's name can be lost with the first checkpoint only"
                continue
            newest, intact, warnings = checked(after / "runs" / "power")
            step = int(newest.name[5:])
            assert step >= 4 * moment - 2, "all but the one that had just got its name was flushed before"
            assert warnings == [] and intact.keys() == set(LOGS)
            assert logged_steps(after / "runs" / "power")[:step] == list(range(1, step + 1))
