"""Run one command in several workers on this machine, and end them all when one fails.

MindSpore is not imported here.

    launcher -> scheduler, workers
    launcher <- exit codes, failure records, heartbeats, logs
    launcher -> SIGTERM, then SIGKILL
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from mindgspo.config.schema import WatchSection
from mindgspo.interrupts import advice
from mindgspo.launch.failures import (
    SCHEDULER,
    LaunchFolder,
    RankFailure,
    failure_lines,
    first_failure,
    names,
    open_folder,
    read_failure,
    standard_output,
)
from mindgspo.launch.processes import ClusterPlan, Processes, children_now, plan_cluster, start_processes
from mindgspo.launch.watch import STALLED, RemoteScheduler, Watch
from mindgspo.parallel.platform import worker_process
from mindgspo.parallel.platform.heartbeat import Record, State, awaited, read_record

_POLL_S = 0.05


def launch(
    command: Sequence[str],
    *,
    num_workers: int,
    log_dir: Path,
    watch: WatchSection,
    nodes: int = 1,
    node_rank: int = 0,
    master_addr: str = "127.0.0.1",
    master_port: int | None = None,
    devices: Sequence[str] | None = None,
    listener: socket.socket | None = None,
    on_cards: bool = False,
) -> int:
    """Run `python <command>` in num_workers / nodes workers here; `command` calls `worker.run_worker` in each.

    Returns when all processes of this node have ended: 0 if all went well; the exit code of the rank that failed first,
    1 for an exception, 128 + number for a signal; 124 after a stall with watch.on_stall=stop; 130 or 143 after SIGINT
    or SIGTERM to this process. One launcher per
    node; node_rank 0 runs on the machine of master_addr. devices: numbers of the cards here, by default the first ones.
    listener: a bound socket for rank 0, see `processes.handed_over`. on_cards: whether workers have cards, beside which
    they then run, see `processes.processors_beside_cards`. log_dir gets rank_<r>.log, scheduler.log,
    failure_<r>.json. Called in the main thread. Raises ConfigError for impossible sizes and ports, before anything
    starts.
    """
    plan = plan_cluster(
        num_workers=num_workers, nodes=nodes, node_rank=node_rank, master_addr=master_addr, master_port=master_port
    )
    with _noted_signals() as signals, open_folder(log_dir, plan.members) as folder, _orphans_adopted():
        return _Launch(command, plan, folder, watch, signals, devices, listener, on_cards=on_cards).run()


class _Launch:
    """One launch on this node, from the start to the end of its processes."""

    def __init__(
        self,
        command: Sequence[str],
        plan: ClusterPlan,
        folder: LaunchFolder,
        section: WatchSection,
        signals: list[signal.Signals],
        devices: Sequence[str] | None,
        listener: socket.socket | None,
        *,
        on_cards: bool,
    ) -> None:
        self._devices, self._listener, self._on_cards = devices, listener, on_cards
        self._command, self._plan, self._folder, self._section, self._signals = command, plan, folder, section, signals
        self._processes = Processes({}, children_now())
        self._follower = standard_output(folder.log(0))
        self._remote = RemoteScheduler(plan.master_addr, plan.master_port)
        self._last_poll = time.time()

    def run(self) -> int:
        try:
            self._start()
            return self._supervise()
        finally:
            self._processes.end()
            self._follower.close()

    def _start(self) -> None:
        orders = worker_process.LaunchOrders(
            log_dir=str(self._folder.log_dir),
            state_dir=str(self._folder.state_dir),
            launcher=os.getpid(),
            is_terminal=sys.stdout.isatty(),
        )
        self._processes.started = start_processes(
            self._command, self._plan, self._folder, orders, self._devices, self._listener, on_cards=self._on_cards
        )

    def _supervise(self) -> int:
        watch = Watch(self._section, self._plan, self._folder, self._processes, self._tell)
        while not self._signals:
            size = self._follower.size()
            failure = self._failure()
            if self._signals:
                break  # Ctrl-C in a terminal reaches the ranks too: that they end is no failure
            if failure is not None:
                self._copy_output(size if failure.rank != 0 else failure.log_bytes)
                self._tell(failure_lines(failure, watch.records(), self._folder))
                return failure.launcher_exit_code
            # Read before the failures: what is copied here contains no traceback, because that is printed after the
            # failure is recorded. So it is not shown twice.
            self._copy_output(size)
            if self._is_done():
                self._copy_output(self._follower.size())
                return 0
            if watch.poll():
                return STALLED
            if watch.is_formed and self._is_alone(watch.records()):
                address = f"{self._plan.master_addr}:{self._plan.master_port}"
                self._tell([f"the run has ended on node 0: its scheduler at {address} is gone; see the log there"])
                return 1
            time.sleep(_POLL_S)
        number = self._signals[0]
        self._processes.end()
        self._tell([f"stopped by {number.name}; {names(self._plan.ranks)} ended{advice()}"])
        return 128 + number

    def _failure(self) -> RankFailure | None:
        """The first failure since the last call. For a rank that recorded nothing, the time of that call is used: ranks
        that failed because of it recorded a later one."""
        ended = self._processes.poll()
        failures = []
        for rank in self._plan.members:
            paths = (self._folder.failure(rank), self._folder.failure_beside_logs(rank))
            record = next(filter(None, map(read_failure, paths)), None)
            if record is not None:
                failures.append(RankFailure(rank=rank, time=record.time, record=record))
            elif rank in ended and self._is_failure(rank, ended[rank]):
                failures.append(RankFailure(rank=rank, time=self._last_poll, exit_code=ended[rank]))
        self._last_poll = time.time()
        return first_failure(failures)

    def _is_failure(self, rank: int, exit_code: int) -> bool:
        """Whether it counts as a failure: a rank that has finished its work may exit with an error, and so may the
        scheduler once no rank needs it."""
        if exit_code == 0 or (rank == SCHEDULER and self._is_done()):
            return False
        heartbeat = read_record(self._folder.heartbeat(rank))
        return heartbeat is None or heartbeat.state is not State.FINISHED

    def _is_done(self) -> bool:
        """Whether all ranks of this node have ended and, with other nodes, also the scheduler, which these may still
        need."""
        needed = self._plan.members if self._plan.nodes > 1 else self._plan.ranks
        return all(rank in self._processes.exit_codes for rank in needed)

    def _is_alone(self, records: Mapping[int, Record | None]) -> bool:
        """Whether ranks at work have lost the scheduler of another node. It leaves when all ranks have finished."""
        if self._plan.has_scheduler or not awaited(records):
            return False
        return self._remote.is_lost()

    def _copy_output(self, end: int) -> None:
        if 0 in self._plan.ranks:
            self._follower.copy(end)

    def _tell(self, lines: Sequence[str]) -> None:
        self._follower.end_line()
        print(*lines, sep="\n", file=sys.stderr, flush=True)


@contextmanager
def _noted_signals() -> Iterator[list[signal.Signals]]:
    """Collects SIGINT, SIGTERM and SIGHUP in the list instead of acting on them."""
    noted: list[signal.Signals] = []

    def note(number: int, frame: object) -> None:
        noted.append(signal.Signals(number))

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    # If SIGCHLD is ignored, which a process inherits, the kernel keeps no exit codes.
    before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


@contextmanager
def _orphans_adopted() -> Iterator[None]:
    worker_process.adopt_orphans(True)
    try:
        yield
    finally:
        worker_process.adopt_orphans(False)
