"""Disks that are full or read-only: one line with the path, what it needs, what there is and what can be done."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from loop_disk import loop_disk
from rich.console import Console
from running import command, environment

from mindgspo.checkpoint.store import Retention, save_checkpoint
from mindgspo.cli import main
from mindgspo.config import dump_config, load_config, load_model_and_plans
from mindgspo.errors import CheckpointError, MindGSPOError, WriteError
from mindgspo.evaluation.run_tasks import EvalFolder
from mindgspo.io import atomic_file, check_free_space, write_error, write_file
from mindgspo.metrics import RunLog
from mindgspo.metrics.files import LogFile
from mindgspo.models.names import weight_shapes
from mindgspo.planner.strategy_files import write_plan_files

ARITHMETIC = Path(__file__).resolve().parents[2] / "examples" / "arithmetic" / "gspo.yaml"
PLANS = """
model: {vocab_size: 64, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 4,
        num_key_value_heads: 4}
plans: {train: {data_parallel: 2, pipeline_stage: 2, micro_batch_num: 2}, infer: {data_parallel: 4}}
"""


def make_run(run: Path) -> Path:
    """A run folder with two steps and a checkpoint."""
    config = load_config(ARITHMETIC)
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(dump_config(config))
    with RunLog(run, progress=False, console=Console(quiet=True)) as log:
        for step in (1, 2):
            log.log_metrics(step, {"critic/score/mean": 0.5, "actor/grad_norm": 1.0})
    weights = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(config.model).items()}
    save_checkpoint(run / "checkpoints", step=2, parameters=weights, optimizer={}, state={}, keep=Retention(last=1))
    return run


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read, on a disk with room."""
    folder = tmp_path_factory.mktemp("inputs")
    make_run(folder / "run")
    (folder / "plans.yaml").write_text(PLANS)
    write_plan_files(*load_model_and_plans(folder / "plans.yaml"), folder / "strategies")
    (folder / "rows.jsonl").write_text(json.dumps({"response": "#### 1", "gold": "1"}) + "\n")
    return folder


@pytest.fixture(scope="module")
def full_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A disk without a free block; in `run` a run."""
    folder = tmp_path_factory.mktemp("full")
    with loop_disk(folder / "image", folder / "disk") as disk:
        make_run(disk / "run")
        os.sync()
        fill(disk / "filler")
        yield disk


@pytest.fixture(scope="module")
def read_only_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A disk that is mounted read-only; in `run` a run."""
    folder = tmp_path_factory.mktemp("read_only")
    with loop_disk(folder / "image", folder / "disk", size_mb=100) as disk:
        make_run(disk / "run")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        yield disk


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 10):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC
        os.fsync(file.fileno())


COMMANDS: dict[str, Callable[[Path, Path], list[object]]] = {
    "report": lambda disk, inputs: ["report", disk / "run"],
    "data": lambda disk, inputs: ["data", "prepare", "--format", "arithmetic", "--max-rows", 4, "--output", disk / "d"],
    "score": lambda disk, inputs: ["reward", "score", "--function", "gsm8k", "--input", inputs / "rows.jsonl",
                                   "--output", disk / "scored.jsonl"],
    "merge": lambda disk, inputs: ["strategy", "merge", inputs / "strategies" / "train", "--out", disk / "merged.ckpt"],
    "export": lambda disk, inputs: ["checkpoint", "export", inputs / "run", disk / "export"],
    "transform": lambda disk, inputs: ["checkpoint", "transform", inputs / "run", disk / "whole.safetensors"],
}  # fmt: skip


@pytest.mark.parametrize(("disk", "said"), [
    ("full_disk", ("free in", "make room")), ("read_only_disk", ("is read-only", "choose another place")),
])  # fmt: skip
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_on_a_disk_that_takes_nothing(
    name: str, disk: str, said: tuple[str, str], request: pytest.FixtureRequest, inputs: Path, capsys
) -> None:
    folder = request.getfixturevalue(disk)
    before = sorted(folder.rglob("*"))
    assert main([str(word) for word in COMMANDS[name](folder, inputs)]) == 1
    line = the_error(capsys)
    assert all(words in line for words in (*said, str(folder))), line
    assert sorted(folder.rglob("*")) == before, "nothing is left"


