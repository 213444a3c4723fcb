"""One worker process as its parent sees it: three pipes that never block the parent, and its end."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, EVENT_WRITE
from typing import IO

from mindgspo.config.reward import WorkersSection
from mindgspo.rewards.verification import JobOutcome, Reply
from mindgspo.rewards.workers.guard import MARK

MAX_REPLY_BYTES = 2**20
READ_BYTES = 2**16
# A worker whose pipe is held open by a program that it started ends without a sign.
LOOK_FOR_DEAD_S = 0.05
ERROR_TAIL_BYTES = 2**14
MAX_ERROR_LINES = 4
MAX_ERROR_TEXT = 400
# Between the end of a pipe and the moment at which its process counts as ended.
DEATH_GRACE_S = 0.2

_PROGRAM = Path(__file__).with_name("worker.py")
_GUARD = Path(__file__).with_name("guard.py")
# Lines of faulthandler's report that do not help: frames of the worker's program and of the import system, libraries.
_NOT_THE_USERS = (str(_PROGRAM.parent), "<frozen importlib", "Extension modules:")
# More threads than workers would only hinder each other.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class WorkerProcess:
    """A worker process, which is first loaded and then given jobs, by one thread at a time. Raises OSError if there is
    no room.

    is_usable: whether it can be asked once more. num_answered: jobs that it has answered; kept by the pool.
    """

    def __init__(self, tasks: Sequence[str], limits: WorkersSection) -> None:
        self._tasks, self._limits = tasks, limits
        self._mark = uuid.uuid4().hex
        environment = os.environ | _ENVIRONMENT | {MARK: self._mark}
        self._process = _spawn([sys.executable, str(_PROGRAM)], environment)
        _guard.tell(f"+{self._process.pid} {self._mark}")
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._jobs, self._replies, self._errors = self._process.stdin, self._process.stdout, self._process.stderr
        for pipe in (self._jobs, self._replies, self._errors):
            os.set_blocking(pipe.fileno(), False)
        self.is_usable = True
        self.num_answered = 0
        self._received = bytearray()
        self._error_tail = b""

    def load(self, is_over: threading.Event) -> Reply:
        """Let it load the tasks; DONE where it has. is_over: see `ask`."""
        reply = self.ask(
            _setup_line(self._tasks, self._limits), self._limits.startup_timeout_s, "startup_timeout_s", is_over
        )
        return self.died() if reply is None else reply

    def ask(self, line: bytes, seconds: float, setting: str, is_over: threading.Event) -> Reply | None:
        """The reply to a line; None if the worker had ended before it could read it.

        seconds: until the reply is late; `setting` is their name. is_over: once it is set, waiting ends.
        """
        deadline = time.monotonic() + seconds
        unsent = memoryview(line)
        self._error_tail = b""
        with selectors.DefaultSelector() as selector:
            if self._speaks_unasked():
                self.is_usable = False
                return None
            for pipe, event in ((self._jobs, EVENT_WRITE), (self._replies, EVENT_READ), (self._errors, EVENT_READ)):
                selector.register(pipe, event)
            while True:
                # What came before this moment is read before anybody is called late.
                now = time.monotonic()
                stirred = [key.fileobj for key, _ in selector.select(max(0.0, min(deadline - now, LOOK_FOR_DEAD_S)))]
                if self._jobs in stirred:
                    try:
                        unsent = unsent[os.write(self._jobs.fileno(), unsent) :]
                    except BrokenPipeError:
                        self.is_usable = False
                        return None
                    if not unsent:
                        selector.unregister(self._jobs)
                if self._errors in stirred and not self._read_errors():
                    selector.unregister(self._errors)
                has_ended = self.has_ended()
                reply = self._receive() if self._replies in stirred or has_ended else None
                if reply is None and has_ended:
                    reply = self.died()
                if reply is None and (deadline < now or is_over.is_set()):
                    shown = "no value" if setting == "timeout_s" else "not ready"
                    message = f"{shown} within {seconds:g} s ({self._limits.key}.{setting})"
                    reply = self._last(JobOutcome.TIMEOUT, message)
                if reply is not None:
                    return reply

    def _speaks_unasked(self) -> bool:
        """Whether the pipe of replies has ended, or holds what no job has asked for: the user's code has found it."""
        try:
            os.read(self._replies.fileno(), 1)
        except BlockingIOError:
            return False
        return True

    def _last(self, outcome: JobOutcome, message: str) -> Reply:
        """The reply after which it cannot be used any more."""
        self.is_usable = False
        return Reply(outcome=outcome, message=message)

    def _receive(self) -> Reply | None:
        """The reply, if it is complete; DIED if the pipe of replies ended instead."""
        try:
            piece = os.read(self._replies.fileno(), READ_BYTES)
        except BlockingIOError:
            return None
        if not piece:
            return self.died()
        self._received += piece
        if len(self._received) > MAX_REPLY_BYTES:
            return self._last(JobOutcome.FAILED, f"returned more than {MAX_REPLY_BYTES // 2**20} MiB")
        if not self._received.endswith(b"\n"):
            return None
        line = bytes(self._received)
        self._received.clear()
        return self._reply_of(line)

    def _reply_of(self, line: bytes) -> Reply:
        try:
            fields = json.loads(line)
            if "is_out_of_memory" in fields:
                room = f"{self._limits.memory_mb} MiB ({self._limits.key}.memory_mb)"
                return self._last(JobOutcome.FAILED, f"out of memory: a worker may take {room}")
            outcome, value = JobOutcome(fields["outcome"]), fields.get("value")
            return Reply(outcome=outcome, value=value, message=fields.get("message", ""))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            # The user's code has found the pipe, or sent a value that nests too deep.
            text = f"the reply cannot be read: {type(error).__name__}: {error}"
            return self._last(JobOutcome.FAILED, text[:MAX_ERROR_TEXT])

    def _read_errors(self) -> bool:
        """Take what was printed, keep its end. False: the pipe has ended."""
        try:
            piece = os.read(self._errors.fileno(), READ_BYTES)
        except BlockingIOError:
            return True
        self._error_tail = (self._error_tail + piece)[-ERROR_TAIL_BYTES:]
        return bool(piece)

    def has_ended(self) -> bool:
        """Whether the process has ended. Its number stays taken, so that its group can still be killed."""
        return self._how_it_ended() is not None

    def _how_it_ended(self) -> str | None:
        try:
            end = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # the calling program ignores SIGCHLD, or waits for all its children itself
            return "the worker ended"
        if end is None:
            return None
        if end.si_code == os.CLD_EXITED:
            return f"the worker ended with exit code {end.si_status}"
        return f"the worker was ended by signal {end.si_status} ({signal.strsignal(end.si_status)})"

    def died(self) -> Reply:
        """The reply of a worker that has ended, or whose pipe of replies has."""
        give_up = time.monotonic() + DEATH_GRACE_S
        while (how := self._how_it_ended()) is None and time.monotonic() < give_up:
            time.sleep(0.001)
        self._read_errors()
        text = (how or "the worker closed the pipe of its replies") + self._last_errors()
        return self._last(JobOutcome.DIED, text)

    def _last_errors(self) -> str:
        """The end of what was printed; after a crash faulthandler's report, which begins with the innermost frame."""
        lines = [line.strip() for line in self._error_tail.decode("utf-8", "replace").splitlines()]
        told = [line for line in lines if line and not any(mark in line for mark in _NOT_THE_USERS)]
        crashes = [number for number, line in enumerate(told) if line.startswith("Fatal Python error")]
        begin = crashes[-1] if crashes else -MAX_ERROR_LINES
        text = " | ".join(told[begin:][:MAX_ERROR_LINES])
        return f"; it printed last: {text[:MAX_ERROR_TEXT]}" if text else ""

    def kill(self) -> None:
        """End the process and all that it started, and let go of its pipes. Follow up by `reap`."""
        with suppress(ProcessLookupError):  # the whole group has ended and is being reaped elsewhere
            os.killpg(self._process.pid, signal.SIGKILL)
        _guard.tell(f"-{self._process.pid} {self._mark}")
        for pipe in (self._jobs, self._replies, self._errors):
            pipe.close()

    def reap(self, seconds: float) -> bool:
        """Wait at most so long for the end of a killed process. False: it is still there."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def _setup_line(tasks: Sequence[str], limits: WorkersSection) -> bytes:
    setup: Mapping[str, object] = {
        "parent": os.getpid(),
        "memory_mb": limits.memory_mb,
        "sys_path": [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)],
        "tasks": list(tasks),
    }
    return json.dumps(setup).encode("ascii") + b"\n"


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    _guard.start()
    return subprocess.Popen(
        command,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # its own group, to be killed with all that it starts; out of reach of Ctrl-C
    )


def _discard(process: Future[subprocess.Popen[bytes]]) -> None:
    if process.exception() is None:
        with process.result() as running:
            running.kill()


def _one_thread() -> ThreadPoolExecutor:
    """The one thread that starts all workers and lives as long as this process. A worker asks the kernel to be killed
    with its parent, and to the kernel the parent is the *thread* that started it."""
    return ThreadPoolExecutor(1, "mindgspo-reward-spawner")


class _Guard:
    """The program of `guard`, started with the first worker. It learns of this process's end by the end of a pipe."""

    def __init__(self) -> None:
        self._pipe: IO[bytes] | None = None

    def start(self) -> None:
        """Unless it was. Raises OSError if the system has no room for one more process."""
        if self._pipe is not None:
            return
        started = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._pipe = started.stdin
        started.wait()

    def tell(self, line: str) -> None:
        """One line of what it reads. Where it was killed, workers still end with this process, by the kernel."""
        assert self._pipe is not None, "not started"
        with suppress(BrokenPipeError):
            self._pipe.write(f"{line}\n".encode())


_spawner = _one_thread()
_guard = _Guard()


def _renew_in_copy() -> None:
    """A forked copy of this process does not have the thread, and must not keep the pipe open."""
    global _spawner, _guard
    _spawner, _guard = _one_thread(), _Guard()


os.register_at_fork(after_in_child=_renew_in_copy)


def _spawn(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A process with pipes for its three standard streams, leader of its own session. Raises OSError."""
    process = _spawner.submit(_start, command, environment)
    try:
        return process.result()
    except KeyboardInterrupt:
        process.add_done_callback(_discard)
        raise
