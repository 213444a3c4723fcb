"""The processes of one launch on this machine: their number, rendezvous, start, exit codes and end."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from mindgspo.errors import ConfigError
from mindgspo.launch.failures import SCHEDULER, LaunchFolder
from mindgspo.parallel.platform import runtime, worker_process
from mindgspo.text import counted, divisors, either, nearest

# Time for processes to end on request: they leave contexts and remove temporary folders. A process that hangs in a
# collective cannot react at all.
GRACE_S = 3.0
_KILL_S = 3.0
_POLL_S = 0.02
_NPU_SMI_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """num_workers: on all nodes together. The scheduler listens on node 0 at master_addr:master_port, an IP address."""

    num_workers: int
    nodes: int
    node_rank: int
    master_addr: str
    master_port: int

    @property
    def ranks(self) -> range:
        """The ranks of this node."""
        num_local = self.num_workers // self.nodes
        return range(self.node_rank * num_local, (self.node_rank + 1) * num_local)

    @property
    def has_scheduler(self) -> bool:
        """Whether the scheduler runs on this node."""
        return self.node_rank == 0

    @property
    def members(self) -> tuple[int, ...]:
        """The processes of this node: its ranks, and SCHEDULER where it runs here."""
        return (*((SCHEDULER,) if self.has_scheduler else ()), *self.ranks)


def plan_cluster(
    *, num_workers: int, nodes: int, node_rank: int, master_addr: str, master_port: int | None
) -> ClusterPlan:
    """Raises ConfigError for sizes that do not fit, and for a port that cannot be used; finds a free one for None."""
    _check_sizes(num_workers, nodes, node_rank)
    family, address = _resolve(master_addr)
    if master_port is None:
        if nodes > 1:
            raise ConfigError(
                f"--master-port: none is given, and {nodes} nodes must agree on one; give all of them the same free "
                f"port of {master_addr}, e.g. 8118"
            )
        master_port = _master_port(family, address, 0)
    elif not 1024 <= master_port <= 65535:
        raise ConfigError(f"--master-port {master_port}: legal ports are 1024 to 65535")
    elif node_rank == 0:
        _master_port(family, address, master_port)
    return ClusterPlan(
        num_workers=num_workers, nodes=nodes, node_rank=node_rank, master_addr=address, master_port=master_port
    )


def _check_sizes(num_workers: int, nodes: int, node_rank: int) -> None:
    if num_workers % nodes:
        raise ConfigError(
            f"--nodes {nodes}: the plans need {counted(num_workers, 'worker')}, the same number on every node; the "
            f"nearest legal ones are {either(nearest(divisors(num_workers), nodes))}"
        )
    if not 0 <= node_rank < nodes:
        raise ConfigError(f"--node-rank {node_rank}: of {nodes} nodes; legal values are 0 to {nodes - 1}")


def _resolve(host: str) -> tuple[int, str]:
    """Address family and IP address of a host. Raises ConfigError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(
            f"--master-addr {host}: not known ({error.strerror}); give the IP address of node 0"
        ) from error
    return family, str(address[0])


