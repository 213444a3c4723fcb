"""Where one process stands in one plan: the plan's ranks, its stage, replica and slice, how much of a layer it holds,
and the words in which layers say how an operator's inputs are split. Pure Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from math import prod
from typing import TYPE_CHECKING

from mindgspo.config.plan import ParallelPlan
from mindgspo.errors import ConfigError

Ranks = tuple[int, ...]


def device_coordinate(position: int, device_matrix: tuple[int, ...], axis: int) -> int:
    """Coordinate on one axis of the device at `position` in row-major order; axes are counted from the right end, as in
    MindSpore's tensor maps (0 is the last axis)."""
    first = len(device_matrix) - 1 - axis
    return position // prod(device_matrix[first + 1 :]) % device_matrix[first]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """Where a rank stands: pipeline stage, data-parallel replica, model-parallel slice; each from 0."""

    stage: int
    data: int
    model: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGrid:
    """All ranks of one plan as a grid [stage, data, model].

    Example: in 1 x 4 x 2 (data x model x pipeline) ranks 0 to 3 are stage 0, 4 to 7 stage 1; rank 6 is model slice 2.
    """

    data_parallel: int
    model_parallel: int
    pipeline_stage: int

    @classmethod
    def of(cls, plan: ParallelPlan) -> RankGrid:
        """The grid of a plan. Raises ConfigError for an axis that has no place in it."""
        if plan.context_parallel != 1:
            raise ConfigError(
                f"context_parallel: {plan.context_parallel} has no layout in this version; the only legal value is 1"
            )
        return cls(
            data_parallel=plan.data_parallel, model_parallel=plan.model_parallel, pipeline_stage=plan.pipeline_stage
        )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.data_parallel * self.model_parallel * self.pipeline_stage

    @property
    def stage_size(self) -> int:
        """Ranks per pipeline stage."""
        return self.data_parallel * self.model_parallel

    def coordinates(self, rank: int) -> Coordinates:
        """Where a rank stands."""
        assert 0 <= rank < self.world_size, f"rank {rank} of {self.world_size}"
        matrix = (self.pipeline_stage, self.data_parallel, self.model_parallel)
        return Coordinates(
            stage=device_coordinate(rank, matrix, 2),
            data=device_coordinate(rank, matrix, 1),
            model=device_coordinate(rank, matrix, 0),
        )

    def rank(self, *, stage: int, data: int, model: int) -> int:
        """The rank that stands there."""
        assert 0 <= stage < self.pipeline_stage, f"stage {stage} of {self.pipeline_stage}"
        assert 0 <= data < self.data_parallel, f"replica {data} of {self.data_parallel}"
        assert 0 <= model < self.model_parallel, f"model slice {model} of {self.model_parallel}"
        return (stage * self.data_parallel + data) * self.model_parallel + model

    def stage_ranks(self, stage: int) -> Ranks:
        """All ranks of one pipeline stage, ascending."""
        first = self.rank(stage=stage, data=0, model=0)
        return tuple(range(first, first + self.stage_size))

    def model_group(self, rank: int) -> Ranks:
        """The ranks that hold one replica of the rank's stage together: sums of row-parallel layers run over them."""
        at = self.coordinates(rank)
        return tuple(self.rank(stage=at.stage, data=at.data, model=model) for model in range(self.model_parallel))

    def data_group(self, rank: int) -> Ranks:
        """The ranks that hold the same weights for other samples: gradients are summed over them."""
        at = self.coordinates(rank)
        return tuple(self.rank(stage=at.stage, data=data, model=at.model) for data in range(self.data_parallel))

    def expert_group(self, rank: int, expert_parallel: int) -> Ranks:
        """The ranks of consecutive replicas that have all experts together, at the rank's slice of each."""
        at = self.coordinates(rank)
        first = at.data // expert_parallel * expert_parallel
        replicas = range(first, first + expert_parallel)
        return tuple(self.rank(stage=at.stage, data=data, model=at.model) for data in replicas)

    def pipeline_group(self, rank: int) -> Ranks:
        """The ranks that a sample passes through, first stage to last, at the rank's replica and slice."""
        at = self.coordinates(rank)
        return tuple(self.rank(stage=stage, data=at.data, model=at.model) for stage in range(self.pipeline_stage))

    def model_groups(self) -> tuple[Ranks, ...]:
        """Every model-parallel group, in order of its first rank."""
        return self._groups(self.model_group)

    def data_groups(self) -> tuple[Ranks, ...]:
        """Every data-parallel group, in order of its first rank."""
        return self._groups(self.data_group)

    def pipeline_groups(self) -> tuple[Ranks, ...]:
        """Every pipeline group, in order of its first rank."""
        return self._groups(self.pipeline_group)

    def _groups(self, group_of: Callable[[int], Ranks]) -> tuple[Ranks, ...]:
        return tuple(dict.fromkeys(group_of(rank) for rank in range(self.world_size)))


class Axis(Enum):
    """What splits one axis of an op's input."""

    WHOLE = auto()
    """Nothing."""
    DATA = auto()
    """data_parallel: rows of the batch, or their flattened tokens."""
    SEQUENCE = auto()
    """Flattened tokens between the layers' tensor-parallel regions: data_parallel, and model_parallel as well under
    use_seq_parallel."""
    MODEL = auto()
    """model_parallel: heads, features, vocabulary."""
    KEY_VALUE = auto()
    """Key/value heads: model_parallel, or the heads where they are fewer than that."""
    EXPERT = auto()
    """Experts: expert_parallel, which takes consecutive replicas of data_parallel."""


WHOLE, DATA, SEQUENCE, MODEL, KEY_VALUE, EXPERT = Axis
Axes = tuple[Axis, ...]


def parts_of(plan: ParallelPlan, num_kv_heads: int) -> Mapping[Axis, int]:
    """Into how many parts each word cuts an axis under a plan."""
    data, model = plan.data_parallel, plan.model_parallel
    return {
        WHOLE: 1,
        DATA: data,
        SEQUENCE: data * model if plan.use_seq_parallel else data,
        MODEL: model,
        KEY_VALUE: min(num_kv_heads, model),
        EXPERT: plan.expert_parallel,
    }


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
        """Stage, replica and slice of this rank."""
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
    def is_first_stage(self) -> bool:
        """Whether the input table lives here."""
        return self.at.stage == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether the last norm and the output table live here."""
        return self.at.stage == self.plan.pipeline_stage - 1

    @property
    def is_speaker(self) -> bool:
        """Whether this rank speaks for its replica: the first slice of the last stage, where log-probs come out."""
        return self.is_last_stage and self.at.model == 0

    def speakers(self) -> Ranks:
        """The rank that speaks for each data-parallel replica, in order of the replicas."""
        grid = self.grid
        last = grid.pipeline_stage - 1
        return tuple(grid.rank(stage=last, data=data, model=0) for data in range(grid.data_parallel))

    def own_layers(self, num_layers: int) -> range:
        """The decoder layers of this rank's stage."""
        each = num_layers // self.plan.pipeline_stage
        return range(self.at.stage * each, (self.at.stage + 1) * each)

    def share(self, features: int, *, units: int | None = None) -> int:
        """How many of `features` this rank computes in a layer split under model_parallel.

        units: indivisible pieces they come in (key/value heads). Where these are fewer than the ranks, several ranks
        compute the same one.
        """
        parts = self.model_parallel if units is None else min(units, self.model_parallel)
        assert features % parts == 0, f"{features} features over {parts} slices"
        return features // parts

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
            layer.pipeline_stage = number * stages // count
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
