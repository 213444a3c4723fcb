"""Layouts in the strategy files of MindSpore's compiler: those of our plans, and its cuts over replicas (hsdp)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from dryrun.hsdp_weights import KV_HEADS, WEIGHTS, Weight
from dryrun.shipped_experiment import write_experiment

from mindgspo.ascend.dryrun import Result, Toolchain
from mindgspo.parallel.strategy.commands import diff_lines
from mindgspo.parallel.strategy.file import read_strategy
from mindgspo.parallel.strategy.layouts import HsdpCall, hsdp_shards, without_single_devices
from mindgspo.parallel.strategy.record import StoredLayout
from mindgspo.planner.strategy_files import GRAPHS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("architecture", "train", "infer"), [
    ("qwen2", "data_parallel: 2, model_parallel: 4, optimizer_shard: true", "model_parallel: 8, vocab_emb_dp: false"),
    pytest.param("qwen3",
        "data_parallel: 2, model_parallel: 2, pipeline_stage: 2, micro_batch_num: 2, optimizer_shard: true, "
        "use_seq_parallel: true", "data_parallel: 2, model_parallel: 4", marks=pytest.mark.slow),
])  # fmt: skip
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


MAPS = {"column": (0, -1), "key_value": (0, -1), "row": (-1, 0), "whole": (-1, -1), "bias": (0,), "norm": (-1,)}


def expected(weight: Weight, data: int, model: int, call: HsdpCall) -> StoredLayout:
    """What we would write, without the shape, which protobuf has no field for."""
    matrix, tensor_map = (data, model), MAPS[weight.kind]
    if weight.kind == "key_value" and model > KV_HEADS:
        matrix, tensor_map = (data, KV_HEADS, model // KV_HEADS), (1, -1)
    whole = StoredLayout(device_matrix=matrix, tensor_map=tensor_map, shape=weight.shape)
    found = without_single_devices(hsdp_shards(whole, call))
    return replace(found, shape=None)


@pytest.mark.parametrize(
    ("data", "model", "shard_size", "threshold"),
    [(2, 4, 2, 64), (2, 4, 2, 0), (2, 4, -1, 0), (4, 2, 4, 0), (8, 1, 4, 0), (4, 2, 3, 0)],
)
def test_the_compiler_cuts_what_the_rule_says(
    compile_toy: Callable[..., Result], data: int, model: int, shard_size: int, threshold: int
) -> None:
    result = compile_toy(f"{data}x{model}-{shard_size}-{threshold}", rank=5, module="hsdp_cells")
    assert result.failure is None and result.strategy is not None
    entries = read_strategy(result.strategy).stages[0]
    for weight in WEIGHTS:
        call = HsdpCall(shard_size=shard_size, threshold=threshold, element_bytes=2 if weight.is_bfloat16 else 4)
        ours = expected(weight, data, model, call)
        for name in (weight.name, f"adam_m.{weight.name}", f"adam_v.{weight.name}"):
            assert entries[name] == ours, name


def test_cuts_go_to_consecutive_replicas(compile_toy: Callable[..., Result]) -> None:
    result = compile_toy("2x4-2-0", rank=5, module="hsdp_cells")
    gathers = {entry.ranks: entry.count for entry in result.facts.collectives if entry.kind == "AllGather"}
    # Column, row and bias: ranks 1 and 5 are the replicas. Norms, whole and shared weights: 4 and 5 follow each other.
    assert set(gathers) == {(1, 5), (4, 5)}
