"""The rule of `strategy.hsdp` against MindSpore's compiler: entry by entry, and the ranks of the cuts in its graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dryrun.hsdp_weights import KV_HEADS, WEIGHTS, Weight

from mindgspo.ascend.dryrun import Result
from mindgspo.parallel.strategy.file import read_strategy
from mindgspo.parallel.strategy.layouts import HsdpCall, hsdp_shards, without_single_devices
from mindgspo.parallel.strategy.record import StoredLayout

MAPS = {"column": (0, -1), "key_value": (0, -1), "row": (-1, 0), "whole": (-1, -1), "bias": (0,), "norm": (-1,)}


def expected(weight: Weight, data: int, model: int, call: HsdpCall) -> StoredLayout:
    """What we would write, without the shape, which protobuf has no field for."""
    matrix, tensor_map = (data, model), MAPS[weight.kind]
    if weight.kind == "key_value" and model > KV_HEADS:
        matrix, tensor_map = (data, KV_HEADS, model // KV_HEADS), (1, -1)
    whole = StoredLayout(device_matrix=matrix, tensor_map=tensor_map, shape=weight.shape)
    found = without_single_devices(hsdp_shards(whole, call))
    return StoredLayout(
        device_matrix=found.device_matrix,
        tensor_map=found.tensor_map,
        opt_weight_shard_step=found.opt_weight_shard_step,
        opt_weight_shard_size=found.opt_weight_shard_size,
    )


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
