"""From "file.py:function" to a function that is known to take verl's arguments; its values as plain JSON.

Runs in a child process only, loaded by `child` without its package: standard library only. What enters: the task's
name, then whatever the function returns or raises. What leaves: callables, JSON values, one-line messages.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType

from mindgspo.text import did_you_mean

ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
"""What a user's function is called with, by keyword: the convention of verl's `custom_reward_function`."""
MODULE_PREFIX = "mindgspo_reward_"
MAX_MESSAGE = 500
MAX_NAMES = 20


class BrokenFunctionError(Exception):
    """A file or function cannot be used; the message is for its author."""


class UnsuitableValueError(Exception):
    """A function returned what cannot cross the pipe."""


def load(task: str) -> Callable[[Mapping[str, object]], object]:
    """The function that `task` ("path/file.py:function") names, to be called with a mapping of its arguments.

    Raises BrokenFunctionError: no such file, its import fails, no such function, not callable, async, other signature.
    """
    path, _, name = task.rpartition(":")
    module = _module(os.path.abspath(path))
    function = getattr(module, name, None)
    if function is None:
        raise BrokenFunctionError(_no_such_function(module, path, name))
    if not callable(function):
        raise BrokenFunctionError(f"{task} is a {type(function).__name__}, not a function")
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        raise BrokenFunctionError(f"{task} is async; write it as an ordinary function (def, not async def)")
    _check_signature(function, task, name)
    return lambda arguments: function(**arguments)


@cache
def _module(path: str) -> ModuleType:
    file = Path(path)
    if not file.is_file():
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


def _no_such_function(module: ModuleType, path: str, name: str) -> str:
    own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    functions = [key for key in own if callable(vars(module)[key])]
    hint = did_you_mean(name, functions)
    there = f"functions there: {', '.join(functions[:MAX_NAMES])}" if functions else "there are no functions in it"
    return f"{path} has no function {name!r}{hint} ({there})"


def _check_signature(function: Callable[..., object], task: str, name: str) -> None:
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


def plain_value(value: object, place: str = "") -> object:
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
        return {str(key): plain_value(item, f"{place or ' in '}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(item, f"{place or ' in '}[{number}]") for number, item in enumerate(value)]
    raise UnsuitableValueError(
        f"returned a {type(value).__name__}{place}; expected a number, a dict with 'score', or None"
    )


def describe(error: BaseException) -> str:
    """One line: class, text, and the last line of the user's files that was running."""
    if isinstance(error, UnsuitableValueError):
        return str(error)
    where = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__")).startswith(MODULE_PREFIX):
            where = f" ({Path(frame.f_code.co_filename).name}, line {line})"
    return _text(error) + where


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # __str__ of a user's class
        text = "its text cannot be shown, because __str__ raised"
    return f"{type(error).__name__}: {' '.join(text.split())}".rstrip(": ")[:MAX_MESSAGE]
