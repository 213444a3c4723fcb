"""The tiny experiment: its files, a finished run of it, and runs that are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from running import command, environment, mindgspo, sets, succeeded, write_experiment


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """The tiny experiment's YAML in a folder of its own."""
    return write_experiment(tmp_path)


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """The tiny experiment after `mindgspo run`. folder: where it was started. root: its run folder."""

    folder: Path
    config: Path
    root: Path
    output: str

    def again(self, *settings: str) -> subprocess.CompletedProcess[str]:
        """`mindgspo run` of the same configuration with more settings."""
        return mindgspo("run", self.config, *sets(*settings), cwd=self.folder)


@pytest.fixture(scope="session")
def finished_run(once: Callable[..., Path]) -> FinishedRun:
    """A whole run without interruption. Tests must not change anything in it."""

    def run(folder: Path) -> None:
        done = succeeded("run", write_experiment(folder), cwd=folder)
        (folder / "output.txt").write_text(done.stdout)

    folder = once("finished", run)
    output = (folder / "output.txt").read_text()
    return FinishedRun(folder=folder, config=folder / "tiny.yaml", root=folder / "runs" / "tiny", output=output)


@pytest.fixture(scope="session")
def stopped_at() -> Callable[[Path, Path, signal.Signals], tuple[int, str, str]]:
    """stopped_at(config, path, signal): start or resume a run, signal it as soon as `path` exists.

    Returns exit code, standard output and standard error.
    """

    def start_and_stop(config: Path, path: Path, number: signal.Signals) -> tuple[int, str, str]:
        process = subprocess.Popen(command("run", config, "--set", "resume=auto"), cwd=config.parent, env=environment(),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
        try:
            deadline = time.monotonic() + 300
            while not path.exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.002)
            os.kill(process.pid, number)
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
        assert path.exists(), f"{path} never appeared:\n{output}{errors}"
        return process.returncode, output, errors

    return start_and_stop