@pytest.mark.parametrize(
    ("free_kb", "said"),
    [
        (300, "chunk-.*: cannot be written: the disk is full"),
        (9000, "data: needs .* and a reserve of 16.0 MiB, and .* are free"),
    ],
)
def test_a_disk_that_fills_while_data_is_prepared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], free_kb: int, said: str
) -> None:
    """In a worker that tokenizes, and before MindSpore writes records."""
    with loop_disk(tmp_path / "image", tmp_path / "disk") as disk:
        fill(disk / "filler")
        os.truncate(disk / "filler", (disk / "filler").stat().st_size - (free_kb << 10))
        code = main(["data", "prepare", "--format", "arithmetic", "--max-rows", "9000", "--output", str(disk / "data")])
    assert code == 1 and re.search(said, the_error(capsys))


def the_error(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of standard error."""
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1, said
    return said


def test_what_a_run_writes_on_a_full_disk(full_disk: Path) -> None:
    metrics = full_disk / "run" / "metrics.jsonl"
    record = {"step": 3, "text": "x" * 9000}
    with pytest.raises(WriteError) as refused:
        LogFile(metrics).append([record])
    size = len(json.dumps(record)) + 1
    assert str(refused.value) == (
        f"{metrics}: cannot be written: the disk is full (it needs {size:,} bytes, 0 bytes are free in "
        f"{metrics.parent}); make room there, or choose a place on another disk"
    )
    with pytest.raises(CheckpointError, match=r"step_00000003: needs 256 bytes and a reserve of 16.0 MiB, and 0 bytes"):
        save_checkpoint(full_disk / "run" / "checkpoints", step=3, parameters={"w": np.zeros(64, np.float32)},
                        optimizer={}, state={}, keep=Retention(last=1))  # fmt: skip
    with (
        pytest.raises(MindGSPOError, match="--out .*out: cannot be written: the disk is full"),
        EvalFolder(full_disk / "out"),
    ):
        pass


def test_a_file_that_another_process_filled_the_disk_for(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"/dev/full: cannot be written: the disk is full \(it needs 12 bytes"):
        LogFile(Path("/dev/full")).append([{"step": 1}])


def test_a_limit_of_the_size_of_files(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(WriteError, match="big: cannot be written: the file would be larger than the limit"):
            write_file(tmp_path / "big", bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_of_the_size_of_files_while_data_is_prepared(tmp_path: Path) -> None:
    """MindSpore writes the records, and says only that it could not."""
    words = command("data", "prepare", "--format", "arithmetic", "--max-rows", "8", "--output", tmp_path / "data")
    limited = ["sh", "-c", 'ulimit -f 100; exec "$@"', "sh", *words]
    done = subprocess.run(limited, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert re.match(r"error: .*prompts.mindrecord: cannot be written \(.*`ulimit -f`", done.stderr), done.stderr
    assert not (tmp_path / "data").exists()


def test_errors_of_files_that_are_read_meanwhile_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_file(tmp_path / "out") as file:
        file.write((tmp_path / "absent").read_bytes())


def test_reasons_and_sizes() -> None:
    here = Path("/proc/x")
    denied = write_error(here, PermissionError(errno.EACCES, "Permission denied"))
    assert str(denied) == (
        f"/proc/x: cannot be written: user {os.geteuid()} may not write in /proc; choose another place"
    )
    assert denied.errno == errno.EACCES and isinstance(denied, OSError) and isinstance(denied, MindGSPOError)
    quota = str(write_error(here, OSError(errno.EDQUOT, "Disk quota exceeded"), 3 << 19))
    assert "the disk quota is used up (it needs 1.5 MiB, 0 bytes are free in /proc)" in quota
    with pytest.raises(
        ValueError, match=r"x: needs 1,024.0 MiB and a reserve of 16.0 MiB, and 0 bytes are free in /proc; go"
    ):
        check_free_space(here, 1 << 30, ValueError, "go away")


def test_standard_output_on_a_full_disk() -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(command("check", ARITHMETIC), stdout=full, stderr=subprocess.PIPE, text=True,
                               env=environment(), check=False)  # fmt: skip
    assert (ended.returncode, ended.stderr) == (1, "error: No space left on device; make room there\n")
