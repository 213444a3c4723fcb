"""Environments that live in another program: of another Python with packages of its own, or of any other language.

    class Wordle(ProgramEnvironment):
        command = ("/opt/games/bin/python", "games.py", "wordle")

Each worker process starts the program once, and asks it one question after the other. A question is a line of JSON on
its standard input, and its answer one on its standard output:

    {"id": 1, "ask": "hello", "protocol": 1, "settings": {...}}    {"id": 1, "protocol": 1, "tools": [schema, ...]}
    {"id": 2, "ask": "reset", "row": {...}, "seed": 5}             {"id": 2, "state": ...}
    {"id": 3, "ask": "step", "state": ..., "turn": {...}}          {"id": 3, "state": ..., "messages": [...]}
                                                                   {"id": 3, "end": {"reward": 1.0}}
    {"id": 4, "ask": "cut", "state": ..., "reason": "max_turns"}   {"id": 4, "end": {"reward": 0.0}}

The program keeps nothing of an episode: `state` is any JSON, and the next question about the episode has it, perhaps to
another process. Any question may be answered by {"id": ..., "error": "one line"}, which fails its episode alone.
Worker processes import this module by itself, so it needs the standard library alone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from mindgspo.environments.protocol import TOOL_ERRORS, End, Environment, Message, Row, Turn
from mindgspo.environments.tools import BAD_ARGUMENTS, FAILED, UNKNOWN_TOOL

PROTOCOL = 1
MAX_LINE_BYTES = 1 << 20
"""Of an answer."""
MAX_TOLD = 240
"""Characters of what a program printed, in a message."""
_READ_BYTES = 1 << 16
# A program whose pipe is held open by what it started ends without a sign.
_LOOK_FOR_DEAD_S = 0.1
_DEATH_GRACE_S = 0.5
_OF_THIS_PYTHON = ("PYTHONPATH", "PYTHONHOME")
_TOOL_ERRORS = (UNKNOWN_TOOL, BAD_ARGUMENTS, FAILED)


class ProgramError(Exception):
    """A program did what it must not; the message is for its author."""


class ProgramEnvironment(Environment):
    """Lets a program answer. A file of the user derives from it, and names the command."""

    command: ClassVar[tuple[str, ...]] = ()
    """The program and its arguments. It runs in the folder of the file that names it, without a shell."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Told to the program when it starts; JSON."""

    state: Any = None

    @classmethod
    def prepare(cls) -> None:
        """Start the program."""
        _program_of(cls)

    def schemas(self) -> list[dict[str, Any]]:
        """Those that the program gave."""
        return _program_of(type(self)).tools

    def reset(self, row: Row, seed: int) -> None:
        """Ask the program to begin."""
        self.state = _state(self._ask("reset", row=asdict(row), seed=seed))

    def step(self, turn: Turn) -> str | Sequence[Message] | End:
        """Ask the program for an answer."""
        said = self._ask("step", state=self.state, turn=asdict(turn))
        errors = said.get("errors", [])
        if not isinstance(errors, list) or any(one not in _TOOL_ERRORS for one in errors):
            raise ProgramError(f'"errors" is {errors!r:.80}; expected a list of {", ".join(_TOOL_ERRORS)}')
        vars(self)[TOOL_ERRORS] = errors[: len(turn.calls)]
        if "end" in said:
            return _end(said)
        self.state = _state(said)
        return said.get("messages", ())

    def cut(self, reason: str) -> End:
        """Ask the program how the episode ends."""
        return _end(self._ask("cut", state=self.state, reason=reason))

    def _ask(self, what: str, **fields: Any) -> dict[str, Any]:
        program = _program_of(type(self))
        said = program.ask(what, **fields)
        if "error" in said:
            raise ProgramError(f"{program.name}: {' '.join(str(said['error']).split())}")
        return said


def _state(said: Mapping[str, Any]) -> Any:
    if "state" not in said:
        raise ProgramError(f'the answer has {_keys(said)}, but no "state"')
    return said["state"]


def _end(said: Mapping[str, Any]) -> End:
    end = said.get("end")
    if not isinstance(end, dict) or not set(end) <= {"reward", "is_correct", "info"}:
        raise ProgramError(f'"end" is {end!r:.80}; expected an object with reward, is_correct, info, or some of them')
    reward, is_correct, info = end.get("reward"), end.get("is_correct"), end.get("info", {})
    for name, value, kinds in (("reward", reward, (int, float)), ("is_correct", is_correct, bool)):
        if value is not None and (not isinstance(value, kinds) or (name == "reward" and isinstance(value, bool))):
            raise ProgramError(f'"end" has {name} {value!r:.80}, of the wrong type')
    if not isinstance(info, dict):
        raise ProgramError(f'"end" has info {info!r:.80}; expected an object of numbers')
    return End(reward=reward, is_correct=is_correct, info=info)


