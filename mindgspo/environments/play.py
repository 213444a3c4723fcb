"""Plays turns of environments in a worker process; imports the standard library only.

A job has the sample's row and seed, the environment's attributes after the turn before (none at the first), and what
the policy said. The answer has messages or the end, and the attributes as they are now.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from mindgspo.environments.protocol import TOOL_ERRORS, End, Environment, Row, Turn
from mindgspo.environments.tool_calls import MALFORMED, MAX_CALLS, parse

MAX_STATE_BYTES = 1 << 18
MAX_MESSAGES = MAX_CALLS + 1
"""As many as a turn can have calls, and a line about those that are not read."""
MAX_CONTENT_CHARS, MAX_CHARS = 1 << 15, 3 << 14
"""A message's content, and those of all messages, are cut here before they travel: whatever characters they have, they
fit into a reply. The limit in tokens is applied afterwards."""
MAX_INFO = 64
"""Numbers of an end."""
ROLES = ("user", "tool")


class UnusableAnswerError(Exception):
    """An environment did what it must not; the message is for its author."""


def player_of(environment: type[Environment]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """The task of a worker that has loaded the class."""
    return lambda arguments: play(environment, **arguments)


def play(environment: type[Environment], *, kind: str, **arguments: Any) -> dict[str, Any]:
    """Do one job. kind: "describe" (no arguments) returns {"tools": [JSON schema, ...], "is_deterministic": bool};
    "reset", "step" and "cut" see `_reset`, `_step` and `_cut`. Raises what the environment raises."""
    if kind == "describe":
        made = environment()
        return {"tools": made.schemas(), "is_deterministic": bool(made.is_deterministic)}
    return {"reset": _reset, "step": _step, "cut": _cut}[kind](environment, **arguments)


def _reset(environment: type[Environment], *, row: Mapping[str, Any], seed: int) -> dict[str, Any]:
    return {"state": _state(_restored(environment, row, seed, None))}


def _step(
    environment: type[Environment],
    *,
    row: Mapping[str, Any],
    seed: int,
    state: Mapping[str, Any] | None,
    text: str,
    number: int,
    is_last: bool,
    style: str,
) -> dict[str, Any]:
    made = _restored(environment, row, seed, state)
    found = parse(text, style)
    problems = found.errors
    turn = Turn(text=text, content=found.content, calls=found.calls, problems=problems, number=number, is_last=is_last)
    start, ended = time.monotonic(), "done"
    said = made.step(turn)
    if is_last and not isinstance(said, End):
        said, ended = made.cut("max_turns"), "max_turns"
    errors = [MALFORMED] * len(problems) + vars(made).pop(TOOL_ERRORS, [])
    answer = {"seconds": time.monotonic() - start, "num_calls": len(found.calls) + len(problems), "errors": errors}
    if isinstance(said, End):
        return answer | _end(said) | {"ended": ended}
    return answer | {"messages": _messages(said), "state": _state(made)}


def _cut(
    environment: type[Environment],
    *,
    row: Mapping[str, Any],
    seed: int,
    state: Mapping[str, Any] | None,
    reason: str,
) -> dict[str, Any]:
    return _end(_restored(environment, row, seed, state).cut(reason)) | {"ended": reason}


def _restored(
    environment: type[Environment], row: Mapping[str, Any], seed: int, state: Mapping[str, Any] | None
) -> Environment:
    made = environment()
    if state is None:
        made.reset(Row(**row), seed)
    else:
        vars(made).update(state)
    return made


def _messages(said: object) -> list[dict[str, str]]:
    if isinstance(said, str):
        said = [{"role": "user", "content": said}]
    if not isinstance(said, (list, tuple)) or not said or len(said) > MAX_MESSAGES:
        raise UnusableAnswerError(
            f"step returned {said!r:.80}; expected text, 1 to {MAX_MESSAGES} messages, or End(...)"
        )
    for one in said:
        is_message = isinstance(one, Mapping) and set(one) == {"role", "content"} and one["role"] in ROLES
        if not is_message or not isinstance(one["content"], str):
            raise UnusableAnswerError(
                f"step returned the message {one!r:.80}; expected role {' or '.join(ROLES)}, and content as text"
            )
    most = min(MAX_CONTENT_CHARS, MAX_CHARS // len(said))
    return [{"role": str(one["role"]), "content": str(one["content"])[:most]} for one in said]


def _end(said: object) -> dict[str, Any]:
    if not isinstance(said, End):
        raise UnusableAnswerError(f"returned {said!r:.80} where the episode ends; expected End(...)")
    if len(said.info) > MAX_INFO:
        raise UnusableAnswerError(f"End(info=...) has {len(said.info):,} numbers; at most {MAX_INFO}")
    info = {str(key): _finite(value, f"info[{key!r}]") for key, value in said.info.items()}
    reward = None if said.reward is None else _finite(said.reward, "reward")
    is_correct = None if said.is_correct is None else bool(said.is_correct)
    return {"reward": reward, "is_correct": is_correct, "info": info}


def _finite(value: Any, name: str) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise UnusableAnswerError(f"End({name}={value!r}): must be a finite number")
    return number


def _state(made: Environment) -> dict[str, Any]:
    """The attributes as JSON. Raises UnusableAnswerError for one that would come back as something else."""
    num_bytes = 0
    for name, value in vars(made).items():
        try:
            text = json.dumps({name: value}, allow_nan=False)
            back = json.loads(text)[name]
            is_kept = back == value and type(back) is type(value)
            num_bytes += len(text)
        except (TypeError, ValueError, RecursionError):
            is_kept = False
        if not is_kept:
            raise UnusableAnswerError(
                f"self.{name} = {value!r:.80} cannot be kept between turns; attributes must be JSON: text, numbers, "
                "booleans, None, lists, and dicts with text as keys"
            )
    if num_bytes > MAX_STATE_BYTES:
        raise UnusableAnswerError(
            f"its attributes take more than {MAX_STATE_BYTES:,} bytes; keep large data in the module"
        )
    return dict(vars(made))
