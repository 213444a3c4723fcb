"""Faults on demand: a run is killed, stopped, denied its disk or given a NaN at a named point.

`save.inside:2=kill` or `update.batch:3=nan@1,reward.inside=stall`: at which point, on which occurrence
(1 without a number), what happens, on which rank (all without one). Only tests and `tools/torture.py` arm it; unarmed,
`reach` is one comparison. Standard library only.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from dataclasses import dataclass

from mindgspo.errors import ConfigError

VARIABLE = "MINDGSPO_FAULT"
EXIT_CODE = 70

POINTS = {
    "resume.after": "a checkpoint was put into the experiment; nothing was trained yet",
    "going_back.inside": "a run goes back to an earlier step; before each later checkpoint is set aside; rank 0 only",
    "rollout.before": "before the responses of a step are generated",
    "rollout.inside": "after each sync with the host while generating these (`rollout.tokens_per_sync`)",
    "reward.before": "before responses are scored, those of a step or of an evaluation",
    "reward.inside": "the responses of this rank are scored; the ranks have not exchanged their scores",
    "update.before": "before the first update of a step",
    "update.batch": "before each update; with nan its advantages are NaN on the ranks that are meant",
    "update.inside": "after each update but the last of a step",
    "update.after": "after the last update of a step, before generation has the weights",
    "weights.after": "generation has the weights; the metrics of the step are not written",
    "log.after": "the metrics and samples of a step are written",
    "eval.before": "before the responses of an evaluation are generated",
    "eval.inside": "after each sync with the host while generating these (`rollout.tokens_per_sync`)",
    "save.before": "before a checkpoint is begun",
    "save.inside": "after each file of a checkpoint that is being written; rank 0 only",
    "save.rename": "a checkpoint is complete under its hidden name; rank 0 only",
    "save.remove": "a checkpoint has its name, an older one is about to be removed; rank 0 only",
    "save.after": "a checkpoint has its name, and older ones were removed",
    "finish.before": "after the last step, before the model is exported",
    "finish.inside": "the model is exported; the summary that marks the run as finished is not written",
}
"""Every point, with when it is reached."""

WHATS = {
    "kill": "SIGKILL to the process itself",
    "exit": f"the process ends at once with exit code {EXIT_CODE}",
    "raise": "an error that nobody expects",
    "full_disk": "OSError ENOSPC, as from a disk that is full",
    "stall": "the process sleeps where it is",
    "stop": "SIGSTOP to the process itself: it does nothing any more, and does not end",
    "nan": "only at update.batch: a number that is not finite",
}
"""Everything that can happen at a point."""

_POISONED = ("update.batch",)
_STALL_S = 86400.0  # longer than any watch waits


class InjectedFault(RuntimeError):  # noqa: N818  (says what it is: nothing was wrong)
    """The exception of a fault point set to `raise`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault to inject."""

    point: str
    """Key of the table of fault points."""
    number: int
    """On which occurrence, from 1."""
    what: str
    """Key of the table of faults."""
    rank: int | None
    """None: every rank."""

    def __str__(self) -> str:
        where = "" if self.rank is None else f"@{self.rank}"
        return f"{self.point}:{self.number}={self.what}{where}"


def faults_of(text: str) -> tuple[Fault, ...]:
    """The faults of a value of MINDGSPO_FAULT. Raises ConfigError naming the legal words."""
    return tuple(_fault(part.strip()) for part in text.split(",") if part.strip())


def _fault(text: str) -> Fault:
    place, equals, action = text.partition("=")
    point, colon, number = place.partition(":")
    what, at, rank = action.partition("@")
    if point not in POINTS:
        raise ConfigError(f"{VARIABLE}: {text!r}: there is no point {point!r}; there are {', '.join(POINTS)}")
    if not equals or what not in WHATS:
        legal = ", ".join(WHATS)
        raise ConfigError(f"{VARIABLE}: {text!r}: nothing is called {what!r}; write {point}=<one of {legal}>")
    if what == "nan" and point not in _POISONED:
        raise ConfigError(f"{VARIABLE}: {text!r}: nan is for {', '.join(_POISONED)} only")
    if colon and (not number.isdecimal() or int(number) < 1):
        raise ConfigError(f"{VARIABLE}: {text!r}: {number!r} is no number from 1 on: on which occurrence it strikes")
    if at and not rank.isdecimal():
        raise ConfigError(f"{VARIABLE}: {text!r}: {rank!r} is no rank; leave @ out for every rank")
    return Fault(point=point, number=int(number or 1), what=what, rank=int(rank) if at else None)


_armed: list[Fault] = []
_reached: dict[str, int] = {}


def arm(rank: int, text: str | None = None) -> str | None:
    """Arm this process, of this rank, and count from 0. text: None reads the variable. Returns a warning for the user,
    None if nothing is armed. Raises ConfigError as `faults_of`."""
    faults = faults_of(os.environ.get(VARIABLE, "") if text is None else text)
    _reached.clear()
    _armed[:] = [fault for fault in faults if fault.rank in (None, rank)]
    if not faults:
        return None
    return f"warning: {VARIABLE} is set, so this run will fail on purpose: {', '.join(map(str, faults))}"


def reach(point: str) -> bool:
    """This process has reached a point of the table. Triggers the fault armed there; True asks the caller for a NaN."""
    if not _armed:
        return False
    assert point in POINTS, point
    number = _reached[point] = _reached.get(point, 0) + 1
    asked = [fault for fault in _armed if fault.point == point and fault.number == number]
    for fault in asked:
        _happen(fault)
    return any(fault.what == "nan" for fault in asked)


def _happen(fault: Fault) -> None:
    message = f"fault on purpose: {fault}"
    sys.stdout.flush()
    os.write(2, f"{message}\n".encode())
    if fault.what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault.what == "stall":
        time.sleep(_STALL_S)
    elif fault.what == "exit":
        os._exit(EXIT_CODE)
    elif fault.what == "full_disk":
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({message})")
    elif fault.what == "raise":
        raise InjectedFault(message)
