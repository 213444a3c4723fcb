"""The program of `program_environments.Counting`: counts what it hears; the row's answer may name something worse.
Standard library only."""

import json
import os
import subprocess
import sys
import time

TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def with_sleeper(number: int) -> None:
    """Leave a program running that holds the pipes open."""
    subprocess.Popen(["sleep", "300"])
    os._exit(number)


def forked(question: dict) -> dict:
    os.fork()
    return {"messages": [{"role": "user", "content": "twice"}], "state": {}}


def endless() -> None:
    while True:
        write("x" * 10_000)


def told(text: str) -> None:
    print(text, file=sys.stderr)
    sys.exit(3)


WORSE = {
    "dies": lambda _: told("Traceback: the reason"),
    "killed": lambda _: os.kill(os.getpid(), 9),
    "hangs": lambda _: time.sleep(60),
    "prints": lambda _: write("Downloading 5 files\n"),
    "endless": lambda _: endless(),
    "closes": lambda _: [os.close(1), time.sleep(60)],
    "leaves": lambda _: with_sleeper(4),
    "forks": forked,
    "two_lines": lambda question: write(json.dumps({"id": question["id"], "state": 1}) + "\n{}\n"),
    "other_id": lambda _: {"id": 0},
    "list": lambda _: write("[1]\n"),
    "deep": lambda _: write("[" * 200_000 + "\n"),
    "digits": lambda question: write(json.dumps({"id": question["id"], "state": 1})[:-1] + "9" * 9000 + "}\n"),
    "not_utf8": lambda _: os.write(1, b"\xff\xfe\n"),
    "error": lambda _: {"error": "no such\nlevel"},
    "no_state": lambda _: {"messages": [{"role": "user", "content": "x"}]},
    "no_messages": lambda _: {"state": 1},
    "assistant": lambda _: {"state": 1, "messages": [{"role": "assistant", "content": "x"}]},
    "huge_state": lambda _: {"state": "x" * 300_000, "messages": [{"role": "user", "content": "x"}]},
    "nan_state": lambda _: {"state": float("nan"), "messages": [{"role": "user", "content": "x"}]},
    "end_text": lambda _: {"end": "won"},
    "end_more": lambda _: {"end": {"reward": 1, "score": 1}},
    "reward_text": lambda _: {"end": {"reward": "1"}},
    "reward_true": lambda _: {"end": {"reward": True}},
    "reward_nan": lambda _: {"end": {"reward": float("nan")}},
    "correct_1": lambda _: {"end": {"reward": 1, "is_correct": 1}},
    "info_list": lambda _: {"end": {"info": [1]}},
    "errors": lambda _: {"end": {}, "errors": ["bad"]},
}


def answer(question: dict, settings: dict) -> dict | None:
    if question["ask"] == "reset":
        return {"state": {"what": question["row"]["answer"], "seed": question["seed"], "heard": []}}
    state = question["state"]
    if question["ask"] == "cut":
        return {"end": {"reward": 0, "info": {"heard": len(state["heard"])}}}
    if state["what"] in WORSE:
        return WORSE[state["what"]](question)
    turn = question["turn"]
    heard = [*state["heard"], turn["text"]]
    if turn["calls"]:
        calls = [call["arguments"] for call in turn["calls"]]
        texts = [str(one["a"] + one["b"]) if set(one) == {"a", "b"} else "error: a and b" for one in calls]
        errors = ["bad_arguments" for text in texts if text.startswith("error")]
        messages = [{"role": "tool", "content": text} for text in texts]
        return {"state": {**state, "heard": heard}, "messages": messages, "errors": errors}
    if len(heard) == settings["turns"]:
        return {"end": {"reward": 0.5, "is_correct": True, "info": {"seed": state["seed"], "pid": os.getpid()}}}
    messages = [{"role": "user", "content": f"{len(heard)} {heard} {turn['number']} {turn['is_last']}"}]
    return {"state": {**state, "heard": heard}, "messages": messages}


if __name__ == "__main__":
    settings: dict = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["ask"] == "hello":
            settings = asked["settings"]
            said = {"protocol": settings.get("protocol", 1), "tools": [TOOL]}
            said.update(settings.get("says", {}))
        else:
            said = answer(asked, settings)
        if said is not None:
            write(json.dumps({"id": asked["id"], **said}) + "\n")
