"""Log-probs from a graph that MindSpore's compiler divides over all ranks of a plan.

What enters: a model on the logical path and batches. What leaves: what `PolicyScorer` gives. `scorer_of` chooses
between the two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor, nn

from mindgspo.data.rows import evened, filler_like
from mindgspo.models.policy import PolicyLogProbs, PolicyScorer, TokenScores
from mindgspo.parallel.auto_parallel import divided
from mindgspo.parallel.device_ops import attention_segments
from mindgspo.parallel.placement import LogicalPlacement
from mindgspo.parallel.replicas import Arrays, Replicas
from mindgspo.types import Batch


class LogicalScorer:
    """As `PolicyScorer`. A call of the graph takes a batch of every replica."""

    def __init__(self, model: nn.Cell, *, temperature: float) -> None:
        place: LogicalPlacement = model.place
        policy = PolicyLogProbs(model, temperature=temperature, with_entropy=True)
        policy.set_train(False)
        self._graph = divided(policy, place)
        self._num_replicas, self._replicas = place.divided.data_parallel, Replicas(place.held)

    def compile(self, batch: Batch) -> None:
        """Compile for batches of this shape, which lays the model's parameters out on the ranks."""
        self._graph.compile(*self._inputs([batch] * self._num_replicas))

    def score(self, batches: Sequence[Batch]) -> list[TokenScores]:
        """One result per batch, on every rank."""
        count = self._num_replicas
        filled = [*batches, *[filler_like(batches[-1])] * (-len(batches) % count)] if batches else []
        pending = [self._graph(*self._inputs(filled[start : start + count])) for start in range(0, len(filled), count)]
        rounds = [(logp.asnumpy(), entropy.asnumpy()) for logp, entropy in pending]
        found = [self._own(rounds, number, batches[number]) for number in self._replicas.own(range(len(batches)))]
        return [
            TokenScores(
                logp_NK=np.where(batch.mask_NK, logp_NK, np.float32(0)),
                entropy_NK=np.where(batch.mask_NK, entropy_NK, np.float32(0)),
            )
            for batch, (logp_NK, entropy_NK) in zip(
                batches, self._replicas.collect(found, num_items=len(batches)), strict=True
            )
        ]

    def _own(self, rounds: Sequence[Arrays], number: int, batch: Batch) -> Arrays:
        of_round, replica = divmod(number, self._num_replicas)
        samples, slots = batch.mask_NK.shape
        # The batches of a round were evened to the largest.
        by_replica = (np.split(array, self._num_replicas)[replica] for array in rounds[of_round])
        return tuple(array[:samples, :slots] for array in by_replica)

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
