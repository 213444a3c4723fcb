"""Policies and environments that do their worst, in real worker processes: every job has its reply within its time, the
reply is small and clean, and the next job is played as ever."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindgspo.config.environment import EnvironmentSection
from mindgspo.environments.play import MAX_CHARS, MAX_MESSAGES
from mindgspo.errors import RewardError
from mindgspo.rewards.verification import JobOutcome, Reply
from mindgspo.rollout.player import Player

TIMEOUT_S = 1.5
MOST_SECONDS = 8.0
"""For the time limit, the end of a worker, and the start of another on a busy machine."""


@pytest.fixture(scope="module")
def player() -> Iterator[Player]:
    workers = {"count": 1, "timeout_s": TIMEOUT_S, "memory_mb": 512}
    path = f"{Path(__file__).with_name('hostile.py')}:Hostile"
    with Player(EnvironmentSection(path=path, workers=workers)) as opened:
        yield opened


def played(player: Player, text: str, what: str = "ping", state: dict | None = None) -> Reply:
    """The reply to a turn; and afterwards the worker, or its successor, answers as ever."""
    start = time.monotonic()
    row = {"prompt": "", "answer": what}
    job = {"kind": "step", "row": row, "seed": 0, "number": 1, "is_last": False, "style": "hermes"}
    reply = player.submit({**job, "text": text, "state": state}).result(timeout=60)
    assert time.monotonic() - start < MOST_SECONDS
    assert len(reply.message) <= 500 + 200 and len(json.dumps(reply.value)) <= 1 << 20
    usual = player.submit({**job, "row": {"prompt": "", "answer": "ping"}, "text": "x", "state": None}).result(60)
    assert usual.value["messages"] == [{"role": "user", "content": "pong"}]
    return reply


def call(name: str, arguments: object) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>'


def nested(depth: int) -> str:
    return '<tool_call>{"name": "keep", "arguments": {"values": ' + "[" * depth + "]" * depth + "}}</tool_call>"


FOREIGN = "\U0001f600" * 16_000
"""Twelve bytes each where they travel."""
MALFORMED, BAD, UNKNOWN, FAILED = "malformed", "bad_arguments", "unknown_tool", "failed"
POLICY: dict[str, tuple[str, set[str], int]] = {
    # name: (turn, kinds of errors, calls)
    "call bomb": (call("add", {"a": 1, "b": 2}) * 5000, {MALFORMED}, 17),
    "call bomb of errors": ("<tool_call>{</tool_call>" * 5000, {MALFORMED}, 17),
    "open tags": ("<tool_call>" * 50_000, {MALFORMED}, 1),
    "open tags and one end": ("<tool_call>" * 50_000 + "</tool_call>", {MALFORMED}, 1),
    "calls with long answers": (call("echo", {"text": "x" * 50_000}) * 16, set(), 16),
    "calls with long foreign answers": (
        call("echo", {"text": "-"}).replace("-", "\U0001f600" * 16_000) * 16,
        set(),
        16,
    ),
    "nested 31": (nested(20), {BAD}, 1),
    "nested 1000": (nested(1000), {MALFORMED}, 1),
    "nested 100000": (nested(100_000), {MALFORMED}, 1),
    "1 MiB of arguments": (call("echo", {"text": "x" * (1 << 20)}), {MALFORMED}, 1),
    "many keys": (call("echo", {str(number): 1 for number in range(4000)}), {BAD}, 1),
    "many values": (call("keep", {"values": [{}] * 10_000}), set(), 1),
    "an open text": ('<tool_call>{"name": "echo", "arguments": {"text": "' + "\\" * 99_999, {MALFORMED}, 1),
    "quotes": ('<tool_call>{"' * 20_000, {MALFORMED}, 1),
    "1e999": ('<tool_call>{"name": "add", "arguments": {"a": 1e999, "b": 1}}</tool_call>', {MALFORMED}, 1),
    "NaN": ('<tool_call>{"name": "add", "arguments": {"a": NaN, "b": 1}}</tool_call>', {MALFORMED}, 1),
    "a million digits": (call("add", {"a": 1, "b": 2}).replace("2", "9" * 60_000), {MALFORMED}, 1),
    "100 digits": (call("add", {"a": 10**99, "b": 1}), set(), 1),
    "a float as int": (call("add", {"a": 1e308, "b": 1.0}), set(), 1),
    "a bool as int": (call("add", {"a": True, "b": 1}), {BAD}, 1),
    "equal keys": ('<tool_call>{"name": "add", "name": "echo", "arguments": {}}</tool_call>', {MALFORMED}, 1),
    "half a pair": ('<tool_call>{"name": "echo", "arguments": {"text": "\\ud800"}}</tool_call>', {MALFORMED}, 1),
    "half a pair as it is": ("\ud800 <tool_call>\udfff</tool_call>", {MALFORMED}, 1),
    "NUL": (call("echo", {"text": "a\0b"}), set(), 1),
    "self": (call("echo", {"self": 1, "text": "x"}), {BAD}, 1),
    "reset": (call("reset", {"row": {}, "seed": 0}), {UNKNOWN}, 1),
    "__init__": (call("__init__", {}), {UNKNOWN}, 1),
    "a dotted name": (call("echo.__globals__", {}), {UNKNOWN}, 1),
    "a long name": (call("e" * 10_000, {}), {MALFORMED}, 1),
    "an error as text": (call("perform", {"what": "nowhere"}), {FAILED}, 1),
    "a tool without end of recursion": (call("perform", {"what": "recursion"}), {FAILED}, 1),
    "a tool that takes too much memory": (call("perform", {"what": "memory"}), {FAILED}, 1),
    "a tool whose error is long": (call("perform", {"what": "long_text"}), {FAILED}, 1),
}


@pytest.mark.parametrize("name", POLICY)
def test_no_turn_of_a_policy_fails_its_episode(player: Player, name: str) -> None:
    text, errors, num_calls = POLICY[name]
    reply = played(player, text)
    assert reply.outcome is JobOutcome.DONE, reply.message
    assert set(reply.value["errors"]) == errors and reply.value["num_calls"] == num_calls
    messages = reply.value["messages"]
    assert 1 <= len(messages) <= MAX_MESSAGES and {one["role"] for one in messages} == {"tool"}
    assert sum(len(one["content"]) for one in messages) <= MAX_CHARS
    assert bool(errors) == any(one["content"].startswith("error: ") for one in messages)


DONE, LATE, DIED, BROKEN = JobOutcome.DONE, JobOutcome.TIMEOUT, JobOutcome.DIED, JobOutcome.FAILED
EXPECTED = "; expected "
ENVIRONMENT: dict[str, tuple[JobOutcome, str]] = {
    # what it does: (outcome, part of the message)
    **dict.fromkeys(("system", "assistant", "role_none", "more_keys", "content_list"), (BROKEN, EXPECTED)),
    **dict.fromkeys(("bytes", "none", "number", "empty", "many", "generator", "class"), (BROKEN, EXPECTED)),
    "unshown": (BROKEN, "no repr"),
    "deep": (BROKEN, "RecursionError"),
    **dict.fromkeys(("forged", "surrogate", "nul", "nothing", "huge", "huge_messages"), (DONE, "")),
    **dict.fromkeys(("nan", "infinite", "nan_info"), (BROKEN, "must be a finite number")),
    "too_large": (BROKEN, "OverflowError"),
    **dict.fromkeys(("text_reward", "text_info"), (BROKEN, "could not convert")),
    **dict.fromkeys(("list_reward", "list_info"), (BROKEN, "Error")),
    "huge_info": (BROKEN, "90,000 numbers; at most 64"),
    **dict.fromkeys(("sleep", "spin", "no_alarm", "print", "stop", "forever_text"), (LATE, "within 1.5 s")),
    **dict.fromkeys(("os_exit", "close"), (DIED, "exit code")),
    "abort": (DIED, "Fatal Python error"),
    "kill": (DIED, "signal 9"),
    "exit": (BROKEN, "SystemExit"),
    "interrupt": (BROKEN, "KeyboardInterrupt"),
    "memory": (BROKEN, "out of memory"),
    "recursion": (BROKEN, "RecursionError"),
    "without_text": (BROKEN, "cannot be shown"),
    "long_text": (BROKEN, "xxx"),
    **dict.fromkeys(("fork", "left_running"), (DONE, "")),
    **dict.fromkeys(("set", "tuple", "nan_state", "number_key", "object"), (BROKEN, "self.kept = ")),
    "bytes_state": (BROKEN, "self.kept = "),
    "deep_state": (BROKEN, "RecursionError"),
    "large_state": (BROKEN, "more than 262,144 bytes"),
}


@pytest.mark.parametrize("what", ENVIRONMENT)
def test_an_environment_fails_alone_and_says_why(player: Player, what: str) -> None:
    outcome, message = ENVIRONMENT[what]
    reply = played(player, "x", what)
    assert reply.outcome is outcome and message in reply.message, reply
    if outcome is DONE:
        assert sum(len(one["content"]) for one in reply.value["messages"]) <= MAX_CHARS


@pytest.mark.parametrize(
    ("what", "outcome", "message"),
    [
        ("os_exit", DIED, "exit code 0"),
        ("sleep", LATE, "within 1.5 s"),
        ("print", LATE, "within 1.5 s"),
        ("exit", BROKEN, "SystemExit"),
        ("without_text", BROKEN, ""),
    ],
)
def test_a_tool_that_ends_its_process_fails_its_episode(
    player: Player, what: str, outcome: JobOutcome, message: str
) -> None:
    reply = played(player, call("perform", {"what": what}))
    assert reply.outcome is outcome and message in reply.message, reply


def test_attributes_may_not_grow_without_end(player: Player) -> None:
    state = None
    for turn in range(1, 4):
        reply = played(player, "x", "grow", state)
        assert (reply.outcome is DONE) == (turn < 3), reply.message
        state = reply.value and reply.value["state"]
    assert "more than 262,144 bytes" in reply.message


def test_a_player_is_closed_while_its_environment_sleeps() -> None:
    path = f"{Path(__file__).with_name('hostile.py')}:Hostile"
    with Player(EnvironmentSection(path=path, workers={"timeout_s": 300.0})) as opened:
        opened.describe()
        job = {"kind": "step", "seed": 0, "number": 1, "is_last": False, "style": "none", "text": "x", "state": None}
        reply = opened.submit({**job, "row": {"prompt": "", "answer": "sleep"}})
        time.sleep(0.5)
        assert not reply.done()
        start = time.monotonic()
    assert time.monotonic() - start < MOST_SECONDS and reply.result(timeout=MOST_SECONDS).value is None


def test_a_class_that_is_not_there_is_told_with_those_that_are() -> None:
    section = EnvironmentSection(path=f"{Path(__file__).with_name('hostile.py')}:Hostil")
    said = r"has no class 'Hostil'; did you mean 'Hostile'\?"
    with Player(section) as opened, pytest.raises(RewardError, match=said):
        opened.describe()
