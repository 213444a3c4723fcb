"""examples/environments/programs.py: programs judged by tests, in a real sandbox; its rows."""

import re
import time

import make_data
import programs
import pytest
import sandbox
from running import PROJECT

from mindgspo.config import load_config
from mindgspo.environments import End, Row, Turn
from mindgspo.rollout.player import Player

WHY_NOT = sandbox.available()
needs_sandbox = pytest.mark.skipif(WHY_NOT is not None, reason=f"no sandbox here: {WHY_NOT}")
TESTS = [["1 2\n", "3\n"], ["5 5\n", "10\n"], ["-1 1\n", "0\n"], ["2 2\n", "4\n"]]
RIGHT = "print(sum(map(int, input().split())))"


def begun(tests: object = TESTS, num_public: object = 1) -> programs.Programs:
    environment = programs.Programs()
    environment.reset(Row(prompt="", answer="", extra_info={"tests": tests, "num_public": num_public}), 0)
    return environment


def turn(text: str, number: int = 1) -> Turn:
    return Turn(text=text, content=text, calls=(), problems=(), number=number, is_last=False)


@needs_sandbox
def test_a_program_is_paid_by_its_share_of_the_hidden_tests() -> None:
    environment = begun()
    said = environment.step(turn("```python\nprint(3)\n```"))
    assert said == programs.OTHERS_FAIL
    assert environment.cut("max_turns") == End(reward=0.0, is_correct=False)
    environment.step(turn("a, b = map(int, input().split())\nprint(a * b if a == 2 else 3)"))
    assert environment.cut("max_turns").reward == 1 / 3, "of three hidden tests; the public one is not paid"
    assert environment.step(turn(RIGHT, 3)) == End(reward=1.0, is_correct=True, info={"programs": 3})


@needs_sandbox
def test_a_worker_process_plays_it() -> None:
    section = load_config(PROJECT / "examples/environments/programs.yaml", check_files=False).environment
    assert section is not None and section.workers.timeout_s > programs.SECONDS + programs.LIMITS.seconds
    extra_info = {"tests": TESTS, "num_public": 1}
    row = {"prompt": "", "answer": "see tests", "extra_info": extra_info}
    job = {"kind": "step", "row": row, "seed": 0, "number": 1, "is_last": False, "style": section.tool_style}
    with Player(section) as player:
        first = player.submit({**job, "text": "print(4)", "state": None}).result(60).value
        assert first["messages"][0]["content"].endswith("Printed: 4")
        last = player.submit({**job, "text": RIGHT, "state": first["state"]}).result(60).value
        assert (last["ended"], last["reward"], last["is_correct"]) == ("done", 1.0, True)


@needs_sandbox
def test_the_policy_is_told_of_public_tests_alone() -> None:
    assert begun().step(turn("print('3')\nraise ValueError('no')")) == (
        "A test failed.\nInput: 1 2\nExpected: 3\nPrinted: 3\nError: ValueError: no\n"
        "The program: ended with exit code 1"
    )
    said = begun().step(turn("print('x' * 5000)"))
    assert isinstance(said, str) and len(said) < 400 and "Printed: xxx" in said


@needs_sandbox
def test_tests_that_have_no_time_left_count_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "SECONDS", 2.2)
    monkeypatch.setattr(programs, "LIMITS", sandbox.Limits(seconds=1.0))
    environment = begun([TESTS[0], *TESTS[1:] * 20])
    assert environment.step(turn("while input() != '1 2': pass\nprint(3)")) == programs.OTHERS_FAIL
    assert environment.cut("max_turns").reward == 0.0
    said = environment.step(turn("while True: pass"))
    assert isinstance(said, str) and said.endswith("The program: ran longer than 1 s")
    assert environment.run(RIGHT, "1 2", until=time.monotonic()).problem == "was not run: all tests may take 2.2 s"


def test_the_last_block_is_the_program() -> None:
    assert programs.last_program("a\n```python\n1\n```\nb\n```py\n2\n```\nc") == "2\n"
    assert programs.last_program("print(1)") == "print(1)"
    assert programs.last_program("```python\nunfinished") == "```python\nunfinished"


@pytest.mark.parametrize(
    ("output", "is_right"), [("3\n", True), ("3", True), ("3 \n\n", True), ("3\n4", False), ("03", False), ("", False)]
)
def test_white_space_at_the_ends_does_not_count(output: str, is_right: bool) -> None:
    assert programs.is_right(sandbox.Ran(output=output, errors="", problem=""), "3\n") is is_right
    assert not programs.is_right(sandbox.Ran(output=output, errors="", problem="ended with exit code 1"), "3\n")


@needs_sandbox
@pytest.mark.parametrize(
    ("tests", "num_public", "message"),
    [
        (None, 0, "expected a list of"),
        ([], 0, "expected a list of"),
        ([["1"]], 0, "expected a list of"),
        ([["1", 2]], 0, "expected a list of"),
        (TESTS, 4, "at least one stays hidden"),
        (TESTS, -1, "at least one stays hidden"),
        (TESTS, "1", "at least one stays hidden"),
    ],
)
def test_rows_that_cannot_be_used_say_why(tests: object, num_public: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        begun(tests, num_public)


@pytest.mark.parametrize("is_test", [False, True])
def test_rows_are_solved_by_what_their_questions_ask(is_test: bool) -> None:
    rows = make_data.program_rows(200, is_test, seed=1)
    assert all(len({stdin for stdin, _ in row["tests"]}) == make_data.NUM_TESTS for row in rows)
    assert all(int(number) % 2 == is_test for row in rows for number in re.findall(r"\d+", row["question"]))
    found = {re.sub(r"\d+", "{k}", row["question"].partition("prints ")[2]).partition(". ")[0] for row in rows}
    assert found == {what for what, *_ in make_data.TASKS}
    sums = [row for row in rows if "its numbers plus" in row["question"]]
    for row in sums:
        k = int(row["question"].partition("plus ")[2].partition(".")[0])
        for given, expected in row["tests"]:
            assert [int(one) for one in re.findall(r"\d+", expected)] == [int(one) + k for one in given.split()]
    assert len({re.sub(r"\d", "", row["tests"][0][1].strip())[0] for row in sums}) == len(make_data.SEPARATORS)


@needs_sandbox
def test_demonstrations_are_what_the_environment_says_and_half_of_them_are_right() -> None:
    once, mended = [], []
    for row in make_data.program_rows(80, is_test=False, seed=2):
        environment = begun(row["tests"], row["num_public"])
        first, *others = row["solution"]
        end = environment.step(turn(first["content"]))
        if others:
            assert end == others[0]["content"]
            end = environment.step(turn(others[1]["content"], 2))
        if not isinstance(end, End):
            end = environment.cut("max_turns")
        (mended if others else once).append(end.reward)
    assert set(once) == {1.0} and 8 <= len(once) <= 28, "a guess of four is right"
    assert 0.3 < sum(mended) / len(mended) < 0.7