def _keys(said: Mapping[str, Any]) -> str:
    return ", ".join(json.dumps(key)[:40] for key in list(said)[:8])


class _Program:
    """A program that runs. Raises ProgramError if it cannot be started, or does not greet."""

    def __init__(self, command: Sequence[str], folder: Path, settings: Mapping[str, Any]) -> None:
        if not command or not all(isinstance(one, str) for one in command):
            raise ProgramError(f"command = {command!r:.80}; expected the program and its arguments, as text")
        self.name = " ".join(command)[:80]
        try:
            self._process = subprocess.Popen(
                command,
                bufsize=0,
                cwd=folder,
                env={name: value for name, value in os.environ.items() if name not in _OF_THIS_PYTHON},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # to be killed with what it starts; `rewards.workers` finds it by its mark
            )
        except (OSError, ValueError) as error:
            raise ProgramError(f"{self.name}: cannot be started in {folder}: {error}") from None
        self._received = b""
        self._printed = b""
        self._number = 0
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.tools = self._greet(settings)

    def _greet(self, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        said = self.ask("hello", protocol=PROTOCOL, settings=dict(settings))
        if "error" in said:
            raise self._failed(f"says: {' '.join(str(said['error']).split())}")
        if said.get("protocol") != PROTOCOL:
            raise self._failed(f"speaks protocol {said.get('protocol')!r:.20}; expected {PROTOCOL}")
        tools = said.get("tools", [])
        if not isinstance(tools, list) or not all(_is_schema(one) for one in tools):
            raise self._failed('gives "tools" that are no list of {"type": "function", "function": {"name": ...}}')
        return tools

    @property
    def is_usable(self) -> bool:
        """Whether it runs, and has answered what it was asked."""
        return self._process.poll() is None

    def ask(self, what: str, **fields: Any) -> dict[str, Any]:
        """Its answer. Raises ProgramError, and ends the program, if that is not one line of JSON for this question."""
        self._number += 1
        assert self._process.stdin is not None
        line = memoryview(json.dumps({"id": self._number, "ask": what, **fields}).encode() + b"\n")
        try:
            while line:
                line = line[self._process.stdin.write(line) :]
        except BrokenPipeError:
            raise self._died() from None
        answer = self._line()
        try:
            said = json.loads(answer)
        except (ValueError, RecursionError):
            text = answer[:MAX_TOLD].decode("utf-8", "replace").strip()
            raise self._failed(f"wrote {text!r} to standard output, which is for answers in JSON") from None
        if not isinstance(said, dict) or said.get("id") != self._number:
            raise self._failed(f"answered {answer[:80]!r} to question {self._number}; expected an object with its id")
        return said

    def _line(self) -> bytes:
        """The next line. Raises ProgramError. The worker's own limit ends a wait without end."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        pieces = [self._received]
        num_bytes = len(self._received)
        while b"\n" not in pieces[-1]:
            if num_bytes > MAX_LINE_BYTES:
                raise self._failed(f"wrote more than {MAX_LINE_BYTES:,} bytes without the end of a line")
            if select.select([pipe], [], [], _LOOK_FOR_DEAD_S)[0]:
                piece = os.read(pipe, _READ_BYTES)
                if not piece:
                    raise self._died()
                pieces.append(piece)
                num_bytes += len(piece)
            elif not self.is_usable:
                raise self._died()
        line, _, self._received = b"".join(pieces).partition(b"\n")
        if self._received:
            raise self._failed(f"wrote {self._received[:MAX_TOLD]!r} behind its answer; expected one line")
        return line

    def _listen(self) -> None:
        """Take what is printed on standard error, keep its end."""
        assert self._process.stderr is not None
        while piece := os.read(self._process.stderr.fileno(), _READ_BYTES):
            self._printed = (self._printed + piece)[-4 * MAX_TOLD :]

    def _died(self) -> ProgramError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_DEATH_GRACE_S)
        code = self._process.poll()
        how = "closed its standard output" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was ended by signal {-code} ({signal.strsignal(-code)})"
        return self._failed(how)

    def _failed(self, how: str) -> ProgramError:
        """End it, with what it started; the next question is for another one."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._listener.join(_DEATH_GRACE_S)  # what was printed last is still on its way
        printed = " ".join(self._printed.decode("utf-8", "replace").split())[-MAX_TOLD:]
        return ProgramError(f"{self.name}: {how}" + (f"; it printed last: {printed}" if printed else ""))


def _is_schema(one: object) -> bool:
    function = one.get("function") if isinstance(one, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


_running: dict[type[ProgramEnvironment], _Program] = {}


def _program_of(environment: type[ProgramEnvironment]) -> _Program:
    """The class's program in this process, started where there is none."""
    program = _running.get(environment)
    if program is None or not program.is_usable:
        folder = Path(getattr(sys.modules.get(environment.__module__), "__file__", None) or ".").resolve().parent
        program = _running[environment] = _Program(environment.command, folder, environment.settings)
    return program
