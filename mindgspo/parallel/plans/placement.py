"""Ranks of a plan: the grid of stages, replicas, sequence parts and slices, and the placement of one rank in it.

Pure Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm, prod

from mindgspo.config.plan import ParallelPlan

Ranks = tuple[int, ...]


def device_coordinate(position: int, device_matrix: tuple[int, ...], axis: int) -> int:
    """Return the coordinate on one axis of the device at `position` in row-major order.

    Axes are counted from the right, as in MindSpore's tensor maps: 0 is the last axis.
    """
    first = len(device_matrix) - 1 - axis
    return position // prod(device_matrix[first + 1 :]) % device_matrix[first]


def layers_of_stage(stage: int, *, stages: int, num_layers: int) -> range:
    """Return the decoder layers of a pipeline stage: equal runs, or in the last stages one layer fewer.

    The last stages get fewer because the very last one also has the output table.

    Example: 7 layers over 3 stages are 3, 2 and 2.
    """
    each, more = divmod(num_layers, stages)
    return range(stage * each + min(stage, more), (stage + 1) * each + min(stage + 1, more))


def stage_of_layer(layer: int, *, stages: int, num_layers: int) -> int:
    """Return the pipeline stage of a decoder layer."""
    return next(s for s in range(stages) if layer in layers_of_stage(s, stages=stages, num_layers=num_layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """Coordinates of a rank in the grid of its plan, each from 0."""

    stage: int
    """Pipeline stage."""
    data: int
    """Data-parallel replica."""
    context: int = 0
    """Context-parallel part of the replica's sequences."""
    model: int
    """Model-parallel slice."""


