"""Files, includes, overrides and messages of `load_config`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mindgspo.config import load_config, resolve
from mindgspo.errors import ConfigError


def test_defaults_are_resolved(load):
    gspo = load()
    assert gspo.run_dir == Path("runs/small")
    assert (gspo.algorithm.clip_low, gspo.algorithm.clip_high) == (3e-4, 4e-4)
    grpo = load("algorithm.name=grpo", "algorithm.clip_high=0.3", "run_dir=elsewhere")
    assert (grpo.algorithm.clip_low, grpo.algorithm.clip_high) == (0.2, 0.3)
    assert grpo.run_dir == Path("elsewhere")
    assert resolve(grpo) == grpo


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("rollout.num_generations=eight", "rollout.num_generations: expected an integer, got 'eight'"),
        ('rollout.num_generations="8"', "rollout.num_generations: expected an integer, got '8'"),
        ("rollout.num_generations=8.0", "rollout.num_generations: expected an integer, got 8.0"),
        ("rollout.top_p=1.5", "rollout.top_p: must be <= 1, got 1.5"),
        ("rollout.slots=0", "rollout.slots: must be >= 1, got 0"),
        ("optimizer.lr=fast", "optimizer.lr: expected a number, got 'fast'"),
        ("optimizer.lr=.inf", "optimizer.lr: expected a finite number, got Infinity"),
        ("data.shuffle=yes", "data.shuffle: expected true or false, got 'yes'"),
        ("device=cpu", "device: expected 'CPU' or 'Ascend', got 'cpu'"),
        (
            "algorithm.name=gsop",
            "algorithm.name: expected 'gspo', 'gspo_token', 'grpo', 'ppo', 'dapo', 'dr_grpo', 'gmpo', 'cispo', 'sapo' "
            "or 'gpg', got 'gsop'; did you mean 'gspo'?",
        ),
        (
            "algorithm.advantage.estimator=gae",
            "algorithm.advantage.estimator: expected 'grpo', 'dr_grpo', 'rloo', 'opo', 'max_rl', 'pass_k', 'gpg', "
            "'remax', 'reinforce_plus_plus' or 'reinforce_plus_plus_baseline', got 'gae'; it needs a value model, "
            "which this suite does not train",
        ),
        (
            "algorithm.rollout_correction.level=tokens",
            "algorithm.rollout_correction.level: expected 'none', 'token', 'sequence' or 'geometric', got 'tokens'; "
            "did you mean 'token'?",
        ),
        ("algorithm.clip_low=-0.1", "algorithm.clip_low: must be >= 0, got -0.1"),
        ("algorithm.clip_low=1.5", "algorithm.clip_low: must be <= 1, got 1.5"),
        ("reward.functions=gsm8k", "reward.functions: expected a list, e.g. [a, b], got 'gsm8k'"),
        ("reward.weights=[]", "reward.weights: needs at least 1 entry, got []"),
        ("reward.weights=[a]", "reward.weights[0]: expected a number, got 'a'"),
        ("optimizer=", "optimizer: expected a section with keys of its own, got null (nothing)"),
        ("plans.train=2", "plans.train: expected a section with keys of its own, got 2"),
        ("model.path=3", "model.path: expected a text, got 3"),
    ],
)
def test_a_wrong_value_is_named_with_its_rule(problems, override, line):
    assert problems(override) == [line]


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("trainer.max_step", "trainer.max_steps"),  # a sibling
        ("optimzer", "optimizer"),
        ("plans.infer.model_paralel", "plans.infer.model_parallel"),
        ("rollout.clip_low", "algorithm.clip_low"),  # the same key in another section
        ("warmup.every", "warmup.check_every or algorithm.kl.reference.every or eval.every"),  # both
        ("trainer.train_batch_size", "rollout.prompts_per_step"),  # another suite's word
        ("rollout.n", "rollout.num_generations"),
        ("learning_rate", "optimizer.lr"),
        ("data.max_new_token", "rollout.max_new_tokens"),  # a close key in another section
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_one(problems, key, fix):
    line = problems(f"{key}=3")[0]
    assert line.startswith(f"{key}: unknown key; did you mean {fix}")


def test_an_unknown_key_without_a_near_one_lists_its_siblings(problems):
    siblings = "functions, weights, answer, math_dapo, overlong, length, repetition, workers"
    assert problems("reward.zzz=1") == [f"reward.zzz: unknown key; keys here: {siblings}"]


def test_a_misspelt_required_key_leads_the_list(tmp_path, experiment):
    text = experiment.read_text().replace("max_prompt_length", "max_promt_length")
    experiment.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(experiment, ["seed=-1"])
    assert str(caught.value).split("\n  ")[1:] == [
        "data.max_promt_length: unknown key; did you mean data.max_prompt_length?",
        "seed: must be >= 0, got -1",
        "data.max_prompt_length: missing; Longest prompt in tokens, chat template included; with "
        "rollout.max_new_tokens it must fit model.max_position_embeddings",
    ]


def test_later_layers_win_and_mappings_merge_deeply(tmp_path, experiment):
    (tmp_path / "one.yaml").write_text("reward: {functions: [gsm8k, math_dapo], weights: [1, 2]}\nseed: 1\n")
    (tmp_path / "two.yaml").write_text("optimizer: {lr: 1e-3, beta1: 0.5}\nseed: 2\n")
    experiment.write_text(
        "include: [one.yaml, two.yaml]\noptimizer: {lr: 2e-3}\nreward: {functions: [auto], weights: [1]}\n"
        + experiment.read_text()
    )
    config = load_config(experiment, ["optimizer.beta2=0.9", "optimizer.beta2=0.8"])
    assert config.seed == 2
    assert (config.optimizer.lr, config.optimizer.beta1, config.optimizer.beta2) == (2e-3, 0.5, 0.8)
    assert config.reward.functions == ("auto",)


def test_includes_count_from_the_file_that_names_them(tmp_path, experiment):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one.yaml").write_text("include: b/two.yaml\n")
    (tmp_path / "a" / "b" / "two.yaml").write_text("include: ../three.yaml\n")
    (tmp_path / "a" / "three.yaml").write_text("seed: 33\n")
    experiment.write_text("include: a/one.yaml\n" + experiment.read_text())
    assert load_config(experiment).seed == 33


def test_an_include_circle_is_refused_with_its_chain(tmp_path):
    (tmp_path / "a.yaml").write_text("include: b.yaml\n")
    (tmp_path / "b.yaml").write_text("include: a.yaml\n")
    with pytest.raises(ConfigError, match=r"circle: .*a\.yaml -> .*b\.yaml -> .*a\.yaml"):
        load_config(tmp_path / "a.yaml")


def test_a_file_included_twice_is_no_circle(tmp_path, experiment):
    (tmp_path / "base.yaml").write_text("seed: 5\n")
    (tmp_path / "one.yaml").write_text("include: base.yaml\n")
    experiment.write_text("include: [one.yaml, base.yaml]\n" + experiment.read_text())
    assert load_config(experiment).seed == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "line 1, column 6"),
        ("seed: 1\nseed: 2\n", "line 2, column 1: key 'seed' is given twice"),
        ("- a\n- b\n", "expected `section: ...` lines, got list"),
        ("include: 3\n", "include: expected a path or a list of paths, got 3"),
        ("include: nowhere.yaml\n", r"bad\.yaml: include: .*nowhere\.yaml: no such file"),
    ],
)
def test_an_unusable_file_is_named(tmp_path, text, message):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(tmp_path / "bad.yaml")
    assert "bad.yaml" in str(caught.value)


def test_bytes_that_are_not_text_are_refused(tmp_path):
    (tmp_path / "bad.yaml").write_bytes(b"experiment: \xff\n")
    with pytest.raises(ConfigError, match=r"bad\.yaml: not UTF-8 text .*at byte 12"):
        load_config(tmp_path / "bad.yaml")


def test_a_missing_file_is_answered_with_a_near_name(experiment):
    with pytest.raises(ConfigError, match=r"smal\.yaml: no such file; did you mean .*small\.yaml\?"):
        load_config(experiment.with_name("smal.yaml"))


@pytest.mark.parametrize("override", ["seed", "=3", ".seed=3", "model..path=3"])
def test_an_override_without_key_or_value_is_refused(experiment, override):
    with pytest.raises(ConfigError, match="expected section.key=value"):
        load_config(experiment, [override])


def test_an_override_may_hold_colons_and_equal_signs(load):
    assert load("data.system_prompt=Answer: a=b # c").data.system_prompt == "Answer: a=b # c"
    assert load('data.system_prompt="12"').data.system_prompt == "12"
    assert load("data.train={split: dev}").data.train.split == "dev"  # merged: format stays


def test_paths_count_from_their_file_and_overrides_from_the_current_folder(tmp_path, experiment, monkeypatch):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "model.yaml").write_text("model: {path: ../weights}\n")
    (tmp_path / "rows.jsonl").write_text("")
    (tmp_path / "weights").mkdir()
    (tmp_path / "here" / "tokenizer").mkdir(parents=True)
    text = experiment.read_text().replace("arithmetic, split: train", "gsm8k, path: rows.jsonl")
    experiment.write_text("include: configs/model.yaml\n" + text)
    monkeypatch.chdir(tmp_path / "here")
    config = load_config(experiment, ["tokenizer.path=tokenizer"])
    assert config.model.path == tmp_path / "weights"
    assert config.data.train.path == tmp_path / "rows.jsonl"
    assert config.tokenizer.path == tmp_path / "here" / "tokenizer"
    assert config.run_dir == Path("runs/small")


def test_a_linked_data_file_keeps_its_own_name(tmp_path, load):
    (tmp_path / "blob").write_text("")
    (tmp_path / "rows.jsonl").symlink_to(tmp_path / "blob")
    config = load(f"data.train={{format: gsm8k, path: {tmp_path}/rows.jsonl}}", f"tokenizer.path={tmp_path}")
    assert config.data.train.path == tmp_path / "rows.jsonl"


def test_missing_files_are_refused_only_when_asked(experiment):
    overrides = ["model.path=/nowhere/weights", "tokenizer.path=/nowhere/tokenizer"]
    with pytest.raises(ConfigError) as caught:
        load_config(experiment, overrides)
    message = str(caught.value)
    assert "model.path: /nowhere/weights does not exist (nearest existing folder: /)" in message
    assert "tokenizer.path: /nowhere/tokenizer does not exist" in message
    assert load_config(experiment, overrides, check_files=False).model.path == Path("/nowhere/weights")


def test_config_is_frozen(load):
    with pytest.raises(ValueError, match="frozen"):
        load().seed = 3


def test_importing_config_loads_neither_mindspore_nor_numpy():
    code = "import sys, mindgspo.config; print(sorted({'mindspore', 'numpy'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
