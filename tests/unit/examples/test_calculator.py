"""examples/environments/calculator.py: the tool's calls in a real worker process; its rows."""

import json
import re

import make_data
import pytest
from running import PROJECT

from mindgspo.config import load_config
from mindgspo.environments.tool_calls import parse
from mindgspo.rollout.player import Player

EXAMPLE = PROJECT / "examples" / "environments"


def test_the_tool_multiplies() -> None:
    section = load_config(EXAMPLE / "calculator.yaml", check_files=False).environment
    assert section is not None
    text = '<tool_call>{"name": "multiply", "arguments": {"a": 12, "b": 34}}</tool_call>'
    job = {"kind": "step", "row": {"prompt": "", "answer": "408"}, "seed": 0, "state": None, "is_last": False}
    with Player(section) as player:
        assert [tool["function"]["name"] for tool in player.describe()["tools"]] == ["multiply"]
        asked = player.submit({**job, "text": text, "number": 1, "style": section.tool_style}).result(60).value
        assert asked["messages"] == [{"role": "tool", "content": "408"}] and asked["errors"] == []
        ended = player.submit({**job, "text": "#### 408", "number": 2, "style": section.tool_style}).result(60).value
        assert ended["ended"] == "done" and ended["reward"] is None, "gsm8k judges the last turn"


@pytest.mark.parametrize("is_test", [False, True])
def test_a_careless_teacher_is_right_in_half_of_the_rows(is_test: bool) -> None:
    rows = make_data.calculator_rows(400, is_test, seed=1)
    kinds = {"guessed": 0, "wrong": 0, "right": 0}
    for row in rows:
        a, b = map(int, re.findall(r"\d+", row["question"]))
        assert int(row["answer"]) == a * b and row["alone"] == f"#### {a * b}" and ((31 * a + b) % 8 == 3) == is_test
        first, *rest = row["solution"]
        if not rest:
            kinds["guessed"] += 1
            continue
        (call,) = parse(first["content"], "hermes").calls
        product = call.arguments["a"] * call.arguments["b"]
        assert [one["content"] for one in rest] == [str(product), f"#### {product}"]
        kinds["right" if product == a * b else "wrong"] += 1
    assert 160 < kinds["right"] < 240 and min(kinds.values()) > 70, kinds


def test_no_pair_of_the_test_is_trained() -> None:
    train, test = (
        {tuple(re.findall(r"\d+", row["question"])) for row in make_data.calculator_rows(500, is_test, seed=1)}
        for is_test in (False, True)
    )
    assert not train & test


def test_the_comparison_differs_by_the_tool_alone() -> None:
    tool, alone = (
        load_config(EXAMPLE / f"{name}.yaml", check_files=False).model_dump(mode="json")
        for name in ("calculator", "calculator_alone")
    )
    assert all(tool[key] == alone[key] for key in ("model", "warmup", "optimizer", "seed"))
    columns = [json.dumps(one["data"]["train"]["columns"]) for one in (tool, alone)]
    assert columns[0].replace('"solution": "solution"', '"solution": "alone"') == columns[1]
