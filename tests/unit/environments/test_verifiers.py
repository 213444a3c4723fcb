"""Environments of `verifiers` through its bridge, against the loop of verifiers itself.

MINDGSPO_VERIFIERS_PYTHON names a Python that has verifiers 0.4 (with textarena: `pip install 'verifiers[ta]==0.4.0'`).
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mindgspo.environments import ProgramEnvironment
from mindgspo.environments.play import play
from mindgspo.environments.program import ProgramError
from mindgspo.environments.tool_calls import parse

PYTHON = os.environ.get("MINDGSPO_VERIFIERS_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="MINDGSPO_VERIFIERS_PYTHON names no Python with verifiers 0.4")

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "verifiers"
BRIDGE = (PYTHON, str(EXAMPLES / "verifiers_bridge.py"))


def call(name: str, arguments: dict) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>'


PLANS: dict[str, tuple[dict, list[list[str]]]] = {
    # taskset: (settings, turns of a task each)
    "reversed_text": ({}, [["{answer}"], ["wrong"], [" {answer} "], ["<tool_call>"]]),
    "products": (
        {},
        [
            [call("multiply", {"a": 6, "b": 7}), "#### {answer}"],
            ["#### 1"],
            [call("multiply", {"a": 1, "b": 2}) + call("divide", {}), "said " + call("multiply", {"a": "x"}), "#### 1"],
        ],
    ),
    "guessing": (
        {"rows": "guesses.jsonl"},
        [["{answer}"], ["1", "99", "{answer}"], ["1", "2", "3", "4"], ["1", "what?"]],
    ),
    "textarena": ({"game": "Hangman-v0"}, [["[c]", "[z]", "[a]", "[t]"], ["[cat]"], [f"[{one}]" for one in "bdefgh"]]),
}


@pytest.fixture(scope="module", params=PLANS)
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[dict]]]:
    """A taskset, and a row for each of its plans, as the bridge exports them."""
    folder = tmp_path_factory.mktemp("verifiers")
    words = folder / "corpora" / "words"
    words.mkdir(parents=True)
    for name in ("en", "en-basic"):
        (words / name).write_text("cat\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NLTK_DATA", str(folder))
        patch.setenv("PYTHONPATH", str(EXAMPLES))
        patch.chdir(folder)
        guess = {"question": "0 15", "answer": "7", "solution": []}
        Path("guesses.jsonl").write_text(f"{json.dumps(guess)}\n" * 9)
        settings, turns = PLANS[request.param]
        if request.param == "textarena" and subprocess.run([PYTHON, "-c", "import textarena"]).returncode:
            pytest.skip("MINDGSPO_VERIFIERS_PYTHON has no textarena")
        out = folder / "rows.jsonl"
        options = ["--args", json.dumps(settings), "--out", str(out), "--rows", str(len(turns))]
        subprocess.run([*BRIDGE, "export", request.param, *options], check=True, capture_output=True)
        yield request.param, [json.loads(line) for line in out.read_text().splitlines()]


def bridged(taskset: str) -> type[ProgramEnvironment]:
    class Bridged(ProgramEnvironment):
        command = ("env", f"--chdir={Path.cwd()}", *BRIDGE, "serve", taskset, "--args", json.dumps(PLANS[taskset][0]))

    return Bridged


def job_of(row: dict[str, Any]) -> dict[str, Any]:
    others = {name: value for name, value in row.items() if name not in ("messages", "answer")}
    return {"row": {"prompt": "", "answer": row["answer"], "extra_info": others}, "seed": 3}


def played(environment: type[ProgramEnvironment], row: dict, turns: list[str]) -> tuple[list[dict], dict]:
    """The conversation, and its end."""
    messages, state = list(row["messages"]), None
    for number, text in enumerate(turns, 1):
        asked = {"state": state, "text": text, "number": number, "is_last": False, "style": "hermes"}
        said = play(environment, kind="step", **job_of(row), **asked)
        found = parse(text, "hermes")
        messages.append({"role": "assistant", "content": found.content if found.calls else text})
        if "ended" in said:
            assert number == len(turns), "it ended early"
            return messages, said
        messages += said["messages"]
        state = said["state"]
    return messages, play(environment, kind="cut", **job_of(row), state=state, reason="max_turns")


def planned(text: str, number: int) -> dict[str, Any]:
    """The turn as an API of chat completions gives it."""
    found = parse(text, "hermes")
    calls = [
        {
            "id": f"{number}-{place}",
            "type": "function",
            "function": {"name": one.name, "arguments": json.dumps(one.arguments)},
        }
        for place, one in enumerate(found.calls)
    ]
    return {"content": found.content if calls else text} | ({"tool_calls": calls} if calls else {})


def test_messages_and_rewards_are_those_of_verifiers(rows: tuple[str, list[dict]], tmp_path: Path) -> None:
    taskset, exported = rows
    settings, plans = PLANS[taskset]
    turns = [
        [one.replace("{answer}", row["answer"]) for one in plan] for plan, row in zip(plans, exported, strict=True)
    ]
    tasks = [
        {"task": row["task"], "turns": [planned(text, number) for number, text in enumerate(said)]}
        for row, said in zip(exported, turns, strict=True)
    ]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"folder": str(EXAMPLES), "taskset": taskset, "args": settings, "tasks": tasks}))
    command = [PYTHON, str(Path(__file__).with_name("verifiers_reference.py")), str(plan)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200)
    references, environment = json.loads(found.stdout.splitlines()[-1]), bridged(taskset)
    for row, said, reference in zip(exported, turns, references, strict=True):
        assert not reference["errors"] and reference["asked"] == len(said), reference
        messages, end = played(environment, row, said)
        assert messages == reference["messages"]
        assert (end["reward"], end["info"]) == (reference["reward"], reference["info"])
    assert len({reference["reward"] for reference in references}) > 1


@pytest.mark.parametrize("rows", ["guessing"], indirect=True)
def test_an_episode_that_goes_another_way_is_refused(rows: tuple[str, list[dict]]) -> None:
    taskset, (row, *_) = rows
    environment = bridged(taskset)
    step = {"kind": "step", "state": None, "text": "1", "number": 1, "is_last": False, "style": "none"}
    with pytest.raises(ProgramError, match="said something else when it was played again"):
        play(environment, **step, **job_of(row | {"seen": "0"}))
    with pytest.raises(ProgramError, match=r"no columns task and seen; write rows by: verifiers_bridge.py export"):
        play(environment, **step, **job_of({"messages": [], "answer": "1"}))
