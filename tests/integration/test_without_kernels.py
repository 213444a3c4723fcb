"""A run without the kernels for CPU; and the library of the kernels after a power cut."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from loop_disk import loop_disk
from running import PROJECT, sets, succeeded

from mindgspo.io import fsync
from mindgspo_kernels import build


@pytest.mark.slow
def test_a_run_without_a_compiler_says_once_what_is_slower(tmp_path: Path) -> None:
    settings = (f"run_dir={tmp_path / 'run'}", "trainer.max_steps=1", "warmup.max_steps=2", "data.eval.max_rows=8")
    variables = {"PATH": str(tmp_path / "none"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    ended = succeeded("run", "examples/arithmetic/gspo.yaml", *sets(*settings), cwd=PROJECT, env=variables, timeout=500)
    told = [line for line in (ended.stdout + ended.stderr).splitlines() if line.startswith("[kernels]")]
    assert len(told) == 1 and "apt-get install g++" in told[0] and "several times slower" in told[0]


def test_the_library_is_whole_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compile_library", lambda target: target.write_bytes(b"library" * 1000))
    with loop_disk(tmp_path / "image", tmp_path / "mounted") as disk:
        path = build.library_in(disk).relative_to(disk)
        (disk / "other").touch()
        fsync(disk / "other")  # flushes the names of all files, and the content of this one alone
        shutil.copyfile(tmp_path / "image", tmp_path / "copy")
    with loop_disk(tmp_path / "copy", tmp_path / "after") as disk:
        assert (disk / path).read_bytes()[:-32] == b"library" * 1000
