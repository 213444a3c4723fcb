"""Importance ratios, as logarithms.

Twin: `twins.ratios`.

    N  responses    K  response-token slots    J  turns    1  an axis kept for broadcasting
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops


class TokenRatio(nn.Cell):
    """log r_it = log pi(y_it) - log pi_old(y_it): PPO (arXiv 1707.06347, section 3), GRPO; [N, K]."""

    is_per_response = False

    def __init__(self, length_eps: float | None = None) -> None:
        super().__init__()

    def construct(self, difference_NK: Tensor, mask_NK: Tensor) -> Tensor:
        return difference_NK


class SequenceRatio(nn.Cell):
    """GSPO, arXiv 2507.18071, eq. 7: log s_i = 1/|y_i| sum_t (log pi(y_it) - log pi_old(y_it)); [N, 1].

    The gradient reaches every token of a response with the same weight, through the mean. length_eps: the mean
    divides by |y| + eps (ChatLearn), else by |y|.
    """

    is_per_response = True

    def __init__(self, length_eps: float | None = None) -> None:
        super().__init__()
        self.length_eps = length_eps

    def construct(self, difference_NK: Tensor, mask_NK: Tensor) -> Tensor:
        return self.mean(difference_NK, mask_NK)

    def mean(self, difference_NK: Tensor, mask_NK: Tensor) -> Tensor:
        """Mean over a row's tokens, [N, 1]; 0 for a row without any."""
        length_N1 = mask_NK.astype(ms.float32).sum(axis=1, keepdims=True)
        if not self.length_eps:
            return (difference_NK / ops.maximum(length_N1, 1.0)).sum(axis=1, keepdims=True)
        return (difference_NK / (length_N1 + self.length_eps)).sum(axis=1, keepdims=True)


Ratio = TokenRatio | SequenceRatio
"""construct(difference_NK, mask_NK) -> log-ratios [N, K], or [N, 1] where `is_per_response`. `TurnRatio` takes turns,
too."""


class SequenceTokenRatio(SequenceRatio):
    """GSPO-token, arXiv 2507.18071, eq. 14: log s_it = sg[log s_i] + log pi(y_it) - sg[log pi(y_it)]; [N, K].

    The value of GSPO's ratio at every token, but each token's own gradient.
    """

    def construct(self, difference_NK: Tensor, mask_NK: Tensor) -> Tensor:
        # old_logp is a constant, so the gradient of the difference is that of logp.
        own_NK = difference_NK - ops.stop_gradient(difference_NK)
        return ops.stop_gradient(self.mean(difference_NK, mask_NK)) + own_NK


class TurnRatio(SequenceRatio):
    """GSPO with a turn of an episode as its sequence: log s_ij = 1/|y_ij| sum_{t in turn j} d_it; [N, K].

    d_it = log pi(y_it) - log pi_old(y_it). All tokens of a turn have its ratio, and its gradient reaches all of them.
    """

    is_per_response = False

    def construct(self, difference_NK: Tensor, mask_NK: Tensor, turns_JNK: Tensor) -> Tensor:
        """turns_JNK: bool, the tokens of each turn. A masked slot has 0."""
        log_ratio_NK = ops.zeros_like(difference_NK)
        # One sum of a row's slots per turn: that of a single turn has the bits of the whole response's.
        for j in range(turns_JNK.shape[0]):
            own_NK = turns_JNK[j]
            mean_N1 = self.mean(ops.where(own_NK, difference_NK, 0.0), own_NK)
            log_ratio_NK = ops.where(own_NK, mean_N1, log_ratio_NK)
        return log_ratio_NK
