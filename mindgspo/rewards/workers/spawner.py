"""Starts child processes from one thread that lives as long as this process.

What enters: a command line. What leaves: a running `Popen`. Called by `process`. A child asks the kernel to be killed
with its parent, and to the kernel the parent is the *thread* that started it: started from a thread that ends sooner
than the pool, the child would be killed with that thread.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue


class _Spawner:
    def __init__(self) -> None:
        self._orders: SimpleQueue[tuple[Sequence[str], Mapping[str, str], Future]] = SimpleQueue()
        threading.Thread(target=self._work, name="mindgspo-reward-spawner", daemon=True).start()

    def spawn(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        process: Future[subprocess.Popen[bytes]] = Future()
        self._orders.put((command, environment, process))
        try:
            return process.result()
        except KeyboardInterrupt:
            process.add_done_callback(_discard)
            raise

    def _work(self) -> None:
        while True:
            command, environment, process = self._orders.get()
            try:
                process.set_result(_start(command, environment))
            except Exception as error:  # raised again in the thread that asked
                process.set_exception(error)


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


_lock = threading.Lock()
_spawner: _Spawner | None = None


def _forget() -> None:
    """A forked copy of this process does not have the thread."""
    global _lock, _spawner
    _lock, _spawner = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)


def spawn(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A process with pipes for its three standard streams, leader of its own session. Raises OSError."""
    global _spawner
    with _lock:
        if _spawner is None:
            _spawner = _Spawner()
        spawner = _spawner
    return spawner.spawn(command, environment)
