"""examples/smollm2: the generated questions, and the reward for the form of an answer."""

from __future__ import annotations

import json
import operator
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mindgspo.config import load_config

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "smollm2"


@pytest.fixture(scope="module")
def rewards() -> ModuleType:
    module = ModuleType("reward")
    exec((EXAMPLE / "reward.py").read_text(), module.__dict__)
    return module


@pytest.mark.parametrize(
    ("response", "score", "fits"),
    [
        (r"\boxed{7}", 1.0, True),
        ("\\boxed{-12}\n", 1.0, True),
        (r"It is \boxed{7}", 9 / 15, False),
        (r"\boxed{7} \boxed{8}", 0.0, False),
        (r"\boxed{x}", 0.0, False),
        (r"\boxed{1234567890}", 0.0, False),
        ("7", 0.0, False),
        ("", 0.0, False),
    ],
)
def test_the_box_is_paid_by_its_share_of_the_response(
    rewards: ModuleType, response: str, score: float, fits: bool
) -> None:
    assert rewards.only_a_box("boxed", response, "7", {}) == {"score": score, "acc": fits}


def test_questions_are_held_out_and_their_solutions_right(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, str(EXAMPLE / "make_data.py"), "--out", str(tmp_path)], capture_output=True)
    assert ended.returncode == 0, ended.stderr
    signs = {"+": operator.add, "-": operator.sub, "*": operator.mul}
    for task in ("boxed", "words"):
        train, test = (
            [json.loads(line) for line in (tmp_path / f"{task}_{part}.jsonl").read_text().splitlines()]
            for part in ("train", "test")
        )
        assert (len(train), len(test)) == (1200, 200)
        assert len({row["question"] for row in train + test}) == 1400
        for row in train + test:
            found = re.fullmatch(r"What is (\d+) ([-+]) (\d+)\?", row["question"])
            steps = (
                [f"{found[1]} {found[2]} {found[3]} = {row['answer']}"] if found else row["solution"].split("\n")[:-1]
            )
            for x, sign, y, result in (re.fullmatch(r"(\d+) ([-+*]) (\d+) = (\d+)", step).groups() for step in steps):
                assert int(result) == signs[sign](int(x), int(y))
            assert result == row["answer"] and bool(found) == (task == "boxed")
            assert row["solution"].endswith(f"\\boxed{{{result}}}" if found else f"\n#### {result}")


@pytest.mark.parametrize(("task", "reward"), [("boxed", f"{EXAMPLE / 'reward.py'}:only_a_box"), ("words", "gsm8k")])
def test_the_experiments_name_the_model_and_the_data_beside_them(task: str, reward: str) -> None:
    config = load_config(EXAMPLE / f"{task}.yaml", check_files=False)
    assert (config.model.path, config.model.hidden_size) == (EXAMPLE / "model", 576)
    assert config.data.train.path == EXAMPLE / "data" / f"{task}_train.jsonl"
    assert config.reward.functions == (reward,)
