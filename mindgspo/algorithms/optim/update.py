"""The update backend of one process and of many.

Each rank holds its slices of the weights, one gradient per weight, and the moments of these slices or, with
`optimizer_shard`, of its rows of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mindspore import Parameter, nn

from mindgspo.algorithms.optim.accumulation import Accumulation
from mindgspo.algorithms.optim.backend import UpdateBackend, moment_layouts_of
from mindgspo.algorithms.optim.over_ranks import BUCKET_BYTES, StepOverRanks
from mindgspo.config.schema import OptimizerSection
from mindgspo.data.routing import no_routing
from mindgspo.data.rows import in_rounds
from mindgspo.parallel.layout import Layout
from mindgspo.parallel.placement import ALONE, Placement
from mindgspo.parallel.replicas import Arrays, Replicas
from mindgspo.types import Batch


class RankUpdate(UpdateBackend):
    """The update of one rank, or of a process that is alone and has the whole model.

    place: where the policy's model stands. bucket_bytes: what ranks tell each other at once; it changes no number.
    """

    def __init__(
        self,
        policy: nn.Cell,
        loss: nn.Cell,
        section: OptimizerSection,
        place: Placement = ALONE,
        *,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        super().__init__(policy, loss)
        self.rank, self._is_alone = place.rank, place.plan.world_size == 1
        self._plan, self._replicas = place.plan, Replicas(place)
        self.accumulation = Accumulation(policy, loss, self.weights, place)
        self.accumulator, self.gradients = self.accumulation.cell, self.accumulation.gradients
        model = None if self._is_alone else policy.model.config
        self._no_routing = no_routing(model) if getattr(policy, "replays_experts", False) and model else None
        self.over_ranks = StepOverRanks(self.weights, self.gradients, section, place, model, bucket_bytes=bucket_bytes)
        self.optimizer = self.over_ranks.optimizer

    @property
    def scratch(self) -> tuple[Parameter, ...]:
        return (*self.gradients, *self.over_ranks.own)

    def _apply(self, batches: Sequence[Batch], *, kl_coef: float, lr: float) -> tuple[list[Arrays], float]:
        given = in_rounds(batches, self._plan, self._no_routing)
        measured = self.accumulation(self._replicas.own(given), kl_coef)
        results = self._replicas.collect(measured, num_items=len(given))
        if self._plan.couples_replicas:
            results = [_cut(result, batch) for result, batch in zip(results, batches, strict=False)]
        grad_norm = self._grad_norm()
        self._refuse_non_finite([float(result[0]) for result in results], grad_norm)
        self.over_ranks.step(self._updates + 1, lr, grad_norm)
        return results, grad_norm

    def _grad_norm(self) -> float:
        if self._is_alone and self.accumulator.kernel is not None:
            return math.sqrt(float(self.accumulation.squares[0]))
        return self.over_ranks.norm()

    def _moment_layouts(self) -> dict[str, Layout] | None:
        return None if self._is_alone else moment_layouts_of(self.over_ranks.moments)


def _cut(arrays: Arrays, batch: Batch) -> Arrays:
    """The results of a batch that was padded, by sample and slot, to those of its round."""
    samples, slots = batch.mask_NK.shape
    return tuple(array[:samples, :slots] if array.ndim == 2 else array for array in arrays)
