"""A run that starts its own servers: what becomes of them, and of it, when one side dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from running import command, environment, sets, write_experiment

pytestmark = pytest.mark.slow

SERVED = sets(
    "trainer.schedule=bounded",
    "plans.infer.data_parallel=2",
    "warmup=null",
    "eval.every=1000",
    "trainer.samples_per_micro_batch=4",
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_experiment(tmp_path)


def started(config: Path, *overrides: str) -> subprocess.Popen:
    words = command("run", config, *SERVED, *sets("trainer.max_steps=400", *overrides))
    return subprocess.Popen(
        words, cwd=config.parent, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def servers_of(run: subprocess.Popen, count: int = 2) -> list[psutil.Process]:
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up and run.poll() is None:
        found = [child for child in psutil.Process(run.pid).children() if "serve" in child.cmdline()]
        if len(found) == count:
            return found
        time.sleep(0.1)
    raise AssertionError(f"no servers; {run.communicate()[0]}")


def await_steps(config: Path, count: int) -> None:
    path, give_up = config.parent / "runs" / "tiny" / "metrics.jsonl", time.monotonic() + 240
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert time.monotonic() < give_up, "no step ends"
        time.sleep(0.2)


@pytest.fixture(params=[1, 2])
def run(request: pytest.FixtureRequest, config: Path) -> Iterator[tuple[subprocess.Popen, list[psutil.Process]]]:
    """In its first steps, trained by one process or by two; with its servers."""
    process = started(config, f"plans.train.data_parallel={request.param}")
    servers = servers_of(process)
    await_steps(config, 2)
    yield process, servers
    if process.poll() is None:
        process.kill()
    process.wait()


def test_the_death_of_a_server_ends_the_run(run, config: Path) -> None:
    process, servers = run
    servers[1].kill()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert "has ended with exit code -9" in output and "server_1.log" in output, output
    assert not any(server.is_running() for server in servers)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_servers_end_with_their_run(run, number: signal.Signals) -> None:
    process, servers = run
    everybody = [*servers, *(child for child in psutil.Process(process.pid).children(recursive=True))]
    os.kill(process.pid, number)
    process.communicate(timeout=30)
    _, left = psutil.wait_procs(everybody, timeout=15)
    assert not left, [one.cmdline() for one in left]


@pytest.mark.parametrize("model_parallel", [1, 2])
def test_a_run_to_its_end(config: Path, model_parallel: int) -> None:
    process = started(config, "trainer.max_steps=3", f"plans.infer.model_parallel={model_parallel}")
    servers = servers_of(process)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert not any(server.is_running() for server in servers)
    logs = [(config.parent / "runs" / "tiny" / "logs" / f"server_{number}.log").read_text() for number in (0, 1)]
    assert all("serving at" in log and "Traceback" not in log for log in logs), logs
    lines = (config.parent / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()
    assert max(json.loads(line)["step"] for line in lines) == 3


def test_a_server_that_cannot_start_ends_the_run_at_once(config: Path) -> None:
    """Of a replica of two ranks one command more is started; it finds a folder where its log should be."""
    words = ("run", config, *SERVED, *sets("plans.infer.model_parallel=2"))
    blocked = config.parent / "runs" / "tiny" / "logs" / "server_1"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("in the way")
    ended = subprocess.run(
        command(*words), cwd=config.parent, env=environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1 and "before it was ready" in ended.stderr, ended
    assert "server_1.log, ends with:" in ended.stdout, ended


def test_servers_of_several_machines_are_started_by_hand(config: Path) -> None:
    words = ("run", config, *SERVED, *sets("plans.train.data_parallel=2"), "--nodes", "2", "--master-port", "8118")
    refused = subprocess.run(
        command(*words), cwd=config.parent, env=environment(), capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1 and "mindgspo serve" in refused.stderr and refused.stderr.count("\n") == 1
