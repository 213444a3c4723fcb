"""Policy losses with other surrogates than the clipped one: CISPO, SAPO, GPG, GMPO. Twin: `twins.surrogates`.

Papers: CISPO arXiv 2506.13585, SAPO arXiv 2511.20347, GPG arXiv 2504.02546, GMPO arXiv 2507.20673.

N  responses    K  response-token slots    1  an axis kept for broadcasting
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, ops

from mindgspo.algorithms.losses.definition import LossDefinition
from mindgspo.algorithms.losses.policy_loss import PolicyLoss, zeros_like
from mindgspo.algorithms.losses.ratios import Ratio


class CISPOLoss(PolicyLoss):
    """Eq. 4 and 5: J = 1 / sum_i |y_i| sum_i sum_t sg[clip(r_it, 1 - el, 1 + eh)] A_i log pi(y_it); the loss is -J.

    The clip bounds the weight of a token, never its gradient: no token falls silent.
    """

    def surrogate(
        self, log_ratio: Tensor, inside: Tensor, logp_NK: Tensor, advantages_NK: Tensor, mask_NK: Tensor, *read: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        weight = ops.stop_gradient(ops.exp(inside))
        clipped = inside != log_ratio
        return -weight * advantages_NK * logp_NK, clipped, zeros_like(clipped)


class SAPOLoss(PolicyLoss):
    """J = mean_i 1/|y_i| sum_t A_i f(r_it), f(r) = sigmoid(tau (r - 1)) 4 / tau; the loss is -J.

    tau is tau_pos where A > 0, else tau_neg. A soft gate in the place of the clip: its slope is 1 at r = 1 and falls
    off smoothly to both sides.
    """

    def __init__(self, definition: LossDefinition, ratio: type[Ratio]) -> None:
        super().__init__(definition, ratio)
        self.tau_pos = definition.tau_pos
        self.tau_neg = definition.tau_neg

    def surrogate(
        self, log_ratio: Tensor, inside: Tensor, logp_NK: Tensor, advantages_NK: Tensor, mask_NK: Tensor, *read: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        above_one = ops.exp(log_ratio) - 1.0
        rising = ops.sigmoid(above_one * self.tau_pos) * (4.0 / self.tau_pos)
        falling = ops.sigmoid(above_one * self.tau_neg) * (4.0 / self.tau_neg)
        nothing = zeros_like(mask_NK)
        return -advantages_NK * ops.where(advantages_NK > 0, rising, falling), nothing, nothing


class GPGLoss(PolicyLoss):
    """J = 1 / sum_i |y_i| sum_i sum_t A_i log pi(y_it); the loss is -J.

    No ratio and no clip: meant for one update per rollout. Log-ratios are measured all the same.
    """

    def surrogate(
        self, log_ratio: Tensor, inside: Tensor, logp_NK: Tensor, advantages_NK: Tensor, mask_NK: Tensor, *read: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        nothing = zeros_like(mask_NK)
        return -advantages_NK * logp_NK, nothing, nothing


class GMPOLoss(PolicyLoss):
    """J = mean_i A_i exp(1/|y_i| sum_t c(d_it)), c clips d to [-el, eh] on the side that A pushes it to.

    The loss is -J. A geometric mean of clipped token ratios: the range bounds the log-ratio of a token (paper: 0.4),
    not the ratio of the response. With `advantage_pool: none` and `empty_rows: include` a row without a real token
    adds -A_i to the sum, as in TRL.
    """

    def __init__(self, definition: LossDefinition, ratio: type[Ratio]) -> None:
        super().__init__(definition, ratio)
        self.log_low = None if definition.clip_low is None else -definition.clip_low
        self.log_high = definition.clip_high
        self.pools_advantages = definition.advantage_pool == "masked-mean"
        self.counts_empty_rows = definition.aggregation.empty_rows == "include"

    def token_advantages(self, advantages_NK: Tensor, mask_NK: Tensor) -> Tensor:
        """Own advantage of a row in every slot, masked ones too, where it is not pooled: row by row it is one."""
        if self.pools_advantages:
            return ops.where(mask_NK, advantages_NK, 0.0)
        length_N1 = ops.maximum(mask_NK.astype(ms.float32).sum(axis=1, keepdims=True), 1.0)
        own_N1 = ops.where(mask_NK, advantages_NK, 0.0).sum(axis=1, keepdims=True) / length_N1
        if self.counts_empty_rows:
            is_empty_N1 = ops.logical_not(mask_NK.any(axis=1, keep_dims=True))
            own_N1 = ops.where(is_empty_N1, advantages_NK[:, :1], own_N1)
        return own_N1 + zeros_like(advantages_NK)

    def surrogate(
        self, log_ratio: Tensor, inside: Tensor, logp_NK: Tensor, advantages_NK: Tensor, mask_NK: Tensor, *read: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        clipped = ops.logical_or(
            ops.logical_and(log_ratio > inside, advantages_NK > 0),
            ops.logical_and(log_ratio < inside, advantages_NK < 0),
        )
        kept_NK = ops.where(clipped, inside, ops.where(advantages_NK == 0, 0.0, log_ratio))
        ratio_N1 = ops.exp(self.mean(ops.where(mask_NK, kept_NK, 0.0), mask_NK))
        advantage_N1 = self.mean(advantages_NK, mask_NK) if self.pools_advantages else advantages_NK[:, :1]
        return -advantage_N1 * ratio_N1, clipped, zeros_like(clipped)

    def corrected(self, token_loss: Tensor, correction_NK: Tensor, mask_NK: Tensor) -> Tensor:
        """The response's loss [N, 1] times the geometric mean of its tokens' weights; 0 if one of them is 0."""
        weights_NK = ops.where(mask_NK, correction_NK, 1.0)
        is_zero_N1 = (weights_NK <= 0).any(axis=1, keep_dims=True)
        mean_N1 = self.mean(ops.log(ops.where(weights_NK > 0, weights_NK, 1.0)), mask_NK)
        return token_loss * ops.where(is_zero_N1, 0.0, ops.exp(mean_N1))

    def mean(self, values_NK: Tensor, mask_NK: Tensor) -> Tensor:
        """Mean over a row's tokens, [N, 1]; values_NK is 0 where masked."""
        return values_NK.sum(axis=1, keepdims=True) / self.aggregate.lengths(mask_NK)

    def aggregate_tokens(self, values_NK: Tensor, mask_NK: Tensor, num_sequences: Tensor, num_tokens: Tensor) -> Tensor:
        """Mean over responses of the mean over their tokens."""
        return self.mean(ops.where(mask_NK, values_NK, 0.0), mask_NK).sum() / num_sequences
