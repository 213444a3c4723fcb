"""The folder in shared memory of a job on emulated cards: this user's alone, whatever others have laid there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascend_emulator import launcher
from ascend_emulator.errors import EmulatorError

SHARED = Path("/dev/shm")
STRANGER = 12_345
NO_PROCESS = 999_999_999
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="needs /dev/shm")


@pytest.fixture
def laid(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """What a test lays there, by a name of its own, and takes away."""
    monkeypatch.setattr(launcher, "_PREFIX", f"emulator-test-{os.getpid()}-")
    monkeypatch.delenv("MS_ROLE", raising=False)
    yield [SHARED / f"{launcher._PREFIX}{name}" for name in (1, NO_PROCESS, "x", os.getpid(), os.getppid())]
    for path in SHARED.glob(f"{launcher._PREFIX}*"):
        path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)


def test_what_others_have_laid_there_stops_nothing(laid: list[Path], tmp_path: Path) -> None:
    init, gone, odd, _, _ = laid
    init.symlink_to("/nowhere")
    odd.mkdir()
    (tmp_path / "kept").touch()
    gone.symlink_to(tmp_path)
    folder = launcher._shared_folder()
    assert folder.name == f"{launcher._PREFIX}{os.getpid()}" and folder.stat().st_mode & 0o777 == 0o700
    assert init.is_symlink() and odd.is_dir() and (tmp_path / "kept").exists()
    assert launcher._owner(folder) == os.getpid()


def test_what_a_killed_job_left_is_cleared_away(laid: list[Path]) -> None:
    laid[1].mkdir()
    (laid[1] / "file").touch()
    launcher._shared_folder()
    assert not laid[1].exists()


@pytest.mark.parametrize("kind", ["link", "open", "owner"])
def test_a_folder_that_others_could_write_is_not_used(
    laid: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for path in laid[3:]:
        if kind == "link":
            path.symlink_to(tmp_path)
        else:
            path.mkdir()
            path.chmod(0o777)
        if kind == "owner":
            if os.geteuid():
                pytest.skip("only root can give folders to another user")
            path.chmod(0o755)
            os.chown(path, STRANGER, STRANGER)
    folder = launcher._shared_folder()
    assert folder not in laid and folder.stat().st_mode & 0o777 == 0o700 and launcher._owner(folder) == os.getpid()
    monkeypatch.setenv("MS_ROLE", "MS_WORKER")  # all ranks must find the same one
    with pytest.raises(EmulatorError, match=f"{laid[4]}: .*; remove it"):
        launcher._shared_folder()
