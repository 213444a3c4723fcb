"""The ranks of a plan as a grid (stages, replicas, parts of their sequences, slices). Pure Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from mindgspo.config.plan import ParallelPlan

Ranks = tuple[int, ...]


def device_coordinate(position: int, device_matrix: tuple[int, ...], axis: int) -> int:
    """Coordinate on one axis of the device at `position` in row-major order; axes are counted from the right end, as in
    MindSpore's tensor maps (0 is the last axis)."""
    first = len(device_matrix) - 1 - axis
    return position // prod(device_matrix[first + 1 :]) % device_matrix[first]


def layers_of_stage(stage: int, *, stages: int, num_layers: int) -> range:
    """The decoder layers of a pipeline stage: equal runs, and where these do not divide, the last stages have one
    fewer, for the last one has the output table.

    Example: 7 layers over 3 stages are 3, 2 and 2.
    """
    each, more = divmod(num_layers, stages)
    return range(stage * each + min(stage, more), (stage + 1) * each + min(stage + 1, more))


def stage_of_layer(layer: int, *, stages: int, num_layers: int) -> int:
    """The pipeline stage of a decoder layer."""
    return next(s for s in range(stages) if layer in layers_of_stage(s, stages=stages, num_layers=num_layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """Where a rank stands: pipeline stage, data-parallel replica, context-parallel part of its sequences,
    model-parallel slice; each from 0."""

    stage: int
    data: int
    context: int = 0
    model: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGrid:
    """All ranks of one plan as a grid [stage, data, context, model].

    Example: in 1 x 4 x 2 (data x model x pipeline) ranks 0 to 3 are stage 0, 4 to 7 stage 1; rank 6 is model slice 2.
    """

    data_parallel: int
    model_parallel: int
    pipeline_stage: int
    context_parallel: int = 1

    @classmethod
    def of(cls, plan: ParallelPlan) -> RankGrid:
        """The grid of a plan."""
        return cls(
            data_parallel=plan.data_parallel,
            model_parallel=plan.model_parallel,
            pipeline_stage=plan.pipeline_stage,
            context_parallel=plan.context_parallel,
        )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.stage_size * self.pipeline_stage

    @property
    def stage_size(self) -> int:
        """Ranks per pipeline stage."""
        return self.data_parallel * self.context_parallel * self.model_parallel

    def coordinates(self, rank: int) -> Coordinates:
        """Where a rank stands."""
        assert 0 <= rank < self.world_size, f"rank {rank} of {self.world_size}"
        matrix = (self.pipeline_stage, self.data_parallel, self.context_parallel, self.model_parallel)
        return Coordinates(
            stage=device_coordinate(rank, matrix, 3),
            data=device_coordinate(rank, matrix, 2),
            context=device_coordinate(rank, matrix, 1),
            model=device_coordinate(rank, matrix, 0),
        )

    def rank(self, *, stage: int, data: int, model: int, context: int = 0) -> int:
        """The rank that stands there."""
        assert 0 <= stage < self.pipeline_stage, f"stage {stage} of {self.pipeline_stage}"
        assert 0 <= data < self.data_parallel, f"replica {data} of {self.data_parallel}"
        assert 0 <= context < self.context_parallel, f"context part {context} of {self.context_parallel}"
        assert 0 <= model < self.model_parallel, f"model slice {model} of {self.model_parallel}"
        replica = stage * self.data_parallel + data
        return (replica * self.context_parallel + context) * self.model_parallel + model

    def stage_ranks(self, stage: int) -> Ranks:
        """All ranks of one pipeline stage, ascending."""
        first = self.rank(stage=stage, data=0, model=0)
        return tuple(range(first, first + self.stage_size))

    def model_group(self, rank: int) -> Ranks:
        """The ranks that hold one replica of the rank's stage together: sums of row-parallel layers run over them."""
        first = rank - self.coordinates(rank).model
        return tuple(range(first, first + self.model_parallel))

    def context_group(self, rank: int) -> Ranks:
        """The ranks that have the parts of the same sequences, in order, at the rank's slice."""
        at = self.coordinates(rank)
        first = rank - at.context * self.model_parallel
        return tuple(first + part * self.model_parallel for part in range(self.context_parallel))

    def data_group(self, rank: int) -> Ranks:
        """The ranks that hold the same weights for other tokens, of other samples (data_parallel) or of the same ones
        (context_parallel): gradients are summed over them."""
        at = self.coordinates(rank)
        return tuple(self.stage_ranks(at.stage)[at.model :: self.model_parallel])

    def block(self, rank: int, size: int) -> Ranks:
        """The run of consecutive ranks of a stage, one of equal runs of this size, in which the rank stands."""
        assert self.stage_size % size == 0, f"runs of {size} ranks in a stage of {self.stage_size}"
        first = rank // size * size
        return tuple(range(first, first + size))

    def pipeline_group(self, rank: int) -> Ranks:
        """The ranks that a token passes through, first stage to last, at the rank's slice."""
        return tuple(range(rank % self.stage_size, self.world_size, self.stage_size))

    def model_groups(self) -> tuple[Ranks, ...]:
        """Every model-parallel group, in order of its first rank."""
        return self._groups(self.model_group)

    def data_groups(self) -> tuple[Ranks, ...]:
        """Every group that holds the same weights, in order of its first rank."""
        return self._groups(self.data_group)

    def pipeline_groups(self) -> tuple[Ranks, ...]:
        """Every pipeline group, in order of its first rank."""
        return self._groups(self.pipeline_group)

    def _groups(self, group_of: Callable[[int], Ranks]) -> tuple[Ranks, ...]:
        return tuple(dict.fromkeys(group_of(rank) for rank in range(self.world_size)))
