"""The pool of worker processes that runs the scorer's slow jobs.

`process` is one worker seen from here, `worker` the program that runs in it. Neither pebble nor the standard library's
pools can stand in: they unpickle what users' code returns, limit neither memory nor output, and leave programs running
that a killed worker has started.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from mindgspo.config.reward import WorkersSection
from mindgspo.errors import RewardError
from mindgspo.io import Closing
from mindgspo.rewards.verification import JobOutcome, Reply, WorkerJob
from mindgspo.rewards.workers.process import WorkerProcess

REAP_SECONDS = 5.0
MAX_FAILED_STARTS = 2  # a second try survives a moment without memory; a broken file fails again


class WorkerPool(Closing):
    """Worker processes that load `tasks` and answer jobs: at most `limits.count` of them, started when jobs need them.

    tasks: everything that the workers will be asked for: "math_verify", or "/path/file.py:function" for a user's
        function.
    limits: a worker whose job runs out of time is killed with its process group and replaced; no job pays for loading;
        the memory limit counts what a worker may write to (not the libraries it maps, nor memory it shares or gives to
        programs of its own).
    on_answer: called whenever a job has its reply, in the thread that called `run`.

    The workers end with the pool, with this process however it ends, and at exit. One thread at a time is served.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        limits: WorkersSection,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_answer = on_answer
        self._workers = _Workers(tuple(tasks), limits)
        self._lock = threading.Lock()
        self._call: _Call | None = None
        weakref.finalize(self, self._workers.close)  # when the pool is no longer referenced, and at exit

    def start(self) -> None:
        """Start one worker and wait until it has loaded all tasks, so that a broken file is reported now.

        Raises RewardError naming file, rule and fix: import failed (with the line), no such function (with those there
        are), wrong signature, out of time. Later calls of `run` start the other workers.
        """
        with self._lock:
            self._workers.forget_in_copy()
            call = _Call(self._workers, ())
            try:
                worker = call.next_worker()
            except BaseException:
                self._workers.close()
                raise
            self._workers.reap()
        if worker is None:
            raise RewardError(f"reward.functions: {call.failure}")

    def run(self, jobs: Sequence[WorkerJob]) -> list[Reply]:
        """One reply per job, in order. Starts what is needed. Never raises because of a job: hanging, crashing,
        exhausting memory or ending its process costs that job alone.

        If no worker can be started any more (the file was changed meanwhile), the remaining jobs are FAILED with the
        reason; the next call tries again. KeyboardInterrupt ends the busy workers and leaves the pool usable.
        """
        if not jobs:
            return []
        assert all(job.task in self._workers.tasks for job in jobs), "a task that the workers have not loaded"
        with self._lock:
            self._workers.forget_in_copy()
            self._call = _Call(self._workers, [_line(job) for job in jobs])
            try:
                return self._call.run(self._on_answer)
            finally:
                self._call = None
                self._workers.reap()

    def close(self) -> None:
        """End all workers, those at work in another thread's call, too. A closed pool may be started again."""
        if (call := self._call) is not None:
            call.stop()
        with self._lock:
            self._workers.close()


def _line(job: WorkerJob) -> bytes | Reply:
    """ASCII only, so that any text crosses, lone surrogates too."""
    try:
        return json.dumps({"task": job.task, "arguments": dict(job.arguments)}).encode("ascii") + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        return Reply(outcome=JobOutcome.FAILED, message=f"the arguments of {job.task} are no JSON: {error}")


class _Workers:
    """Workers that start or are ready. They belong to the process that made them, not to a forked copy of it."""

    def __init__(self, tasks: Sequence[str], limits: WorkersSection) -> None:
        self.tasks, self.limits = tasks, limits
        self._owner = os.getpid()
        self._killed: list[WorkerProcess] = []
        self.alive: list[WorkerProcess] = []

    def start(self) -> WorkerProcess:
        """Start a worker. Raises OSError if the system has no room for one more."""
        worker = WorkerProcess(self.tasks, self.limits)
        self.alive.append(worker)
        return worker

    def stop(self, worker: WorkerProcess) -> None:
        """Kill a worker. It is not waited for, so that the others need not wait."""
        self._killed.append(worker)
        self.alive.remove(worker)
        worker.kill()

    def reap(self) -> None:
        """Wait until the killed have gone; those that the kernel cannot end yet are left for the next time."""
        give_up = time.monotonic() + REAP_SECONDS
        self._killed = [worker for worker in self._killed if not worker.reap(max(0.0, give_up - time.monotonic()))]

    def close(self) -> None:
        if self.forget_in_copy():
            return
        for worker in tuple(self.alive):
            self.stop(worker)
        self.reap()

    def forget_in_copy(self) -> bool:
        """In a forked copy of the process, let go of the workers, which belong to the original. True if it is a
        copy."""
        is_copy = os.getpid() != self._owner
        if is_copy:
            self._owner, self.alive, self._killed = os.getpid(), [], []
        return is_copy


