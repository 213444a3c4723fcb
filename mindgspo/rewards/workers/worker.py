"""The program of a worker process: loads its tasks once, then answers one job after the other.

JSON lines come on the first standard input, settings first; one goes out on the first standard output per line. Both
pipes are moved out of the way of users' code, whose prints go to standard error. `process` starts this file as a script
by its path: the imports of the package (numpy, pydantic) would take ten times as long as all of this, so only the
standard library is imported unless a task needs more.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib.util
import inspect
import io
import json
import math
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType
from typing import Any

MATH_VERIFY = "math_verify"
ENVIRONMENT = "environment:"
"""Before the file and class of an environment."""
ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
"""Keyword arguments of a user's function: the convention of verl's `custom_reward_function`."""
MODULE_PREFIX = "mindgspo_reward_"
NEEDED_KEYS = ("score", "acc", "verdict")
MAX_MESSAGE = 500
MAX_NAMES = 20
PR_SET_PDEATHSIG = 1
# The kernel's out-of-memory killer takes the process with the highest score: a worker rather than the training.
OOM_SCORE = "800"
# Made in advance, because nothing can be made once memory is used up.
OUT_OF_MEMORY = b'{"outcome": "failed", "is_out_of_memory": true}\n'

Task = Callable[[Mapping[str, object]], object]


def serve_rewards() -> None:
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
        assert isinstance(stream, io.TextIOWrapper)
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
    try:
        loaded = {task: _load(task) for task in tasks}
    except BrokenFunctionError as error:
        _send(replies, _line({"outcome": "failed", "message": str(error)}))
        return
    _send(replies, _line({"outcome": "done"}))
    own = os.getpid()
    for line in jobs:
        reply = _answer(line, loaded)
        if os.getpid() != own:  # a copy of this process that the user's function made by os.fork, and that came back
            os._exit(0)
        _send(replies, reply)
        if reply is OUT_OF_MEMORY:
            return


def _load(task: str) -> Task:
    if task.startswith(ENVIRONMENT):
        return _environment(task.removeprefix(ENVIRONMENT))
    if task != MATH_VERIFY:
        return _user_function(task)
    try:
        from math_answers.symbolic import are_symbolically_same  # takes a second: sympy comes with it

        return lambda arguments: are_symbolically_same(str(arguments["answer"]), str(arguments["gold"]))
    except Exception as error:
        raise BrokenFunctionError(f"{task} cannot be loaded: {describe_error(error)}") from error


def _answer(line: bytes, loaded: Mapping[str, Task]) -> bytes:
    try:
        job = json.loads(line)
        value, dropped = plain_reward(loaded[job["task"]](job["arguments"]))
        return _line({"outcome": "done", "value": value, "message": dropped})
    except MemoryError:
        return OUT_OF_MEMORY
    except BaseException as error:  # sys.exit() in a reward function costs its sample, no more
        return _line({"outcome": "failed", "message": describe_error(error)})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm that the function left running would hit the next response


def _line(reply: Mapping[str, object]) -> bytes:
    return json.dumps(reply, allow_nan=False).encode("ascii") + b"\n"


def _send(replies: int, line: bytes) -> None:
    unsent = memoryview(line)
    while unsent:
        unsent = unsent[os.write(replies, unsent) :]


class BrokenFunctionError(Exception):
    """A file or function cannot be used; the message is for its author."""


class UnsuitableValueError(Exception):
    """A function returned what cannot cross the pipe."""


def _user_function(task: str) -> Callable[[Mapping[str, object]], object]:
    """The function that `task` ("path/file.py:function") names, to be called with a mapping of its arguments.

    Raises BrokenFunctionError: no such file, its import fails, no such function, not callable, async, other signature.
    """
    path, _, name = task.rpartition(":")
    module = _module(os.path.abspath(path))
    function = getattr(module, name, None)
    if function is None:
        raise BrokenFunctionError(_nothing_named(name, module, path, "function", "functions"))
    check_function(function, task, name)
    return lambda arguments: function(**arguments)


def _environment(task: str) -> Task:
    """What plays the turns of the class that `task` ("path/file.py:Class") names. Raises BrokenFunctionError."""
    from mindgspo.environments.play import player_of
    from mindgspo.environments.protocol import Environment

    path, _, name = task.rpartition(":")
    module = _module(os.path.abspath(path))
    found = getattr(module, name, None)
    if found is None:
        raise BrokenFunctionError(_nothing_named(name, module, path, "class", "classes"))
    if not isinstance(found, type) or not issubclass(found, Environment):
        raise BrokenFunctionError(
            f"{task} is no environment; write: class {name}(Environment), with `from mindgspo.environments import "
            "Environment`"
        )
    try:
        found.prepare()
    except Exception as error:
        raise BrokenFunctionError(f"{task} cannot be prepared: {describe_error(error)}") from error
    return player_of(found)


@cache
def _module(path: str) -> ModuleType:
    file = Path(path)
    if not file.is_file():
        from mindgspo.text import did_you_mean

        beside = [other.name for other in file.parent.glob("*.py")]
        hint = did_you_mean(file.name, beside, show=lambda name: str(file.with_name(name)))
        raise BrokenFunctionError(f"{path}: there is no such file{hint}")
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(f"{MODULE_PREFIX}{file.stem}_{abs(hash(path)):x}", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # sys.exit() at the top of a file included
        raise BrokenFunctionError(f"{path} cannot be imported: {_failed_line(error, path)}{_text(error)}") from error
    return module


def _failed_line(error: BaseException, path: str) -> str:
    if isinstance(error, SyntaxError):
        return ""  # its text has the line
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"line {frames[-1].lineno}, `{frames[-1].line}`: " if frames else ""


def _nothing_named(name: str, module: ModuleType, path: str, kind: str, kinds: str) -> str:
    from mindgspo.text import did_you_mean

    own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    is_meant = callable if kind == "function" else inspect.isclass
    names = [key for key in own if is_meant(vars(module)[key])]
    hint = did_you_mean(name, names)
    there = f"{kinds} there: {', '.join(names[:MAX_NAMES])}" if names else f"there are no {kinds} in it"
    return f"{path} has no {kind} {name!r}{hint} ({there})"


def check_function(function: object, task: str, name: str) -> None:
    """Raises BrokenFunctionError: not callable, async, another signature."""
    if not callable(function):
        raise BrokenFunctionError(f"{task} is a {type(function).__name__}, not a function")
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        raise BrokenFunctionError(f"{task} is async; write it as an ordinary function (def, not async def)")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C do not tell
        return
    try:
        signature.bind(**dict.fromkeys(ARGUMENTS))
    except TypeError as error:
        wanted = ", ".join(ARGUMENTS)
        raise BrokenFunctionError(
            f"{task} is {name}{signature}, but is called with the keyword arguments {wanted}: {error}. "
            f"Write: def {name}({wanted})"
        ) from error


def plain_reward(value: object) -> tuple[object, str]:
    """`value` as JSON, and which extras of a dict were dropped because JSON does not have them, "" for none: a score is
    not lost for an array beside it."""
    if not isinstance(value, Mapping) or "score" not in value:
        return _plain_value(value), ""
    kept: dict[str, object] = {}
    dropped: list[str] = []
    for key, item in value.items():
        try:
            kept[str(key)] = _plain_value(item, f" in [{key!r}]")
        except UnsuitableValueError:
            if key in NEEDED_KEYS:
                raise
            dropped.append(f"{key!r} ({type(item).__name__})")
    named = f"{', '.join(dropped[:MAX_NAMES])} of its values: not a finite number or text, dropped" if dropped else ""
    return kept, named[:MAX_MESSAGE]


def _plain_value(value: Any, place: str = "") -> object:
    """`value` as JSON: numpy's and torch's scalars and 0-d arrays as numbers, tuples as lists. Raises
    UnsuitableValueError, naming the place (" in ['score']"), for NaN, infinities and whatever JSON does not have."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        value = value.item()
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, (Real, Decimal)):
        number = float(value)
        if not math.isfinite(number):
            raise UnsuitableValueError(f"returned {number}{place}; a value must be finite, or None to leave it out")
        return number
    if isinstance(value, Mapping):
        return {str(key): _plain_value(item, f"{place or ' in '}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_value(item, f"{place or ' in '}[{number}]") for number, item in enumerate(value)]
    raise UnsuitableValueError(
        f"returned a {type(value).__name__}{place}; expected a number, a dict with 'score', or None"
    )


def describe_error(error: BaseException, module: Mapping[str, object] | None = None) -> str:
    """One line: class, text, and the last line of the user's files, or of the module with these names, that was
    running."""
    if isinstance(error, UnsuitableValueError):
        return str(error)
    where = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals is module:  # the names of a notebook's cells mean nothing to their author
            where = f" (line {line}, in {frame.f_code.co_name})"
        elif str(frame.f_globals.get("__name__")).startswith(MODULE_PREFIX):
            where = f" ({Path(frame.f_code.co_filename).name}, line {line})"
    return _text(error) + where


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # __str__ of a user's class
        text = "its text cannot be shown, because __str__ raised"
    return f"{type(error).__name__}: {' '.join(text.split())}".rstrip(": ")[:MAX_MESSAGE]


if __name__ == "__main__":
    serve_rewards()
