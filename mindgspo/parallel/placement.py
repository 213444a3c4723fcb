"""Where one process stands in one plan: what the layers, graphs and trainers of that process must know.

What enters: a plan and a rank. What leaves: its stage, replica and slice, how much of a layer is its own, and the ranks
it works with. Pure Python.
"""

from __future__ import annotations

from dataclasses import dataclass

from mindgspo.config.plan import ParallelPlan
from mindgspo.parallel.ranks import Coordinates, RankGrid, Ranks


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


ALONE = Placement(plan=ParallelPlan(), rank=0)
"""The only process of the default plan: it holds everything."""
