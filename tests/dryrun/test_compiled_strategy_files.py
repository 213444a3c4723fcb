"""`tools/generate_strategy.py`: the files worked out from the plans and those of MindSpore's compiler say the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from dryrun.shipped_experiment import write_experiment

from mindgspo.ascend.dryrun import Toolchain
from mindgspo.parallel.strategy.commands import diff_lines
from mindgspo.planner.strategy_files import GRAPHS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("architecture", "train", "infer"),
    [
        (
            "qwen2",
            "data_parallel: 2, model_parallel: 4, optimizer_shard: true",
            "model_parallel: 8, vocab_emb_dp: false",
        ),
        pytest.param(
            "qwen3",
            "data_parallel: 2, model_parallel: 2, pipeline_stage: 2, micro_batch_num: 2, optimizer_shard: true, "
            "use_seq_parallel: true",
            "data_parallel: 2, model_parallel: 4",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_both_ways_place_every_weight_and_moment_alike(
    toolchain: Toolchain, cache: Path, tmp_path: Path, architecture: str, train: str, infer: str
) -> None:
    config = write_experiment(tmp_path / "small.yaml", architecture=architecture, train=train, infer=infer)
    tool = [sys.executable, str(ROOT / "tools" / "generate_strategy.py"), str(config), "--out"]
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    for way in ([str(tmp_path / "plans")], [str(tmp_path / "compiled"), "--compile"]):
        done = subprocess.run([*tool, *way], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
    for graph in GRAPHS:
        names = {path.name for path in (tmp_path / "compiled" / graph).iterdir()}
        assert names == {f"ckpt_strategy_rank_{rank}.ckpt" for rank in range(8)}
    # The compiler's files also have what gradients are added up in.
    found = diff_lines(tmp_path / "plans", tmp_path / "compiled", common=True)
    assert found.number == 0, "\n".join(found.lines)
    parameters = 3 * (27 if architecture == "qwen2" else 25)
    assert f"train: {parameters} parameters" in found.lines[-1]
