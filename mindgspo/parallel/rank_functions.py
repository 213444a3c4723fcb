"""Functions of tensors as single ops of a graph that MindSpore's compiler divides.

What enters: a function. What leaves: a `Morph`, one op to the pass that divides the graph; after that it becomes the
function's own ops. Called by placements and by the update's graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mindspore import Tensor
from mindspore.ops import Morph, Primitive
from mindspore.parallel import Layout

from mindgspo.config.plan import ParallelPlan
from mindgspo.parallel.splits import DATA, EXPERT, MODEL, WHOLE, Axes, Axis

# How the ranks of a stage are arranged for the layouts below, outermost first.
_RANK_AXES = ("replicas", "experts", "slices")
_SPLIT_BY: Mapping[Axis, str | tuple[str, str]] = {
    WHOLE: "None",
    DATA: ("replicas", "experts"),
    MODEL: "slices",
    EXPERT: "experts",
}


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
    experts = plan.expert_parallel
    ranks = Layout((plan.data_parallel // experts, experts, plan.model_parallel), _RANK_AXES)
    layouts = tuple(ranks(*(_SPLIT_BY[axis] for axis in axes)) for axes in inputs)
    return op.shard(in_strategy=layouts, out_strategy=layouts[:1])
