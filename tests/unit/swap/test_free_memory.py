"""Free memory under the limits of control groups, which are folders of small files here."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from mindgspo.swap.mapped_memory import free_memory_bytes

MIB = 2**20


def group(folder: Path, limit: str, used: int = 0, *, active: int = 0, inactive: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\nactive_file {active}\ninactive_file {inactive}\n")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Names the process's group, as /proc/self/cgroup does where versions 1 and 2 are mixed."""
    file = tmp_path / "cgroup"
    file.write_text("3:cpu:/elsewhere\n0::/slice/job\n")
    return file


def test_file_pages_of_the_group_would_make_room(tmp_path: Path, own: Path):
    group(tmp_path / "slice/job", str(10 * MIB), 8 * MIB, active=1 * MIB, inactive=2 * MIB)
    assert free_memory_bytes(tmp_path, own) == 5 * MIB
    group(tmp_path / "slice/job", "0", 8 * MIB)
    assert free_memory_bytes(tmp_path, own) == 0, "above its limit"
    assert free_memory_bytes() > MIB, "this process has some"


def test_the_tightest_group_around_the_process_counts(tmp_path: Path, own: Path):
    group(tmp_path / "slice/job", str(10 * MIB))
    group(tmp_path / "slice", str(4 * MIB), 1 * MIB)
    group(tmp_path / "slice/other", str(1 * MIB))
    assert free_memory_bytes(tmp_path, own) == 3 * MIB


@pytest.mark.parametrize("limited", [False, True])
def test_without_limits_the_machine_counts(tmp_path: Path, own: Path, limited: bool):
    if limited:
        group(tmp_path / "slice/job", "max", 8 * MIB)
    machine = psutil.virtual_memory()
    assert 0 < free_memory_bytes(tmp_path, own) <= machine.total
    assert free_memory_bytes(tmp_path, tmp_path / "absent") <= machine.total
