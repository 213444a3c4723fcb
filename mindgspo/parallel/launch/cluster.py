"""The size and the meeting point of a cluster, checked before anything starts.

What enters: what the user asked for. What leaves: a `ClusterPlan`, or a ConfigError. Called by `launcher`.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from mindgspo.errors import ConfigError
from mindgspo.parallel.launch.folder import SCHEDULER


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """num_workers: on all nodes together. The scheduler listens at master_addr:master_port, on node 0."""

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
    if master_port is None:
        if nodes > 1:
            raise ConfigError(
                f"master_port: none is given, and {nodes} nodes must agree on one; give all of them the same free port "
                f"of {master_addr}, e.g. 8118"
            )
        master_port = _free_port(master_addr)
    elif not 1024 <= master_port <= 65535:
        raise ConfigError(f"master_port: {master_port}; legal ports are 1024 to 65535")
    elif node_rank == 0:
        _listen_once(master_addr, master_port)
    return ClusterPlan(
        num_workers=num_workers, nodes=nodes, node_rank=node_rank, master_addr=master_addr, master_port=master_port
    )


def _check_sizes(num_workers: int, nodes: int, node_rank: int) -> None:
    if nodes < 1:
        raise ConfigError(f"nodes: {nodes}; there is at least 1")
    if num_workers < 1:
        raise ConfigError(f"num_workers: {num_workers}; there is at least 1")
    if num_workers % nodes:
        below = num_workers - num_workers % nodes
        nearest = f"{below} or {below + nodes}" if below else str(nodes)
        raise ConfigError(
            f"num_workers: {num_workers} workers on {nodes} nodes; every node has the same number, so that the nearest "
            f"legal values are {nearest}"
        )
    if not 0 <= node_rank < nodes:
        raise ConfigError(f"node_rank: {node_rank} of {nodes} nodes; legal values are 0 to {nodes - 1}")


def _free_port(host: str) -> int:
    return _listen_once(host, 0)


def _listen_once(host: str, port: int) -> int:
    """The port at which a process of this machine can listen now; raises ConfigError where it cannot."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(
            f"master_addr: {host} is not known ({error.strerror}); give the IP address of node 0"
        ) from error
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        # As the scheduler does: connections of an earlier run that are still being closed are no obstacle.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen()
        except OSError as error:
            raise ConfigError(_refusal(host, port, error)) from error
        return listener.getsockname()[1]


def _refusal(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"master_port: another process already listens at {host}:{port}; choose another port, or end that process"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"master_addr: {host} is not an address of this machine; it must be that of node 0, where node_rank is 0"
    return f"master_port: cannot listen at {host}:{port} ({error.strerror}); choose another port"
