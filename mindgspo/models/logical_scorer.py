"""Log-probs from a graph that MindSpore's compiler divides over all ranks of a plan.

What enters: a model on the logical path and batches. What leaves: what `PolicyScorer` gives. `scorer_of` chooses
between the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mindspore import Tensor, nn

from mindgspo.data.rows import evened, filler_like, stackable
from mindgspo.models.policy import PolicyLogProbs, PolicyScorer, TokenScores
from mindgspo.parallel.auto_parallel import divided, set_mode
from mindgspo.parallel.device_ops import attention_segments
from mindgspo.parallel.placement import LogicalPlacement
from mindgspo.parallel.replicas import Arrays, Replicas
from mindgspo.types import Batch


class LogicalScorer:
    """As `PolicyScorer`. A call of the graph takes a batch of every replica."""

    def __init__(self, model: nn.Cell, *, temperature: float, strategy_path: Path | None = None) -> None:
        place: LogicalPlacement = model.place
        policy = PolicyLogProbs(model, temperature=temperature, with_entropy=True)
        self._policy, self._graph = policy, divided(policy, place, strategy_path=strategy_path)
        self._num_replicas, self._replicas = place.divided.data_parallel, Replicas(place.held)

    def graph_for(self, batch: Batch) -> tuple[nn.Cell, tuple[Tensor, ...]]:
        """The graph, ready to be compiled or called, and inputs for it: `batch` on every replica."""
        set_mode(self._policy, self._policy.model, training=False)
        return self._graph, self._inputs([batch] * self._num_replicas)

    def compile(self, batch: Batch) -> None:
        """Compile for batches of this shape, which lays the model's parameters out on the ranks."""
        graph, inputs = self.graph_for(batch)
        graph.compile(*inputs)

    def score(self, batches: Sequence[Batch]) -> list[TokenScores]:
        """One result per batch, on every rank."""
        set_mode(self._policy, self._policy.model, training=False)
        numbers = stackable(batches, self._num_replicas)
        pending = [self._graph(*self._inputs(self._filled([batches[i] for i in of_round]))) for of_round in numbers]
        rounds = [(logp.asnumpy(), entropy.asnumpy()) for logp, entropy in pending]
        by_number = [
            self._cut(arrays, replica, batches[number])
            for of_round, arrays in zip(numbers, rounds, strict=True)
            for replica, number in enumerate(of_round)
        ]
        found = self._replicas.own(by_number)
        return [
            TokenScores(
                logp_NK=np.where(batch.mask_NK, logp_NK, np.float32(0)),
                entropy_NK=np.where(batch.mask_NK, entropy_NK, np.float32(0)),
            )
            for batch, (logp_NK, entropy_NK) in zip(
                batches, self._replicas.collect(found, num_items=len(batches)), strict=True
            )
        ]

    def _filled(self, batches: Sequence[Batch]) -> list[Batch]:
        return [*batches, *[filler_like(batches[-1])] * (self._num_replicas - len(batches))]

    def _cut(self, arrays: Arrays, replica: int, batch: Batch) -> Arrays:
        """A batch's part of what a round returned; the batches of a round were evened to the largest."""
        samples, slots = batch.mask_NK.shape
        return tuple(np.split(array, self._num_replicas)[replica][:samples, :slots] for array in arrays)

    def _inputs(self, batches: Sequence[Batch]) -> tuple[Tensor, ...]:
        even = evened(batches)
        ids, positions, segments, *rest = (
            np.concatenate([getattr(batch, name) for batch in even])
            for name in ("ids_RT", "positions_RT", "segments_RT", "predict_P", "targets_P", "place_NK")
        )
        ends = attention_segments(segments, num_replicas=len(batches), num_segments=even[0].samples_N.size)
        return tuple(Tensor(array) for array in (ids, positions, ends, *rest))


def scorer_of(model: nn.Cell, *, temperature: float) -> PolicyScorer | LogicalScorer:
    """The scorer for the path that the model was built on."""
    kind = LogicalScorer if isinstance(model.place, LogicalPlacement) else PolicyScorer
    return kind(model, temperature=temperature)
