"""The process of a worker as the launcher starts it: its environment, its role in the cluster, its end.

The launcher sets the environment of each process that it starts; the process reads it here. Beside `runtime`, no other
module sets environment variables.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mindgspo.io import read_json, write_json


def is_worker() -> bool:
    """Whether this process was started as a worker (the scheduler runs the same command under another role)."""
    return os.environ.get("MS_ROLE") == "MS_WORKER"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrders:
    """The launcher's message to a worker, passed through its environment."""

    log_dir: str
    """Folder of the ranks' logs."""
    state_dir: str
    """Folder of heartbeats and failure records."""
    launcher: int
    """Process id of the launcher."""
    is_terminal: bool
    """Whether the output of rank 0 is shown on a terminal."""


_ROLLOUT_SERVERS = "MINDGSPO_ROLLOUT_SERVERS"  # a file, named by the launcher to its workers
API_KEY = "MINDGSPO_API_KEY"
"""Environment variable with the API key of the rollout servers."""
_api_key: str | None = None


def rollout_servers() -> dict[str, int]:
    """Return {URL: process id} of the rollout servers that the launcher started for this run; both change when it
    starts one again, the order does not."""
    path = os.environ.get(_ROLLOUT_SERVERS)
    return {} if path is None else read_json(Path(path))


def tell_rollout_servers(servers: Mapping[str, int], key: str, path: Path) -> None:
    """Make `rollout_servers` and `api_key` return these in this process and in the ranks that it starts, through a file
    at `path`. Raises WriteError."""
    global _api_key
    write_json(path, servers)
    os.environ[_ROLLOUT_SERVERS], _api_key = str(path.absolute()), key


def api_key() -> str | None:
    """Return the API key of the rollout servers.

    The first call removes it from the environment, so that no child process inherits it; the launcher passes it on to
    rank 0 alone.
    """
    global _api_key
    _api_key = os.environ.pop(API_KEY, _api_key)
    return _api_key


def tell_hub_revisions(revisions: Mapping[str, str]) -> None:
    """Make the ranks and servers that this process starts use these commits, {repository: commit}, which it has fetched
    from a hub, so that they do not ask it."""
    from mindgspo.config.hub import REVISIONS  # commands that need no configuration import this module, too

    os.environ[REVISIONS] = json.dumps(dict(revisions))


def choose_card(number: str) -> None:
    """Bind this process to one card of the machine; call it before `set_up_runtime`."""
    os.environ["DEVICE_ID"] = number


_LAUNCH = "MINDGSPO_LAUNCH"
# By default a CPU collective gives up after 30 s, even if a rank is merely compiling. The launcher notices dead ranks
# at once and its watch reports slow ones, so both limits can be a day.
_NO_LIMIT_S = "86400"
_FORMING_S = "600"  # msrun's limit for forming a cluster
COMPILING_S = "1800"
"""Default of MS_NODE_TIMEOUT on several machines: only after this time is a lost one noticed, but a rank waits as long
for a group that others, which still compile, have not formed."""
# With more workers than this, MindSpore's interval between messages to the scheduler (3 to 5 s) is left as it is.
_MAX_WORKERS_OF_SHORT_INTERVAL = 64


def worker_environment(
    orders: LaunchOrders, *, rank: int | None, num_workers: int, num_local_workers: int, scheduler: tuple[str, int]
) -> dict[str, str]:
    """Return the environment of one process of the launch, as msrun would set it, on top of the user's own variables.

    rank: None for MindSpore's scheduler, which listens at `scheduler` (IP address, port).
    """
    environment = dict(os.environ)
    environment |= {
        _LAUNCH: json.dumps(dataclasses.asdict(orders)),
        "MS_WORKER_NUM": str(num_workers),
        "MS_SCHED_HOST": scheduler[0],
        "MS_SCHED_PORT": str(scheduler[1]),
        "MS_TOPO_TIMEOUT": _FORMING_S,
        "MS_ROLE": "MS_SCHED" if rank is None else "MS_WORKER",
        "RANK_SIZE": str(num_workers),
        "RANK_ID": str(rank or 0),
    }
    if rank == 0 and (key := api_key()) is not None:
        environment[API_KEY] = key
    if rank is not None:
        environment |= {"MS_NODE_ID": str(rank), "DEVICE_ID": str(rank % num_local_workers)}
    environment.setdefault("MS_CPU_COMM_OP_TIMEOUT", _NO_LIMIT_S)
    environment.setdefault("MS_NODE_TIMEOUT", _NO_LIMIT_S if num_local_workers == num_workers else COMPILING_S)
    if num_workers <= _MAX_WORKERS_OF_SHORT_INTERVAL:  # saves seconds while the cluster forms
        environment.setdefault("MS_RETRY_INTERVAL_LOWER", "1")
        environment.setdefault("MS_RETRY_INTERVAL_UPPER", "1")
    if orders.is_terminal and rank == 0:  # it writes to a file, which the launcher copies to the terminal
        columns, lines = shutil.get_terminal_size()
        environment.setdefault("TTY_COMPATIBLE", "1")
        environment |= {"COLUMNS": str(columns), "LINES": str(lines)}
    return environment


def launch_orders() -> LaunchOrders | None:
    """Return the launcher's orders to this worker; None if the launcher did not start this process."""
    text = os.environ.get(_LAUNCH)
    return LaunchOrders(**json.loads(text)) if text else None


def launched_rank() -> int:
    """Return this worker's rank, known from the start; `runtime.rank` knows it once the cluster has formed."""
    return int(os.environ["MS_NODE_ID"])


def msrun_workers() -> tuple[int, int | None]:
    """Return the number of workers that msrun starts and this process's rank, None if not known yet."""
    rank = os.environ.get("MS_NODE_ID", "")
    return int(os.environ["MS_WORKER_NUM"]), int(rank) if rank.isdecimal() else None


def is_scheduler() -> bool:
    """Whether this process was started as the scheduler, which must not do a worker's work."""
    return os.environ.get("MS_ROLE") == "MS_SCHED"


def is_launched() -> bool:
    """Whether the launcher or msrun started this process, as worker or scheduler."""
    return is_worker() or is_scheduler()


def await_scheduler(poll_s: float = 0.05) -> None:
    """Wait until the scheduler listens: after one refused connection, MindSpore itself would retry only 3 s later.

    Gives up after the limit for forming a cluster; `runtime.join_cluster` then reports the error.
    """
    address = os.environ["MS_SCHED_HOST"], int(os.environ["MS_SCHED_PORT"])
    give_up = time.monotonic() + float(os.environ["MS_TOPO_TIMEOUT"])
    while time.monotonic() < give_up:
        try:
            socket.create_connection(address, timeout=5.0).close()
            return
        except OSError:
            time.sleep(poll_s)


def serve_as_scheduler() -> None:
    """Run MindSpore's scheduler until all workers have left the cluster; may end the process.

    Holds the GIL throughout. Raises RuntimeError if the port is taken or a worker is lost.
    """
    from mindspore import communication

    os.environ.setdefault("MS_NODE_TIMEOUT", COMPILING_S)
    communication.init()


def run_exit_functions() -> None:
    """Run the functions registered with atexit; MindSpore's takes this process out of the cluster in order."""
    atexit._run_exitfuncs()


def adopt_orphans(is_on: bool) -> None:
    """Make this process, instead of init, adopt descendants whose parent has ended (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(is_on))


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, even if it hangs in C code (Linux)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, argument: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
