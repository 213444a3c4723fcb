"""Every wrong plan is refused by `mindgspo check` with what to write instead, and, where the compiler sees it, by the
dry run as well, which says less."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from dryrun.wrong_plans import WRONG_PLANS, write_base

from mindgspo.ascend.dryrun import Result, Toolchain, run_child
from mindgspo.ascend.dryrun.messages import cut
from mindgspo.config import load_config
from mindgspo.errors import ConfigError

TESTS = Path(__file__).parents[1]


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


@pytest.fixture(scope="module")
def compile_unchecked(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Result]:
    folder = tmp_path_factory.mktemp("unchecked")

    def compile_(name: str) -> Result:
        wrong = WRONG_PLANS[name]
        return run_child(
            toolchain, folder / name.replace("/", ":"), config=None, graph=wrong.graph, rank=wrong.rank,
            world_size=wrong.world_size, builder="dryrun.unchecked_graphs:build", import_folders=(TESTS,),
            time_limit_s=300,
        )  # fmt: skip

    return compile_


@pytest.mark.parametrize("name", WRONG_PLANS)
def test_the_compiler_sees_it_or_not(compile_unchecked: Callable[[str], Result], name: str) -> None:
    wrong, result = WRONG_PLANS[name], compile_unchecked(name)
    if wrong.refused is None:
        assert result.failure is None
        return
    assert result.failure is not None and result.failure.phase == "compile"
    said = cut(result.failure, result.log.read_text(errors="replace")).text()
    for part in wrong.refused:
        assert part in said
    assert wrong.fix not in said
