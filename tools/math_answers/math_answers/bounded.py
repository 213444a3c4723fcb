"""The symbolic comparison under a limit of time and memory, in a process of its own that is replaced when it ends.

The process ends itself: the kernel sends it SIGALRM when a comparison takes too long, whatever it is doing then, so it
outlives its limit not even if its parent is killed.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from threading import Lock

MAX_START_S = 120.0
"""Seconds that the process may take to import sympy; usually one."""

_READY, _SAME, _DIFFERENT = b"r", b"1", b"0"


class BoundedComparison:
    """Compares pairs of expressions one after the other; threads take turns. Close it, or use it in a `with` statement.

    seconds: wall-clock time of one comparison. memory_mb: MiB that the process may write to, sympy included.
    """

    def __init__(self, *, seconds: float = 10.0, memory_mb: int = 1024) -> None:
        assert seconds > 0 and memory_mb > 0, (seconds, memory_mb)
        self._limits = [str(seconds), str(memory_mb)]
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()

    def __enter__(self) -> BoundedComparison:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def are_same(self, answer: str, gold: str) -> bool | None:
        """Whether both are formulas and the same; None where time or memory ran out.

        Raises ImportError if the process does not start; what it says is on standard error.
        """
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            reply = self._reply(json.dumps([answer, gold]).encode("ascii") + b"\n")
            if not reply:
                self._end()
                return None
            return reply == _SAME

    def close(self) -> None:
        """End the process; the next comparison would start another."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        self._end()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "math_answers.bounded", *self._limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        if self._reply(b"") != _READY:
            self._end()
            raise ImportError("the symbolic comparison does not start; it needs pip install 'math-answers[symbolic]'")

    def _reply(self, request: bytes) -> bytes:
        """One byte, none where the process has ended."""
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(request)
            self._process.stdin.flush()
        return self._process.stdout.read(1)

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()
        self._process = None


def serve_comparisons(seconds: float, memory_mb: int) -> None:
    """The process: answers lines of JSON with one byte each, until its input ends."""
    replies = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = memory_mb * 2**20 if most == resource.RLIM_INFINITY else min(memory_mb * 2**20, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the input
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, MAX_START_S)
    from math_answers.symbolic import are_symbolically_same

    os.dup2(nowhere, 2)  # the grammar tells there what it cannot read
    signal.setitimer(signal.ITIMER_REAL, 0)
    os.write(replies, _READY)
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        is_same = are_symbolically_same(*json.loads(line))
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.write(replies, _SAME if is_same else _DIFFERENT)


if __name__ == "__main__":
    serve_comparisons(float(sys.argv[1]), int(sys.argv[2]))
