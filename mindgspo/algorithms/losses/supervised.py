"""Supervised fine-tuning loss, for the warm-up before reinforcement learning.

It takes the inputs of a policy loss, so that `update` can drive either. Called by the trainer's warm-up.

Metrics:
  Supervised warm-up:
    sft/token_probability:
      meaning: mean probability of the solution tokens
      healthy: rises
"""

from __future__ import annotations

from mindspore import Tensor, nn, ops

from mindgspo.algorithms.loss_metrics import Metric


class SupervisedLoss(nn.Cell):
    """Mean negative log-likelihood over all target tokens of the global mini-batch."""

    metrics: tuple[Metric, ...] = (Metric("token_probability", "sum", "token"),)

    def construct(self, logp_NK: Tensor, entropy_NK: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs and outputs as `PolicyLoss.construct`; only log-probs, mask and num_tokens are read, and the
        log-ratios are 0."""
        mask_NK, num_tokens = inputs[4], inputs[6]
        loss = -ops.where(mask_NK, logp_NK, 0.0).sum() / num_tokens
        probability = ops.where(mask_NK, ops.exp(ops.stop_gradient(logp_NK)), 0.0).sum()
        return loss, probability.reshape(1), ops.zeros_like(logp_NK)
