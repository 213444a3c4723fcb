"""Every row of every table: what it sets, or the reason why it sets nothing; and no row hidden behind another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from foreign_cases.conversions import cases, converted, findings_of, flat, nested

from mindgspo.config.messages import known_keys
from mindgspo_migrate.convert import TABLES, Conversion
from mindgspo_migrate.tables import Status

ROWS = [(suite, row) for suite, table in TABLES.items() for row in table.rows]
OF_SHELL = cases("verl")
OF_YAML = [(suite, *case) for suite in ("mindformers", "mindrlhf", "mindspeed", "trl") for case in cases(suite)]

# They name files; test_foreign_examples.py has some.
NAMES_OF_FILES = {"actor_config.model_config", "generate_config.model_config", "model/qwen25_7b.yaml"}
# MindSpeed-RL's files of models hold these; test_mindspeed_files.py has one.
OF_A_MODEL = {row.source for row in TABLES["mindspeed"].rows if row.source.startswith("model_config.")}
each_suite = pytest.mark.parametrize("suite", TABLES)


def label(value: Any) -> str:
    return value if isinstance(value, str) else ""


def of_yaml(folder: Path, suite: str, settings: dict[str, Any]) -> Conversion:
    """A YAML file with these settings; MindFormers' trains unless they say otherwise."""
    base = {"run_mode": "finetune"} if suite == "mindformers" else {}
    return converted(folder, yaml.safe_dump(nested({**base, **settings})), suite, name="given.yaml")


def of_settings(folder: Path, suite: str, settings: dict[str, Any]) -> Conversion:
    if suite != "verl":
        return of_yaml(folder, suite, settings)
    dumped = {key: yaml.safe_dump(value, default_flow_style=True) for key, value in settings.items()}
    words = {key: text.removesuffix("\n").removesuffix("...").strip() for key, text in dumped.items()}
    overrides = [f"'{key}={word}'" for key, word in words.items()]
    return converted(folder, " ".join(["python3 -m verl.trainer.main_ppo", *overrides]), "verl")


def of_one(folder: Path, suite: str, key: str, value: Any) -> Conversion:
    return of_settings(folder, suite, {key: value})


def check(found: Conversion, key: str, wanted: dict[str, Any]) -> None:
    unreadable = [finding for finding in found.findings if finding.status is Status.UNREADABLE]
    assert [finding for finding in unreadable if finding.source not in NAMES_OF_FILES] == []
    assert key in {row.source for row in found.rows}, "the row was not asked"
    values = flat(found)
    assert {target: values.get(target) for target in wanted} == wanted


@pytest.mark.parametrize(("key", "overrides", "wanted"), OF_SHELL, ids=label)
def test_what_overrides_become(tmp_path: Path, key: str, overrides: list[str], wanted: dict[str, Any]) -> None:
    check(converted(tmp_path, " ".join(["python3 -m verl.trainer.main_ppo", *overrides]), "verl"), key, wanted)


@pytest.mark.parametrize(("suite", "key", "settings", "wanted"), OF_YAML, ids=label)
def test_what_yaml_becomes(tmp_path: Path, suite: str, key: str, settings: dict[str, Any], wanted: dict[str, Any]):
    check(of_yaml(tmp_path, suite, settings), key, wanted)


def test_every_row_that_sets_something_has_a_case() -> None:
    covered = {("verl", case[0]) for case in OF_SHELL} | {(case[0], case[1]) for case in OF_YAML}
    rows = {(suite, row.source) for suite, row in ROWS if row.status is Status.MAPPED}
    assert {one for one in rows - covered if one[1] not in NAMES_OF_FILES | OF_A_MODEL} == set()
    assert covered - rows == set(), "cases of no row"


@each_suite
def test_every_other_row_is_reported_with_its_reason(tmp_path: Path, suite: str) -> None:
    rows = [row for row in TABLES[suite].rows if row.status is not Status.MAPPED]
    keys = {
        row.source.replace("*", ".x" if row.source.endswith(("Config*", "scale_sense*")) else "x"): row for row in rows
    }
    assert len(keys) == len(rows)
    found = of_settings(tmp_path, suite, dict.fromkeys(keys, "some-value"))
    for key, row in keys.items():
        (finding,) = findings_of(found, key)
        assert (finding.status, finding.text, finding.targets) == (row.status, row.note, ()), key


@each_suite
@pytest.mark.parametrize("value", [None, -1, [], ["a"], 10**40, "~nobody-here/x", "a\0b", "x" * 300], ids=ascii)
def test_every_key_may_hold_anything(tmp_path: Path, suite: str, value: Any) -> None:
    named = {row.source.replace("*", "x") for row in TABLES[suite].rows}
    keys = {key for key in named if not any(other.startswith(f"{key}.") for other in named)}
    found = of_settings(tmp_path, suite, dict.fromkeys(keys, value))
    assert {finding.source for finding in found.findings} >= keys - NAMES_OF_FILES


@each_suite
def test_no_row_is_hidden_behind_another(suite: str) -> None:
    rows = TABLES[suite].rows
    assert [row.source for row in rows if TABLES[suite].find(row.source.replace("*", "x")) is not row] == []


@each_suite
def test_targets_are_keys_of_this_project(suite: str) -> None:
    known = {path for path, _ in known_keys()}
    known |= {f"{path.rpartition('.')[0]}.*" for path in known} | {"plans.train", "plans.infer"}
    for row in TABLES[suite].rows:
        assert [target for target in row.targets if target not in known] == [], row.source
        assert row.note.isascii() and "\n" not in row.note and "|" not in row.note.replace("|u|", ""), row.source


def test_values_of_no_effect_are_no_loss(tmp_path: Path) -> None:
    for suite, key, value in (
        ("verl", "actor_rollout_ref.rollout.pipeline_model_parallel_size", 1),
        ("mindformers", "micro_batch_interleave_num", 1),
        ("mindrlhf", "generate_config.sampling_config.repetition_penalty", 1.0),
        ("trl", "repetition_penalty", 1.0),
    ):
        (finding,) = findings_of(of_one(tmp_path, suite, key, value), key)
        assert (finding.status, finding.text) == (Status.NOT_NEEDED, "as it is here")
        other = 2 if value in (1, 1.0) else 8
        (finding,) = findings_of(of_one(tmp_path, suite, key, other), key)
        assert finding.status is Status.NOT_IMPLEMENTED, key


def test_unknown_keys_are_named_with_a_close_one(tmp_path: Path) -> None:
    for suite, key, close in (
        ("verl", "data.train_batch_sise", "data.train_batch_size"),
        ("verl", "algorithm.something_else", None),
        ("mindformers", "parallel_config.modell_parallel", "parallel_config.model_parallel"),
        ("mindrlhf", "rl_config.num_generation", "rl_config.num_generations"),
        ("trl", "num_generation", "num_generations"),
    ):
        found = of_one(tmp_path, suite, key, 1)
        (finding,) = findings_of(found, key)
        assert (finding.status, finding.text) == (Status.UNKNOWN, f"did you mean {close}?" if close else "")
        assert "rollout.num_generations" not in found.yaml


def test_values_of_another_type_are_reported_and_not_replaced_by_a_default(tmp_path: Path) -> None:
    found = of_one(tmp_path, "verl", "data.train_batch_size", "many")
    (finding,) = findings_of(found, "data.train_batch_size")
    assert (finding.status, finding.text) == (Status.UNREADABLE, "expected a whole number, got 'many'")
    assert flat(found).get("rollout.prompts_per_step") is None
    assert "rollout.prompts_per_step" in found.missing
