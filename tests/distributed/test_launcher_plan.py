"""What is refused before anything starts, and the command line that msrun gets."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from mindgspo.errors import ConfigError
from mindgspo.parallel.launch.cluster import ClusterPlan, plan_cluster
from mindgspo.parallel.launch.folder import SCHEDULER, LaunchFolder
from mindgspo.parallel.launch.msrun import msrun_command


def plan(**changed: object) -> ClusterPlan:
    settings = {"num_workers": 8, "nodes": 1, "node_rank": 0, "master_addr": "127.0.0.1", "master_port": None}
    return plan_cluster(**(settings | changed))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_workers": 0}, "num_workers: 0; there is at least 1"),
        ({"nodes": 0}, "nodes: 0; there is at least 1"),
        ({"num_workers": 7, "nodes": 2}, "num_workers: 7 workers on 2 nodes.*legal values are 6 or 8"),
        ({"num_workers": 2, "nodes": 3}, "num_workers: 2 workers on 3 nodes.*legal values are 3"),
        ({"nodes": 2, "node_rank": 2}, "node_rank: 2 of 2 nodes; legal values are 0 to 1"),
        ({"node_rank": -1}, "node_rank: -1 of 1 nodes"),
        ({"nodes": 2}, "master_port: none is given, and 2 nodes must agree"),
        ({"master_port": 80}, "master_port: 80; legal ports are 1024 to 65535"),
        ({"master_addr": "192.0.2.1"}, "master_addr: 192.0.2.1 is not an address of this machine"),
        ({"master_addr": "host.invalid"}, "master_addr: host.invalid is not known"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        plan(**changed)


def test_port_in_use_is_refused_on_node_0_alone():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"another process already listens at 127.0.0.1:{port}"):
            plan(master_port=port)
        assert plan(nodes=2, node_rank=1, master_port=port).master_port == port  # there it is node 0 that listens
    assert plan(master_port=port).master_port == port


def test_free_ports_are_found():
    assert 1024 <= plan().master_port <= 65535
    assert plan(master_addr="localhost").master_port > 0


def test_ranks_of_a_node():
    assert plan().members == (SCHEDULER, 0, 1, 2, 3, 4, 5, 6, 7)
    assert plan(nodes=4, node_rank=2, master_port=9000).members == (4, 5)


def test_msrun_command_of_the_second_of_two_nodes(tmp_path: Path):
    folder = LaunchFolder(log_dir=tmp_path / "logs", state_dir=tmp_path / "state")
    second = plan(nodes=2, node_rank=1, master_addr="10.1.2.3", master_port=8118)
    assert msrun_command(["-m", "mindgspo.cli", "run", "--set", "a=1"], second, folder) == [
        *(sys.executable, "-m", "mindspore.parallel.cluster.run"),
        *("--worker_num", "8", "--local_worker_num", "4"),
        *("--master_addr", "10.1.2.3", "--master_port", "8118", "--node_rank", "1"),
        *("--log_dir", str(tmp_path / "logs"), "--worker_log_name", "rank"),
        *("python", "-m", "mindgspo.cli", "run", "--set", "a=1"),
    ]
