"""Starts the launcher in a process of its own, as the command line does, and looks at what becomes of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import psutil
import pytest

WORKERS = Path(__file__).parent / "workers"
START_S = 90.0  # for a cluster to form on a busy machine
END_S = 10.0  # from an event until all processes have ended


@dataclass(frozen=True)
class Ended:
    """seconds: from the call of `end` to the launcher's end."""

    code: int
    output: str
    errors: str
    seconds: float


class Launched:
    """A running launcher."""

    def __init__(
        self, log_dir: Path, command: list[str], options: Mapping[str, object], env: Mapping[str, str]
    ) -> None:
        self.log_dir = log_dir
        self.process = subprocess.Popen(
            [sys.executable, str(WORKERS / "launch_toy.py"), json.dumps(options), str(log_dir), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )

    def log(self, rank: int) -> str:
        path = self.log_dir / f"rank_{rank}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for(self, rank: int, text: str) -> None:
        """Until a rank has printed something."""
        give_up = time.monotonic() + START_S
        while text not in self.log(rank):
            assert time.monotonic() < give_up, f"rank {rank} did not print {text!r}: {self.log(rank)}"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)

    def kill_rank(self, rank: int) -> None:
        for process in self.processes():
            environment = process.environ()
            is_rank = environment.get("MS_ROLE") == "MS_WORKER" and environment["MS_NODE_ID"] == str(rank)
            if is_rank and process.ppid() == self.process.pid:  # its children inherit the environment
                process.kill()

    def end(self, seconds: float = START_S) -> Ended:
        """Wait for it; none of its processes may be left, unless it was killed itself."""
        began = time.monotonic()
        output, errors = self.process.communicate(timeout=seconds)
        ended = Ended(self.process.returncode, output, errors, time.monotonic() - began)
        assert ended.code == -signal.SIGKILL or self.processes() == []
        return ended

    def processes(self) -> list[psutil.Process]:
        """All that descend from this launch, found by the environment that they inherit."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                orders = process.environ().get("MINDGSPO_LAUNCH", "{}")
                if json.loads(orders).get("log_dir") == str(self.log_dir) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


@pytest.fixture
def start_launcher(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """start_launcher(script, *arguments, workers=2, env={}, **options of launch): the launcher, running."""
    started: list[Launched] = []

    def start(
        script: str, *arguments: object, workers: int = 2, env: Mapping[str, str] | None = None, **options
    ) -> Launched:
        command = [str(WORKERS / script), *map(str, arguments)]
        log_dir = tmp_path / f"logs_{len(started)}"
        started.append(Launched(log_dir, command, {"num_workers": workers, **options}, env or {}))
        return started[-1]

    yield start
    for launched in started:
        launched.process.send_signal(signal.SIGKILL)
        for process in launched.processes():
            with suppress(psutil.Error):
                process.kill()


@pytest.fixture(scope="module")
def figures_alone(cpu_runtime: None) -> Callable[..., dict[str, np.ndarray]]:
    """Model, and is_packed -> the figures of one process; see `plan_results.results_of_plan`."""
    sys.path.insert(0, str(WORKERS))
    try:
        from plan_results import results_of_plan
    finally:
        sys.path.remove(str(WORKERS))
    return cache(lambda model, *, is_packed=False: results_of_plan({}, {}, model, {}, is_packed=is_packed))


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
