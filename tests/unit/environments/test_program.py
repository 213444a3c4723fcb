"""Environments in another program, in real worker processes: what they answer, and what becomes of bad ones."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindgspo.config.environment import EnvironmentSection
from mindgspo.errors import RewardError
from mindgspo.rewards.verification import JobOutcome, Reply
from mindgspo.rollout.player import Player

FILE = Path(__file__).with_name("program_environments.py")
DONE, LATE, BROKEN = JobOutcome.DONE, JobOutcome.TIMEOUT, JobOutcome.FAILED


def player_of(name: str, count: int = 1) -> Player:
    return Player(EnvironmentSection(path=f"{FILE}:{name}", workers={"count": count, "timeout_s": 2.0}))


@pytest.fixture(scope="module")
def player() -> Iterator[Player]:
    with player_of("Counting") as opened:
        yield opened


def step(player: Player, text: str, state: dict | None = None, what: str = "", number: int = 1) -> Reply:
    row = {"prompt": "", "answer": what}
    job = {"kind": "step", "row": row, "seed": 7, "state": state, "number": number, "is_last": False}
    return player.submit({**job, "text": text, "style": "hermes"}).result(timeout=60)


def played(player: Player) -> dict:
    """The end of a whole episode."""
    state = None
    for number, expected in ((1, "1 ['a'] 1 False"), (2, "2 ['a', 'a'] 2 False")):
        reply = step(player, "a", state, number=number)
        assert reply.value["messages"] == [{"role": "user", "content": expected}], reply
        state = reply.value["state"]
    return step(player, "a", state, number=3).value


def test_an_episode_is_played_by_a_program(player: Player) -> None:
    end = played(player)
    assert (end["reward"], end["is_correct"], end["info"]["seed"], end["ended"]) == (0.5, True, 7.0, "done")
    assert played(player)["info"]["pid"] == end["info"]["pid"] != os.getpid()


def test_turns_go_to_whatever_process_is_free() -> None:
    with player_of("Counting"), player_of("Counting") as other:
        state = step(other, "a").value["state"]
    with player_of("Counting") as another:
        assert step(another, "b", state, number=2).value["messages"][0]["content"] == "2 ['a', 'b'] 2 False"


def test_a_limit_asks_the_program_for_the_end(player: Player) -> None:
    state = step(player, "a").value["state"]
    job = {"kind": "cut", "row": {"prompt": "", "answer": ""}, "seed": 7, "state": state, "reason": "turn_tokens"}
    end = player.submit(job).result(timeout=60).value
    assert end == {"reward": 0.0, "is_correct": None, "info": {"heard": 1.0}, "ended": "turn_tokens"}


def test_tools_are_those_of_the_program(player: Player) -> None:
    assert [tool["function"]["name"] for tool in player.describe()["tools"]] == ["add"]
    call = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    wrong = '<tool_call>{"name": "add", "arguments": {}}</tool_call><tool_call>'
    value = step(player, call + wrong).value
    assert [one["content"] for one in value["messages"]] == ["5", "error: a and b"]
    assert value["errors"] == ["malformed", "bad_arguments"] and value["num_calls"] == 3


WORSE = {
    "dies": (BROKEN, "ended with exit code 3; it printed last: Traceback: the reason"),
    "killed": (BROKEN, "was ended by signal 9"),
    "hangs": (LATE, "within 2 s"),
    "prints": (BROKEN, "wrote 'Downloading 5 files' to standard output"),
    "endless": (BROKEN, "wrote more than 1,048,576 bytes"),
    "closes": (BROKEN, "closed its standard output"),
    "leaves": (BROKEN, "ended with exit code 4"),
    "two_lines": (BROKEN, "behind its answer"),
    "other_id": (BROKEN, "to question "),
    "list": (BROKEN, "expected an object with its id"),
    "deep": (BROKEN, "which is for answers in JSON"),
    "digits": (BROKEN, "which is for answers in JSON"),
    "not_utf8": (BROKEN, "which is for answers in JSON"),
    "error": (BROKEN, "counting_program.py: no such level"),
    "no_state": (BROKEN, 'the answer has "id", "messages", but no "state"'),
    "no_messages": (BROKEN, "expected text, 1 to"),
    "assistant": (BROKEN, "expected role user or tool"),
    "huge_state": (BROKEN, "more than 262,144 bytes"),
    "nan_state": (BROKEN, "self.state = nan cannot be kept"),
    "end_text": (BROKEN, "\"end\" is 'won'"),
    "end_more": (BROKEN, "expected an object with reward"),
    **dict.fromkeys(("reward_text", "reward_true", "correct_1"), (BROKEN, "of the wrong type")),
    "reward_nan": (BROKEN, "must be a finite number"),
    "info_list": (BROKEN, "expected an object of numbers"),
    "errors": (BROKEN, "expected a list of unknown_tool"),
}


@pytest.mark.parametrize("what", WORSE)
def test_a_bad_program_fails_its_episode_alone(player: Player, what: str) -> None:
    outcome, message = WORSE[what]
    reply = step(player, "a", what=what)
    assert reply.outcome is outcome and message in reply.message, reply
    assert len(reply.message) <= 700 and "\n" not in reply.message
    assert played(player)["reward"] == 0.5


def test_a_copy_that_answers_too_is_told_from_the_next_answer(player: Player) -> None:
    first = step(player, "a", what="forks")
    assert first.outcome is DONE or "behind its answer" in first.message
    replies = [step(player, "a") for _ in range(3)]
    bad = [reply.message for reply in replies if reply.outcome is not DONE]
    assert all("to question" in message or "behind its answer" in message for message in bad)
    assert played(player)["reward"] == 0.5


def is_running(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_program_ends_with_its_worker() -> None:
    with player_of("Counting") as opened:
        process_id = int(played(opened)["info"]["pid"])
        assert is_running(process_id)
    deadline = time.monotonic() + 30
    while is_running(process_id):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Newer", r"speaks protocol 2; expected 1"),
        ("Toolless", r'gives "tools" that are no list'),
        ("Refusing", r"counting_program.py: says: no level 7"),
        ("Dying", r"ended with exit code 1; it printed last: no package games"),
        ("Missing", r"/nowhere/games: cannot be started in .*No such file"),
        ("Unnamed", r"command = \(\); expected the program and its arguments"),
    ],
)
def test_a_program_that_does_not_begin_stops_the_run(name: str, message: str) -> None:
    with player_of(name) as opened, pytest.raises(RewardError, match=message):
        opened.describe()
