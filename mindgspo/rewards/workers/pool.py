"""The pool of child processes that the scorer hands its slow jobs to.

What enters: `Job`s. What leaves: a `Reply` per job, in order, whatever a job does: to hang, crash, eat memory, shout or
end its process costs that job alone. Called by `scorer`. The parts: `round` hands out jobs and waits, `crew` owns the
children, `process` is one child seen from here, `child` is the program that runs there, `user_function` loads a user's
file in it.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType

from mindgspo.errors import RewardError
from mindgspo.rewards.judgement import Job, Outcome, Reply
from mindgspo.rewards.workers.crew import Crew
from mindgspo.rewards.workers.process import PoolSettings
from mindgspo.rewards.workers.round import Round


class WorkerPool:
    """Child processes that load `tasks` and answer jobs: at most `count` of them, started when jobs need them.

    tasks: "math_verify", or "/path/file.py:function" for a user's function: all that the children will be asked for.
    timeout_s: wall-clock seconds that one job may take; then its child is killed with its process group and replaced.
    startup_timeout_s: the same for loading the tasks; no job pays for it. memory_mb: MiB that one child may write to
    (not the libraries it maps, nor memory it shares or gives to programs of its own). on_answer: called whenever a job
    has its reply, in the thread that called `run`.

    The children end with the pool, with this process however it ends, and at exit. One thread at a time is served.
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
        self._crew = Crew(self._settings)
        self._lock = threading.Lock()
        weakref.finalize(self, self._crew.end)  # when nobody holds the pool any more, and at exit

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start one child and wait until it has loaded all tasks, so that a broken file is reported now.

        Raises RewardError naming file, rule and fix: import failed (with the line), no such function (with those there
        are), wrong signature, out of time. Later calls of `run` start the other children.
        """
        with self._lock:
            self._crew.disown_copies()
            start = Round(self._crew, self._settings, ())
            start.start()
            self._crew.reap()
        if start.failure is not None:
            raise RewardError(f"reward.functions: {start.failure}")

    def run(self, jobs: Sequence[Job]) -> list[Reply]:
        """One reply per job, in order. Starts what is needed. Never raises because of what a job does.

        Where no child can be started any more (the file was changed meanwhile), the jobs that are left are FAILED with
        the reason; the next call tries again. KeyboardInterrupt ends the children that are at work and leaves the pool
        usable.
        """
        if not jobs:
            return []
        assert all(job.task in self._settings.tasks for job in jobs), "a task that the children have not loaded"
        with self._lock:
            self._crew.disown_copies()
            try:
                return Round(self._crew, self._settings, [_line(job) for job in jobs], self._on_answer).run()
            finally:
                self._crew.reap()

    def close(self) -> None:
        """End all children. A closed pool may be started again."""
        with self._lock:
            self._crew.end()


def _line(job: Job) -> bytes | Reply:
    """ASCII only, so that any text crosses, lone surrogates too."""
    try:
        return json.dumps({"task": job.task, "arguments": dict(job.arguments)}).encode("ascii") + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        return Reply(outcome=Outcome.FAILED, message=f"the arguments of {job.task} are no JSON: {error}")