@dataclass(frozen=True, slots=True)
class RankGrid:
    """All ranks of one plan as a grid [stage, data, context, model].

    Example: in 1 x 4 x 2 (data x model x pipeline) ranks 0 to 3 are stage 0, 4 to 7 stage 1; rank 6 is model slice 2.
    """

    plan: ParallelPlan

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Lengths of the axes (stage, data, context, model)."""
        plan = self.plan
        return plan.pipeline_stage, plan.data_parallel, plan.context_parallel, plan.model_parallel

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return prod(self.sizes)

    @property
    def stage_size(self) -> int:
        """Ranks per pipeline stage."""
        return prod(self.sizes[1:])

    def coordinates(self, rank: int) -> Coordinates:
        """Return the coordinates of a rank."""
        assert 0 <= rank < self.world_size, f"rank {rank} of {self.world_size}"
        stage, data, context, model = (device_coordinate(rank, self.sizes, axis) for axis in (3, 2, 1, 0))
        return Coordinates(stage=stage, data=data, context=context, model=model)

    def rank(self, *, stage: int, data: int, model: int, context: int = 0) -> int:
        """Return the rank at these coordinates."""
        rank = 0
        for number, size in zip((stage, data, context, model), self.sizes, strict=True):
            assert 0 <= number < size, f"stage {stage}, replica {data}, part {context}, slice {model} of {self.plan}"
            rank = rank * size + number
        return rank

    def stage_ranks(self, stage: int) -> Ranks:
        """Return all ranks of one pipeline stage, ascending."""
        first = self.rank(stage=stage, data=0, model=0)
        return tuple(range(first, first + self.stage_size))

    def model_group(self, rank: int) -> Ranks:
        """Return the ranks that together hold a replica of the rank's stage: row-parallel sums run over them."""
        return self.block(rank, self.plan.model_parallel)

    def context_group(self, rank: int) -> Ranks:
        """Return the ranks with the parts of the same sequences, in order, at the rank's slice."""
        size = self.plan.model_parallel
        first = rank - self.coordinates(rank).context * size
        return tuple(first + part * size for part in range(self.plan.context_parallel))

    def data_group(self, rank: int) -> Ranks:
        """Return the ranks that hold the same weights: gradients are summed over them.

        They have other tokens, of other samples (data_parallel) or of the same ones (context_parallel).
        """
        at = self.coordinates(rank)
        return tuple(self.stage_ranks(at.stage)[at.model :: self.plan.model_parallel])

    def block(self, rank: int, size: int) -> Ranks:
        """Return the rank's block where a stage is cut into equal blocks of `size` consecutive ranks."""
        assert self.stage_size % size == 0, f"runs of {size} ranks in a stage of {self.stage_size}"
        first = rank // size * size
        return tuple(range(first, first + size))

    def pipeline_group(self, rank: int) -> Ranks:
        """Return the ranks that a token passes through, first stage to last, at the rank's slice."""
        return tuple(range(rank % self.stage_size, self.world_size, self.stage_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The placement of one rank in one plan: its stage, replica, part of the sequences and slice.

    Example: rank 6 of 1 x 4 x 2 (data x model x pipeline) is slice 2 of the last stage; of 28 layers it has 14 to 27.
    """

    plan: ParallelPlan
    rank: int

    @property
    def grid(self) -> RankGrid:
        """Grid of the plan's ranks."""
        return RankGrid(self.plan)

    @property
    def at(self) -> Coordinates:
        """Coordinates of this rank."""
        return self.grid.coordinates(self.rank)

    @property
    def model_parallel(self) -> int:
        """Number of ranks that split every matrix of a replica's stage."""
        return self.plan.model_parallel

    @property
    def model_ranks(self) -> Ranks:
        """Ranks of the model-parallel group, in slice order; this rank is number `at.model`."""
        return self.grid.model_group(self.rank)

    @property
    def context_ranks(self) -> Ranks:
        """Ranks with the parts of the same sequences, in order; this rank is number `at.context`."""
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
    def is_replica_leader(self) -> bool:
        """Whether this rank is its replica's leader: the first rank of the last stage, where log-probs come out."""
        return self.is_last_stage and self.at.context == self.at.model == 0

    def replica_leaders(self) -> Ranks:
        """Return the leader of each data-parallel replica, in order of the replicas."""
        last = self.plan.pipeline_stage - 1
        return tuple(self.grid.rank(stage=last, data=data, model=0) for data in range(self.plan.data_parallel))

    def own_layers(self, num_layers: int) -> range:
        """Return the decoder layers of this rank's stage."""
        return layers_of_stage(self.at.stage, stages=self.plan.pipeline_stage, num_layers=num_layers)

    def share(self, features: int, *, units: int | None = None) -> int:
        """Return the number of `features` that this rank computes in a layer split under model_parallel.

        units: number of indivisible pieces (key/value heads); if there are fewer than ranks, several ranks compute the
        same one.
        """
        parts = self.model_parallel if units is None else min(units, self.model_parallel)
        assert features % parts == 0, f"{features} features over {parts} slices"
        return features // parts

    @property
    def expert_ranks(self) -> Ranks:
        """Ranks that together have all experts, including this one."""
        return self.grid.block(self.rank, self.plan.expert_block)

    def own_experts(self, num_experts: int) -> range:
        """Return the experts of which this rank has all features or a slice."""
        each = num_experts // self.plan.expert_parallel
        number = self.rank % self.plan.expert_block // self.plan.expert_slices
        return range(number * each, (number + 1) * each)

    @property
    def graph_ranks(self) -> Ranks:
        """Ranks that communicate inside this rank's graphs: those of its replica's stage, or of the replicas that
        together have all experts."""
        plan = self.plan
        return self.grid.block(self.rank, lcm(plan.context_parallel * plan.model_parallel, plan.expert_block))

    @property
    def recompute(self) -> str:
        """Layers that the backward pass recomputes; see `ParallelPlan.recompute`."""
        return self.plan.recompute


ALONE = Placement(plan=ParallelPlan(), rank=0)
"""The only rank of the default plan, which holds everything."""