class _Call:
    """One call of the pool. Each worker has a thread that hands it one job after the other, and replaces it where it is
    late or dead.

    lines: a job each, or at once its reply. failure: reason of the last start of a worker that failed, None without.
    """

    def __init__(self, workers: _Workers, lines: Sequence[bytes | Reply]) -> None:
        self._workers = workers
        self._replies = {number: line for number, line in enumerate(lines) if isinstance(line, Reply)}
        self._waiting = deque((number, line) for number, line in enumerate(lines) if isinstance(line, bytes))
        self._idle = deque(workers.alive)
        self._done: queue.SimpleQueue[tuple[int, Reply] | None] = queue.SimpleQueue()
        self._is_over = threading.Event()
        self._num_failed_starts = 0
        self.failure: str | None = None

    def stop(self) -> None:
        """Let what is being done time out at once, and do nothing more."""
        self.failure = self.failure or "the pool was closed"
        self._is_over.set()

    def run(self, on_answer: Callable[[], None]) -> list[Reply]:
        """A reply per line, in order."""
        count = min(self._workers.limits.count, len(self._waiting))
        threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(count)]
        try:
            for thread in threads:
                thread.start()
            num_open = count
            while num_open:
                done = self._done.get()
                if done is None:
                    num_open -= 1
                else:
                    self._replies[done[0]] = done[1]
                    on_answer()
        finally:  # also Ctrl-C: what is half done cannot be taken up again
            self._is_over.set()
            for thread in threads:
                thread.join()
        for number, _ in self._waiting:
            assert self.failure is not None, "jobs are left though workers could be started"
            self._replies[number] = Reply(outcome=JobOutcome.FAILED, message=self.failure)
        return [self._replies[number] for number in range(len(self._replies))]

    def _serve(self) -> None:
        worker: WorkerProcess | None = None
        try:
            while self._waiting and not self._is_over.is_set():
                worker = worker or self.next_worker()
                if worker is None:
                    return
                try:
                    number, line = self._waiting.popleft()
                except IndexError:  # another worker was faster
                    return
                reply = worker.ask(line, self._workers.limits.timeout_s, "timeout_s", self._is_over)
                if reply is None:  # it ended while it had nothing to do; the job is not to blame
                    self._waiting.appendleft((number, line))
                    if worker.num_answered == 0:  # it loads, but does not live long enough to be of use
                        self._start_failed(worker.died())
                else:
                    worker.num_answered += 1
                    self._done.put((number, reply))
                if not worker.is_usable:
                    self._workers.stop(worker)
                    worker = None
        finally:
            self._done.put(None)

    def next_worker(self) -> WorkerProcess | None:
        """An idle worker, or a new one that has loaded its tasks; None if none can be started, see `failure`."""
        while self._idle:
            worker = self._idle.popleft()
            if not worker.has_ended():
                return worker
            self._workers.stop(worker)
        while self._num_failed_starts < MAX_FAILED_STARTS and not self._is_over.is_set():
            try:
                worker = self._workers.start()
            except OSError as error:
                self._start_failed(
                    Reply(outcome=JobOutcome.FAILED, message=f"no worker process could be started: {error}")
                )
                continue
            reply = worker.load(self._is_over)
            if reply.outcome is JobOutcome.DONE:
                return worker
            self._workers.stop(worker)
            self._start_failed(reply)
        return None

    def _start_failed(self, reply: Reply) -> None:
        self._num_failed_starts += 1
        self.failure = reply.message
        if reply.outcome is not JobOutcome.FAILED:
            self.failure = f"while a worker loaded {', '.join(self._workers.tasks)}: {reply.message}"
