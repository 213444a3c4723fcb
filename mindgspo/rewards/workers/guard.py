"""The program that ends processes started by reward functions: together with their worker, or with the run, even after
`kill -9`.

`process` starts it once, as a script by its path. It leaves its parent at once and reads from standard input lines
"+<process id> <mark>" of workers that began and "-<process id> <mark>" of those that were killed; the input ends with
the run. Whatever is in a worker's session or has its mark in the environment is killed: a program in a session of its
own has the mark, one without environment is in the session. Standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

MARK = "MINDGSPO_REWARD_WORKER"
"""The environment variable."""
_MOST_LOOKS = 100
_PAUSE_S = 0.02


def run_guard() -> None:
    """Watch until the input ends."""
    if os.fork():
        os._exit(0)  # an orphan: no process has to wait for it, or counts it
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched: dict[str, int] = {}
    for line in sys.stdin:
        process_id, mark = line[1:].split()
        if line.startswith("+"):
            watched[mark] = int(process_id)
        else:
            watched.pop(mark, None)
            end([int(process_id)], [mark])
    end(watched.values(), watched)


def end(sessions: Iterable[int], marks: Iterable[str]) -> None:
    """Kill all processes of these sessions and marks, until a look finds none: they may start others meanwhile."""
    sessions, tokens = set(sessions), [f"{MARK}={mark}".encode() for mark in marks]
    for _ in range(_MOST_LOOKS):
        found = list(_processes(sessions, tokens))
        if not found:
            return
        for process_id in found:
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _processes(sessions: set[int], tokens: list[bytes]) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*"):
        process_id = int(path.name)
        with suppress(OSError):  # it has just ended, or is another user's
            state = (path / "stat").read_bytes().rpartition(b")")[2].split()[0]
            is_meant = os.getsid(process_id) in sessions or _has_one(path, tokens)
            if is_meant and state != b"Z" and process_id != os.getpid():
                yield process_id


def _has_one(path: Path, tokens: list[bytes]) -> bool:
    with suppress(OSError):
        return not set(tokens).isdisjoint((path / "environ").read_bytes().split(b"\0"))
    return False


if __name__ == "__main__":
    run_guard()
