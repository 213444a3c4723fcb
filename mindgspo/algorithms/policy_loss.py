"""The body every policy loss shares: log-ratio -> clip -> aggregate.

What enters: log-probs of the sampled tokens under the new and the old policy, advantages, mask, and
denominators over the global mini-batch. What leaves: a scalar loss that micro-batches and ranks may simply
add up, and a vector of metrics in the order of `loss_metrics.POLICY_METRICS`. A loss is a subclass that says
what its ratio is; `registry` finds it by name, `accumulator` differentiates it.

    N  responses    K  response-token slots    1  an axis kept for broadcasting
"""

from __future__ import annotations

import math

import mindspore as ms
from mindspore import Tensor, nn, ops

from mindgspo.algorithms.loss_metrics import POLICY_METRICS

# Beyond every log-ratio. Not inf: where inf and -inf are both constants of a graph, MindSpore 2.10's compiler
# puts, in about one compilation of a hundred, one in the other's place, or fails.
_BEYOND = 3e38


class PolicyLoss(nn.Cell):
    """Clipped surrogate over ratios, averaged over the tokens of a sequence, then over sequences.

    clip_low (in [0, 1)), clip_high (>= 0): ratios are clipped to [1 - clip_low, 1 + clip_high].
    log_ratio_max: upper bound on the log-ratio before exp; beyond it the gradient is 0 (verl's convention).
    """

    metrics = POLICY_METRICS

    def __init__(self, *, clip_low: float, clip_high: float, log_ratio_max: float) -> None:
        super().__init__()
        assert 0 <= clip_low < 1 and 0 <= clip_high < math.inf, f"clip range {clip_low}, {clip_high}"
        assert 0 < log_ratio_max < math.inf, f"log_ratio_max {log_ratio_max}"
        self.ratio_low = 1.0 - clip_low
        self.ratio_high = 1.0 + clip_high
        # Compared as logarithms: float32 resolves log s = 4e-4 to 3e-11, but s = 1.0004 only to 1e-7.
        self.log_low = math.log1p(-clip_low)
        self.log_high = math.log1p(clip_high)
        self.log_ratio_max = log_ratio_max
        self.weighted_sums = ops.MatMul(transpose_b=True)

    def log_ratio(self, difference_NK: Tensor, share_NK: Tensor) -> Tensor:
        """Logarithm of the importance ratio, [N, 1] or [N, K].

        difference_NK: logp - old_logp, 0 where masked. share_NK: 1 / |y| per real token, so rows sum to 1.
        """
        raise NotImplementedError

    def construct(
        self,
        logp_NK: Tensor,
        old_logp_NK: Tensor,
        advantages_N: Tensor,
        mask_NK: Tensor,
        num_sequences: Tensor,
        num_tokens: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Loss (float32 scalar) and metrics (float32 [len(metrics)]).

        logp_NK, old_logp_NK, advantages_N: float32; anything may stand in masked slots. mask_NK: bool.
        num_sequences, num_tokens: float32 scalars over the global mini-batch. A row without a real token adds
        nothing to the loss, the gradient or the metrics.
        """
        # Masked before any arithmetic: 0 * nan is nan, in the gradient too.
        difference_NK = ops.where(mask_NK, logp_NK, 0.0) - ops.where(mask_NK, old_logp_NK, 0.0)
        mask_float_NK = mask_NK.astype(ms.float32)
        length_N1 = mask_float_NK.sum(axis=1, keepdims=True)
        share_NK = mask_float_NK / ops.maximum(length_N1, 1.0)
        advantages_N1 = ops.where(length_N1 > 0, advantages_N.reshape(-1, 1), 0.0)

        log_ratio = self.log_ratio(difference_NK, share_NK)
        ratio = ops.exp(ops.where(log_ratio > self.log_ratio_max, self.log_ratio_max, log_ratio))
        above = ops.logical_and(log_ratio > self.log_high, advantages_N1 > 0)
        below = ops.logical_and(log_ratio < self.log_low, advantages_N1 < 0)
        # min(s A, clip(s) A) is s A unless s left the range on the side that A pushes it to. Written as a
        # choice, because the metrics need the side, and exactly on an edge the gradient is then whole.
        pessimistic = ops.where(above, self.ratio_high, ops.where(below, self.ratio_low, ratio))
        loss = self.aggregate(-advantages_N1 * pessimistic, mask_float_NK, share_NK, num_sequences, num_tokens)

        quantities = (
            ops.logical_or(above, below),
            above,
            below,
            -difference_NK,
            log_ratio,
            ops.abs(ratio - 1.0),
        )
        return loss, ops.stop_gradient(self.measure(quantities, log_ratio, mask_NK, share_NK))

    def aggregate(
        self,
        token_loss: Tensor,
        mask_float_NK: Tensor,
        share_NK: Tensor,
        num_sequences: Tensor,
        num_tokens: Tensor,
    ) -> Tensor:
        """seq-mean-token-mean: every sequence weighs the same, whatever its length.

        token_loss: [N, 1], the same for all tokens of a row, or [N, K].
        """
        return (token_loss * share_NK).sum() / num_sequences

    def measure(self, quantities: tuple[Tensor, ...], log_ratio: Tensor, mask_NK: Tensor, share_NK: Tensor) -> Tensor:
        """The vector of POLICY_METRICS.

        quantities: six, in the order of the table, each [N, 1] (spread over the row's tokens) or [N, K].
        """
        mask_float_NK = mask_NK.astype(ms.float32)
        spread = ops.stack([quantity.astype(ms.float32) * mask_float_NK for quantity in quantities])
        weights = ops.stack((share_NK, mask_float_NK))
        sums = self.weighted_sums(weights.reshape(2, -1), spread.reshape(len(quantities), -1)).reshape(-1)
        highest = ops.where(mask_NK, log_ratio, -_BEYOND).max().reshape(1)
        lowest = ops.where(mask_NK, log_ratio, _BEYOND).min().reshape(1)
        # The table has no token-weighted mean of the last two quantities, the log-ratio and its error.
        return ops.concat((sums[:10], highest, lowest))
