"""Where one process stands in one plan: its stage, replica, part of the sequences and slice, and how much of a layer it
holds. Pure Python."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from mindgspo.config.plan import ParallelPlan
from mindgspo.parallel.plans.ranks import Coordinates, RankGrid, Ranks, layers_of_stage


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
    def is_replica_leader(self) -> bool:
        """Whether this rank speaks for its replica: its first rank on the last stage, where log-probs come out."""
        return self.is_last_stage and self.at.context == self.at.model == 0

    def replica_leaders(self) -> Ranks:
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


ALONE = Placement(plan=ParallelPlan(), rank=0)
"""The only process of the default plan: it holds everything."""
