"""One life of a run: `mindgspo run ... resume=auto` from its start until it ends or is killed.

What enters: a command, a `Kill`. What leaves: how it ended, and which checkpoints had their names by then. Called by
`command`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from mindgspo import faults
from mindgspo.checkpoint.store import step_of
from mindgspo.torture.kills import Kill

_MARK = "MINDGSPO_TORTURE"
_LOOK_S = 0.005
_END_S = 60.0  # for what is left of a run after its first process was killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """exit_code: of the command. seconds: that it lived. was_hit: whether the kill happened; False where the run ended
    before. seen: steps whose checkpoint had its name while it lived. is_left: a process outlived it. text: printed."""

    exit_code: int
    seconds: float
    was_hit: bool
    seen: frozenset[int]
    is_left: bool
    text: str

    @property
    def resumed_at(self) -> int | None:
        """The step that it said it went on from."""
        words = [line for line in self.text.splitlines() if line.startswith("resumed at step ")]
        return int(words[0].split()[3]) if words else None


def lived(
    config: Path,
    run_dir: Path,
    overrides: Sequence[str],
    log: Path,
    *,
    kill: Kill | None,
    pace: Pace,
    limit_s: float,
) -> Life:
    """Start or resume the run, and wait for its end.

    pace: of the uninterrupted run, for kills from outside. limit_s: seconds after which it counts as hanging; all of it
    is then killed (exit code -9, not hit).
    """
    mark = uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if name != faults.VARIABLE} | {_MARK: mark}
    if kill is not None and kill.fault is not None:
        environment[faults.VARIABLE] = kill.fault
    settings = [*overrides, f"run_dir={run_dir}", "resume=auto"]
    sets = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "mindgspo.cli", "run", str(config), *sets]
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        seen: set[int] = set()
        was_killed = False
        moment = None if kill is None or kill.fault is not None else _Moment(kill, pace, run_dir / "metrics.jsonl")
        while process.poll() is None:
            seen |= _steps(run_dir / "checkpoints")
            now = time.monotonic()
            if now - began > limit_s or (moment is not None and moment.has_come(now - began)):
                was_killed = now - began <= limit_s
                kill_all(mark)
                break
            time.sleep(_LOOK_S)
        process.wait()
    seconds = time.monotonic() - began
    is_left = _is_left(mark)
    kill_all(mark)
    text = log.read_text(errors="replace") + _rank_logs(run_dir, kill)
    was_hit = was_killed or (kill is not None and kill.fault is not None and f"fault on purpose: {kill.fault}" in text)
    return Life(
        exit_code=process.returncode,
        seconds=seconds,
        was_hit=was_hit,
        seen=frozenset(seen),
        is_left=is_left,
        text=text,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """start_s: what a process does but steps, most of it before the first. step_s: of one step."""

    start_s: float = 0.0
    step_s: float = 0.0

    @staticmethod
    def of(run_dir: Path, seconds: float) -> Pace:
        """Of a run that ended after so many seconds."""
        records = map(json.loads, (run_dir / "metrics.jsonl").read_bytes().splitlines())
        steps = [record["timing_s/step"] for record in records if "timing_s/step" in record]
        return Pace(start_s=max(0.0, seconds - sum(steps)), step_s=median(steps))


class _Moment:
    """When a kill from outside is due."""

    def __init__(self, kill: Kill, pace: Pace, metrics: Path) -> None:
        self._kill, self._pace, self._metrics = kill, pace, metrics
        self._first: int | None = None
        self._due: float | None = None if kill.steps else kill.share * pace.start_s

    def has_come(self, seconds: float) -> bool:
        """seconds: since the start of the process."""
        if self._due is None:
            step = self._newest_step()
            # A run that is resumed first forgets what was logged beyond its checkpoint.
            self._first = step if self._first is None else min(self._first, step)
            if step < self._first + self._kill.steps:
                return False
            self._due = seconds + self._kill.share * self._pace.step_s
        return seconds >= self._due

    def _newest_step(self) -> int:
        with suppress(OSError, ValueError, IndexError):
            return int(json.loads(self._metrics.read_bytes().splitlines()[-1])["step"])
        return 0


def kill_all(mark: str) -> None:
    """SIGKILL to every process of a life, found by the environment that they inherit."""
    for process in _processes(mark):
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)


def _processes(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _is_left(mark: str) -> bool:
    """Whether a process of a life is there long after its first one has ended."""
    give_up = time.monotonic() + _END_S
    while list(_processes(mark)):
        if time.monotonic() > give_up:
            return True
        time.sleep(0.1)
    return False


def _steps(checkpoints: Path) -> set[int]:
    """Steps whose checkpoints have their names. The run may rename while we look."""
    with suppress(FileNotFoundError):
        return {step for path in checkpoints.iterdir() if (step := step_of(path)) is not None}
    return set()


def _rank_logs(run_dir: Path, kill: Kill | None) -> str:
    """What the killed rank printed, which the launcher need not show."""
    if kill is None or kill.fault is None or "@" not in kill.fault:
        return ""
    path = run_dir / "logs" / f"rank_{kill.fault.rpartition('@')[2]}.log"
    return path.read_text(errors="replace") if path.is_file() else ""
