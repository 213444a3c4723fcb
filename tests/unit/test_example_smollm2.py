"""examples/smollm2: the generated questions, and the reward for the form of an answer."""

from __future__ import annotations

import json
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


def test_questions_are_held_out_and_their_answers_right(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, str(EXAMPLE / "make_data.py"), "--out", str(tmp_path)], capture_output=True)
    assert ended.returncode == 0, ended.stderr
    train, test = (
        [json.loads(line) for line in (tmp_path / f"boxed_{part}.jsonl").read_text().splitlines()]
        for part in ("train", "test")
    )
    assert (len(train), len(test)) == (1200, 200)
    assert len({row["question"] for row in train + test}) == 1400
    for row in train + test:
        found = re.fullmatch(r"What is (\d+) ([-+]) (\d+)\?", row["question"])
        assert found and int(row["answer"]) == int(found[1]) + int(found[2] + found[3])


def test_the_experiment_names_the_model_and_the_data_beside_it() -> None:
    config = load_config(EXAMPLE / "boxed.yaml", check_files=False)
    assert config.model.path == EXAMPLE / "model" and config.data.train.path == EXAMPLE / "data" / "boxed_train.jsonl"
    assert config.reward.functions == (f"{EXAMPLE / 'reward.py'}:only_a_box",)
