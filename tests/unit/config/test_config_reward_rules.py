"""The reward section: names, files, weights, and settings that nobody would read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.config import RewardSection, load_config
from mindgspo.config.reward import file_function, function_label, reward_problems


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ["reward.functions=[gsm8]"],
            "reward.functions: unknown function 'gsm8'; did you mean 'gsm8k'? (known: gsm8k, ",
        ),
        (
            ["reward.functions=[reward.py]"],
            "reward.functions: 'reward.py' names no function; write reward.py:compute_score",
        ),
        (["reward.functions=[gsm8k, gsm8k]"], "reward.functions: gsm8k stands there 2 times; name each function once"),
        (
            ["reward.functions=[gsm8k, math_dapo]", "reward.weights=[1]"],
            "reward.weights: 1 weights for 2 reward.functions; give one weight per function",
        ),
        (["reward.weights=[0]"], "reward.weights: all are 0, so that every response gets the same reward"),
        (
            ["reward.overlong.factor=0.5"],
            "reward.overlong: is not read, because reward.functions does not name overlong",
        ),
        (
            ["reward.functions=[gsm8k]", "reward.math_dapo.strict_box=true"],
            "reward.math_dapo: is not read, because reward.functions does not name math_dapo",
        ),
        (
            ["reward.functions=[auto, overlong]"],
            "reward.overlong.buffer_len: 4096 is longer than reward.overlong.max_len 32 (rollout.max_new_tokens where "
            "it is not set); nearest legal: 32",
        ),
        (
            ["reward.functions=[length, format]"],
            "reward.functions: length pays by whether the answer is correct, but no function here verifies the answer",
        ),
        (
            ["reward.functions=[verl_strict]", "reward.answer=last"],
            "reward.answer: last is not read by verl_strict; remove it",
        ),
    ],
)
def test_a_violated_rule_is_named(problems, overrides, line):
    (found,) = problems(*overrides)
    assert found.startswith(line)


def test_a_missing_file_names_its_neighbour(problems, experiment: Path):
    (experiment.parent / "my_reward.py").write_text("")
    (found,) = problems(f"reward.functions=['{experiment.parent}/my_rewards.py:compute_score']")
    assert found.endswith("my_rewards.py does not exist; did you mean my_reward.py?")
    (found,) = problems(f"reward.functions=['{experiment.parent}/my_reward.py:2nd']")
    assert "'" in found and "after the colon stands the name of a function" in found


def test_two_files_of_one_name_would_be_logged_as_one(problems, tmp_path: Path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "r.py").write_text("")
    (found,) = problems(f"reward.functions=['{tmp_path}/a/r.py:f', '{tmp_path}/b/r.py:f']")
    assert found.startswith("reward.functions: r.f stands there 2 times")


def test_a_file_counts_from_the_folder_of_its_yaml_and_an_override_from_here(
    experiment: Path, monkeypatch, tmp_path: Path
):
    (experiment.parent / "mine.py").write_text("")
    text = experiment.read_text() + "reward: {functions: ['mine.py:compute_score', gsm8k]}\n"
    experiment.write_text(text)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert load_config(experiment).reward.functions == (f"{experiment.parent}/mine.py:compute_score", "gsm8k")
    (elsewhere / "other.py").write_text("")
    changed = load_config(experiment, ["reward.functions=['other.py:score']"])
    assert changed.reward.functions == (f"{elsewhere}/other.py:score",)


def test_weights_and_lengths_are_filled_in(load):
    reward = load("reward.functions=[auto, overlong]", "reward.overlong.buffer_len=8").reward
    assert reward.weights == (1.0, 1.0)
    assert (reward.overlong.max_len, reward.length.max_len) == (32, 32)
    assert (
        load(
            "reward.overlong={max_len: 24, buffer_len: 8}", "reward.functions=[auto, overlong]"
        ).reward.overlong.max_len
        == 24
    )


def test_the_defaults_are_legal_and_need_no_settings():
    assert reward_problems(RewardSection(weights=(1.0,))) == []


@pytest.mark.parametrize(
    ("text", "label"),
    [("gsm8k", "gsm8k"), ("/a/b/my_reward.py:score", "my_reward.score"), ("c:/x.py:f", "x.f")],
)
def test_labels(text, label):
    assert function_label(text) == label


def test_only_a_python_file_with_a_colon_is_a_file():
    assert file_function("gsm8k") is None and file_function("a.txt:f") is None and file_function("a.py") is None
    found = file_function("a.py:f")
    assert found is not None and (str(found.path), found.name) == ("a.py", "f")
