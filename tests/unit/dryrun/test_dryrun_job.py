"""Jobs and answers as files, and CANN's Python packages as empty modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mindgspo.cli import main
from mindgspo.config import load_config
from mindgspo.dryrun.graph_text import Collective, GraphFacts, HeldParameter
from mindgspo.dryrun.runner import (
    CallMemory,
    ChildAnswer,
    CompileFailure,
    CompileJob,
    read_message,
    write_message,
)
from mindgspo.errors import ConfigError


def test_jobs_survive_their_file(tmp_path: Path) -> None:
    job = CompileJob(
        config="a.yaml", overrides=("seed=2", "plans.train.model_parallel=4"), working_folder="/w", graph="train",
        rank=3, world_size=8, builder="m:f", import_folders=("/x",), result_path="/r", is_stand_in=True,
        measures_memory=True,
    )  # fmt: skip
    write_message(tmp_path / "job.json", job)
    assert read_message(tmp_path / "job.json", CompileJob) == job
    assert [entry.name for entry in tmp_path.iterdir()] == ["job.json"]


def test_answers_survive_their_file(tmp_path: Path) -> None:
    facts = GraphFacts(
        parameters=(HeldParameter(name="w", dtype="Float32", shape=(2, 3)),),
        collectives=(Collective(kind="Send", group="g", ranks=(0, 4), count=2, bytes=None),),
        operators={"Send": 2},
        products={},
    )
    for answer in (
        ChildAnswer(seconds=1.5, peak_rss=7, facts=facts),
        ChildAnswer(seconds=1.5, peak_rss=7, facts=facts, memory=CallMemory(allocated=5, reserved=8, beside=2)),
        ChildAnswer(
            seconds=0.0, peak_rss=7, failure=CompileFailure(phase="build", kind="ValueError", text="x", place="y")
        ),
    ):
        write_message(tmp_path / "answer.json", answer)
        assert read_message(tmp_path / "answer.json", ChildAnswer) == answer


def test_packages_of_cann_are_empty_modules() -> None:
    code = """
from ascend_emulator.toolchain import install_stand_in_packages
install_stand_in_packages()
import te.platform.cce_conf
from tbe.common.register import register_op
from te import version
from hccl import sys_version
assert version.version == sys_version.__sys_version__ == "8.5.0"
@register_op("Add")
def kept(x): return x + 1
@te.decorator
def plain(x): return x + 2
assert plain(1) == 3
assert te.anything.at_all(1, key=2).goes(3) is not None
import json, importlib.util
assert importlib.util.find_spec("terminal_of_nobody") is None
"""
    subprocess.run([sys.executable, "-c", code], check=True)


ARITHMETIC = Path(__file__).parents[3] / "examples" / "arithmetic" / "gspo.yaml"
PLANS_OF_8 = ["plans.train.data_parallel=8", "plans.infer.data_parallel=8"]
PLANS_OF_24 = ["plans.train.data_parallel=24", "plans.infer.data_parallel=24"]
CONFIG = str(Path(__file__).parents[3] / "examples" / "gsm8k" / "gspo_qwen2_5_7b.yaml")


def test_ranks_are_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dryrun", CONFIG, "--ranks", "0,last"]) == 2
    assert "'0,last' is not a list like 0,4" in capsys.readouterr().err


@pytest.mark.parametrize("options, message", [
    (["--ranks", "0,8"], "error: --ranks: 8; plans.train 1 x 4 x 2 has ranks 0 to 7"),
    (["--ranks", "0", "--all"], "error: --ranks and --all: give one of them"),
    (["--graphs", "train,draw"],
        "error: --graphs: 'draw' is none of train, forward, sum, step, gather, reference, prefill, decode, old_policy"),
])  # fmt: skip
def test_mistakes_are_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dryrun", CONFIG, *options]) == 1
    assert capsys.readouterr().err == f"{message}\n"


@pytest.mark.parametrize(("overrides", "said", "fix"), [
    (["trainer.samples_per_micro_batch=16"], "16 makes 4 micro-batches per update, which data_parallel 8 x",
        "nearest legal trainer.samples_per_micro_batch: 8"),
    (["trainer.samples_per_micro_batch=1", "trainer.prompts_per_mini_batch=32", *PLANS_OF_24],
        "24 replicas do not share rollout.prompts_per_step 32 evenly", "nearest legal: 16 or 32"),
])  # fmt: skip
def test_batches_that_replicas_cannot_share_are_refused_first(overrides: list[str], said: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(ARITHMETIC, [*PLANS_OF_8, *overrides], check_files=False)
    assert said in str(caught.value) and fix in str(caught.value)
