"""The train cell of examples/mindrlhf around a small policy that is split as MindRLHF splits its own.

`build(config, graph, rank)` by the graph's name; imported in child processes only, with the
example's folder on the search path.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import mindspore as ms
import numpy as np
from gspo_model import GSPOModelTrain
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer
from mindspore.nn.wrap.cell_wrapper import _TrainGradAccuStepCell, _VirtualDatasetCell
from mindspore.parallel.auto_parallel import AutoParallel

V, H, LENGTH, ROWS, PACKED = 64, 32, 128, 8, 3


@dataclass
class Graph:
    cell: nn.Cell
    inputs: tuple[Tensor, ...]


class InputTable(nn.Cell):
    def __init__(self, data: int) -> None:
        super().__init__()
        self.weight = Parameter(initializer("zeros", (V, H)), name="weight")
        self.gather = ops.Gather().shard(((1, 1), (data, 1)))

    def construct(self, ids: Tensor) -> Tensor:
        return self.gather(self.weight, ids, 0)


class LogProbs(nn.Cell):
    """Output table and log-probs, with the strategies of MindRLHF's `CausalLMHybrid`."""

    def __init__(self, data: int, model: int) -> None:
        super().__init__()
        self.weight = Parameter(initializer("zeros", (V, H)), name="weight")
        self.matmul = ops.MatMul(transpose_b=True).shard(((data, 1), (model, 1)))
        self.reshape = ops.Reshape()
        self.log_softmax = ops.LogSoftmax().shard(((data * model, 1),))
        self.pick = ops.GatherD().shard(((data * model, 1), (data * model, 1)))
        self.squeeze = ops.Squeeze(axis=-1).shard(((1, 1),))

    def construct(self, hidden: Tensor, samples: Tensor) -> Tensor:
        num_rows, width = samples.shape
        all_logp = self.log_softmax(self.matmul(self.reshape(hidden, (num_rows * width, H)), self.weight))
        logp = self.squeeze(self.pick(all_logp, -1, self.reshape(samples, (num_rows * width, 1))))
        return self.reshape(logp, (num_rows, width))


class SmallPolicy(nn.Cell):
    """Input table on the first stage, output table on the last."""

    def __init__(self, data: int, model: int, stages: int) -> None:
        super().__init__()
        self.dp = data
        self.model, self.lm_head = InputTable(data), LogProbs(data, model)
        self.model.pipeline_stage, self.lm_head.pipeline_stage = 0, stages - 1
        for name in ("old_log_ratio", "kl_loss", "actor_loss", "clipfrac"):
            setattr(self, name, Parameter(Tensor(0, ms.float32), name=name, requires_grad=False))

    def construct(
        self,
        input_ids,
        input_position,
        batch_valid_length,
        slot_mapping,
        is_first_iteration,
        use_past,
        samples,
        actual_sequence_length,
        return_full_logit,
        is_ref,
    ):
        hidden = ops.depend(self.model(input_ids), actual_sequence_length)  # where attention would read it
        return self.lm_head(hidden, samples)


def build(config: object, graph: str, rank: int) -> Graph:
    """graph: train (2 x 4), monitored (the same), pipeline (2 stages of 2 x 2, two micro-batches)."""
    data, model, stages = (2, 2, 2) if graph == "pipeline" else (2, 4, 1)
    settings = SimpleNamespace(
        beta=0.1, pack_num=PACKED, seq_length=LENGTH, enable_oldpolicy=True, enable_full_monitor=graph == "monitored"
    )
    ms.set_auto_parallel_context(pipeline_stages=stages)  # as MindRLHF's train worker does before it makes its cells
    net = GSPOModelTrain(SimpleNamespace(rl_config=settings), SmallPolicy(data, model, stages))
    ms.set_auto_parallel_context(pipeline_stages=1)  # the graph gets its own, by AutoParallel
    is_shared = hasattr(net.grpo_model_train, "cell_init_args")  # what lazy_inline leaves on a cell
    assert is_shared == (stages > 1), "one sub-graph of all micro-batches, where there are stages"
    if stages == 1:
        net = _VirtualDatasetCell(net)
        step = nn.TrainOneStepCell(net, nn.AdamWeightDecay(net.trainable_params()))
    else:
        net = _VirtualDatasetCell(nn.PipelineCell(net, 2))
        step = _TrainGradAccuStepCell(net, nn.AdamWeightDecay(net.trainable_params()))
    wrapped = AutoParallel(step.set_train(), parallel_mode="semi_auto")
    wrapped.dataset_strategy("full_batch")
    if stages > 1:
        wrapped.pipeline(stages=stages, scheduler="1f1b")
    whole, packed = (ROWS, LENGTH), (ROWS, PACKED)
    shapes = ((ROWS, LENGTH + 1), whole, whole, whole, packed, whole, packed, whole)
    kinds = (np.int32, np.int32, np.float32, np.float32, np.int32, np.int32, np.int32, np.float32)
    return Graph(wrapped, tuple(Tensor(np.zeros(shape, kind)) for shape, kind in zip(shapes, kinds, strict=True)))
