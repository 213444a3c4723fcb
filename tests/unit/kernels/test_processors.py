"""The kernels as other processors get them, a run without them, in processes of their own; and after a power cut."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from loop_disk import loop_disk

from mindgspo.io import fsync
from mindgspo.kernels import build

PROJECT = Path(__file__).resolve().parents[3]


def in_process(arguments: list[str], **environment: str | Path) -> subprocess.CompletedProcess[str]:
    """Python with these arguments and environment variables."""
    environment = os.environ | {name: str(value) for name, value in environment.items()}
    return subprocess.run(
        [sys.executable, *arguments], cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=500
    )


@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("g++"), reason="compiles for x86-64 processors")
@pytest.mark.parametrize("processor", ["x86-64-v3", "x86-64"], ids=["AVX2", "plain"])
def test_kernels_for_a_lesser_processor_compute_the_same(tmp_path: Path, processor: str) -> None:
    compiler = tmp_path / "tools" / "g++"
    compiler.parent.mkdir()
    compiler.write_text(f'#!/bin/sh\nPATH="{os.environ["PATH"]}" exec {shutil.which("g++")} "$@" -march={processor}\n')
    compiler.chmod(0o755)
    names = "unit/kernels/test_graph_kernels.py", "unit/kernels/test_kernels_in_16_bits.py", "ascend/test_kernels.py"
    tests = [f"tests/{name}" for name in names]
    ended = in_process(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        PATH=compiler.parent,
        XDG_CACHE_HOME=tmp_path / "cache",
    )
    assert ended.returncode == 0 and "skipped" not in ended.stdout, ended.stdout[-3000:]
    built = next((tmp_path / "cache").rglob("libmindgspo_kernels.so"))
    listing = subprocess.run(["objdump", "-d", str(built)], capture_output=True, text=True, check=True).stdout
    assert ("zmm" in listing, "ymm" in listing) == (False, processor == "x86-64-v3")


@pytest.mark.parametrize(("limit", "threads"), [(None, len(os.sched_getaffinity(0))), ("1", 1), ("1,4", 1)])
def test_operators_use_every_processor_unless_told_otherwise(limit: str | None, threads: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {} if limit is None else {"OMP_NUM_THREADS": limit}
    # MindSpore first: importing it sets that variable to 1, out of Python's sight.
    script = "import mindspore; from mindgspo.kernels import binding; print(binding.graph_threads())"
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert int(found.stdout) == threads


def test_graphs_of_several_threads_compute_the_same() -> None:
    tests = "tests/unit/kernels/test_graph_kernels.py"
    ended = in_process(["-m", "pytest", "-q", "-p", "no:cacheprovider", tests], OMP_NUM_THREADS="2")
    assert ended.returncode == 0 and " passed" in ended.stdout, ended.stdout[-3000:]


def test_a_run_without_a_compiler_says_once_what_is_slower(tmp_path: Path) -> None:
    settings = [f"run_dir={tmp_path / 'run'}", "trainer.max_steps=1", "warmup.max_steps=2", "data.eval.max_rows=8"]
    words = [word for setting in settings for word in ("--set", setting)]
    ended = in_process(
        ["-m", "mindgspo.cli", "run", "examples/arithmetic/gspo.yaml", *words],
        PATH=tmp_path / "none",
        XDG_CACHE_HOME=tmp_path / "cache",
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    told = [line for line in (ended.stdout + ended.stderr).splitlines() if line.startswith("[kernels]")]
    assert len(told) == 1 and "apt-get install g++" in told[0] and "several times slower" in told[0]


def test_the_library_is_whole_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_compile", lambda target: target.write_bytes(b"library" * 1000))
    with loop_disk(tmp_path / "image", tmp_path / "mounted") as disk:
        path = build.library_in(disk).relative_to(disk)
        (disk / "other").touch()
        fsync(disk / "other")  # flushes the names of all files, and the content of this one alone
        shutil.copyfile(tmp_path / "image", tmp_path / "copy")
    with loop_disk(tmp_path / "copy", tmp_path / "after") as disk:
        assert (disk / path).read_bytes()[:-32] == b"library" * 1000
