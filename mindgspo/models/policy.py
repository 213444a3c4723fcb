"""The policy as the trainer sees it: log-probs of response tokens.

What enters: the arrays of a `types.Batch`. What leaves: log-prob and entropy of every response token. Called by the
update cell (differentiated) and by `PolicyScorer` (old log-probs, the `logprobs` command).

Legend: R rows, T token slots, N samples, K response-token slots, H hidden units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mindspore import Tensor, nn, ops

from mindgspo.config import ModelSection
from mindgspo.models.qwen2 import Qwen2Model
from mindgspo.parallel.layers import VocabParallelLogProb, VocabParallelLogProbEntropy
from mindgspo.types import Batch, Float32Array


def build_model(section: ModelSection) -> nn.Cell:
    """The transformer of a family; its parameters are zero until `models.weights` fills them."""
    return {"qwen2": Qwen2Model}[section.architecture](section)


class PolicyLogProbs(nn.Cell):
    """Transformer and log-prob head. Only response positions reach the head; prompts and padding never do."""

    def __init__(self, model: nn.Cell, *, temperature: float, with_entropy: bool) -> None:
        super().__init__(auto_prefix=False)
        self.model = model
        head = VocabParallelLogProbEntropy if with_entropy else VocabParallelLogProb
        self.head = head(temperature=temperature)
        self.gather = ops.Gather()

    def construct(
        self, ids_RT: Tensor, positions_RT: Tensor, segments_RT: Tensor, predict_NK: Tensor, targets_NK: Tensor
    ) -> tuple[Tensor, Tensor]:
        """logp_NK and entropy_NK, float32; masked slots hold values of position 0 that mean nothing."""
        hidden_MH = self.model(ids_RT, positions_RT, segments_RT)
        hidden_MH = self.gather(hidden_MH, predict_NK.reshape(-1), 0)
        logp_M, entropy_M = self.head(hidden_MH, self.model.output_weight(), targets_NK.reshape(-1))
        return logp_M.reshape(predict_NK.shape), entropy_M.reshape(predict_NK.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """logp_NK, entropy_NK: float32 per response token of a batch, 0 where masked."""

    logp_NK: Float32Array
    entropy_NK: Float32Array


class PolicyScorer:
    """Log-probs under the present weights, without gradients: the old policy's, or a finished model's."""

    def __init__(self, model: nn.Cell, *, temperature: float) -> None:
        self._policy = PolicyLogProbs(model, temperature=temperature, with_entropy=True)

    def score(self, batches: Sequence[Batch]) -> list[TokenScores]:
        """One result per batch; all graphs are launched before the first result is awaited."""
        pending = [
            self._policy(
                Tensor(batch.ids_RT),
                Tensor(batch.positions_RT),
                Tensor(batch.segments_RT),
                Tensor(batch.predict_NK),
                Tensor(batch.targets_NK),
            )
            for batch in batches
        ]
        return [
            TokenScores(
                logp_NK=np.where(batch.mask_NK, logp.asnumpy(), np.float32(0)),
                entropy_NK=np.where(batch.mask_NK, entropy.asnumpy(), np.float32(0)),
            )
            for batch, (logp, entropy) in zip(batches, pending, strict=True)
        ]
