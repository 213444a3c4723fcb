"""Where one process stands in one plan: its stage, replica, part of the sequences and slice, and how much of a layer it
holds. Pure Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING

from mindgspo.config.plan import ParallelPlan
from mindgspo.parallel.ranks import (
    Axes,
    Axis,
    Coordinates,
    RankGrid,
    Ranks,
    layers_of_stage,
    parts_of,
    stage_of_layer,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mindspore import Tensor, nn
    from mindspore.ops import Primitive


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One rank of one plan.

    Example: rank 6 of 1 x 4 x 2 (data x model x pipeline) is slice 2 of the last stage; of 28 layers it has 14 to 27.
    """

    plan: ParallelPlan
    rank: int

    @property
    def grid(self) -> RankGrid:
        """All ranks of the plan."""
        return RankGrid.of(self.plan)

    @property
    def at(self) -> Coordinates:
        """Stage, replica, part of the sequences and slice of this rank."""
        return self.grid.coordinates(self.rank)

    @property
    def model_parallel(self) -> int:
        """Ranks that split every matrix of a replica's stage."""
        return self.plan.model_parallel

    @property
    def model_ranks(self) -> Ranks:
        """They, in order of their slices; this rank is number `at.model`."""
        return self.grid.model_group(self.rank)

    @property
    def context_ranks(self) -> Ranks:
        """The ranks that have the parts of the same sequences, in order; this rank is number `at.context`."""
        return self.grid.context_group(self.rank)

    @property
    def is_first_stage(self) -> bool:
        """Whether the input table lives here."""
        return self.at.stage == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether the last norm and the output table live here."""
        return self.at.stage == self.plan.pipeline_stage - 1

    @property
    def is_speaker(self) -> bool:
        """Whether this rank speaks for its replica: its first rank on the last stage, where log-probs come out."""
        return self.is_last_stage and self.at.context == self.at.model == 0

    def speakers(self) -> Ranks:
        """The rank that speaks for each data-parallel replica, in order of the replicas."""
        grid = self.grid
        last = grid.pipeline_stage - 1
        return tuple(grid.rank(stage=last, data=data, model=0) for data in range(grid.data_parallel))

    def own_layers(self, num_layers: int) -> range:
        """The decoder layers of this rank's stage."""
        return layers_of_stage(self.at.stage, stages=self.plan.pipeline_stage, num_layers=num_layers)

    def share(self, features: int, *, units: int | None = None) -> int:
        """How many of `features` this rank computes in a layer split under model_parallel.

        units: indivisible pieces they come in (key/value heads). Where these are fewer than the ranks, several ranks
        compute the same one.
        """
        parts = self.model_parallel if units is None else min(units, self.model_parallel)
        assert features % parts == 0, f"{features} features over {parts} slices"
        return features // parts

    @property
    def expert_ranks(self) -> Ranks:
        """The ranks that have all experts together, this one among them."""
        return self.grid.block(self.rank, self.plan.expert_block)

    def own_experts(self, num_experts: int) -> range:
        """The experts of which this rank has all features or a slice."""
        each = num_experts // self.plan.expert_parallel
        number = self.rank % self.plan.expert_block // self.plan.expert_slices
        return range(number * each, (number + 1) * each)

    @property
    def graph_ranks(self) -> Ranks:
        """The ranks that talk to each other inside this rank's graphs: those of its replica's stage, or of several
        replicas that have all experts together."""
        plan = self.plan
        return self.grid.block(self.rank, lcm(plan.context_parallel * plan.model_parallel, plan.expert_block))

    @property
    def recompute(self) -> str:
        """What the backward pass computes again: see `ParallelPlan.recompute`."""
        return self.plan.recompute

    @property
    def is_embedding_whole(self) -> bool:
        """Whether every rank of a first stage has the whole input table."""
        return self.plan.vocab_emb_dp or self.plan.model_parallel == 1

    @property
    def is_divided(self) -> bool:
        """Whether the compiler divides this process's graphs, and so decides on its slices: no."""
        return False

    @property
    def held(self) -> Placement:
        """Where the slices that this process really holds stand: here."""
        return self

    def parts(self, axis: Axis) -> int:
        """Into how many parts the compiler cuts an axis: one, where each process holds its own slices."""
        return 1

    def assign_stages(self, model: nn.Cell) -> None:
        """Tell the compiler on which pipeline stage each part of a model (embed_tokens, layers, norm) belongs; nothing
        to do where a process builds the layers of its own stage alone."""

    def split(self, op: Primitive, *inputs: Axes, output: Axes | None = None) -> Primitive:
        """The op as it belongs into a graph of this path: as it is, where each process holds its own slices."""
        return op

    def split_function(
        self, function: Callable[..., Tensor], *inputs: Axes, gradient: Callable[..., tuple] | None = None
    ) -> Callable[..., Tensor]:
        """A function of tensors written for one rank's slices, as it belongs into a graph of this path: as it is."""
        assert gradient is None, "a gradient of its own is for ops of an auto_parallel graph"
        return function


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoParallelPlacement(Placement):
    """The auto_parallel path: one graph of full shapes for all ranks, which MindSpore's compiler divides by strategies.

    To the layers it is a process that holds everything; `plan` and `rank` are a single process's. Where nothing divides
    the graph (one process on CPU) it computes what `ALONE` computes.
    """

    divided: ParallelPlan
    """The plan that the compiler is to realise."""
    num_kv_heads: int
    held_rank: int | None = None
    """Number of this process among the ranks of that plan; None where nothing divides the graph."""

    @property
    def is_divided(self) -> bool:
        return self.held_rank is not None

    @property
    def held(self) -> Placement:
        """Where the slices stand that compiling leaves this process with."""
        if self.held_rank is None:
            return ALONE
        return Placement(plan=self.divided, rank=self.held_rank)

    @property
    def recompute(self) -> str:
        return self.divided.recompute

    @property
    def is_embedding_whole(self) -> bool:
        return self.divided.vocab_emb_dp or self.divided.model_parallel == 1

    def parts(self, axis: Axis) -> int:
        return parts_of(self.divided, self.num_kv_heads)[axis]

    def assign_stages(self, model: nn.Cell) -> None:
        stages, count = self.divided.pipeline_stage, len(model.layers)
        if stages == 1:
            return
        model.embed_tokens.pipeline_stage = 0
        for number, layer in enumerate(model.layers):
            layer.pipeline_stage = stage_of_layer(number, stages=stages, num_layers=count)
        model.norm.pipeline_stage = stages - 1

    def split(self, op: Primitive, *inputs: Axes, output: Axes | None = None) -> Primitive:
        """The op under its strategy, one word per axis of each input; `output` where its result may lie in more than
        one way (a sum over ranks that leaves each its share instead of all of it)."""
        parts = parts_of(self.divided, self.num_kv_heads)
        strategy = tuple(tuple(parts[axis] for axis in axes) for axes in inputs)
        if output is None:
            return op.shard(strategy)
        return op.shard(strategy, (tuple(parts[axis] for axis in output),))

    def split_function(
        self, function: Callable[..., Tensor], *inputs: Axes, gradient: Callable[..., tuple] | None = None
    ) -> Callable[..., Tensor]:
        """The function as one op of the divided graph, called with each rank's slices and calling the collectives
        itself. It returns what is as large as its first input, and lies as that one does. gradient: see
        `rank_functions.whole_function`."""
        from mindgspo.parallel.auto_parallel import rank_function, whole_function

        if not self.is_divided or self.divided.world_size == 1:
            return function if gradient is None else whole_function(function, gradient)
        return rank_function(function, self.divided, inputs, gradient)


def auto_parallel_placement(plan: ParallelPlan, num_kv_heads: int, *, rank: int | None = None) -> AutoParallelPlacement:
    """Where a process stands that describes a whole plan to the compiler. rank: of that plan; None where nothing
    divides the graph (one process on CPU)."""
    return AutoParallelPlacement(plan=ParallelPlan(), rank=0, divided=plan, num_kv_heads=num_kv_heads, held_rank=rank)


ALONE = Placement(plan=ParallelPlan(), rank=0)
"""The only process of the default plan: it holds everything."""
