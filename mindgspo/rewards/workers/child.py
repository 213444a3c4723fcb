"""The program of a child process: loads its tasks once, then answers one job after the other.

What enters: JSON lines on the first standard input, settings first. What leaves: JSON lines on the first standard
output, one per line that entered. Both pipes are moved out of the way of users' code, whose prints go to standard
error. Started by `process` as a script by its path and not as a module of the package, whose own imports (numpy,
pydantic) would take ten times as long as all of this; hence nothing here imports the package unless a task needs it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib.util
import io
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType

MATH_VERIFY = "math_verify"
PR_SET_PDEATHSIG = 1
# The kernel's out-of-memory killer takes the process with the highest score: a child rather than the training.
OOM_SCORE = "800"
# Made in advance, because nothing can be made once memory is used up.
OUT_OF_MEMORY = b'{"outcome": "failed", "is_out_of_memory": true}\n'

Task = Callable[[Mapping[str, object]], object]


def main() -> None:
    """Serve until the parent closes its end of the pipe. Nothing of the user's code runs at exit."""
    jobs, replies = _take_pipes()
    first_line = jobs.readline()
    if first_line:
        setup = json.loads(first_line)
        _die_with_parent(setup["parent"])
        _limit_memory(setup["memory_mb"])
        sys.path[:] = setup["sys_path"]
        _serve(setup["tasks"], jobs, replies)
    os._exit(0)


def _take_pipes() -> tuple[io.BufferedReader, int]:
    """The pipe of jobs and the number of the pipe of replies. Programs that users' code starts do not get them."""
    jobs, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    faulthandler.enable(all_threads=False)
    return open(jobs, "rb"), replies


def _die_with_parent(parent: int) -> None:
    """Even while this process hangs in C code, where it would not notice the end of its pipe."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _limit_memory(memory_mb: int) -> None:
    """RLIMIT_DATA counts what a process can write to. RLIMIT_AS would also count mapped libraries: with torch imported
    it is four times as much (578 MiB against 150), and the import fails under limits that leave room enough."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = memory_mb * 2**20
    limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # not there on every system; only a precaution
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)


def _serve(tasks: list[str], jobs: io.BufferedReader, replies: int) -> None:
    user_function = _sibling("user_function")
    try:
        loaded = {task: _load(task, user_function) for task in tasks}
    except user_function.BrokenFunctionError as error:
        _send(replies, _line({"outcome": "failed", "message": str(error)}))
        return
    _send(replies, _line({"outcome": "done"}))
    own = os.getpid()
    for line in jobs:
        reply = _answer(line, loaded, user_function)
        if os.getpid() != own:  # a copy of this process that the user's function made by os.fork, and that came back
            os._exit(0)
        _send(replies, reply)
        if reply is OUT_OF_MEMORY:
            return


def _sibling(name: str) -> ModuleType:
    """A file of this folder, loaded without its package and without a name that could hide a module of the user's."""
    spec = importlib.util.spec_from_file_location(f"{__name__}.{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None, name
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load(task: str, user_function: ModuleType) -> Task:
    if task != MATH_VERIFY:
        return user_function.load(task)
    try:
        from mindgspo.rewards.workers import math_verify_task

        return math_verify_task.load()
    except Exception as error:
        raise user_function.BrokenFunctionError(f"{task} cannot be loaded: {user_function.describe(error)}") from error


def _answer(line: bytes, loaded: Mapping[str, Task], user_function: ModuleType) -> bytes:
    try:
        job = json.loads(line)
        value = loaded[job["task"]](job["arguments"])
        return _line({"outcome": "done", "value": user_function.plain_value(value)})
    except MemoryError:
        return OUT_OF_MEMORY
    except BaseException as error:  # sys.exit() in a reward function costs its sample, no more
        return _line({"outcome": "failed", "message": user_function.describe(error)})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm that the function left running would hit the next response


def _line(reply: Mapping[str, object]) -> bytes:
    return json.dumps(reply, allow_nan=False).encode("ascii") + b"\n"


def _send(replies: int, line: bytes) -> None:
    unsent = memoryview(line)
    while unsent:
        unsent = unsent[os.write(replies, unsent) :]


if __name__ == "__main__":
    main()
