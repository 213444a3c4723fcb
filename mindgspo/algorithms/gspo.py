"""GSPO: group sequence policy optimization, arXiv 2507.18071.

Twin: `reference.gspo`. Called through `registry.build_policy_loss`.
"""

from __future__ import annotations

from mindspore import Tensor

from mindgspo.algorithms.policy_loss import PolicyLoss


class GSPOLoss(PolicyLoss):
    """Eq. 5: J = mean_i min(s_i A_i, clip(s_i, 1 - el, 1 + eh) A_i), one ratio per sequence; the loss is -J.

    The gradient reaches every token of a response with the same weight, through the mean of eq. 7. With one
    advantage per response, GSPO-token (eq. 13) has the same value and the same gradient.
    """

    def log_ratio(self, difference_NK: Tensor, share_NK: Tensor) -> Tensor:
        """Eq. 7: log s_i = 1/|y_i| sum_t (log pi(y_it) - log pi_old(y_it)); [N, 1]."""
        return (difference_NK * share_NK).sum(axis=1, keepdims=True)
