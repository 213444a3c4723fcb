"""Compiling gives each parameter the shape of its rank's slice; weights are then filled in, and a second graph is
compiled over the same model, as a run on cards does before its first step."""

from __future__ import annotations

from pathlib import Path

import pytest
from dryrun.shipped_experiment import NUM_RANKS, write_experiment

from mindgspo.ascend.dryrun import Toolchain, run_child

PLANS = {
    "stages": ("model_parallel: 4, pipeline_stage: 2, micro_batch_num: 2", 4),
    "optimizer shards": (
        "data_parallel: 2, model_parallel: 2, pipeline_stage: 2, micro_batch_num: 2, optimizer_shard: true",
        3,
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_slices_are_filled_between_two_compiles(toolchain: Toolchain, tmp_path: Path, name: str) -> None:
    train, rank = PLANS[name]
    config = write_experiment(
        tmp_path / "experiment.yaml", architecture="qwen2", train=train, infer="data_parallel: 2, model_parallel: 4"
    )
    result = run_child(
        toolchain,
        tmp_path,
        config=config,
        graph="reference",
        rank=rank,
        world_size=NUM_RANKS,
        builder="laid_out:build",
        import_folders=(Path(__file__).parent,),
        time_limit_s=200,
    )
    assert result.failure is None, result.failure
    assert result.facts.fused["FlashAttentionScore"] == 1, "one of the two layers is on this rank's stage"
