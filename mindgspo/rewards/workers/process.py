"""One worker process as its parent sees it: three pipes that never block the parent, and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mindgspo.rewards.verification import JobOutcome, Reply
from mindgspo.rewards.workers.guard import MARK

MAX_REPLY_BYTES = 2**20
READ_BYTES = 2**16
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """tasks: what every worker loads. count: most workers at a time. timeout_s, startup_timeout_s: wall-clock seconds
    of one job and of all imports. memory_mb: MiB per worker."""

    tasks: tuple[str, ...]
    count: int
    timeout_s: float
    startup_timeout_s: float
    memory_mb: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAnswer:
    """reply: to the job in hand, or to the order to load the tasks. is_last: the worker cannot be used any more."""

    reply: Reply
    is_last: bool = False


class WorkerProcess:
    """A worker process. is_ready: it has loaded its tasks. job: number of the job in hand. num_answered: jobs it has
    answered. deadline: on time.monotonic(), of the job in hand or of loading. Raises OSError if it cannot be made."""

    def __init__(self, settings: PoolSettings) -> None:
        self._memory_mb = settings.memory_mb
        self._mark = uuid.uuid4().hex
        environment = os.environ | _ENVIRONMENT | {MARK: self._mark}
        _guard.start()
        self._process = _spawn([sys.executable, str(_PROGRAM)], environment)
        _guard.tell(f"+{self._process.pid} {self._mark}")
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self.jobs, self.replies, self.errors = self._process.stdin, self._process.stdout, self._process.stderr
        for pipe in (self.jobs, self.replies, self.errors):
            os.set_blocking(pipe.fileno(), False)
        self.is_ready = False
        self.job: int | None = None
        self.num_answered = 0
        self.deadline = 0.0
        self._unsent = memoryview(b"")
        self._received = bytearray()
        self._error_tail = b""
        self.send(_setup_line(settings), settings.startup_timeout_s)

    @property
    def is_idle(self) -> bool:
        """Whether it can be given a job. Only of one that is not is `deadline` in force."""
        return self.is_ready and self.job is None

    @property
    def has_unsent(self) -> bool:
        """Whether `write` has something to do as soon as the pipe of jobs takes more."""
        return bool(self._unsent)

    def send(self, line: bytes, seconds: float) -> bool:
        """Begin to send a line, to be answered within `seconds`. False: the worker has ended and not seen it."""
        self.deadline = time.monotonic() + seconds
        self._error_tail = b""
        self._unsent = memoryview(line)
        return self.write()

    def write(self) -> bool:
        """Send what the pipe takes. False: nobody holds its other end."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self.jobs.fileno(), self._unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._unsent = memoryview(b"")
            return False
        return True

    def receive(self) -> WorkerAnswer | None:
        """The answer, if it is complete; DIED if the pipe of replies ended instead."""
        try:
            piece = os.read(self.replies.fileno(), READ_BYTES)
        except BlockingIOError:
            return None
        if not piece:
            return self.died()
        self._received += piece
        if len(self._received) > MAX_REPLY_BYTES:
            text = f"returned more than {MAX_REPLY_BYTES // 2**20} MiB"
            return WorkerAnswer(reply=Reply(outcome=JobOutcome.FAILED, message=text), is_last=True)
        if not self._received.endswith(b"\n"):
            return None
        line = bytes(self._received)
        self._received.clear()
        return self._answer(line)

    def _answer(self, line: bytes) -> WorkerAnswer:
        try:
            fields = json.loads(line)
            if "is_out_of_memory" in fields:
                text = f"out of memory: a worker may take {self._memory_mb} MiB (reward.workers.memory_mb)"
                return WorkerAnswer(reply=Reply(outcome=JobOutcome.FAILED, message=text), is_last=True)
            outcome, value = JobOutcome(fields["outcome"]), fields.get("value")
            return WorkerAnswer(reply=Reply(outcome=outcome, value=value, message=fields.get("message", "")))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            # The user's code has found the pipe, or sent a value that nests too deep.
            text = f"the reply cannot be read: {type(error).__name__}: {error}"[:MAX_ERROR_TEXT]
            return WorkerAnswer(reply=Reply(outcome=JobOutcome.FAILED, message=text), is_last=True)

    def read_errors(self) -> bool:
        """Take what was printed, keep its end. False: the pipe has ended."""
        try:
            piece = os.read(self.errors.fileno(), READ_BYTES)
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

    def died(self) -> WorkerAnswer:
        """The answer of a worker that has ended, or whose pipe of replies has."""
        give_up = time.monotonic() + DEATH_GRACE_S
        while (how := self._how_it_ended()) is None and time.monotonic() < give_up:
            time.sleep(0.001)
        self.read_errors()
        text = (how or "the worker closed the pipe of its replies") + self._last_errors()
        return WorkerAnswer(reply=Reply(outcome=JobOutcome.DIED, message=text), is_last=True)

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
        for pipe in (self.jobs, self.replies, self.errors):
            pipe.close()

    def reap(self, seconds: float) -> bool:
        """Wait at most so long for the end of a killed process. False: it is still there."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def _setup_line(settings: PoolSettings) -> bytes:
    setup: Mapping[str, object] = {
        "parent": os.getpid(),
        "memory_mb": settings.memory_mb,
        "sys_path": [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)],
        "tasks": list(settings.tasks),
    }
    return json.dumps(setup).encode("ascii") + b"\n"


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
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
