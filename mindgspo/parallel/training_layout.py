"""What a rank must know to update its part of a model: what it holds, with whom it adds gradients up, whose moments are
its own.

What enters: the shapes of a model's weights and this rank's placement. What leaves: a frozen record, read by the update
and by checkpoints. Pure Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mindgspo.config.model_section import ModelSection
from mindgspo.parallel.layout import Layout, Shape
from mindgspo.parallel.parameter_layouts import gradient_ranks, moment_layouts, parameter_layouts
from mindgspo.parallel.placement import Placement
from mindgspo.parallel.ranks import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLayout:
    """place: the rank. weights, moments: layouts of all weights and of each of their moments, by weight name.
    gradient_ranks: of the weights on this rank, the ranks over which gradients are summed."""

    place: Placement
    weights: Mapping[str, Layout]
    moments: Mapping[str, Layout]
    gradient_ranks: Mapping[str, Ranks]

    @classmethod
    def of(cls, shapes: Mapping[str, Shape], model: ModelSection, place: Placement) -> TrainingLayout:
        """shapes: {our parameter name: shape of the whole tensor}."""
        weights = parameter_layouts(shapes, model, place.plan)
        return cls(
            place=place,
            weights=weights,
            moments=moment_layouts(shapes, model, place.plan),
            gradient_ranks=gradient_ranks(weights, model, place.plan, place.rank),
        )

    def counts_in_norm(self, name: str) -> bool:
        """Whether this rank is the one whose copy of the weight's slice counts in the global gradient norm."""
        return self.weights[name].ranks_with_slice_of(self.place.rank)[0] == self.place.rank

    def own_rows(self, name: str) -> tuple[int, int] | None:
        """First and last row (excluded), within this rank's slice of the weight, whose moments are this rank's; None
        where it has the moments of the whole slice."""
        weight, moment = self.weights[name].slice_of(self.place.rank), self.moments[name].slice_of(self.place.rank)
        assert weight is not None and moment is not None, name
        if weight == moment:
            return None
        return moment.starts[0] - weight.starts[0], moment.stops[0] - weight.starts[0]
