"""What HCCL and the forming of a cluster read from the environment: variables, rank table, ports.

Ranges and defaults: HCCL's user guide, "environment variables".
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from mindgspo.doctor.findings import Finding, Needs, broken, risk
from mindgspo.doctor.machine import Machine
from mindgspo.text import listed

_RANGES = {
    "HCCL_CONNECT_TIMEOUT": (120, 7200, "seconds that a rank waits for others to connect"),
    "HCCL_EXEC_TIMEOUT": (0, 2147483647, "seconds that a collective may take"),
    "HCCL_BUFFSIZE": (1, 1 << 20, "MB of a communicator's buffer"),
    "HCCL_RDMA_TIMEOUT": (5, 24, "exponent of the retransmission timeout"),
    "HCCL_RDMA_RETRY_CNT": (1, 7, "retransmissions"),
    "HCCL_IF_BASE_PORT": (1024, 65520, "first of 16 ports on the host"),
}
_SHORT_CONNECT_S = 600
_BASE_PORT, _NUM_PORTS = 60000, 16
ROLES = ("MS_ROLE", "MS_WORKER_NUM", "MS_NODE_ID", "RANK_ID", "RANK_SIZE")


def variables(machine: Machine, needs: Needs) -> Iterator[Finding]:
    """Variables with values that HCCL refuses, or that fit another machine."""
    if needs.device != "Ascend":
        yield from _interfaces(machine, ("GLOO_SOCKET_IFNAME",))
        return
    for name, (least, most, meaning) in _RANGES.items():
        text = machine.environment.get(name)
        if text is not None and not (text.strip().isdecimal() and least <= int(text) <= most):
            yield broken(
                "hccl_range",
                f"{name}={text}",
                why=f"{meaning}, a whole number from {least} to {most}; anything else is refused (EI0001)",
                fix=f"unset {name}",
            )
    connect = machine.environment.get("HCCL_CONNECT_TIMEOUT", "120")
    if needs.is_cluster and connect.isdecimal() and 120 <= int(connect) < _SHORT_CONNECT_S:
        yield risk(
            "hccl_connect_timeout",
            f"HCCL_CONNECT_TIMEOUT is {connect} s" + ("" if "HCCL_CONNECT_TIMEOUT" in machine.environment
                                                     else ", the default"),
            why="ranks reach their first collective when they have compiled, minutes apart for large models (EI0006)",
            fix="export HCCL_CONNECT_TIMEOUT=1800",
        )  # fmt: skip
    address = machine.environment.get("HCCL_IF_IP")
    own = {one for addresses in machine.interfaces.values() for one in addresses}
    if address and address not in own:
        yield broken(
            "hccl_if_ip",
            f"HCCL_IF_IP={address} is no address of this machine",
            why="HCCL listens there, and others connect to it; it is often copied from another machine",
            fix=f"export HCCL_IF_IP={_public_address(machine) or '<address of this machine>'}",
        )
    yield from _interfaces(machine, ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"))
    yield from _whitelist(machine)


def _public_address(machine: Machine) -> str | None:
    return next((one for name, addresses in sorted(machine.interfaces.items()) if name != "lo"
                 for one in sorted(addresses) if one.count(".") == 3), None)  # fmt: skip


def _interfaces(machine: Machine, names: tuple[str, ...]) -> Iterator[Finding]:
    """`eth,enp`: beginnings of names; `=eth0`: names; `^...`: not these."""
    for variable in names:
        text = machine.environment.get(variable, "").strip()
        if not text or text.startswith("^"):
            continue
        wanted, is_exact = text.removeprefix("=").split(","), text.startswith("=") or variable.startswith("GLOO")
        there = machine.interfaces
        if not any(name == one if is_exact else name.startswith(one) for name in there for one in wanted):
            known = listed(sorted(name for name in there if name != "lo") or ["lo"])
            yield broken(
                "socket_interface",
                f"{variable}={text}: this machine has {known}",
                why="the address to meet at is taken from that interface",
                fix=f"unset {variable}, or name one of {known}",
            )


def _whitelist(machine: Machine) -> Iterator[Finding]:
    if machine.environment.get("HCCL_WHITELIST_DISABLE") != "0":
        return
    path = machine.environment.get("HCCL_WHITELIST_FILE")
    if not path or machine.text(path) is None:
        yield broken(
            "hccl_whitelist",
            f"HCCL_WHITELIST_DISABLE=0, and HCCL_WHITELIST_FILE is {path or 'not set'}",
            why="HCCL then lets nobody connect who is not in that file",
            fix="export HCCL_WHITELIST_DISABLE=1",
        )


def leftovers(machine: Machine, needs: Needs) -> Iterator[Finding]:
    """Variables of an earlier launch: `mindgspo run` would take itself for one of its workers."""
    set_ = [name for name in ROLES if name in machine.environment]
    if "MS_ROLE" in set_ or "RANK_ID" in set_:
        yield broken(
            "stale_role",
            f"{listed([f'{name}={machine.environment[name]}' for name in set_])} in this shell",
            why="they say that this process is a rank of a cluster, for which it would wait",
            fix=f"unset {' '.join(set_)}",
        )


def ports(machine: Machine, needs: Needs) -> Iterator[Finding]:
    """Ports of the host that HCCL binds."""
    if needs.device != "Ascend" or not needs.is_cluster:
        return
    text = machine.environment.get("HCCL_IF_BASE_PORT", str(_BASE_PORT))
    base = int(text) if text.isdecimal() else _BASE_PORT
    taken = sorted(port for port in range(base, base + _NUM_PORTS) if port in machine.listening)
    if taken:
        free = next(port for port in range(50000, 65000, 100)
                    if not any(port + extra in machine.listening for extra in range(_NUM_PORTS)))  # fmt: skip
        yield broken(
            "hccl_ports",
            f"somebody listens at port {listed(taken)}",
            why=f"HCCL binds {base} to {base + _NUM_PORTS - 1} of the host (EJ0003)",
            fix=f"export HCCL_IF_BASE_PORT={free}",
        )


def rank_table(machine: Machine, needs: Needs) -> Iterator[Finding]:
    """The file of RANK_TABLE_FILE. The launcher needs none: HCCL then finds the cards by itself."""
    path = machine.environment.get("RANK_TABLE_FILE")
    if needs.device != "Ascend" or not path:
        return
    problem = _table_problem(machine.text(path), machine, needs)
    if problem is not None:
        yield broken(
            "rank_table",
            f"RANK_TABLE_FILE={path}: {problem}",
            why="HCCL believes it rather than the machine (EI0004, EI0014)",
            fix="unset RANK_TABLE_FILE; the launcher forms the cluster without one",
        )


def _table_problem(text: str | None, machine: Machine, needs: Needs) -> str | None:
    if text is None:
        return "cannot be read"
    try:
        table: Any = json.loads(text)
        servers = table["server_list"]
        entries = [device for server in servers for device in server["device"]]
        ranks = sorted(int(entry["rank_id"]) for entry in entries)
        ids = [(server["server_id"], entry["device_id"]) for server in servers for entry in server["device"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return f"is no rank table ({type(error).__name__}: {error})"
    if table.get("status") != "completed":
        return f"status is {table.get('status')!r}, not 'completed'"
    if twice := [one for one, times in Counter(ids).items() if times > 1]:
        return f"device {twice[0][1]} of server {twice[0][0]} stands there twice"
    if ranks != list(range(len(ranks))):
        return f"rank ids are {listed(ranks)}, not 0 to {len(ranks) - 1}"
    if needs.has_config and len(ranks) != needs.ranks * needs.nodes:
        return f"{len(ranks)} ranks, and the plans need {needs.ranks * needs.nodes}"
    if (
        str(table.get("version")) == "1.2"
        and "super_pod_list" in table
        and any("super_device_id" not in entry for entry in entries)
    ):
        return "version 1.2 with super_pod_list, and a device without super_device_id"
    return None
