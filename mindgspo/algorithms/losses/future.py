"""FIPO: the clipped surrogate with advantages that are weighted by what follows a token. Twin: `twins.successors`.

Paper: arXiv 2603.19835; where it and its repository (qwenpilot/FIPO) differ, the repository is followed.

    N  responses    K  response-token slots    B  blocks of slots    C  slots of a block
"""

from __future__ import annotations

import math

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops import constexpr

from mindgspo.algorithms.losses.clipped import ClippedLoss
from mindgspo.algorithms.losses.definition import LossDefinition
from mindgspo.algorithms.losses.policy_loss import bounded, log_bound
from mindgspo.algorithms.losses.ratios import Ratio

_BLOCK = 128
# Weight of a token whose advantage is negative and whose ratio is beyond `safety_ratio`.
_SAFE_RANGE = (0.8, 1.0)
# A response with more tokens than this at the dual clip is left out.
_MOST_CAPPED = 1


@constexpr
def decay(size: int, gamma: float, first: int) -> Tensor:
    """[size, size]: entry [k, t] is gamma^(k - t - first), 0 where k < t + first."""
    distance = np.arange(size)[:, None] - np.arange(size) - first
    return Tensor(np.where(distance >= 0, gamma ** np.maximum(distance, 0).astype(np.float64), 0.0).astype(np.float32))


class FutureSum(nn.Cell):
    """sum_{k >= t} gamma^(k - t) x_k of every slot t, by two small products whatever K is."""

    def __init__(self, half_life: float) -> None:
        super().__init__()
        self.gamma = 2.0 ** (-1.0 / half_life)
        to_next = self.gamma ** (_BLOCK - np.arange(_BLOCK))
        self.to_next_C = Tensor(to_next.astype(np.float32))
        self.product = ops.MatMul()

    def construct(self, values_NK: Tensor) -> Tensor:
        """values_NK: float32, 0 where masked; the result is float32 [N, K]."""
        rows, slots = values_NK.shape
        blocks = (slots + _BLOCK - 1) // _BLOCK
        if blocks * _BLOCK > slots:
            values_NK = ops.concat((values_NK, ops.zeros((rows, blocks * _BLOCK - slots), values_NK.dtype)), axis=1)
        own_BC = self.product(values_NK.reshape(rows * blocks, _BLOCK), decay(_BLOCK, self.gamma, 0))
        own_NBC = own_BC.reshape(rows, blocks, _BLOCK)
        later_NB = self.product(own_NBC[:, :, 0], decay(blocks, self.gamma**_BLOCK, 1))
        total_NBC = own_NBC + later_NB.reshape(rows, blocks, 1) * self.to_next_C
        return total_NBC.reshape(rows, blocks * _BLOCK)[:, :slots]


class FIPOLoss(ClippedLoss):
    """J = mean_t min(r_t A~_t, clip(r_t, 1 - el, 1 + eh) A~_t), A~_t = A_t f_t; the loss is -J, a mean over all tokens.

    f_t = sg[clip(exp(sum_{k >= t} gamma^(k - t) M_k d_k), low, high)] tells whether what follows a token is being
    reinforced; gamma halves a log-ratio every `future_half_life` tokens, and M_k is 0 where r_k > c = `clip_ratio_c`.
    Where A < 0 and r_t > `safety_ratio`, f_t is kept within [0.8, 1]. A response with more than one token at the dual
    clip is left out; unlike in the repository it still counts in the denominators, which are global.
    """

    def __init__(self, definition: LossDefinition, ratio: type[Ratio]) -> None:
        super().__init__(definition, ratio)
        assert definition.clip_ratio_c is not None, "FIPO without a dual clip"
        self.future = FutureSum(definition.future_half_life)
        self.log_c, self.log_safety = math.log(definition.clip_ratio_c), math.log(definition.safety_ratio)
        self.log_influence_low = log_bound(definition.influence_low)
        self.log_influence_high = log_bound(definition.influence_high)

    def surrogate(
        self, log_ratio: Tensor, inside: Tensor, logp_NK: Tensor, advantages_NK: Tensor, mask_NK: Tensor, *read: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        fixed_NK = ops.stop_gradient(log_ratio)
        future_NK = self.future(ops.where(fixed_NK > self.log_c, 0.0, fixed_NK))
        influence_NK = ops.exp(bounded(future_NK, self.log_influence_low, self.log_influence_high))
        is_unsafe = ops.logical_and(advantages_NK < 0, fixed_NK > self.log_safety)
        influence_NK = ops.where(is_unsafe, bounded(influence_NK, *_SAFE_RANGE), influence_NK)
        token_loss, clipped, capped = super().surrogate(
            log_ratio, inside, logp_NK, advantages_NK * influence_NK, mask_NK
        )
        num_capped_N1 = ops.logical_and(capped, mask_NK).astype(token_loss.dtype).sum(axis=1, keepdims=True)
        return ops.where(num_capped_N1 > _MOST_CAPPED, 0.0, token_loss), clipped, capped
