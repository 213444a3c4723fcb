"""Weights of every kind under hsdp(), to see which of them MindSpore's compiler cuts over their replicas.

`build(config, graph, ...)` by a graph named "<data>x<model>-<shard_size>-<threshold>"; imported in child processes
only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import mindspore as ms
import numpy as np
from hsdp_weights import KV_HEADS, WEIGHTS, Weight
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer
from mindspore.parallel.auto_parallel import AutoParallel

TOKENS, H = 64, 64


@dataclass
class Graph:
    cell: nn.Cell
    inputs: tuple[Tensor, ...]


class Branch(nn.Cell):
    """One weight with the op that uses it, down to one number."""

    def __init__(self, weight: Weight, data: int, model: int) -> None:
        super().__init__(auto_prefix=False)
        dtype = ms.bfloat16 if weight.is_bfloat16 else ms.float32
        self.weight = Parameter(initializer("ones", weight.shape, dtype), name=weight.name)
        heads = min(KV_HEADS, model)
        inputs = {
            "column": ((data, 1), (model, 1)),
            "key_value": ((data, 1), (heads, 1)),
            "row": ((data, model), (1, model)),
            "whole": ((data, 1), (1, 1)),
            "bias": ((data, model), (model,)),
            "norm": ((data, 1), (1,)),
        }[weight.kind]
        outputs = {"column": (data, model), "key_value": (data, heads), "bias": (data, model)}
        op = {"bias": ops.Add, "norm": ops.Mul}.get(weight.kind)
        self.op = (op() if op else ops.MatMul(transpose_b=True)).shard(inputs)
        self.spread = ops.MatMul().shard(((data, 1), (1, 1)))
        self.columns = Tensor(np.ones((H, weight.shape[-1]), np.float32))
        self.sum = ops.ReduceSum().shard((outputs.get(weight.kind, (data, 1)),))

    def construct(self, x: Tensor) -> Tensor:
        return self.sum(self.op(self.spread(x, self.columns), ops.cast(self.weight, ms.float32)))


class AllBranches(nn.Cell):
    """The sum of all."""

    def __init__(self, data: int, model: int) -> None:
        super().__init__(auto_prefix=False)
        self.branches = nn.CellList([Branch(weight, data, model) for weight in WEIGHTS], auto_prefix=False)

    def construct(self, x: Tensor) -> Tensor:
        total = self.branches[0](x)
        for branch in self.branches[1:]:
            total = total + branch(x)
        return total


def build(config: object, graph: str, rank: int, *, strategy_path: Path) -> Graph:
    data, model, shard_size, threshold = map(int, re.fullmatch(r"(\d+)x(\d+)-(-?\d+)-(\d+)", graph).groups())
    net = AllBranches(data, model)
    train = nn.TrainOneStepCell(net, nn.AdamWeightDecay(net.trainable_params())).set_train()
    cell = AutoParallel(train, parallel_mode="semi_auto")
    cell.dataset_strategy("full_batch")
    cell.hsdp(shard_size=shard_size, threshold=threshold)
    cell.save_param_strategy_file(str(strategy_path))
    return Graph(cell, (Tensor(np.zeros((TOKENS, H), np.float32)),))
