"""Cells that MindSpore refuses to compile for 8 ranks, one mistake each: `build(config, mistake, rank, ...)`.

What it says about them is stored in tests/unit/dryrun/refusals.json, paths shortened.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from toy_cells import Graph, TwoStages, auto_parallel

H = 64


def _zeros(*shape: int, dtype: type = np.float32) -> Tensor:
    return Tensor(np.zeros(shape, dtype))


def _weight(name: str, *shape: int, dtype: type = np.float32) -> Parameter:
    return Parameter(_zeros(*shape, dtype=dtype), name=name)


class MatMul(nn.Cell):
    """One matrix product with this strategy; rows x columns of the weight."""

    def __init__(self, strategy: tuple, rows: int = H, columns: int = H) -> None:
        super().__init__()
        self.weight = _weight("layer.weight", rows, columns)
        self.matmul = ops.MatMul(transpose_b=True).shard(strategy)

    def construct(self, x: Tensor) -> Tensor:
        return self.matmul(x, self.weight)


class SplitOfShardedAxis(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = _weight("layer.weight", H, H)
        self.matmul = ops.MatMul(transpose_b=True).shard(((2, 1), (4, 1)))
        self.split = ops.auto_generate.SplitWithSize().shard(((2, 4),))

    def construct(self, x: Tensor) -> Tensor:
        left, right = self.split(self.matmul(x, self.weight), (32, 32), 1)
        return left + right


class SequenceParallelNorm(nn.Cell):
    """Rows over all 8 ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = _weight("norm.weight", H)
        self.norm = ops.RmsNorm(1e-6).shard(((8, 1), (1,)))

    def construct(self, x: Tensor) -> Tensor:
        return self.norm(x, self.weight)[0]


class Attention(nn.Cell):
    """FlashAttentionScore in layout BSH: 6 heads over 4 ranks."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.flash = ops.operations.nn_ops.FlashAttentionScore(head_num=heads, input_layout="BSH", scale_value=0.1)
        self.flash.shard(((2, 1, 4), (2, 1, 4), (2, 1, 4)))

    def construct(self, x: Tensor) -> Tensor:
        return self.flash(x, x, x, None, None, None, None)[3]


class Cache(nn.Cell):
    """ReshapeAndCache with the tokens over 2 ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.key = _weight("cache.key", 4, 16, 4, 16, dtype=np.float16)
        self.value = _weight("cache.value", 4, 16, 4, 16, dtype=np.float16)
        self.write = ops.auto_generate.ReshapeAndCache().shard(((2, 1, 4), (2, 1, 4), (1, 1, 4, 1), (1, 1, 4, 1), (2,)))

    def construct(self, x: Tensor, slots: Tensor) -> Tensor:
        return self.write(x, x, self.key, self.value, slots)


class Embedding(nn.Cell):
    """A table of 130 rows over 4 ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.table = _weight("embedding.weight", 130, H)
        self.gather = ops.Gather().shard(((4, 1), (2, 1)))

    def construct(self, ids: Tensor) -> Tensor:
        return self.gather(self.table, ids, 0)


class ShapeMismatch(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.bias = _weight("layer.bias", 60)

    def construct(self, x: Tensor) -> Tensor:
        return x + self.bias


class NoSuchName(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return x + self.absent


def _train(net: nn.Cell, micro_batches: int) -> nn.Cell:
    from mindspore.nn.wrap.cell_wrapper import _TrainGradAccuStepCell

    cell = _TrainGradAccuStepCell(nn.PipelineCell(net, micro_batches), nn.AdamWeightDecay(net.trainable_params()))
    return cell.set_train()


def _plain_step(net: nn.Cell) -> nn.Cell:
    return nn.TrainOneStepCell(net, nn.AdamWeightDecay(net.trainable_params())).set_train()


_X = (8, H)
_MISTAKES: dict[str, tuple[Callable[[], nn.Cell], tuple[Tensor, ...]]] = {
    "rows_do_not_divide": (lambda: MatMul(((2, 1), (4, 1)), rows=66), (_zeros(*_X),)),
    "batch_does_not_divide": (lambda: MatMul(((2, 1), (4, 1))), (_zeros(7, H),)),
    "inner_axes_differ": (lambda: MatMul(((2, 4), (1, 2))), (_zeros(*_X),)),
    "strategy_too_short": (lambda: MatMul(((2,), (4, 1))), (_zeros(*_X),)),
    "one_strategy_for_two": (lambda: MatMul(((2, 1),)), (_zeros(*_X),)),
    "more_than_ranks": (lambda: MatMul(((4, 1), (4, 1))), (_zeros(*_X),)),
    "three_ways": (lambda: MatMul(((1, 1), (3, 1)), rows=66), (_zeros(*_X),)),
    "split_of_sharded_axis": (SplitOfShardedAxis, (_zeros(*_X),)),
    "rows_over_all_ranks": (SequenceParallelNorm, (_zeros(12, H),)),
    "heads_do_not_divide": (lambda: Attention(6), (_zeros(2, 16, 96),)),
    "cache_over_data_parallel": (Cache, (_zeros(2, 1, H, dtype=np.float16), _zeros(2, dtype=np.int32))),
    "table_does_not_divide": (Embedding, (_zeros(8, 8, dtype=np.int32),)),
    "shape_mismatch": (ShapeMismatch, (_zeros(*_X),)),
    "no_such_name": (NoSuchName, (_zeros(*_X),)),
    "few_micro_batches": (lambda: _train(TwoStages(), 1), (_zeros(*_X),)),
    "micro_batches_do_not_divide": (lambda: _train(TwoStages(), 3), (_zeros(*_X),)),
    "stages_do_not_divide": (lambda: _train(TwoStages(), 4), (_zeros(*_X),)),
    "plain_step_over_stages": (lambda: _plain_step(TwoStages()), (_zeros(*_X),)),
}
_NUM_STAGES = {
    "few_micro_batches": 2, "micro_batches_do_not_divide": 2, "stages_do_not_divide": 3,
    "plain_step_over_stages": 2,
}  # fmt: skip


def build(config: object, graph: str, rank: int, *, strategy_path: Path) -> Graph:
    make, inputs = _MISTAKES[graph]
    wrapped = auto_parallel(make(), strategy_path)
    if graph in _NUM_STAGES:
        wrapped.pipeline(stages=_NUM_STAGES[graph], scheduler="1f1b")
    return Graph(wrapped, inputs)