def is_loopback(address: str) -> bool:
    """Whether processes of this machine alone reach an IP address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def listen_once(family: int, host: str, port: int) -> int:
    """The port at which a process of this machine can listen now; for 0 a free one. Raises OSError."""
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        # As the scheduler does: connections of an earlier run that are still closing do not prevent it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
        return listener.getsockname()[1]


def _master_port(family: int, host: str, port: int) -> int:
    """Return the port at which the scheduler can listen; see `listen_once`. Raises ConfigError."""
    try:
        return listen_once(family, host, port)
    except OSError as error:
        fix = "choose another port" if error.errno != errno.EADDRNOTAVAIL else "--master-addr must be node 0's own"
        raise ConfigError(f"--master-port: cannot listen at {host}:{port} ({error.strerror}); {fix}") from error


def start_processes(
    command: Sequence[str],
    plan: ClusterPlan,
    folder: LaunchFolder,
    orders: worker_process.LaunchOrders,
    devices: Sequence[str] | None = None,
    listener: socket.socket | None = None,
    *,
    on_cards: bool = False,
) -> dict[int, subprocess.Popen]:
    """{rank or SCHEDULER: process} of this node, each with the running interpreter; `command` is what follows it.

    devices, listener, on_cards: see `launcher.launch`. Each has a session of its own: Ctrl-C reaches the launcher
    alone, which ends them in order.
    """
    started = {}
    beside = dict(enumerate(processors_beside_cards())) if on_cards and not runtime.is_emulated() else {}
    for member in plan.members:
        environment = worker_process.worker_environment(
            orders,
            rank=None if member == SCHEDULER else member,
            num_workers=plan.num_workers,
            num_local_workers=len(plan.ranks),
            scheduler=(plan.master_addr, plan.master_port),
        )
        if runtime.is_emulated() and member != SCHEDULER:
            environment[runtime.EMULATED_WAITS] = str(folder.waits(member))
        if devices is not None and member != SCHEDULER:
            environment["DEVICE_ID"] = devices[plan.ranks.index(member)]
        handed: dict[str, Any] = {"env": environment}
        if not member and listener is not None:
            handed = handed_over(listener, environment)
        nearest_ones = None if member == SCHEDULER else beside.get(int(environment["DEVICE_ID"]))
        with folder.log(member).open("wb") as log:
            if nearest_ones:
                log.write(f"rank {member} runs on {counted(len(nearest_ones), 'processor')} beside its card\n".encode())
                log.flush()
            process = started[member] = subprocess.Popen(
                [sys.executable, *command],
                **handed,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if nearest_ones:  # the process has one thread yet; others and children start where this one is
            with suppress(OSError):
                os.sched_setaffinity(process.pid, nearest_ones)
    return started


def processors_beside_cards() -> list[frozenset[int]]:
    """Return the processors of each card's NUMA node, by the number that a process has for the card.

    They are its CPU affinity in `npu-smi info -t topo`. A server of 192 cores has 4 to 8 nodes; a worker that wanders
    over them, or has its memory in another one, launches kernels late. Memory needs no binding: a page comes from the
    node of the thread that touches it first. Empty if npu-smi does not say, and if this process is itself held to some
    processors, by taskset, numactl or its container.
    """
    if len(os.sched_getaffinity(0)) < (os.cpu_count() or 1):
        return []
    try:
        told = subprocess.run(("npu-smi", "info", "-t", "topo"), capture_output=True, text=True, timeout=_NPU_SMI_S)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = re.findall(r"^NPU\d+\s.*\s(\d[\d,-]*)\s*$", told.stdout, re.MULTILINE)
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES") or ",".join(map(str, range(len(rows))))
    try:
        return [_expanded(rows[int(card)]) for card in visible.split(",")] if rows else []
    except (ValueError, IndexError):  # an unknown form of the table, or of the variable
        return []


def _expanded(processors: str) -> frozenset[int]:
    """Numbers of a list such as 0-23,96."""
    ends = [part.partition("-") for part in processors.split(",")]
    return frozenset(number for first, _, last in ends for number in range(int(first), int(last or first) + 1))


_LISTENER = "MINDGSPO_LISTENER"  # number of the file that is the socket a server was given


def handed_over(listener: socket.socket, environment: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of Popen for a child that takes a bound socket with `taken_over`: no other process can have its
    port."""
    number = listener.fileno()
    return {"env": {**environment, _LISTENER: str(number)}, "pass_fds": (number,)}


def taken_over() -> socket.socket | None:
    """The socket that this process was given, once."""
    number = os.environ.pop(_LISTENER, None)
    if number is None:
        return None
    listener = socket.socket(fileno=int(number))
    listener.set_inheritable(False)
    return listener


class Processes:
    """Children of this process, by rank (SCHEDULER among them). exit_codes: of those that have ended, negative signal
    numbers as in `subprocess`."""

    def __init__(self, started: Mapping[int, subprocess.Popen], others: frozenset[int]) -> None:
        """others: process ids of children outside of the launch, from `children_now`."""
        self.started = dict(started)
        self.exit_codes: dict[int, int] = {}
        self._others = others

    def poll(self) -> dict[int, int]:
        """Exit codes of those that have ended since the last call."""
        ended = {}
        for rank, process in self.started.items():
            if rank not in self.exit_codes and (code := process.poll()) is not None:
                ended[rank] = code
        self.exit_codes |= ended
        return ended

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank that has not ended."""
        if rank in self.started:
            self.started[rank].send_signal(number)

    def status(self, rank: int) -> str | None:
        """State of a rank's process in the kernel, e.g. `stopped` or `disk-sleep`."""
        with suppress(psutil.Error):
            return psutil.Process(self.started[rank].pid).status()
        return None

    def end(self, grace_s: float = GRACE_S) -> None:
        """Ask all to end, wait `grace_s`, then kill the rest, including their descendants. Nothing is left."""
        for rank in self.started:
            self.signal(rank, signal.SIGTERM)
        give_up = time.monotonic() + grace_s
        while len(self.exit_codes) < len(self.started) and time.monotonic() < give_up:
            self.poll()
            time.sleep(_POLL_S)
        give_up = time.monotonic() + _KILL_S
        while (left := self._left()) and time.monotonic() < give_up:
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self.poll()
            time.sleep(_POLL_S)

    def _left(self) -> list[psutil.Process]:
        """Living descendants. Orphans have become children of this process, which reaps them here."""
        children = [child for child in psutil.Process().children() if child.pid not in self._others]
        left, started = [], {process.pid for process in self.started.values()}
        for child in children:
            if child.pid not in started and _has_ended(child.pid):
                continue
            with suppress(psutil.NoSuchProcess):
                left += [child, *child.children(recursive=True)]
        return [process for process in left if not _is_dead(process)]


def children_now() -> frozenset[int]:
    """Process ids of the children that this process has."""
    return frozenset(child.pid for child in psutil.Process().children())


def _has_ended(process_id: int) -> bool:
    """Whether an adopted orphan has ended; it is then reaped."""
    return os.waitpid(process_id, os.WNOHANG)[0] != 0


def _is_dead(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
