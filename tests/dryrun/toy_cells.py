"""Small cells over 8 ranks that the tests of the dry run compile, and builders that fail.

`build(config, graph, rank)` by the graph's name; imported in child processes only.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

from mindgspo.dryrun.graphs import CompilableGraph
from mindgspo.errors import WeightsError
from mindgspo.parallel.collectives.graph import all_reduce

H = 64
ROWS = 4


def weight(name: str, *shape: int, dtype: ms.Type = ms.float32) -> Parameter:
    return Parameter(initializer("zeros", shape, dtype), name=name)


class TwoMatMuls(nn.Cell):
    """A rank of 2 x 4: its quarter of a column-parallel product, then of a row-parallel one, in bfloat16."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.norm_weight = weight("norm.weight", H, dtype=ms.bfloat16)
        self.up = weight("up.weight", H, H, dtype=ms.bfloat16)
        self.down = weight("down.weight", H, H, dtype=ms.bfloat16)
        self.norm, self.matmul = ops.auto_generate.RmsNorm(1e-6), ops.MatMul(transpose_b=True)
        first = rank // 4 * 4
        self.sum_of_slices = all_reduce(tuple(range(first, first + 4)))
        self.sum_of_replicas = all_reduce((rank % 4, rank % 4 + 4))

    def construct(self, x: Tensor) -> Tensor:
        h = self.norm(ops.cast(x, ms.bfloat16), self.norm_weight)[0]
        h = self.sum_of_slices(self.matmul(self.matmul(h, self.up), self.down))
        return self.sum_of_replicas(ops.cast(h, ms.float32).sum().reshape(1))


class Uncallable(TwoMatMuls):
    """Compiles; a call raises, or ends the process."""

    def __init__(self, is_deadly: bool) -> None:
        super().__init__(0)
        self.is_deadly = is_deadly

    def compile_and_run(self, *inputs: Tensor) -> Tensor:
        if self.is_deadly:
            os.kill(os.getpid(), signal.SIGSEGV)
        raise RuntimeError("no such kernel\nin no library")


class NoSuchShape(nn.Cell):
    """Does not compile."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = weight("layer.bias", 60)

    def construct(self, x: Tensor) -> Tensor:
        return x + self.bias


def build(config: object, graph: str, rank: int) -> CompilableGraph:
    inputs = (Tensor(np.zeros((ROWS, H), np.float32)),)
    if graph in ("forward", "prefill"):
        return CompilableGraph(cell=TwoMatMuls(rank), inputs=inputs)
    if graph == "train":
        net = TwoMatMuls(rank)
        moments = (weight("moments", H, H), net.up)
        return CompilableGraph(cell=net, inputs=inputs, resident=moments)
    if graph in ("uncallable", "deadly"):
        return CompilableGraph(cell=Uncallable(is_deadly=graph == "deadly"), inputs=inputs)
    if graph == "front end alone":
        if os.environ["MS_SIMULATION_LEVEL"] != "0":
            os.kill(os.getpid(), signal.SIGSEGV)
        return CompilableGraph(cell=TwoMatMuls(rank), inputs=inputs)
    if graph in ("mistake", "sum"):
        return CompilableGraph(cell=NoSuchShape(), inputs=inputs)
    if graph == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if graph == "sleep":
        Path(os.environ["TOY_PID"]).write_text(str(os.getpid()))
        time.sleep(600)
    if graph == "refuse":
        raise WeightsError(f"rank {rank}: no such weights\nnot even here")
    raise AssertionError(graph)
