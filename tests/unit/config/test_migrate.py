"""Settings under the names of earlier versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.config import config_mapping, dump_config, load_config
from mindgspo.config.load import RENAMES, SCHEMA, migrated
from mindgspo.errors import ConfigError

# An old value and what it is today, for every old name.
OLD_VALUES = {"logging.tensorboard": (True, ["tensorboard"]), "rollout.tokens_per_look": (4, 4)}


def nested(key: str, value: object) -> dict[str, object]:
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def test_every_old_name_is_read(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {rename.old for rename in RENAMES} == OLD_VALUES.keys() and max(rename.since for rename in RENAMES) == SCHEMA
    for rename in RENAMES:
        old, new = OLD_VALUES[rename.old]
        found: object = config_mapping(load_config(experiment, [f"{rename.old}={str(old).lower()}"]))
        for name in rename.new.split("."):
            found = found[name]
        assert found == new
        assert f"{rename.old} is called {rename.new} now: {new}" in capsys.readouterr().err
        assert migrated({"schema": rename.since - 1, **nested(rename.old, old)}, "f") == nested(rename.new, new) | {
            name: {} for name in nested(rename.old, 0) if name not in nested(rename.new, 0)
        }
        assert capsys.readouterr().err == "", "a run's own file is read without a word"


def test_a_run_writes_the_number_and_reads_it_back(experiment: Path, tmp_path: Path) -> None:
    config = load_config(experiment)
    text = dump_config(config)
    assert text.startswith(f"schema: {SCHEMA}\n")
    (tmp_path / "config.yaml").write_text(text)
    assert load_config(tmp_path / "config.yaml", check_files=False) == config


@pytest.mark.parametrize(("mapping", "said"), [
    ({"schema": SCHEMA + 1}, rf"schema: {SCHEMA + 1} is of a newer mindgspo, this one reads up to {SCHEMA}"),
    ({"schema": "two"}, "schema: expected a whole number from 1, got 'two'"),
    ({"schema": True}, "schema: expected a whole number from 1, got True"),
    ({"logging": {"tensorboard": True, "trackers": []}}, "is called logging.trackers now, and both are set; remove it"),
    ({"logging": {"tensorboard": "yes"}}, "logging.tensorboard: expected true or false, got 'yes'"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused_with_what_to_do(mapping: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=f"old.yaml: .*{said}"):
        migrated(mapping, "old.yaml")


def test_a_new_file_does_not_know_old_names() -> None:
    mapping = {"schema": SCHEMA, "logging": {"tensorboard": True}}
    assert migrated(mapping, "f") == {"logging": {"tensorboard": True}}, "which then is an unknown key"
    assert migrated({"logging": None}, "f") == {"logging": None}
