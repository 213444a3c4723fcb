"""The kernels as other processors get them, and with other numbers of threads, in processes of their own."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kernels_on_aarch64 import CALLED, COMPILER, EMULATOR, exported

from mindgspo_kernels import build

PROJECT = Path(__file__).resolve().parents[3]


def in_process(
    arguments: list[str], *, timeout_s: float = 500, **environment: str | Path
) -> subprocess.CompletedProcess[str]:
    """Python with these arguments and environment variables."""
    environment = os.environ | {name: str(value) for name, value in environment.items()}
    return subprocess.run(
        [sys.executable, *arguments], cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=timeout_s
    )


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("g++"), reason="compiles for x86-64 processors")
@pytest.mark.parametrize("processor", ["x86-64-v3", "x86-64"], ids=["AVX2", "plain"])
def test_kernels_for_a_lesser_processor_compute_the_same(tmp_path: Path, processor: str) -> None:
    compiler = tmp_path / "tools" / "g++"
    compiler.parent.mkdir()
    compiler.write_text(f'#!/bin/sh\nPATH="{os.environ["PATH"]}" exec {shutil.which("g++")} "$@" -march={processor}\n')
    compiler.chmod(0o755)
    tests = [f"tools/kernels/tests/test_{name}.py" for name in ("graph_kernels", "kernels_in_16_bits")]
    ended = in_process(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, "tools/ascend_emulator/tests/test_kernels.py"],
        PATH=compiler.parent,
        XDG_CACHE_HOME=tmp_path / "cache",
    )
    assert ended.returncode == 0 and "skipped" not in ended.stdout, ended.stdout[-3000:]
    built = next((tmp_path / "cache").rglob("libmindgspo_kernels.so"))
    listing = subprocess.run(["objdump", "-d", str(built)], capture_output=True, text=True, check=True).stdout
    assert ("zmm" in listing, "ymm" in listing) == (False, processor == "x86-64-v3")


ON_AARCH64 = [
    "tools/ascend_emulator/tests/test_kernels.py",
    "tools/kernels/tests/test_graph_kernels.py",
    "tools/kernels/tests/test_kernels_in_16_bits.py",
    "tests/unit/parallel/test_shared_memory.py",
]
# What a message is written to lies in the other process; the last three are of graphs, whose operators call the others.
NOT_CALLED = {
    f"mindgspo_{name}" for name in ("begin_message", "end_message", "use_in_graphs", "threads", "graph_failure")
}


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
    reason="needs apt-get install g++-aarch64-linux-gnu qemu-user",
)
def test_every_kernel_computes_on_aarch64_what_its_tests_expect(tmp_path: Path) -> None:
    """Cross-compiled as a Kunpeng server compiles it. qemu-user computes what instructions mean, and orders memory as
    the processor below does: this says nothing of aarch64's weaker order."""
    called = tmp_path / "called"
    # A signal would reach the process of the tests, not the one that waits.
    options = ["-q", "-p", "no:cacheprovider", "-p", "kernels_on_aarch64", "-k", "not signal"]
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    ended = in_process(["-m", "pytest", *options, *ON_AARCH64], timeout_s=1500, PYTHONPATH=paths, **{CALLED: called})
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-1000:]
    names = {name for name in exported(build.library()) if name.startswith("mindgspo_")}
    assert names - set(called.read_text().split()) == NOT_CALLED


@pytest.mark.parametrize(("limit", "threads"), [(None, len(os.sched_getaffinity(0))), ("1", 1), ("1,4", 1)])
def test_operators_use_every_processor_unless_told_otherwise(limit: str | None, threads: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {} if limit is None else {"OMP_NUM_THREADS": limit}
    # MindSpore first: importing it sets that variable to 1, out of Python's sight.
    script = "import mindspore; from mindgspo_kernels import binding; print(binding.graph_threads())"
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert int(found.stdout) == threads


def test_graphs_of_several_threads_compute_the_same() -> None:
    tests = "tools/kernels/tests/test_graph_kernels.py"
    ended = in_process(["-m", "pytest", "-q", "-p", "no:cacheprovider", tests], OMP_NUM_THREADS="2")
    assert ended.returncode == 0 and " passed" in ended.stdout, ended.stdout[-3000:]
