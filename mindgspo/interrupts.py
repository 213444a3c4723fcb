"""Ctrl-C, from a command's first line to its last: one line on standard error and exit code 130.

The entry point imports this module before any other, so it needs the standard library alone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

EXIT_CODE = 128 + signal.SIGINT
# A signal that comes later than this after the first one means that the command hangs in its cleanup.
_PATIENCE_S = 3.0

_received_s: float | None = None
_is_raised = False
_has_work = False
_advice = ""
_standard_error = 2


@contextmanager
def caught(*, at_end_of_process: bool = True) -> Iterator[None]:
    """SIGINT and SIGTERM end the process at once with the line until `begin_work`; after it they raise
    KeyboardInterrupt once, after the import that may be going on. For the main thread.

    SIGTERM too, because while a MindSpore graph runs MindSpore's own handler answers Ctrl-C with a SIGTERM to the
    process. SIGALRM delivers again what could not be answered. Signals that the starting shell ignores (`nohup`, `&`)
    stay ignored. at_end_of_process: only Python's own shutdown follows, which is not disturbed.
    """
    global _received_s, _is_raised, _has_work, _advice
    _received_s, _is_raised, _has_work, _advice = None, False, False, ""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    hook = sys.unraisablehook
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _receive)
    sys.unraisablehook = _raise_again
    signal.pthread_sigmask(signal.SIG_UNBLOCK, before)  # run_gspo.sh blocks it until somebody can answer
    try:
        yield
    finally:
        is_ending = at_end_of_process or is_received()
        if not is_ending:
            sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if is_ending else handler or signal.SIG_DFL)


@contextmanager
def counting() -> Iterator[Callable[[], int]]:
    """Within it, Ctrl-C is counted and raises nothing; the function returns the count. For work that checks it between
    two of its steps. The third one is handled as outside, for work that does not.

    SIGTERM too, which is what MindSpore makes of Ctrl-C while a graph runs.
    """
    received: list[int] = []
    before = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        handler = before[number]
        if len(received) > 2 and callable(handler):
            handler(number, frame)

    for number in before:
        signal.signal(number, receive)
    try:
        yield lambda: len(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def begin_work() -> None:
    """Note that from here on there may be something to clean up."""
    global _has_work
    _has_work = True


def advise(how_to_go_on: str) -> None:
    """Set how the user can go on, which is printed after "interrupted"."""
    global _advice
    _advice = how_to_go_on


def advice() -> str:
    """`; ` and what `advise` was given; empty before that."""
    return f"; {_advice}" if _advice else ""


def is_received() -> bool:
    """Whether a signal has come."""
    return _received_s is not None


def say_interrupted() -> None:
    """Print the line."""
    with suppress(Exception):  # standard output may be closed, or in use by the code that was interrupted
        sys.stdout.flush()
    with suppress(OSError):
        os.write(_standard_error, f"interrupted{advice()}\n".encode())


def _receive(number: int, frame: FrameType | None) -> None:
    global _received_s, _is_raised
    if _received_s is None:
        _received_s = time.monotonic()
    if not _has_work or time.monotonic() - _received_s > _PATIENCE_S:
        say_interrupted()
        os._exit(EXIT_CODE)
    if _is_raised:
        return
    if _is_importing(frame):
        _come_again()
        return
    _is_raised = True
    _silence_standard_error()
    raise KeyboardInterrupt


def _silence_standard_error() -> None:
    """Print nothing but the line: MindSpore's compiler would log each of its functions that the interrupt passes
    through."""
    global _standard_error
    if _standard_error != 2:
        return
    with suppress(OSError):  # closed
        _standard_error = os.dup(2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _is_importing(frame: FrameType | None) -> bool:
    """A half-imported package, above all MindSpore, prints pages when the import is interrupted."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _come_again() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.02)


def _raise_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Python drops exceptions raised in a destructor or a callback: an interrupt that is lost there is raised again."""
    global _is_raised
    if not is_received():
        sys.__unraisablehook__(unraisable)
    elif isinstance(unraisable.exc_value, KeyboardInterrupt):
        _is_raised = False
        _come_again()
