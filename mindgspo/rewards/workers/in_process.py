"""Reward functions that are objects of this process, such as those that a notebook's cell defines.

They get the arguments, the checks and the messages of functions in worker processes. What a single process cannot give
is missing: a limit on memory, surviving a crash, ending C code that does not return. The time limit interrupts calls in
the main thread by SIGALRM; in other threads there is none.
"""

from __future__ import annotations

import copy
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import cast

from mindgspo.config.reward import WorkersSection, function_label
from mindgspo.errors import RewardError
from mindgspo.rewards.verification import JobOutcome, JSONValue, Reply, WorkerJob
from mindgspo.rewards.workers.pool import WorkerPool
from mindgspo.rewards.workers.worker import BrokenFunctionError, check_function, describe_error, plain_reward

RewardFunction = Callable[..., object]


class PoolWithObjects(WorkerPool):
    """A pool that runs the jobs of function objects here, one after the other, and all others in its workers.

    objects: by their entries in reward.functions, which are their tasks; None for one that was not given.
    """

    def __init__(
        self,
        objects: Mapping[str, RewardFunction | None],
        tasks: Sequence[str],
        limits: WorkersSection,
        on_answer: Callable[[], None],
    ) -> None:
        super().__init__(tasks, limits, on_answer)
        self._objects, self._has_tasks, self._seconds = objects, bool(tasks), limits.timeout_s

    def start(self) -> None:
        """See `WorkerPool`. Raises RewardError for an object that is not there or has another signature, too."""
        for name, function in self._objects.items():
            label = function_label(name)
            if function is None:
                raise RewardError(
                    f"reward.functions: {name} is a function object, which only the program that defined it has; go on "
                    f"there with mindgspo.train(..., reward={label}), or write it into a file and name FILE.py:{label}"
                )
            try:
                check_function(function, label, label)
            except BrokenFunctionError as error:
                raise RewardError(f"reward.functions: {error}") from None
        if self._has_tasks:
            super().start()

    def run(self, jobs: Sequence[WorkerJob]) -> list[Reply]:
        """See `WorkerPool`. KeyboardInterrupt in an object's code passes through."""
        others = iter(super().run([job for job in jobs if job.task not in self._objects]))
        return [self._reply(job) if job.task in self._objects else next(others) for job in jobs]

    def _reply(self, job: WorkerJob) -> Reply:
        function = self._objects[job.task]
        assert function is not None, "start has checked it"
        try:
            with _time_limit(self._seconds):
                # A copy, as a worker gets: what the function writes into extra_info does not change the row.
                value, dropped = plain_reward(function(**copy.deepcopy(dict(job.arguments))))
            return Reply(outcome=JobOutcome.DONE, value=cast(JSONValue, value), message=dropped)
        except _OutOfTime:
            message = f"no value within {self._seconds:g} s (reward.workers.timeout_s)"
            return Reply(outcome=JobOutcome.TIMEOUT, message=message)
        except (Exception, SystemExit) as error:  # costs its response, no more
            message = describe_error(error, getattr(function, "__globals__", None))
            return Reply(outcome=JobOutcome.FAILED, message=message)
        finally:
            self._on_answer()


class _OutOfTime(BaseException):
    """No `except Exception` in the function catches it."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises _OutOfTime in the block when its time is over, and behind it if the block has swallowed that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_over = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal is_over
        is_over = True
        raise _OutOfTime

    before = signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    if is_over:
        raise _OutOfTime
