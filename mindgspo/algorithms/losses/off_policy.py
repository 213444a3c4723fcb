"""Losses made for responses of another policy: DPPO, with a trust region by divergence, and VESPO, with a soft weight
per response. Twin: `twins.successors`.

Papers: DPPO arXiv 2602.04879, VESPO arXiv 2602.10693.

    N  responses    K  response-token slots    1  an axis kept for broadcasting
    p  probability of a token under the policy, q under the old one
"""

from __future__ import annotations

from mindspore import Tensor, ops

from mindgspo.algorithms.losses.definition import LossDefinition
from mindgspo.algorithms.losses.policy_loss import PolicyLoss, bounded, log_bound, zeros_like
from mindgspo.algorithms.losses.ratios import Ratio

LOG_WEIGHT_RANGE = (-18.420680743952367, 20.0)
"""log 1e-8 and 20, between which TRL keeps VESPO's log W and what is added up to it."""
TOKEN_RANGE = 20.0
# verl adds it to 1 - p and 1 - q, which may be 0.
_EPS = 1e-8


class DPPOLoss(PolicyLoss):
    """J = mean_t M_t sg[min(r_t, c)] A_t log pi(y_t); the loss is -J, the mean over all tokens. As verl.

    M_t is 0 where the policy has left the trust region in the direction that A pushes it to: the divergence D between
    p and q, of the distributions "this token or another one", is above `clip_high` and p > q where A > 0, or above
    `clip_low` and p < q elsewhere. c is `clip_ratio_c` (section 5.4: a truncation, large so as not to bias).
    """

    reads_old_logp = True

    def __init__(self, definition: LossDefinition, ratio: type[Ratio]) -> None:
        super().__init__(definition, ratio)
        # The range is one of divergences, and the ratio is not clipped.
        self.log_low, self.log_high = None, log_bound(definition.clip_ratio_c)
        assert definition.clip_low is not None and definition.clip_high is not None, "DPPO without a trust region"
        self.low, self.high = definition.clip_low, definition.clip_high

    def divergence(self, p_NK: Tensor, q_NK: Tensor, log_ratio_NK: Tensor) -> Tensor:
        """D of each token, not negative; log_ratio_NK: log p / q."""
        raise NotImplementedError

    def surrogate(
        self, log_ratio: Tensor, inside: Tensor, logp_NK: Tensor, advantages_NK: Tensor, mask_NK: Tensor, *read: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        old_logp_NK = read[0]
        p_NK, q_NK = ops.exp(ops.stop_gradient(logp_NK)), ops.exp(old_logp_NK)
        distance_NK = self.divergence(p_NK, q_NK, ops.stop_gradient(logp_NK) - old_logp_NK)
        too_high = ops.logical_and(ops.logical_and(distance_NK > self.high, p_NK > q_NK), advantages_NK > 0)
        too_low = ops.logical_and(ops.logical_and(distance_NK > self.low, p_NK < q_NK), advantages_NK <= 0)
        outside = ops.logical_or(too_high, too_low)
        token_loss = -ops.stop_gradient(ops.exp(inside)) * advantages_NK * logp_NK
        truncated = ops.logical_and(log_ratio > inside, ops.logical_not(outside))
        return ops.where(outside, 0.0, token_loss), outside, truncated


class DPPOTVLoss(DPPOLoss):
    """DPPO with D = |p - q|, the total variation."""

    def divergence(self, p_NK: Tensor, q_NK: Tensor, log_ratio_NK: Tensor) -> Tensor:
        return ops.abs(p_NK - q_NK)


class DPPOKLLoss(DPPOLoss):
    """DPPO with D = q log(q / p) + (1 - q) log((1 - q) / (1 - p)), the KL divergence from the old policy."""

    def divergence(self, p_NK: Tensor, q_NK: Tensor, log_ratio_NK: Tensor) -> Tensor:
        others_NK = (1.0 - q_NK) * (ops.log(1.0 - q_NK + _EPS) - ops.log(1.0 - p_NK + _EPS))
        return others_NK - q_NK * log_ratio_NK


class VESPOLoss(PolicyLoss):
    """J = mean_t sg[phi(W_i)] A_i log pi(y_it), phi(W) = W^k exp(lambda (1 - W)); the loss is -J. As TRL.

    W_i is the product of a response's token ratios, not their mean: of the weight exp(sum_t d_it), of which the
    kernel keeps what lies near 1. k and lambda go by the sign of A, 0 counting as positive. Weights against the
    mismatch of sampler and trainer multiply W, not the loss.

    A product underflows on long responses: |y| = 1000 and a mean d of -0.02 are W = e^-20. As in TRL each d is kept
    within +-20 and log W within [log 1e-8, 20], where phi is 2e-15 and 0: such a response is left out, in effect. The
    mask of clipped tokens tells where a bound was met.
    """

    reads_correction = True

    def __init__(self, definition: LossDefinition, ratio: type[Ratio]) -> None:
        super().__init__(definition, ratio)
        self.k_pos, self.lambda_pos = definition.k_pos, definition.lambda_pos
        self.k_neg, self.lambda_neg = definition.k_neg, definition.lambda_neg

    def surrogate(
        self, log_ratio: Tensor, inside: Tensor, logp_NK: Tensor, advantages_NK: Tensor, mask_NK: Tensor, *read: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        low, high = LOG_WEIGHT_RANGE
        added_NK = bounded(log_ratio, -TOKEN_RANGE, TOKEN_RANGE) + bounded(ops.log(read[0]), low, high)
        total_N1 = ops.stop_gradient(added_NK.sum(axis=1, keepdims=True))
        log_weight_N1 = bounded(total_N1, low, high)
        weight_N1 = ops.exp(log_weight_N1)
        rising_N1 = self.lambda_pos + self.k_pos * log_weight_N1 - self.lambda_pos * weight_N1
        falling_N1 = self.lambda_neg + self.k_neg * log_weight_N1 - self.lambda_neg * weight_N1
        phi_NK = ops.exp(ops.where(advantages_NK >= 0, rising_N1, falling_N1))
        at_bound = ops.logical_and(total_N1 != log_weight_N1, mask_NK)
        return -phi_NK * advantages_NK * logp_NK, at_bound, zeros_like(at_bound)
