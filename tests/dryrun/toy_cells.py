"""Small cells over 8 ranks that the tests of the dry run compile, and builders that fail.

`build(config, graph, rank, strategy_path=...)` by the graph's name; imported in child processes only.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer
from mindspore.parallel.auto_parallel import AutoParallel

from mindgspo.errors import WeightsError

H = 64
ROWS = 8


@dataclass
class Graph:
    cell: nn.Cell
    inputs: tuple[Tensor, ...]


def weight(name: str, *shape: int, dtype: ms.Type = ms.float32) -> Parameter:
    return Parameter(initializer("zeros", shape, dtype), name=name)


class TwoMatMuls(nn.Cell):
    """Column-parallel, then row-parallel, over 2 x 4, in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_weight = weight("norm.weight", H, dtype=ms.bfloat16)
        self.up = weight("up.weight", 4 * H, H, dtype=ms.bfloat16)
        self.down = weight("down.weight", H, 4 * H, dtype=ms.bfloat16)
        self.norm = ops.auto_generate.RmsNorm(1e-6).shard(((2, 1), (1,)))
        self.up_matmul = ops.MatMul(transpose_b=True).shard(((2, 1), (4, 1)))
        self.down_matmul = ops.MatMul(transpose_b=True).shard(((2, 4), (1, 4)))
        self.cast = ops.Cast().shard(((2, 1),))
        self.sum = ops.ReduceSum().shard(((2, 1),))

    def construct(self, x: Tensor) -> Tensor:
        h = self.norm(self.cast(x, ms.bfloat16), self.norm_weight)[0]
        return self.sum(self.cast(self.down_matmul(self.up_matmul(h, self.up), self.down), ms.float32))


class Block(nn.Cell):
    """Column-parallel over 4."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.weight = weight(f"{name}.weight", H, H)
        self.bias = weight(f"{name}.bias", H)
        self.matmul = ops.MatMul(transpose_b=True).shard(((1, 1), (4, 1)))
        self.add = ops.Add().shard(((1, 4), (4,)))

    def construct(self, x: Tensor) -> Tensor:
        return self.add(self.matmul(x, self.weight), self.bias)


class TwoStages(nn.Cell):
    """A block and its bias on each of two pipeline stages."""

    @ms.lazy_inline
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Block("first"), Block("last")
        self.first.pipeline_stage, self.last.pipeline_stage = 0, 1
        self.sum = ops.ReduceSum().shard(((1, 1),))
        self.sum.add_prim_attr("pipeline_stage", 1)

    def construct(self, x: Tensor) -> Tensor:
        return self.sum(self.last(self.first(x)))


class Uncallable(TwoMatMuls):
    """Compiles; a call raises, or ends the process."""

    def __init__(self, is_deadly: bool) -> None:
        super().__init__()
        self.is_deadly = is_deadly

    def __call__(self, *inputs: Tensor) -> Tensor:
        if self.is_deadly:
            os.kill(os.getpid(), signal.SIGSEGV)
        raise RuntimeError("no such kernel\nin no library")


def auto_parallel(cell: nn.Cell, strategy_path: Path) -> AutoParallel:
    wrapped = AutoParallel(cell, parallel_mode="semi_auto")
    wrapped.dataset_strategy("full_batch")
    wrapped.save_param_strategy_file(str(strategy_path))
    return wrapped


def pipeline(strategy_path: Path) -> AutoParallel:
    from mindspore.nn.wrap.cell_wrapper import _TrainGradAccuStepCell

    net = TwoStages()
    cell = _TrainGradAccuStepCell(nn.PipelineCell(net, 2), nn.AdamWeightDecay(net.trainable_params()))
    wrapped = auto_parallel(cell.set_train(), strategy_path)
    wrapped.pipeline(stages=2, scheduler="1f1b")
    return wrapped


def build(config: object, graph: str, rank: int, *, strategy_path: Path) -> Graph:
    inputs = (Tensor(np.zeros((ROWS, H), np.float32)),)
    if graph in ("forward", "prefill"):
        return Graph(auto_parallel(TwoMatMuls(), strategy_path), inputs)
    if graph in ("pipeline", "train"):
        return Graph(pipeline(strategy_path), inputs)
    if graph in ("uncallable", "deadly"):
        return Graph(Uncallable(is_deadly=graph == "deadly"), inputs)
    if graph == "front end alone":
        if os.environ["MS_SIMULATION_LEVEL"] != "0":
            os.kill(os.getpid(), signal.SIGSEGV)
        return Graph(auto_parallel(TwoMatMuls(), strategy_path), inputs)
    if graph == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if graph == "sleep":
        strategy_path.with_name("pid").write_text(str(os.getpid()))
        time.sleep(600)
    if graph == "refuse":
        raise WeightsError(f"rank {rank}: no such weights\nnot even here")
    raise AssertionError(graph)
