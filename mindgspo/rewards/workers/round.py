"""One call of the pool: jobs go to idle children, answers come back, whoever is late or dead is replaced.

What enters: jobs as lines, and the crew. What leaves: one reply per job, in order. Called by `pool`. Everything happens
in the calling thread, which sleeps in a selector until a pipe stirs or a deadline passes.
"""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from mindgspo.rewards.judgement import Outcome, Reply
from mindgspo.rewards.workers.crew import Crew
from mindgspo.rewards.workers.process import Answer, Child, PoolSettings

# A child whose pipe is held open by a program that it started ends without a sign.
LOOK_FOR_DEAD_S = 0.05
MAX_FAILED_STARTS = 2


class Round:
    """lines: a job each, or at once its reply. failure: why the last child that could not be started was not, None
    while all could. on_answer: called whenever a job has its reply."""

    def __init__(
        self,
        crew: Crew,
        settings: PoolSettings,
        lines: Sequence[bytes | Reply],
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_answer = on_answer
        self._crew = crew
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
                    self._hire()
                    if not self._crew.children:
                        self._give_up()
                        break
                    self._assign()
                    self._wait()
            except BaseException:  # Ctrl-C: what is half done cannot be taken up again
                for child in tuple(self._crew.children):
                    if not child.is_idle:
                        self._crew.dismiss(child)
                raise
        replies = [reply for reply in self._replies if reply is not None]
        assert len(replies) == len(self._lines), f"{len(replies)} replies to {len(self._lines)} jobs"
        return replies

    def start(self) -> None:
        """Until one child is ready, or one could not be started: `failure` says so."""
        with self._selector:
            try:
                self._take_over()
                self._hire(at_least=1)
                while self.failure is None and not any(child.is_ready for child in self._crew.children):
                    self._wait()
            except BaseException:
                self._crew.end()
                raise

    def _take_over(self) -> None:
        """The children of earlier calls. Nobody listened to one that was still loading, so its time begins anew."""
        for child in tuple(self._crew.children):
            if child.has_ended():
                self._crew.dismiss(child)
                continue
            if not child.is_ready:
                child.deadline = time.monotonic() + self._settings.startup_timeout_s
            self._watch(child)

    def _hire(self, at_least: int = 0) -> None:
        wanted = min(self._settings.count, max(self._num_open, at_least))
        while len(self._crew.children) < wanted and self._num_failed_starts < MAX_FAILED_STARTS:
            try:
                child = self._crew.hire()
            except OSError as error:
                self._start_failed(f"no worker process could be started: {error}")
            else:
                self._watch(child)

    def _assign(self) -> None:
        for child in tuple(self._crew.children):
            if child.is_idle and self._waiting:
                number = child.job = self._waiting.popleft()
                line = self._lines[number]
                assert isinstance(line, bytes), "a job that has its reply already"
                if child.send(line, self._settings.timeout_s):
                    self._watch_writing(child)
                else:  # it ended while it had nothing to do; the job is not to blame
                    self._waiting.appendleft(number)
                    child.job = None
                    self._answered(child, child.died())

    def _wait(self) -> None:
        # Answers that came before this moment are read before anybody is called late.
        now = time.monotonic()
        deadlines = [child.deadline for child in self._crew.children if not child.is_idle]
        until = min([*deadlines, now + LOOK_FOR_DEAD_S])
        for key, _ in self._selector.select(max(0.0, until - now)):
            child, act = key.data
            if child in self._crew.children:
                act()
        for child in tuple(self._crew.children):
            if not child.is_idle and child.deadline < now:
                self._answered(child, Answer(reply=self._late(child), is_last=True))
        if now >= self._look_for_dead_at:
            self._look_for_dead_at = now + LOOK_FOR_DEAD_S
            self._look_for_dead()

    def _look_for_dead(self) -> None:
        for child in tuple(self._crew.children):
            if child.has_ended():
                self._answered(child, child.receive() or child.died())

    def _read(self, child: Child) -> None:
        answer = child.receive()
        if answer is not None:
            self._answered(child, answer)

    def _read_errors(self, child: Child) -> None:
        if not child.read_errors():
            self._selector.unregister(child.errors)

    def _write(self, child: Child) -> None:
        child.write()
        self._watch_writing(child)

    def _answered(self, child: Child, answer: Answer) -> None:
        reply = answer.reply
        is_usable = not answer.is_last
        if not child.is_ready:
            is_usable = child.is_ready = reply.outcome is Outcome.DONE
            if not is_usable:
                self._start_failed(self._why_not_started(reply))
        elif child.job is not None:
            self._replies[child.job] = reply
            self._num_open -= 1
            child.job = None
            child.num_answered += 1
            self._on_answer()
        else:  # it has ended, or speaks unasked
            is_usable = False
            if child.num_answered == 0:  # it loads, but does not live long enough to be of use
                self._start_failed(self._why_not_started(reply))
        if not is_usable:
            self._dismiss(child)

    def _why_not_started(self, reply: Reply) -> str:
        if reply.outcome is Outcome.FAILED:
            return reply.message
        return f"while a worker loaded {', '.join(self._settings.tasks)}: {reply.message}"

    def _start_failed(self, reason: str) -> None:
        self.failure = reason
        self._num_failed_starts += 1

    def _late(self, child: Child) -> Reply:
        if child.is_ready:
            text = f"no value within {self._settings.timeout_s:g} s (reward.workers.timeout_s)"
        else:
            text = f"not ready within {self._settings.startup_timeout_s:g} s (reward.workers.startup_timeout_s)"
        return Reply(outcome=Outcome.TIMEOUT, message=text)

    def _give_up(self) -> None:
        assert self.failure is not None
        for number in self._waiting:
            self._replies[number] = Reply(outcome=Outcome.FAILED, message=self.failure)

    def _watch(self, child: Child) -> None:
        self._selector.register(child.replies, selectors.EVENT_READ, (child, partial(self._read, child)))
        self._selector.register(child.errors, selectors.EVENT_READ, (child, partial(self._read_errors, child)))
        self._watch_writing(child)

    def _watch_writing(self, child: Child) -> None:
        is_watched = child.jobs in self._selector.get_map()
        if child.has_unsent and not is_watched:
            self._selector.register(child.jobs, selectors.EVENT_WRITE, (child, partial(self._write, child)))
        elif is_watched and not child.has_unsent:
            self._selector.unregister(child.jobs)

    def _dismiss(self, child: Child) -> None:
        for pipe in (child.replies, child.errors, child.jobs):
            if pipe in self._selector.get_map():
                self._selector.unregister(pipe)
        self._crew.dismiss(child)
