"""Sampling of one token per slot, inside the decode graph.

What enters: logits, one uniform per slot, each slot's temperature. What leaves: token ids and their log-probs.

Legend: S slots, V vocabulary entries.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops


class TokenSampler(nn.Cell):
    """Inverse-CDF sampling from softmax(logits / temperature), optionally cut by top-k and top-p.

    top_k: 0 is off. top_p: 1 is off; the smallest set of tokens whose mass reaches top_p stays, as in Hugging Face,
    with top-k applied first. Tokens tied with the last one kept stay too.
    """

    def __init__(self, *, top_k: int, top_p: float) -> None:
        super().__init__(auto_prefix=False)
        self.top_k, self.top_p = top_k, top_p
        self.log_softmax = ops.LogSoftmax(-1)
        self.argmax = ops.Argmax(-1, ms.int32)
        self.sort = ops.Sort(-1, True)

    def construct(
        self, logits_SV: Tensor, uniforms_S: Tensor, inverse_temperature_S: Tensor, greedy_S: Tensor
    ) -> tuple[Tensor, Tensor]:
        """ids int32 [S] and log-probs float32 [S], the latter at the temperature and before any cut.

        logits_SV: float32. uniforms_S: float32 in (0, 1]. greedy_S: bool, takes the likeliest token instead.
        """
        logp_SV = self.log_softmax(logits_SV * inverse_temperature_S.reshape(-1, 1))
        cdf_SV = ops.cumsum(self._cut(ops.exp(logp_SV)), -1)
        # Scaled by the last entry: rounding and cuts leave a total other than 1. Counting entries strictly below
        # the target (> 0) always lands on a token that raised the CDF, hence of positive probability.
        target_S1 = cdf_SV[:, -1:] * uniforms_S.reshape(-1, 1)
        drawn_S = ops.cast(ops.cast(cdf_SV < target_S1, ms.float32).sum(-1), ms.int32)
        ids_S = ops.where(greedy_S, self.argmax(logits_SV), drawn_S)
        return ids_S, ops.gather_elements(logp_SV, 1, ids_S.reshape(-1, 1)).reshape(-1)

    def _cut(self, probs_SV: Tensor) -> Tensor:
        if self.top_k == 0 and self.top_p == 1.0:
            return probs_SV
        sorted_SV, _ = self.sort(probs_SV)
        if 0 < self.top_k < probs_SV.shape[-1]:
            sorted_SV = sorted_SV * ops.cast(sorted_SV >= sorted_SV[:, self.top_k - 1 : self.top_k], ms.float32)
        before_SV = ops.cumsum(sorted_SV, -1) - sorted_SV
        kept_SV = before_SV < self.top_p * sorted_SV.sum(-1, keepdims=True)
        kept_SV = ops.logical_and(kept_SV, sorted_SV > 0)
        last_kept_S1 = ops.where(kept_SV, sorted_SV, 2.0).min(-1, keepdims=True)
        return ops.where(probs_SV >= last_kept_S1, probs_SV, 0.0)
