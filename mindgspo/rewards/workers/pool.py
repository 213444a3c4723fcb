"""The pool of worker processes that runs the scorer's slow jobs.

`process` is one worker seen from here, `worker` the program that runs in it.
"""

from __future__ import annotations

import json
import os
import selectors
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from mindgspo.errors import RewardError
from mindgspo.io import Closing
from mindgspo.rewards.verification import JobOutcome, Reply, RewardJob
from mindgspo.rewards.workers.process import PoolSettings, WorkerAnswer, WorkerProcess

REAP_SECONDS = 5.0
# A worker whose pipe is held open by a program that it started ends without a sign.
LOOK_FOR_DEAD_S = 0.05
MAX_FAILED_STARTS = 2


class WorkerPool(Closing):
    """Worker processes that load `tasks` and answer jobs: at most `count` of them, started when jobs need them.

    tasks: "math_verify", or "/path/file.py:function" for a user's function: all that the workers will be asked for.
    timeout_s: wall-clock seconds that one job may take; then its worker is killed with its process group and replaced.
    startup_timeout_s: the same for loading the tasks; no job pays for it. memory_mb: MiB that one worker may write to
    (not the libraries it maps, nor memory it shares or gives to programs of its own). on_answer: called whenever a job
    has its reply, in the thread that called `run`.

    The workers end with the pool, with this process however it ends, and at exit. One thread at a time is served.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        *,
        count: int,
        timeout_s: float,
        startup_timeout_s: float,
        memory_mb: int,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_answer = on_answer
        self._settings = PoolSettings(
            tasks=tuple(tasks),
            count=count,
            timeout_s=timeout_s,
            startup_timeout_s=startup_timeout_s,
            memory_mb=memory_mb,
        )
        self._workers = _Workers(self._settings)
        self._lock = threading.Lock()
        weakref.finalize(self, self._workers.close)  # when nobody holds the pool any more, and at exit

    def start(self) -> None:
        """Start one worker and wait until it has loaded all tasks, so that a broken file is reported now.

        Raises RewardError naming file, rule and fix: import failed (with the line), no such function (with those there
        are), wrong signature, out of time. Later calls of `run` start the other workers.
        """
        with self._lock:
            self._workers.forget_in_copy()
            call = _Call(self._workers, self._settings, ())
            call.start()
            self._workers.reap()
        if call.failure is not None:
            raise RewardError(f"reward.functions: {call.failure}")

    def run(self, jobs: Sequence[RewardJob]) -> list[Reply]:
        """One reply per job, in order. Starts what is needed. Never raises because of what a job does: hanging,
        crashing, eating memory or ending its process costs that job alone.

        Where no worker can be started any more (the file was changed meanwhile), the jobs that are left are FAILED with
        the reason; the next call tries again. KeyboardInterrupt ends the busy workers and leaves the pool usable.
        """
        if not jobs:
            return []
        assert all(job.task in self._settings.tasks for job in jobs), "a task that the workers have not loaded"
        with self._lock:
            self._workers.forget_in_copy()
            try:
                return _Call(self._workers, self._settings, [_line(job) for job in jobs], self._on_answer).run()
            finally:
                self._workers.reap()

    def close(self) -> None:
        """End all workers. A closed pool may be started again."""
        with self._lock:
            self._workers.close()


def _line(job: RewardJob) -> bytes | Reply:
    """ASCII only, so that any text crosses, lone surrogates too."""
    try:
        return json.dumps({"task": job.task, "arguments": dict(job.arguments)}).encode("ascii") + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        return Reply(outcome=JobOutcome.FAILED, message=f"the arguments of {job.task} are no JSON: {error}")


class _Workers:
    """alive: workers that start or are ready. They belong to the process that made them, not to a forked copy of it."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._owner = os.getpid()
        self._killed: list[WorkerProcess] = []
        self.alive: list[WorkerProcess] = []

    def start(self) -> WorkerProcess:
        """Raises OSError if the system has no room for one more."""
        worker = WorkerProcess(self._settings)
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
        """In a forked copy of the process: let go of the workers, which stay the original's. True if it is a copy."""
        is_copy = os.getpid() != self._owner
        if is_copy:
            self._owner, self.alive, self._killed = os.getpid(), [], []
        return is_copy


