"""A run that starts its own servers: what becomes of them, and of it, when one side dies."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from math import prod
from pathlib import Path

import psutil
import pytest
from hostile_requests import answered
from running import command, environment, mindgspo, sets
from served import Server

from mindgspo.config import load_config
from mindgspo.models.names import trained_weight_shapes

pytestmark = pytest.mark.slow

SERVED = sets(
    "trainer.schedule=bounded",
    "plans.infer.data_parallel=2",
    "warmup=null",
    "eval.every=1000",
    "trainer.samples_per_micro_batch=4",
)


def ended_with(process: subprocess.Popen, code: int, timeout: float = 60) -> str:
    """What a run has said that ends with this code."""
    output, _ = process.communicate(timeout=timeout)
    assert process.returncode == code, output
    return output


def assert_gone(processes: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(processes, timeout=15)
    assert not left, [one.cmdline() for one in left]


def started(experiment: Path, *overrides: str) -> subprocess.Popen:
    words = command("run", experiment, *SERVED, *sets("trainer.max_steps=400", *overrides))
    return subprocess.Popen(
        words, cwd=experiment.parent, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def servers_of(run: subprocess.Popen, count: int = 2) -> list[psutil.Process]:
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up and run.poll() is None:
        children = psutil.Process(run.pid).children()  # the launcher adopts what its workers leave, dead shells too
        found = [child for child in children if child.status() != "zombie" and "serve" in child.cmdline()]
        if len(found) == count:
            return found
        time.sleep(0.1)
    raise AssertionError(f"no servers; {run.communicate()[0]}")


def num_steps(experiment: Path) -> int:
    path = experiment.parent / "runs" / "tiny" / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def await_steps(experiment: Path, count: int) -> None:
    give_up = time.monotonic() + 240
    while num_steps(experiment) < count:
        assert time.monotonic() < give_up, "no step ends"
        time.sleep(0.2)


@pytest.fixture(params=[1, 2])
def run(request: pytest.FixtureRequest, experiment: Path) -> Iterator[tuple[subprocess.Popen, list[psutil.Process]]]:
    """In its first steps, trained by one process or by two; with its servers."""
    process = started(experiment, f"plans.train.data_parallel={request.param}")
    servers = servers_of(process)
    await_steps(experiment, 2)
    yield process, servers
    if process.poll() is None:
        process.kill()
    process.wait()


def test_a_server_that_dies_is_started_again_and_the_run_goes_on(run, experiment: Path) -> None:
    process, servers = run
    servers[1].kill()
    psutil.wait_procs(servers[1:], timeout=15)
    given = experiment.parent / "runs" / "tiny" / "logs" / "servers.json"
    give_up = time.monotonic() + 60
    while servers[1].pid in (now := list(json.loads(given.read_text()).values())):
        assert time.monotonic() < give_up, "it is not started again"
        time.sleep(0.1)
    assert {server.pid for server in servers_of(process)} == set(now) and now[0] == servers[0].pid
    await_steps(experiment, num_steps(experiment) + 5)
    process.terminate()
    output = process.communicate(timeout=60)[0]
    assert "has ended with exit code -9" in output and "server_1.log" in output, output
    assert_gone([*servers, psutil.Process(now[1])] if psutil.pid_exists(now[1]) else servers)


def test_without_restarts_the_last_server_ends_the_run(experiment: Path) -> None:
    process = started(experiment, "rollout.servers.restart=false")
    servers = servers_of(process)
    await_steps(experiment, 2)
    servers[0].kill()
    await_steps(experiment, num_steps(experiment) + 5)
    servers[1].kill()
    output = ended_with(process, 1)
    assert output.count("has ended with exit code -9") == 2 and "error: http://127.0.0.1:" in output, output
    assert not any(server.is_running() for server in servers)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_servers_end_with_their_run(run, number: signal.Signals) -> None:
    process, servers = run
    everybody = [*servers, *(child for child in psutil.Process(process.pid).children(recursive=True))]
    os.kill(process.pid, number)
    process.communicate(timeout=30)
    assert_gone(everybody)


@pytest.mark.parametrize(("model_parallel", "lora"), [(1, "model.lora.rank=4"), (2, "model.lora=null")])
def test_a_run_to_its_end(experiment: Path, model_parallel: int, lora: str) -> None:
    process = started(experiment, "trainer.max_steps=3", f"plans.infer.model_parallel={model_parallel}", lora)
    servers = servers_of(process)
    ended_with(process, 0, timeout=240)
    assert not any(server.is_running() for server in servers)
    logs = [(experiment.parent / "runs" / "tiny" / "logs" / f"server_{number}.log").read_text() for number in (0, 1)]
    assert all("serving at" in log and "Traceback" not in log for log in logs), logs
    lines = (experiment.parent / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()
    assert max(json.loads(line)["step"] for line in lines) == 3
    model = load_config(experiment, [lora]).model
    travelled = 4 * sum(prod(shape) for shape in trained_weight_shapes(model).values()) / 2**20
    assert [json.loads(line)["perf/reshard_mb"] for line in lines if "perf/reshard_mb" in line] == [travelled] * 3


def test_a_server_that_cannot_start_ends_the_run_at_once(experiment: Path) -> None:
    """Of a replica of two ranks one command more is started; it finds a folder where its log should be."""
    words = ("run", experiment, *SERVED, *sets("plans.infer.model_parallel=2"))
    blocked = experiment.parent / "runs" / "tiny" / "logs" / "server_1"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("in the way")
    ended = mindgspo(*words, cwd=experiment.parent)
    assert ended.returncode == 1 and "before it was ready" in ended.stderr, ended
    assert "server_1.log, ends with:" in ended.stdout, ended


def test_servers_of_several_machines_are_started_by_hand(experiment: Path) -> None:
    words = ("run", experiment, *SERVED, *sets("plans.train.data_parallel=2"), "--nodes", "2", "--master-port", "8118")
    refused = mindgspo(*words, cwd=experiment.parent)
    assert refused.returncode == 1 and "mindgspo serve" in refused.stderr and refused.stderr.count("\n") == 1


# ---- strangers on the same machine, and servers that say nothing


def address_of(experiment: Path, number: int) -> tuple[str, int]:
    """Where a server listens, once it does, as its log says."""
    log, give_up = experiment.parent / "runs" / "tiny" / "logs" / f"server_{number}.log", time.monotonic() + 120
    while not (found := re.search(r"serving at http://127.0.0.1:(\d+)\n", log.read_text())):
        assert time.monotonic() < give_up, log.read_text()
        time.sleep(0.1)
    return "127.0.0.1", int(found[1])


def test_strangers_neither_end_nor_block_a_run_and_find_no_key(experiment: Path) -> None:
    process = started(experiment, "trainer.max_steps=12", "plans.train.data_parallel=2")
    servers = servers_of(process)
    addresses = [address_of(experiment, number) for number in (0, 1)]
    for address in addresses:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            with socket.socket() as other, pytest.raises(OSError, match="already in use"):
                other.setsockopt(socket.SOL_SOCKET, option, 1)
                other.bind(address)
                other.listen()
    keys = [server.environ()["MINDGSPO_API_KEY"] for server in servers]
    assert keys[0] == keys[1] and len(keys[0]) == 43
    asked, refused = 0, set()
    everybody: dict[int, list[str]] = {}
    while process.poll() is None:
        for address in addresses:
            for path in ("/sleep", "/abort_requests", "/update_weights", "/v1/completions", "/health"):
                with suppress(OSError):
                    refused |= set(answered(address, _stranger(path))[0])
                    asked += 1
        with suppress(psutil.Error):
            for child in psutil.Process(process.pid).children(recursive=True):
                everybody.setdefault(child.pid, child.cmdline())
                with suppress(psutil.Error, KeyError):
                    role = child.environ().get("MS_NODE_ID")
                    is_told = child.pid in {server.pid for server in servers} or role == "0"
                    assert is_told or keys[0] not in child.environ().values(), child.cmdline()
        time.sleep(0.2)
    output, _ = process.communicate()
    assert process.returncode == 0 and asked > 50 and refused == {401}, (output, refused)
    assert keys[0] not in output and keys[0] not in str(everybody)
    for path in experiment.parent.rglob("*"):
        assert not path.is_file() or keys[0].encode() not in path.read_bytes(), path


def _stranger(path: str) -> bytes:
    body = b'{"folder": "/tmp", "version": 1, "prompt": [5]}'
    method = b"GET" if path == "/health" else b"POST"
    head = b"%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % (method, path.encode(), len(body)) + body


def test_whoever_takes_the_port_of_a_dead_server_is_not_asked(run, experiment: Path) -> None:
    """It accepts every connection and says nothing; the run goes on with the other server, and with a new one."""
    process, servers = run
    address = address_of(experiment, 1)
    servers[1].kill()
    with socket.socket() as impostor:
        impostor.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        give_up = time.monotonic() + 5
        while time.monotonic() < give_up:  # the kernel may keep the port for a minute
            with suppress(OSError):
                impostor.bind(address)
                impostor.listen(100)
                break
            time.sleep(0.01)
        await_steps(experiment, num_steps(experiment) + 5)
        process.terminate()
        output = process.communicate(timeout=60)[0]
    lost = ("its process has ended", "the connection broke", "nothing listens there any more")
    assert any(said in output for said in lost), output
    assert f":{address[1]} has ended with exit code -9" in output and "server_1.log" in output, output


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_server_that_is_stopped(experiment: Path, goes_on: bool) -> None:
    """Named within `watch.min_seconds`, and its requests go to the other; where it goes on before, it keeps them."""
    limit = 60 if goes_on else 15
    process = started(experiment, f"watch.min_seconds={limit}", "trainer.max_steps=30")
    servers = servers_of(process)
    await_steps(experiment, 2)
    servers[1].suspend()
    if goes_on:
        time.sleep(5)
        servers[1].resume()
    output = ended_with(process, 0, timeout=120)
    url = f"http://127.0.0.1:{address_of(experiment, 1)[1]}"
    assert goes_on or f"{url}: no answer for" in output, output
    assert_gone(servers)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_ends_the_run_and_its_servers(experiment: Path, rank: int) -> None:
    process = started(experiment, "plans.train.data_parallel=2")
    servers = servers_of(process)
    await_steps(experiment, 2)
    for child in psutil.Process(process.pid).children():
        with suppress(psutil.Error):
            if child.environ().get("MS_NODE_ID") == str(rank):
                child.kill()
    output = ended_with(process, 137)
    assert f"rank {rank}" in output, output
    assert_gone(servers)


def test_a_server_by_hand_and_its_trainer_share_a_key(experiment: Path) -> None:
    """With the key the run ends well; without one, and with another, it names what is wrong and ends."""
    key, other = experiment.parent / "key", experiment.parent / "other"
    key.write_text("s3cret-key\n")
    other.write_text("another-key\n")
    server = Server(experiment, experiment.parent / "server.log", "--api-key-file", key)
    words = ("run", experiment, *sets(f"rollout.servers.urls=[{server.url}]", "trainer.max_steps=2", "eval.every=1000"))
    try:
        for path, said in (
            (None, "status 401: a key is needed"), (other, "status 401: a key is needed"), (key, "report:"),
        ):  # fmt: skip
            more = () if path is None else sets(f"rollout.servers.api_key_file={path}")
            ended = mindgspo(*words, *more, "--overwrite", cwd=experiment.parent)
            assert ended.returncode == (path != key) and said in ended.stdout + ended.stderr, ended
            assert "Traceback" not in ended.stderr and "-key\n" not in ended.stdout + ended.stderr
    finally:
        assert server.end() == 0, server.log.read_text()
    for path in experiment.parent.rglob("*"):
        if path.is_file() and path not in (key, other):
            assert b"s3cret-key" not in path.read_bytes() and b"another-key" not in path.read_bytes(), path
