"""The policy as the trainer sees it: log-probs of response tokens.

What enters: the arrays of a `types.Batch`. What leaves: log-prob and entropy of every response token. Called by the
update cell (differentiated) and by `PolicyScorer` (old log-probs, the `logprobs` command).

Legend: R rows, T token slots, P predicted tokens, N samples, K response-token slots, H hidden units.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
from mindspore import Tensor, nn, ops

from mindgspo.config import ModelSection
from mindgspo.models.transformer import Transformer
from mindgspo.parallel.collectives import GraphOfRanks
from mindgspo.parallel.device_ops import attention_segments
from mindgspo.parallel.model_parallel_ops import enter_model_parallel
from mindgspo.parallel.placement import ALONE, Placement
from mindgspo.parallel.replicas import Replicas
from mindgspo.parallel.runtime import without_values
from mindgspo.parallel.sharded_logprob import log_prob_head
from mindgspo.parallel.splits import DATA, WHOLE
from mindgspo.parallel.stage_links import StageLinks
from mindgspo.types import Batch, Float32Array


def build_model(section: ModelSection, place: Placement = ALONE) -> nn.Cell:
    """The transformer, or this rank's part of it; its parameters are zero until `models.weights` fills
    them. Those of a graph that is to be divided take no memory before it is compiled."""
    with without_values() if place.is_divided else nullcontext():
        return Transformer(section, place)


class PolicyLogProbs(nn.Cell):
    """Transformer and log-prob head. Only response positions reach the head; prompts and padding never do."""

    def __init__(self, model: nn.Cell, *, temperature: float, with_entropy: bool) -> None:
        super().__init__(auto_prefix=False)
        self.model = model
        self.head = log_prob_head(model.place, temperature=temperature, with_entropy=with_entropy)
        self.enter = enter_model_parallel(model.place)
        self.num_replicas = model.place.parts(DATA)
        if self.num_replicas == 1:
            self.gather = model.place.split(ops.Gather(), (WHOLE, WHOLE), (WHOLE,))
            self.take = model.place.split(ops.Gather(), (WHOLE,), (WHOLE,))
        else:
            self.gather = model.place.split(ops.Gather(batch_dims=1), (DATA, WHOLE, WHOLE), (DATA, WHOLE))
            self.take = model.place.split(ops.Gather(batch_dims=1), (DATA, WHOLE), (DATA, WHOLE))

    def construct(
        self,
        inputs: Tensor,
        positions_RT: Tensor,
        segments_RT: Tensor,
        predict_P: Tensor,
        targets_P: Tensor,
        place_NK: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """logp_NK and entropy_NK, float32; masked slots hold values of some prediction that mean nothing."""
        hidden_MH = self.model(inputs, positions_RT, segments_RT)
        hidden_PH = self.enter(self._predicting(hidden_MH, predict_P))
        logp_P, entropy_P = self.head(hidden_PH, self.model.output_weight(), targets_P)
        return self._by_sample(logp_P, place_NK), self._by_sample(entropy_P, place_NK)

    def _predicting(self, hidden_MH: Tensor, predict_P: Tensor) -> Tensor:
        """Hidden states [P, H] in front of the response tokens. In a graph that the compiler divides over replicas
        each takes them from its own rows, into which its indices point."""
        if self.num_replicas == 1:
            return self.gather(hidden_MH, predict_P, 0)
        hidden_size = hidden_MH.shape[-1]
        hidden_DMH = hidden_MH.reshape(self.num_replicas, -1, hidden_size)
        return self.gather(hidden_DMH, predict_P.reshape(self.num_replicas, -1), 1).reshape(-1, hidden_size)

    def _by_sample(self, values_P: Tensor, place_NK: Tensor) -> Tensor:
        """What the head found, [N, K]; a replica's indices point into its own predictions."""
        if self.num_replicas == 1:
            return self.take(values_P, place_NK.reshape(-1), 0).reshape(place_NK.shape)
        values_DP = values_P.reshape(self.num_replicas, -1)
        return self.take(values_DP, place_NK.reshape(self.num_replicas, -1), 1).reshape(place_NK.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """logp_NK, entropy_NK: float32 per response token of a batch, 0 where masked."""

    logp_NK: Float32Array
    entropy_NK: Float32Array


class PolicyScorer:
    """Log-probs under the present weights, without gradients: the old policy's, or a finished model's.

    Every replica of the model's plan scores its share of the batches, through all of its pipeline stages.
    """

    def __init__(self, model: nn.Cell, *, temperature: float) -> None:
        self._model = model
        team = model.place.model_ranks
        self._stage = GraphOfRanks(model, team)
        self._policy = GraphOfRanks(PolicyLogProbs(model, temperature=temperature, with_entropy=True), team)
        self._replicas = Replicas(model.place)
        self._links = StageLinks(model.place)

    def score(self, batches: Sequence[Batch]) -> list[TokenScores]:
        """One result per batch, on every rank; all graphs are launched before the first result is awaited."""
        pending = [self._launched(batch) for batch in self._replicas.own(batches)]
        found = [(logp.asnumpy(), entropy.asnumpy()) for logp, entropy in pending if logp is not None]
        return [
            TokenScores(
                logp_NK=np.where(batch.mask_NK, logp_NK, np.float32(0)),
                entropy_NK=np.where(batch.mask_NK, entropy_NK, np.float32(0)),
            )
            for batch, (logp_NK, entropy_NK) in zip(
                batches, self._replicas.collect(found, num_items=len(batches)), strict=True
            )
        ]

    def _launched(self, batch: Batch) -> tuple[Tensor | None, Tensor | None]:
        """Log-probs and entropies of one batch; nothing on a stage that is not the last."""
        start = entered_stage(self._model, self._links, batch)
        segments = attention_segments(batch.segments_RT, num_segments=batch.samples_N.size)
        rows = (Tensor(start), Tensor(batch.positions_RT), Tensor(segments))
        if self._model.is_last:
            return self._policy(*rows, Tensor(batch.predict_P), Tensor(batch.targets_P), Tensor(batch.place_NK))
        self._links.send_output(self._stage(*rows).asnumpy())
        return None, None


def entered_stage(model: nn.Cell, links: StageLinks, batch: Batch) -> np.ndarray:
    """What this stage starts from: ids_RT, or the hidden states [R * T, H] of the stage before."""
    if model.is_first:
        return batch.ids_RT
    return links.receive_input((batch.ids_RT.size, model.hidden_size))