class _Call:
    """One call of the pool: jobs go to idle workers, answers come back, whoever is late or dead is replaced. It all
    happens in the calling thread, which sleeps in a selector until a pipe stirs or a deadline passes.

    lines: a job each, or at once its reply. failure: why the last worker that could not be started was not, None while
    all could.
    """

    def __init__(
        self,
        workers: _Workers,
        settings: PoolSettings,
        lines: Sequence[bytes | Reply],
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_answer = on_answer
        self._workers = workers
        self._settings = settings
        self._lines = lines
        self._replies: list[Reply | None] = [line if isinstance(line, Reply) else None for line in lines]
        self._waiting = deque(number for number, reply in enumerate(self._replies) if reply is None)
        self._num_open = len(self._waiting)
        self._num_failed_starts = 0
        self._look_for_dead_at = 0.0
        self.failure: str | None = None
        self._selector = selectors.DefaultSelector()

    def run(self) -> list[Reply]:
        """A reply per line, in order."""
        with self._selector:
            try:
                self._take_over()
                while self._num_open:
                    self._start_workers(self._num_open)
                    if not self._workers.alive:
                        self._give_up()
                        break
                    self._assign()
                    self._wait()
            except BaseException:  # Ctrl-C: what is half done cannot be taken up again
                for worker in tuple(self._workers.alive):
                    if not worker.is_idle:
                        self._workers.stop(worker)
                raise
        replies = [reply for reply in self._replies if reply is not None]
        assert len(replies) == len(self._lines), f"{len(replies)} replies to {len(self._lines)} jobs"
        return replies

    def start(self) -> None:
        """Until one worker is ready, or one could not be started: `failure` says so."""
        with self._selector:
            try:
                self._take_over()
                self._start_workers(1)
                while self.failure is None and not any(worker.is_ready for worker in self._workers.alive):
                    self._wait()
            except BaseException:
                self._workers.close()
                raise

    def _take_over(self) -> None:
        """The workers of earlier calls. Nobody listened to one that was still loading, so its time begins anew."""
        for worker in tuple(self._workers.alive):
            if worker.has_ended():
                self._workers.stop(worker)
                continue
            if not worker.is_ready:
                worker.deadline = time.monotonic() + self._settings.startup_timeout_s
            self._watch(worker)

    def _start_workers(self, wanted: int) -> None:
        wanted = min(self._settings.count, wanted)
        while len(self._workers.alive) < wanted and self._num_failed_starts < MAX_FAILED_STARTS:
            try:
                self._watch(self._workers.start())
            except OSError as error:
                self._start_failed(f"no worker process could be started: {error}")

    def _assign(self) -> None:
        for worker in tuple(self._workers.alive):
            if worker.is_idle and self._waiting:
                number = worker.job = self._waiting.popleft()
                line = self._lines[number]
                assert isinstance(line, bytes), "a job that has its reply already"
                if worker.send(line, self._settings.timeout_s):
                    self._watch_writing(worker)
                else:  # it ended while it had nothing to do; the job is not to blame
                    self._waiting.appendleft(number)
                    worker.job = None
                    self._answered(worker, worker.died())

    def _wait(self) -> None:
        # Answers that came before this moment are read before anybody is called late.
        now = time.monotonic()
        deadlines = [worker.deadline for worker in self._workers.alive if not worker.is_idle]
        until = min([*deadlines, now + LOOK_FOR_DEAD_S])
        for key, _ in self._selector.select(max(0.0, until - now)):
            worker, act = key.data
            if worker in self._workers.alive:
                act(worker)
        for worker in tuple(self._workers.alive):
            if not worker.is_idle and worker.deadline < now:
                self._answered(worker, WorkerAnswer(reply=self._late(worker), is_last=True))
        if now >= self._look_for_dead_at:
            self._look_for_dead_at = now + LOOK_FOR_DEAD_S
            for worker in tuple(self._workers.alive):
                if worker.has_ended():
                    self._answered(worker, worker.receive() or worker.died())

    def _read(self, worker: WorkerProcess) -> None:
        answer = worker.receive()
        if answer is not None:
            self._answered(worker, answer)

    def _read_errors(self, worker: WorkerProcess) -> None:
        if not worker.read_errors():
            self._selector.unregister(worker.errors)

    def _write(self, worker: WorkerProcess) -> None:
        worker.write()
        self._watch_writing(worker)

    def _answered(self, worker: WorkerProcess, answer: WorkerAnswer) -> None:
        reply = answer.reply
        is_usable = not answer.is_last
        if not worker.is_ready:
            is_usable = worker.is_ready = reply.outcome is JobOutcome.DONE
            if not is_usable:
                self._start_failed(self._why_not_started(reply))
        elif worker.job is not None:
            self._replies[worker.job] = reply
            self._num_open -= 1
            worker.job = None
            worker.num_answered += 1
            self._on_answer()
        else:  # it has ended, or speaks unasked
            is_usable = False
            if worker.num_answered == 0:  # it loads, but does not live long enough to be of use
                self._start_failed(self._why_not_started(reply))
        if not is_usable:
            for pipe in (worker.replies, worker.errors, worker.jobs):
                if pipe in self._selector.get_map():
                    self._selector.unregister(pipe)
            self._workers.stop(worker)

    def _why_not_started(self, reply: Reply) -> str:
        if reply.outcome is JobOutcome.FAILED:
            return reply.message
        return f"while a worker loaded {', '.join(self._settings.tasks)}: {reply.message}"

    def _start_failed(self, reason: str) -> None:
        self.failure = reason
        self._num_failed_starts += 1

    def _late(self, worker: WorkerProcess) -> Reply:
        if worker.is_ready:
            text = f"no value within {self._settings.timeout_s:g} s (reward.workers.timeout_s)"
        else:
            text = f"not ready within {self._settings.startup_timeout_s:g} s (reward.workers.startup_timeout_s)"
        return Reply(outcome=JobOutcome.TIMEOUT, message=text)

    def _give_up(self) -> None:
        assert self.failure is not None
        for number in self._waiting:
            self._replies[number] = Reply(outcome=JobOutcome.FAILED, message=self.failure)

    def _watch(self, worker: WorkerProcess) -> None:
        self._selector.register(worker.replies, selectors.EVENT_READ, (worker, self._read))
        self._selector.register(worker.errors, selectors.EVENT_READ, (worker, self._read_errors))
        self._watch_writing(worker)

    def _watch_writing(self, worker: WorkerProcess) -> None:
        is_watched = worker.jobs in self._selector.get_map()
        if worker.has_unsent and not is_watched:
            self._selector.register(worker.jobs, selectors.EVENT_WRITE, (worker, self._write))
        elif is_watched and not worker.has_unsent:
            self._selector.unregister(worker.jobs)
