"""GRPO: group relative policy optimization, arXiv 2402.03300, without its KL term.

Twin: `reference.grpo`. Called through `registry.build_policy_loss`.
"""

from __future__ import annotations

from mindspore import Tensor

from mindgspo.algorithms.policy_loss import PolicyLoss


class GRPOLoss(PolicyLoss):
    """Eq. 3: J = mean_i 1/|y_i| sum_t min(r_it A_i, clip(r_it, 1 - el, 1 + eh) A_i); the loss is -J."""

    def log_ratio(self, difference_NK: Tensor, share_NK: Tensor) -> Tensor:
        """log r_it = log pi(y_it) - log pi_old(y_it); [N, K]."""
        return difference_NK
