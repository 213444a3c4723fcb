"""Has msrun start the scheduler and the workers of this node, with the interpreter that runs the launcher.

What enters: a command for Python and a `ClusterPlan`. What leaves: the process ids. Called by `launcher`.

msrun starts whatever is called `python` first on the search path. A small program of that name is put there: it notes
its process id, waits for a sign, and becomes the running interpreter. msrun is not asked to `--join`, so it ends when
it has started all, and its children become the launcher's, which adopts orphans. Then the sign is given: no worker can
end before, and the kernel keeps the exit codes of all of them for the launcher.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from mindgspo.parallel import runtime
from mindgspo.parallel.launch.cluster import ClusterPlan
from mindgspo.parallel.launch.folder import SCHEDULER, LaunchFolder

_POLL_S = 0.02
# From the end of msrun until a stand-in has written its process id; it is the first thing that it does.
_MAX_NOTE_S = 10.0

# The file is `LaunchFolder.process_id`. The program comes here again when a child of a worker asks for `python`: then
# the file is there, and so is the sign. It gives up without a launcher, or after a minute.
_STAND_IN = """#!/bin/sh
folder="${{0%/*}}"
file="$folder/pid_${{MS_ROLE}}_${{RANK_ID}}"
[ -e "$file" ] || echo $$ >"$file"
tries=0
until [ -e "$folder/go" ]; do
    tries=$((tries + 1))
    [ $tries -lt 3000 ] && kill -0 {launcher} || exit 1
    sleep 0.02
done
exec {interpreter} "$@"
"""


class StartError(Exception):
    """msrun did not start all processes; the text says what it said."""


def msrun_command(command: Sequence[str], plan: ClusterPlan, folder: LaunchFolder) -> list[str]:
    """The command line of msrun; `command` is what follows `python`."""
    return [
        *(sys.executable, "-m", "mindspore.parallel.cluster.run"),
        *("--worker_num", str(plan.num_workers)),
        *("--local_worker_num", str(len(plan.ranks))),
        *("--master_addr", plan.master_addr),
        *("--master_port", str(plan.master_port)),
        *("--node_rank", str(plan.node_rank)),
        *("--log_dir", str(folder.log_dir)),
        *("--worker_log_name", "rank"),
        *("python", *command),
    ]


def start_processes(
    command: Sequence[str],
    plan: ClusterPlan,
    folder: LaunchFolder,
    orders: runtime.LaunchOrders,
    stopped: Callable[[], bool],
) -> dict[int, int]:
    """{rank or SCHEDULER: process id}, of children of this process. What `stopped` says is asked while it waits;
    empty if it became true. Raises StartError."""
    _write_stand_in(folder)
    environment = runtime.worker_environment(orders, num_workers=plan.num_workers, nodes=plan.nodes)
    with folder.msrun_log.open("wb") as log:
        msrun = subprocess.Popen(
            msrun_command(command, plan, folder),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=runtime.die_with_parent,
            start_new_session=True,  # Ctrl-C reaches the launcher alone, which ends the others in order
        )
        while msrun.poll() is None:
            if stopped():
                msrun.kill()
                msrun.wait()
                return {}
            time.sleep(_POLL_S)
    if msrun.returncode != 0:
        raise StartError(f"msrun ended with exit code {msrun.returncode}")
    process_ids = _process_ids(plan, folder)
    (folder.state_dir / "go").touch()
    return process_ids


def _write_stand_in(folder: LaunchFolder) -> None:
    program = folder.state_dir / "python"
    program.write_text(
        _STAND_IN.format(interpreter=shlex.quote(sys.executable), launcher=os.getpid()), encoding="utf-8"
    )
    program.chmod(0o755)


def _process_ids(plan: ClusterPlan, folder: LaunchFolder) -> dict[int, int]:
    give_up = time.monotonic() + _MAX_NOTE_S
    found: dict[int, int] = {}
    while absent := [rank for rank in plan.members if rank not in found]:
        for rank in absent:
            process_id = _read_process_id(folder, rank)
            if process_id is not None:
                found[rank] = process_id
        if time.monotonic() > give_up:
            raise StartError(_not_started(absent, plan))
        time.sleep(_POLL_S)
    return found


def _read_process_id(folder: LaunchFolder, rank: int) -> int | None:
    try:
        text = folder.process_id(rank).read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    return int(text) if text.endswith("\n") else None


def _not_started(absent: Sequence[int], plan: ClusterPlan) -> str:
    if SCHEDULER in absent:
        return (
            f"msrun started no scheduler, because {plan.master_addr} is not an address of this machine; master_addr "
            "must be that of node 0, where node_rank is 0"
        )
    return f"msrun did not start rank {', '.join(map(str, absent))}"
