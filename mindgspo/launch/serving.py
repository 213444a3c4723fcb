"""The processes of completion servers: those of `mindgspo serve`, and those that a run starts for itself."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from mindgspo.config import ExperimentConfig
from mindgspo.config.deployment_rules import infer_cards
from mindgspo.errors import ConfigError, MindGSPOError, RolloutError
from mindgspo.io import make_folder
from mindgspo.launch.failures import last_lines
from mindgspo.launch.launcher import launch
from mindgspo.launch.processes import GRACE_S, handed_over, is_loopback, taken_over
from mindgspo.launch.worker import run_worker
from mindgspo.parallel.platform import runtime, worker_process
from mindgspo.text import counted

_LAST_LINES = 12
_READY_WITHIN_S, _POLL_S = 600.0, 0.05
_LOOK_S, _FIRST_PAUSE_S, _LONGEST_PAUSE_S, _LASTING_S = 0.5, 1.0, 60.0, 300.0
_SERVED = "MINDGSPO_SERVED"  # process id of the run that has started a server


def start_serving(
    work: Callable[[socket.socket | None], int],
    config: ExperimentConfig,
    words: Sequence[str],
    *,
    host: str,
    port: int,
    cards: str | None,
    logs: Path | None,
    has_key: bool,
) -> int:
    """Do `work` here, or in as many ranks as a replica of the infer plan has; returns the exit code. work: on rank 0
    with a bound socket. words: the command line that does the same."""
    listener = taken_over()
    if worker_process.is_launched():
        run_worker(lambda: work(listener))
    if run := os.environ.get(_SERVED):
        worker_process.die_with_parent()
        if os.getppid() != int(run):
            raise RolloutError("the run that has started this server is gone")
    size, devices = config.plans.infer.model_parallel, None if cards is None else _numbers(config, cards)
    listener = listener or _bound(host, port, has_key=has_key)
    if size > 1:
        folder = logs or Path("serve") / config.experiment
        return launch(
            words,
            num_workers=size,
            log_dir=folder,
            watch=config.watch,
            devices=devices,
            listener=listener,
            on_cards=config.device == "Ascend",
        )
    if devices is not None:
        worker_process.choose_card(devices[0])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return work(listener)
    except KeyboardInterrupt:
        return 0


def _numbers(config: ExperimentConfig, cards: str) -> list[str]:
    numbers, size = cards.split(","), config.plans.infer.model_parallel
    if not all(number.isdecimal() for number in numbers) or len(set(numbers)) != len(numbers) or len(numbers) != size:
        raise ConfigError(
            f"--cards {cards}: a replica of plans.infer has {counted(size, 'card')} (model_parallel); give as many "
            f"numbers, e.g. --cards {','.join(map(str, range(size)))}"
        )
    return numbers


def _bound(host: str, port: int, *, has_key: bool) -> socket.socket:
    """Bind a socket before anything is compiled; it listens once the server can answer. Raises ConfigError."""
    where = f"--host {host} --port {port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, address = min(found, key=lambda one: one[0])  # localhost is 127.0.0.1 where it is ::1 too
        listener = socket.socket(family, socket.SOCK_STREAM)
        # Connections of an earlier server that are still closing do not prevent it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise ConfigError(
            f"{where}: cannot listen there ({error.strerror}); choose another port (0 takes a free one), or an address "
            "of this machine"
        ) from error
    if not has_key and not is_loopback(listener.getsockname()[0]):
        raise ConfigError(
            f"{where}: whoever reaches this address could load weights and stop what runs; give a key, by "
            f"--api-key-file or {worker_process.API_KEY}, to this server and to its trainer, or listen at 127.0.0.1"
        )
    return listener


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    command: Sequence[str]
    environment: Mapping[str, str]
    port: int
    log: Path
    process: subprocess.Popen

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def own_servers(config: ExperimentConfig, words: Sequence[str], log_dir: Path) -> Iterator[Callable[[], None]]:
    """While the block runs, each replica of the infer plan has a server on cards of its own, and this process and its
    children know their addresses. Servers that end are started again, see `rollout.servers.restart`. words:
    configuration and overrides as on the command line. Yields a function that shows the last lines of servers that have
    ended; if the block raises, they are shown."""
    cards, size = infer_cards(config), config.plans.infer.model_parallel
    make_folder(log_dir)
    servers: list[_Server] = []
    threads: list[threading.Thread] = []
    is_over, changing = threading.Event(), threading.Lock()
    key = secrets.token_urlsafe(32)  # of this run and its servers: strangers are not answered, nor believed
    try:
        for number in range(config.plans.infer.data_parallel):
            own = cards[number * size : (number + 1) * size]
            servers.append(_new_server(words, own, log_dir, number, key))
        _await(servers)

        def tell() -> None:
            numbers = {server.url: server.process.pid for server in servers}
            worker_process.tell_rollout_servers(numbers, key, log_dir / "servers.json")

        def restart(number: int) -> None:
            with changing:
                if not is_over.is_set():
                    old = servers[number]
                    servers[number] = _started(old.command, old.environment, old.log, mode="ab")
                    tell()

        tell()
        for number in range(len(servers)) if config.rollout.servers.restart else ():
            threads.append(threading.Thread(target=_keep, args=(servers, number, restart, is_over), daemon=True))
            threads[-1].start()
        yield lambda: _show_dead(servers)
    except MindGSPOError:
        _show_dead(servers)
        raise
    finally:
        with changing:
            is_over.set()
        _end(servers)
        for thread in threads:
            thread.join()


def _keep(servers: Sequence[_Server], number: int, restart: Callable[[int], None], is_over: threading.Event) -> None:
    """Start a server again each time that it ends, later and later while it does not last. The kernel ends a server
    with the thread that started it, so this one ends after the server."""
    pause_s, began = _FIRST_PAUSE_S / 2, time.monotonic()
    while not is_over.wait(_LOOK_S):
        if _exit_code(servers[number].process) is None:
            continue
        _show_dead([servers[number]])
        lasted = time.monotonic() - began > _LASTING_S
        pause_s = _FIRST_PAUSE_S if lasted else min(2 * pause_s, _LONGEST_PAUSE_S)
        print(f"it is started again in {pause_s:.0f} s", flush=True)
        is_over.wait(pause_s)
        began = time.monotonic()
        try:
            restart(number)
        except (OSError, MindGSPOError) as error:  # no memory for a process, a full disk
            print(f"a server that generates cannot be started again: {error}", flush=True)
    servers[number].process.wait()


def _new_server(words: Sequence[str], cards: Sequence[int], log_dir: Path, number: int, key: str) -> _Server:
    # An emulated card's process sets itself up: servers and trainer are jobs of their own.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ASCEND_EMULATOR")}
    environment |= {_SERVED: str(os.getpid()), worker_process.API_KEY: key}
    command = [sys.executable, "-m", "mindgspo.cli", "serve", *words]
    command += ["--cards", ",".join(map(str, cards)), "--logs", str(log_dir / f"server_{number}")]
    if runtime.is_emulated():
        command.append("--emulate-ascend")
    return _started(command, environment, log_dir / f"server_{number}.log", mode="wb")


def _started(
    command: Sequence[str], environment: Mapping[str, str], log: Path, *, mode: Literal["wb", "ab"]
) -> _Server:
    """Start a server at a port that no other process can have. mode: of opening its log."""
    with log.open(mode) as output, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        process = subprocess.Popen(
            command,
            **handed_over(listener, environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return _Server(command=command, environment=environment, port=port, log=log, process=process)


def _await(servers: Sequence[_Server]) -> None:
    """Wait until all listen, which they do once they are ready. Raises RolloutError."""
    give_up = time.monotonic() + _READY_WITHIN_S
    for server in servers:
        while not _listens(server.port):
            if any(one.process.poll() is not None for one in servers):
                raise RolloutError("a server that generates has ended before it was ready")
            if time.monotonic() > give_up:
                raise RolloutError(f"{server.url}: the server is not ready after {_READY_WITHIN_S:.0f} s; {server.log}")
            time.sleep(_POLL_S)


def _listens(port: int) -> bool:
    with closing(socket.socket()) as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def _show_dead(servers: Sequence[_Server]) -> None:
    for server in servers:
        if (code := _exit_code(server.process)) is not None:
            print(f"the server at {server.url} has ended with exit code {code}; its log, {server.log}, ends with:")
            for line in last_lines(server.log, _LAST_LINES):
                print(f"  {line}")


def _exit_code(process: subprocess.Popen) -> int | None:
    """Exit code of the process; None while it runs. Waits for a process whose last threads the kernel is still
    ending."""
    with suppress(psutil.NoSuchProcess, subprocess.TimeoutExpired):
        if psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE:
            process.wait(GRACE_S)
    return process.poll()


def _end(servers: Sequence[_Server]) -> None:
    for server in servers:
        if server.process.poll() is None:
            server.process.terminate()
    give_up = time.monotonic() + 2 * GRACE_S
    for server in servers:
        try:
            server.process.wait(max(0.1, give_up - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(server.process.pid, signal.SIGKILL)
            server.process.wait()
