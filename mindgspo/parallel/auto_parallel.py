"""Graphs of full shapes that MindSpore's compiler divides over the ranks of a plan, and functions of tensors that are
single operators of such graphs. Each graph has its plan to itself, the process has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mindspore import Tensor, nn
from mindspore.ops import Morph, Primitive
from mindspore.parallel import Layout

from mindgspo.config.plan import ParallelPlan
from mindgspo.parallel.ranks import DATA, EXPERT, EXPERT_FEATURES, MODEL, REPLICA, SEQUENCE, WHOLE, Axes, Axis
from mindgspo.parallel.runtime import current_device
from mindgspo.parallel.strategy.layouts import hsdp_call

if TYPE_CHECKING:
    from mindgspo.parallel.placement import AutoParallelPlacement


def divided(cell: nn.Cell, place: AutoParallelPlacement, *, strategy_path: Path | None = None) -> nn.Cell:
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


# How the ranks of a stage are arranged for the layouts below, outermost first.
_RANK_AXES = ("outer", "middle", "inner")
_Arrangement = tuple[tuple[int, int, int], Mapping[Axis, tuple[str, ...]]]
"""Sizes of the axes, and by which of them each word splits."""


def _arrangement_of_sequences(plan: ParallelPlan) -> _Arrangement:
    """For functions that see whole sequences: data_parallel, context_parallel, model_parallel."""
    outer, middle, inner = _RANK_AXES
    return (plan.data_parallel, plan.context_parallel, plan.model_parallel), {
        WHOLE: (),
        REPLICA: (outer,),
        DATA: (outer, middle),
        MODEL: (inner,),
    }


def _arrangement(plan: ParallelPlan) -> _Arrangement:
    """For other functions. A block of ranks that has all experts is a run of model_parallel groups, the inner two axes,
    or lies within one and is the inner axis."""
    block, slices = plan.expert_block, plan.model_parallel
    narrow, wide = sorted((block, slices))
    sizes = (plan.token_parts * slices // wide, wide // narrow, narrow)
    outer, middle, inner = _RANK_AXES
    data = (outer, middle) if block > slices else (outer,)
    experts: tuple[str, ...] = (middle, inner) if block > slices else (inner,)
    features: tuple[str, ...] = ()
    if plan.expert_slices > 1:
        experts, features = (middle,), (inner,)
    return sizes, {
        WHOLE: (),
        DATA: data,
        SEQUENCE: _RANK_AXES if plan.use_seq_parallel else data,
        MODEL: (middle, inner) if block < slices else (inner,),
        EXPERT: experts,
        EXPERT_FEATURES: features,
    }


def _entry(axes: tuple[str, ...]) -> str | tuple[str, ...]:
    """As a layout of MindSpore spells what splits one axis of a tensor."""
    if len(axes) > 1:
        return axes
    return axes[0] if axes else "None"


def pure(morph: Primitive) -> Primitive:
    """A `Morph` that no longer claims side effects. With them it has inputs that MindSpore 2.10 cannot lay out, and on
    later pipeline stages fails to find. What is inside has none: collectives are ordered by their data."""
    for effect in ("side_effect_backprop", "side_effect_mem", "side_effect_io"):
        morph.add_prim_attr(effect, False)
    return morph


def whole_function(function: Callable[..., Tensor], gradient: Callable[..., tuple] | None = None) -> Primitive:
    """The function as an op of a graph that nothing divides. It returns what is as large as its first input.

    gradient: called as gradient(*inputs, output, output's gradient); None: that of the function's own ops.
    """

    def like_first(*infos):
        return infos[0]

    return pure(Morph(function, like_first, like_first, gradient))


def rank_function(
    function: Callable[..., Tensor],
    plan: ParallelPlan,
    inputs: tuple[Axes, ...],
    gradient: Callable[..., tuple] | None = None,
) -> Primitive:
    """The function as an op that is called with each rank's slices and calls the collectives itself.

    inputs: how each input is cut. It returns what is as large as its first input, and lies as that one does. Gradients
    follow the compiler's rule: copies on several ranks add up to the whole, as collectives' own derivatives have it.
    gradient: as in `whole_function`.
    """
    op = whole_function(function, gradient)
    op.add_prim_attr("self_define_shard", True)
    sees_sequences = any(REPLICA in axes for axes in inputs)
    sizes, split_by = _arrangement_of_sequences(plan) if sees_sequences else _arrangement(plan)
    ranks = Layout(sizes, _RANK_AXES)
    layouts = tuple(ranks(*(_entry(split_by[axis]) for axis in axes)) for axes in inputs)
    return op.shard(in_strategy=layouts, out_strategy=layouts[:1])
