"""A logical graph handed to MindSpore's compiler, with the plan by which to divide it.

What enters: a cell of full shapes whose ops carry strategies, and its placement. What leaves: a cell to be compiled or
called; each graph has its plan to itself, the process has none. Called by whoever makes a logical graph.
"""

from __future__ import annotations

from pathlib import Path

from mindspore import nn

from mindgspo.parallel.placement import LogicalPlacement
from mindgspo.parallel.runtime import current_device
from mindgspo.parallel.strategy.layouts import hsdp_call


def divided(cell: nn.Cell, place: LogicalPlacement, *, strategy_path: Path | None = None) -> nn.Cell:
    """The cell under `semi_auto`; the cell itself where the plan has one rank, and on CPU, where nothing divides it.

    strategy_path: file that the compiler writes its layouts of the parameters to, the optimizer's among them.
    """
    from mindspore.parallel.auto_parallel import AutoParallel

    plan = place.divided
    if plan.world_size == 1 or current_device() != "Ascend":
        return cell
    graph = AutoParallel(cell, parallel_mode="semi_auto")
    # Every rank is fed the whole batch. The default would take each rank's input for a part of it.
    graph.dataset_strategy("full_batch")
    # Compiling gives every parameter the shape of this rank's slice; whoever loads weights fills it.
    graph.no_init_parameters_in_compile()
    if plan.pipeline_stage > 1:
        graph.pipeline(stages=plan.pipeline_stage, scheduler="1f1b")
    shards = hsdp_call(plan)
    if shards is not None:
        graph.hsdp(shard_size=shards.shard_size, threshold=shards.threshold, optimizer_level="level1")
    if strategy_path is not None:
        graph.save_param_strategy_file(str(strategy_path))
        graph.disable_strategy_file_only_for_trainable_params()
    return graph


def set_mode(graph: nn.Cell, model: nn.Cell, *, training: bool) -> None:
    """Before a graph is compiled or called: the flags of the model in it, which other graphs share, are for training or
    not. The compiler takes a pipeline's graph for a training one wherever it finds that flag, and refuses to score."""
    if graph.training != training or model.training != training:
        graph.set_train(training)
