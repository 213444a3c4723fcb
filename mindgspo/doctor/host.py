"""The host: shared memory, disks, limits, memory, locale, compiler; variables, rank table and ports of HCCL and of the
cluster.

Ranges and defaults of variables: HCCL's user guide, "environment variables".
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator
from pathlib import Path

from mindgspo.doctor.machine import Machine, MachineProblem, Needs, problem
from mindgspo.planner.ascend_memory import BUFFER_MB
from mindgspo.text import listed
from mindgspo_kernels.cache import cache_folder, check_own

_GB = 1 << 30
_SHARED_BYTES = 1 * _GB
_RUN_BYTES, _TMP_BYTES = 10 * _GB, 1 * _GB
_RANK_BYTES = {"CPU": 1 * _GB, "Ascend": 8 * _GB}
"""Host memory per rank: what a small run takes on CPU, and what compiling for Ascend took (docs/ascend.md)."""
_LEAST_LIMITS = {"nofile": ("-n", 4096), "nproc": ("-u", 2048), "stack": ("-s", 8 << 20)}
_LEAST_LOCKED = 64 << 20
_LOCAL_DISKS = ("ext2", "ext3", "ext4", "xfs", "btrfs", "overlay", "tmpfs", "zfs")
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
_PORT_RANGES = ("HCCL_HOST_SOCKET_PORT_RANGE", "HCCL_NPU_SOCKET_PORT_RANGE")
ROLES = ("MS_ROLE", "MS_WORKER_NUM", "MS_NODE_ID", "RANK_ID", "RANK_SIZE")


def leftovers(machine: Machine, needs: Needs) -> Iterator[MachineProblem]:
    """Variables of an earlier launch, which would make `mindgspo run` take itself for one of its workers."""
    names = [name for name in ROLES if name in machine.environment]
    if "MS_ROLE" in names or "RANK_ID" in names:
        what = f"{listed([f'{name}={machine.environment[name]}' for name in names])} in this shell"
        yield problem("stale_role", what, names=" ".join(names))


def variables(machine: Machine, needs: Needs) -> Iterator[MachineProblem]:
    """Variables with values that HCCL refuses, or that fit another machine."""
    given = machine.environment
    yield from _interfaces(machine, "GLOO_SOCKET_IFNAME")
    if needs.device != "Ascend":
        return
    yield from _interfaces(machine, "HCCL_SOCKET_IFNAME")
    for name, (least, most, meaning) in _RANGES.items():
        text = given.get(name)
        if text is not None and not (text.strip().isdecimal() and least <= int(text) <= most):
            yield problem("hccl_range", f"{name}={text}", variable=name, meaning=meaning, least=least, most=most)
    connect = given.get("HCCL_CONNECT_TIMEOUT", "")
    if needs.is_cluster and connect.isdecimal() and 120 <= int(connect) < _SHORT_CONNECT_S:
        yield problem("hccl_connect_timeout", f"HCCL_CONNECT_TIMEOUT is {connect} s")
    address = given.get("HCCL_IF_IP")
    if address and not any(address in addresses for addresses in machine.interfaces.values()):
        public = [one for name, addresses in sorted(machine.interfaces.items()) if name != "lo"
                  for one in sorted(addresses) if one.count(".") == 3]  # fmt: skip
        what = f"HCCL_IF_IP={address} is no address of this machine"
        yield problem("hccl_if_ip", what, address=public[0] if public else "<address of this machine>")
    allowed = given.get("HCCL_WHITELIST_FILE")
    if given.get("HCCL_WHITELIST_DISABLE") == "0" and not (allowed and machine.text(allowed)):
        what = f"HCCL_WHITELIST_DISABLE=0, and HCCL_WHITELIST_FILE is {allowed or 'not set'}"
        yield problem("hccl_whitelist", what)


def _interfaces(machine: Machine, variable: str) -> Iterator[MachineProblem]:
    """`eth,enp`: beginnings of names, with GLOO whole names; `=eth0`: whole names; `^...`: all but these."""
    text = machine.environment.get(variable, "").strip()
    wanted, is_exact = text.removeprefix("=").split(","), text.startswith("=") or variable.startswith("GLOO")
    there = machine.interfaces
    if not text or text.startswith("^") or any(
        name == one if is_exact else name.startswith(one) for name in there for one in wanted
    ):  # fmt: skip
        return
    known = listed(sorted(name for name in there if name != "lo") or ["lo"])
    yield problem("socket_interface", f"{variable}={text}: this machine has {known}", variable=variable, known=known)


def ports(machine: Machine, needs: Needs) -> Iterator[MachineProblem]:
    """Ports of the host that HCCL binds."""
    if needs.device != "Ascend" or not needs.is_cluster:
        return
    given = {name: text for name in _PORT_RANGES if (text := machine.environment.get(name)) not in (None, "auto")}
    for name, text in given.items():
        named = _named_ports(text)
        free = named - machine.listening if name == _PORT_RANGES[0] else named  # a card's own ports are not seen
        if not free:
            how = "all in use" if named else "no ports"
            yield problem("hccl_port_range", f"{name}={text}: {how}", variable=name)
    if _PORT_RANGES[0] in machine.environment:
        return  # the base port then does not count
    text = machine.environment.get("HCCL_IF_BASE_PORT", str(_BASE_PORT))
    first = int(text) if text.isdecimal() else _BASE_PORT
    if taken := sorted(machine.listening & _ports_from(first)):
        free = next(port for port in range(50000, 65000, 100) if not machine.listening & _ports_from(port))
        what = f"another process listens at port {listed(taken)}"
        yield problem("hccl_ports", what, first=first, last=first + _NUM_PORTS - 1, free=free)


def _ports_from(first: int) -> set[int]:
    return set(range(first, first + _NUM_PORTS))


def _named_ports(text: str) -> set[int]:
    """Of `60000,60050-60100`; none if it is written in any other way."""
    ends = [re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip(), re.ASCII) for part in text.split(",")]
    ports = {port for end in ends if end for port in range(int(end[1]), int(end[2] or end[1]) + 1)}
    return ports if all(ends) and ports <= set(range(1, 1 << 16)) else set()


def buffers(machine: Machine, needs: Needs) -> Iterator[MachineProblem]:
    """Whether buffers of the size that the user gives HCCL fit the plan, and its messages fit them."""
    size = _buffer_mb(machine)
    if needs.device != "Ascend" or not needs.buffers or size == BUFFER_MB:
        return
    taken, what = buffer_bytes(machine, needs), f"HCCL_BUFFSIZE={size}"
    if taken > needs.buffer_room:
        most = max(1, BUFFER_MB * needs.buffer_room // needs.buffers)
        what += f": the plan's groups take {_size(taken)} of a card, and it leaves {_size(needs.buffer_room)}"
        yield problem("hccl_buffers", what, most=most)
    elif size << 20 < min(needs.message, BUFFER_MB << 20):
        yield problem("hccl_small_buffers", f"{what}, and ranks send up to {_size(needs.message)} at once")


def buffer_bytes(machine: Machine, needs: Needs) -> int:
    """What HCCL's buffers take of a card with the user's HCCL_BUFFSIZE."""
    return needs.buffers * _buffer_mb(machine) // BUFFER_MB


def _buffer_mb(machine: Machine) -> int:
    text = machine.environment.get("HCCL_BUFFSIZE", "").strip()
    return int(text) if text.isdecimal() else BUFFER_MB  # `variables` names what is no number


def rank_table(machine: Machine, needs: Needs) -> Iterator[MachineProblem]:
    """Check the file of RANK_TABLE_FILE. The launcher does not need one: HCCL then finds the cards itself."""
    path = machine.environment.get("RANK_TABLE_FILE")
    if needs.device == "Ascend" and path and (wrong := _wrong_table(machine.text(path), needs)):
        yield problem("rank_table", f"RANK_TABLE_FILE={path}: {wrong}")


def _wrong_table(text: str, needs: Needs) -> str | None:
    if not text:
        return "cannot be read"
    try:
        table = json.loads(text)
        devices = [(server["server_id"], one["device_id"], int(one["rank_id"]))
                   for server in table["server_list"] for one in server["device"]]  # fmt: skip
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return f"is no rank table ({type(error).__name__}: {error})"
    ranks = sorted(rank for _, _, rank in devices)
    if table.get("status") != "completed":
        return f"status is {table.get('status')!r}, not 'completed'"
    if len({device[:2] for device in devices}) < len(devices):
        return "a device of a server stands there twice"
    if ranks != list(range(len(ranks))):
        return f"rank ids are {listed(ranks)}, not 0 to {len(ranks) - 1}"
    if needs.has_config and len(ranks) != needs.ranks * needs.nodes:
        return f"{len(ranks)} ranks, and the plans need {needs.ranks * needs.nodes}"
    return None


def disks(machine: Machine, needs: Needs) -> Iterator[MachineProblem]:
    """Shared memory, the run folder, temporary files."""
    shared = machine.disk("/dev/shm")
    if shared.total < _SHARED_BYTES:
        yield problem("shared_memory", f"/dev/shm has {_size(shared.total)}")
    elif shared.free < _SHARED_BYTES:
        yield problem("shared_memory_full", f"/dev/shm has {_size(shared.free)} left of {_size(shared.total)}")
    free = machine.disk(str(needs.run_dir)).free
    if needs.has_config and free < _RUN_BYTES:
        yield problem("run_disk", f"{_size(free)} free for {needs.run_dir}")
    temporary = machine.environment.get("TMPDIR") or "/tmp"
    if not machine.exists(temporary):
        yield problem("tmp_missing", f"TMPDIR={temporary} does not exist")
    elif (free := machine.disk(temporary).free) < _TMP_BYTES:
        yield problem("tmp_disk", f"{_size(free)} free in {temporary}", folder=temporary)
    if needs.has_config and needs.nodes > 1 and (kind := _file_system(machine, needs.run_dir)) in _LOCAL_DISKS:
        yield problem("run_dir_local", f"{needs.run_dir} is on {kind}, a disk of this machine alone")


def _file_system(machine: Machine, path: Path) -> str | None:
    """Kind of the mount that holds a path, e.g. ext4."""
    mounts = [line.split() for line in machine.text("/proc/mounts").splitlines()]
    holding = [fields for fields in mounts if len(fields) > 2 and path.is_relative_to(fields[1])]
    return max(holding, key=lambda fields: len(fields[1]), default=[None, None, None])[2]


def limits(machine: Machine, needs: Needs) -> Iterator[MachineProblem]:
    """Limits of `ulimit`."""
    for name, (flag, least) in _LEAST_LIMITS.items():
        value = machine.limits.get(name)
        if value is not None and value < least:
            yield problem(f"limit_{name}", f"ulimit {flag} is {f'{value >> 10} kB' if name == 'stack' else value}")
    locked = machine.limits.get("memlock")
    least = max(_LEAST_LOCKED, needs.swapped)
    pins = needs.device == "Ascend" and (needs.is_cluster or needs.swapped)
    if pins and locked is not None and locked < least:
        swaps = f", and a rank swaps {_size(needs.swapped)}" if needs.swapped else ""
        yield problem("limit_memlock", f"ulimit -l is {locked >> 10} kB{swaps}")


def memory(machine: Machine, needs: Needs) -> Iterator[MachineProblem]:
    """Host memory and cores for the ranks."""
    least = _RANK_BYTES[needs.device]
    if machine.memory < least * needs.ranks:
        yield problem("host_memory", f"{_size(machine.memory)} of memory for {needs.ranks} ranks", least=_size(least))
    elif machine.memory < (least + needs.swapped) * needs.ranks:
        what = f"{_size(machine.memory)} of memory, and each of {needs.ranks} ranks swaps {_size(needs.swapped)}"
        yield problem("swap_memory", what, least=_size((least + needs.swapped) * needs.ranks))
    if needs.device == "CPU" and needs.ranks > 2 * machine.cores:
        yield problem("cores", f"{needs.ranks} ranks on {machine.cores} cores", cores=machine.cores)


def surroundings(machine: Machine, needs: Needs) -> Iterator[MachineProblem]:
    """Locale, compiler, cache, log levels."""
    if machine.encoding.lower().replace("-", "") not in ("utf8", "utf8mb4"):
        yield problem("locale", f"text is encoded as {machine.encoding}")
    if "g++" not in machine.tools and needs.device == "CPU":
        yield problem("no_compiler", "no g++")
    yield from _kernel_cache(machine)
    verbose = {name: value for name in ("ASCEND_GLOBAL_LOG_LEVEL", "GLOG_v")
               if (value := machine.environment.get(name)) in ("0", "1")}  # fmt: skip
    if verbose:
        what = " ".join(f"{name}={value}" for name, value in verbose.items())
        yield problem("verbose_logs", what, names=" ".join(verbose))
    if machine.environment.get("ASCEND_LAUNCH_BLOCKING") == "1":
        yield problem("launch_blocking", "ASCEND_LAUNCH_BLOCKING=1")


def _kernel_cache(machine: Machine) -> Iterator[MachineProblem]:
    ours = machine.path(cache_folder(machine.environment))
    holder = next(parent for parent in ours.parents if parent.exists())
    if machine.user_id and not machine.may_open("/" + str(holder.relative_to(machine.root))):
        yield problem("cache_closed", f"user {machine.user} may not write in {ours.parent}")
    try:
        for path in (ours, *ours.glob("kernels/*/*.so"), *ours.glob("ascend-stand-ins/*")):
            check_own(path, ours)
    except OSError as error:
        if error.errno == errno.EPERM:  # of `check_own`; else nothing is there
            yield problem("cache_open", f"{error.filename} {error.strerror}", folder=ours)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GB:.1f} GB" if num_bytes >= _GB else f"{num_bytes / (1 << 20):.0f} MB"
