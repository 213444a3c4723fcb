"""Files that mean harm, or are broken: an error or a report in bounded time and memory, and nothing is made or run."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import yaml
from foreign_cases.conversions import FILES, converted, findings_of, flat, nested

from mindgspo.config import load_config
from mindgspo.errors import ConfigError
from mindgspo_migrate.convert import convert, report_lines
from mindgspo_migrate.shell import read_overrides
from mindgspo_migrate.sources import read_yaml
from mindgspo_migrate.tables import Status

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]\n" for n in range(30)
)
MAPS = "a0: &a0 {type: t, v: 1}\n" + "".join(
    f"a{n + 1}: &a{n + 1} {{type: t, b: [{', '.join([f'*a{n}'] * 10)}]}}\n" for n in range(30)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n + 1}: &a{n + 1} {{<<: [{', '.join([f'*a{n}'] * 10)}]}}\n" for n in range(30)
)
PAIRS = "a0: &a0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n + 1}: &a{n + 1} !!pairs [{', '.join([f'k: *a{n}'] * 8)}]\n" for n in range(30)
)


@pytest.mark.parametrize(("text", "message"), [
    (PAIRS, "could not determine a constructor for the tag 'tag:yaml.org,2002:pairs'"),
    ("run_mode: !!binary AAAA", "could not determine a constructor for the tag 'tag:yaml.org,2002:binary'"),
    (BOMB, "holds more than 20,000 values, its aliases written out"),
    (MAPS, "holds more than 20,000 values, its aliases written out"),
    (MERGES, r"merge keys \(<<\) are not read; write the keys out"),
    ("run_mode: &a [*a]", "nests deeper than 40 levels"),
    ("run_mode: &a {b: *a}", "nests deeper than 40 levels"),
    ("run_mode: " + "[" * 5000 + "]" * 5000, "nests deeper than 40 levels"),
    ("seed: " + "59:" * 3000 + "59", "a number is too long"),
    ("seed: 0x" + "f" * 5000, "a number is too long"),
    ("seed: " + "59:" * 3000 + "59.5", "a number is too long"),
    ("seed: 0b_", "'0b_' is no int"),
    ("seed: !!bool z", "'z' is no bool"),
    ("seed: !!timestamp q", "'q' is no timestamp"),
    ("seed: !!int ''", "'' is no int"),
    ("seed: 2001-99-99", "'2001-99-99' is no timestamp"),
    ("run_mode: !!python/object/apply:os.system ['touch made']", "could not determine a constructor for the tag"),
    ("run_mode: !!python/name:os.system", "could not determine a constructor for the tag"),
    ("- a\n- b", "expected `key: value` lines, got list"),
    ("just text", "expected `key: value` lines, got str"),
    ("", "expected `key: value` lines, got nothing: it is empty"),
    ("a: [1", "line 1"),
    ("run_mode: *missing", "found undefined alias"),
    ("a: 1\n---\nb: 2", "line 2, column 1: but found another document"),
    ("? [a, b]\n: 1", "unhashable key"),
    ("a: 1", "no key of MindFormers .* MindRLHF .* MindSpeed-RL .* or TRL"),
])  # fmt: skip
def test_yaml_that_is_refused(tmp_path: Path, text: str, message: str) -> None:
    started = time.monotonic()
    with pytest.raises(ConfigError, match=message):
        converted(tmp_path, text, name="given.yaml")
    assert time.monotonic() - started < 60
    assert [path.name for path in tmp_path.iterdir()] == ["given.yaml"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large.yaml").write_text("a: 1\n" + "#" * 1_000_001)
    for path, message in (
        (tmp_path / "none.yaml", "none.yaml: cannot be read: No such file"),
        (tmp_path, "cannot be read: Is a directory"),
        (tmp_path / "binary.yaml", "binary.yaml: not UTF-8 text"),
        (tmp_path / "large.yaml", "large.yaml: has 1,000,006 bytes, a configuration at most 1,000,000"),
    ):
        with pytest.raises(ConfigError, match=message):
            convert([path])


def test_keys_that_stand_twice_are_named_and_entries_of_one_type_do_not_hide_each_other() -> None:
    values, twice = read_yaml("a:\n  b: 1\n  b: 2\nc: 3\n")
    assert (values, twice) == ({"a.b": 2, "c": 3}, ["b"])
    values, _ = read_yaml("callbacks:\n  - {type: A, x: 1}\n  - {type: B, x: 2}\n  - {type: B, x: 3}\n")
    assert values["callbacks.A.x"] == 1
    assert sorted(value for key, value in values.items() if key.endswith(".x")) == [1, 2, 3]


@pytest.mark.parametrize(
    "text", ["a\n# b: c\nplans: {}", "\x1b[2J\x07", "x\u2028plans:", "# %s", "a: b", "'\"", "a\x85b"]
)
def test_texts_stay_texts_in_the_result_and_on_the_terminal(tmp_path: Path, text: str) -> None:
    found = converted(
        tmp_path, f"run_mode: finetune\nprocessor: {{tokenizer: {{pad_token: {quoted(text)}}}}}\n", name="x.yaml"
    )
    assert flat(found)["tokenizer.pad_token"] == text
    assert all(line.isascii() and line.isprintable() for line in report_lines(found))


def test_reasons_that_repeat_the_source_stay_on_their_line(tmp_path: Path) -> None:
    line = "python3 -m verl.trainer.main_ppo trainer.logger='[\"a\\nb\\x1b[2J\"]' data.prompt_key='x\x1b[2J' \x1b[2J=1"
    found = converted(tmp_path, f"{line} actor_rollout_ref.actor.loss_agg_mode='\x1b[2J'", "verl")
    assert all(one.isascii() and one.isprintable() for one in report_lines(found))
    assert len(found.refused) > 0


def test_sizes_without_end_do_not_keep_anybody_waiting(tmp_path: Path) -> None:
    started = time.monotonic()
    for number in (9_999_991, 10_000_001, 2**53, 10**40):
        line = (
            f"python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.ppo_mini_batch_size={number} data.seed=20240101"
        )
        line += f" actor_rollout_ref.rollout.n={number} data.train_batch_size={number} trainer.nnodes={number}"
        found = converted(tmp_path, f"{line} actor_rollout_ref.actor.use_dynamic_bsz=True", "verl")
        assert flat(found)["seed"] == 20240101
        sizes = ("per_device_train_batch_size", "steps_per_generation", "num_processes", "max_steps", "num_iterations")
        found = converted(tmp_path, yaml.safe_dump({**dict.fromkeys(sizes, number), "seed": 3}), "trl", name="x.yaml")
        assert flat(found)["seed"] == 3
    assert time.monotonic() - started < 120


def quoted(text: str) -> str:
    escaped = "".join(one if one.isalnum() else f"\\u{ord(one):04x}" for one in text)
    return f'"{escaped}"'


def test_no_default_stands_for_a_value_that_is_not_in_the_file(tmp_path: Path) -> None:
    line = "python3 -m verl.trainer.main_ppo data.train_batch_size=$x actor_rollout_ref.rollout.n=$(nproc) data.seed=1"
    found = converted(tmp_path, line, "verl")
    assert {"rollout.prompts_per_step", "rollout.num_generations"} <= set(found.missing) - flat(found).keys()
    given = converted(tmp_path, "generate_config: {max_num_seqs: 16}\n", name="a\nseed: 666\n.yaml")
    assert flat(given)["rollout.slots"] == 16, "without a plan of generation"
    assert "seed" not in flat(given), "names of files cannot write into the result"


def test_numbers_out_of_all_bounds(tmp_path: Path) -> None:
    for word in (".nan", ".inf", "1e999", "9" * 400, "-.inf", "2020-01-01", "[1]", "null"):
        found = converted(tmp_path, f"run_mode: finetune\nrunner_config: {{epochs: {word}}}\n", name="x.yaml")
        assert findings_of(found, "runner_config.epochs")[0].status is Status.UNREADABLE, word
        found = converted(tmp_path, f"run_mode: finetune\nlr_schedule: {{learning_rate: {word}}}\n", name="x.yaml")
        assert findings_of(found, "lr_schedule.learning_rate")[0].status is Status.UNREADABLE, word
        assert "optimizer.lr" not in flat(found), word


def test_the_environment_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "value-of-the-environment")
    found = converted(tmp_path, "python3 -m verl.trainer.main_ppo trainer.experiment_name=$SECRET data.seed=1", "verl")
    assert "value-of-the-environment" not in found.yaml + "".join(report_lines(found))
    assert findings_of(found, "trainer.experiment_name")[0].text == "$SECRET has no value in the file"


@pytest.mark.parametrize(("suite", "key"), [
    ("verl", "actor_rollout_ref.actor.policy_loss.loss_mode"),
    ("verl", "algorithm.adv_estimator"),
    ("mindformers", "model.model_config.model_type"),
    ("mindformers", "lr_schedule.type"),
    ("trl", "loss_type"),
    ("trl", "lr_scheduler_type"),
])  # fmt: skip
def test_lists_in_place_of_names_are_reported(tmp_path: Path, suite: str, key: str) -> None:
    text = f"python3 -m verl.trainer.main_ppo {key}=[a]" if suite == "verl" else yaml.safe_dump(nested({key: ["a"]}))
    found = converted(tmp_path, text, suite, name="given.txt" if suite == "verl" else "given.yaml")
    assert findings_of(found, key)[0].status is Status.NOT_IMPLEMENTED


@pytest.mark.parametrize(("estimator", "loss", "why"), [
    ("grpo", "loss_mode=dro", "the loss dro is not built"),
    ("grpo", "loss_mode=bypass_mode", "the loss bypass_mode is not built"),
    ("grpo", "loss_mode=$LOSS", "the value of actor_rollout_ref.actor.policy_loss.loss_mode is not in the file"),
    ("gdpo", "loss_mode=gspo", "the estimator gdpo is not built"),
    ("gae", "loss_mode=gspo", "adv_estimator gae needs a value model, which is not built"),
    ("$HOW", "loss_mode=gspo", "the value of algorithm.adv_estimator is not in the file"),
])  # fmt: skip
def test_a_training_that_is_not_built_is_left_open(estimator: str, loss: str, why: str, tmp_path: Path) -> None:
    settings = f"algorithm.adv_estimator={estimator} actor_rollout_ref.actor.policy_loss.{loss}"
    found = converted(tmp_path, f"python3 -m verl.trainer.main_ppo {settings}", "verl")
    assert flat(found)["algorithm.name"] is None and "algorithm.name" in found.missing
    assert f"to be set: {why}" in found.yaml
    path = tmp_path / "experiment.yaml"
    path.write_text(found.yaml)
    with pytest.raises(ConfigError, match="algorithm.name"):
        load_config(path, check_files=False)


@pytest.mark.parametrize(("program", "name", "schedule"), [
    ("verl.trainer.main_ppo", "grpo", False),
    ("verl.experimental.fully_async_policy.fully_async_main", "grpo", True),
    ("verl.experimental.one_step_off_policy.main_ppo", "grpo", True),
    ("recipe.dapo.main_dapo", "grpo", False),
    ("recipe.sppo.main_sppo", None, False),
    ("recipe.prime.main_prime", None, False),
    ("recipe.gvpo.gvpo_main_ppo", None, False),
])  # fmt: skip
def test_programs_that_train_otherwise_are_left_open(program: str, name: str, schedule: bool, tmp_path: Path) -> None:
    text = f"python3 -m {program} algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8"
    found = converted(tmp_path, text, "verl")
    assert flat(found)["algorithm.name"] == name and ("algorithm.name" in found.missing) == (name is None)
    assert ("trainer.schedule" in found.missing) == schedule
    named = converted(tmp_path, f"{text} actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "verl")
    assert flat(named)["algorithm.name"] == "gspo", "the file names the loss"


def test_slots_are_the_most_that_fit_where_no_file_says_how_many(tmp_path: Path) -> None:
    text = (FILES / "verl_gspo_gsm8k_3b.sh").read_text()
    given = flat(converted(tmp_path, text, name="given.sh"))
    unsaid = converted(tmp_path, re.sub(r"actor_rollout_ref.rollout.max_num_seqs=\S+", "", text), name="unsaid.sh")
    assert given["rollout.slots"] == 128 and flat(unsaid)["rollout.slots"] == 1024
    assert findings_of(unsaid, "rollout.slots")[0].status is Status.ASSUMED
    no_rows = "\n".join(line for line in text.splitlines() if "_files=" not in line and "max_num_seqs" not in line)
    found = converted(tmp_path, no_rows, name="no_rows.sh")
    assert flat(found)["rollout.slots"] == 1024 and found.missing == ["data.train", "data.eval"]


def test_what_the_grammar_takes_wrongly_is_read_or_refused() -> None:
    line = "x=7\ny=8\npython3 -m verl.trainer.main_ppo a.b=/$x/$y/c a.c=$x-$y.z a.d=$(($x-1)) a.e='$x/$y/z'"
    assert read_overrides(line).values == {"a.b": "/7/8/c", "a.c": "7-8.z", "a.d": 6, "a.e": "$x/$y/z"}
    reading = read_overrides("python3 -m verl.trainer.main_ppo a.b=$x/$y\\ z a.c=1")
    assert reading.values == {"a.c": 1} and reading.unread_keys == {"a.b"}
    other_command = "cat > x.py <<END\nmodel = f(a.b=1)\nEND\npython3 -m verl.trainer.main_ppo a.b=2"
    assert read_overrides(other_command).values == {"a.b": 2}


@pytest.mark.parametrize(("text", "message"), [
    ("(" * 20_000 + "x" + ")" * 20_000, "nests too deeply"),
    ("x && " * 20_000 + "y", "nests too deeply"),
    ("<<A\n" * 2_000, "not closed"),
], ids=["brackets", "conditions", "here-documents"])  # fmt: skip
def test_scripts_beyond_all_bounds_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_overrides(text)


def test_parsing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mindgspo_migrate.shell_grammar._MOST_SECONDS", 0.5)
    with pytest.raises(ValueError, match="not parsed within"):
        read_overrides("<<A\n" * 40_000)
