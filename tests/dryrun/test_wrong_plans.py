"""Every wrong plan is refused by `mindgspo check` with what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from dryrun.wrong_plans import WRONG_PLANS, write_base

from mindgspo.config import load_config
from mindgspo.errors import ConfigError


def test_without_a_mistake_the_experiment_is_legal(tmp_path: Path) -> None:
    assert load_config(write_base(tmp_path / "base.yaml"), check_files=False).plans.train.world_size == 4
    assert len(WRONG_PLANS) >= 11


@pytest.mark.parametrize("name", WRONG_PLANS)
def test_check_names_the_entry_and_what_to_write_instead(name: str, tmp_path: Path) -> None:
    wrong = WRONG_PLANS[name]
    with pytest.raises(ConfigError) as caught:
        load_config(write_base(tmp_path / "base.yaml"), wrong.overrides, check_files=False)
    lines = str(caught.value).split("\n  ")[1:]
    (line,) = [line for line in lines if line.startswith(wrong.path)]
    assert wrong.fix in line
