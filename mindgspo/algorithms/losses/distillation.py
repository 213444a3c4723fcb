"""KL of policy and teacher over the teacher's likeliest tokens, with its exact gradient.

Per token, over the set S of the teacher's A likeliest ids and all other ids as one, r:

    KL = sum_(v in S) p_v log(p_v / q_v) + p_r log(p_r / q_r)        p: policy, q: teacher, p_r = 1 - sum_(v in S) p_v

This is the reverse KL of coarsened distributions: never negative (but for LEAST_REST, which can put it 1e-5 below 0),
0 where they are equal, at most the KL over the whole vocabulary, and that itself where A is the vocabulary. Its
gradient by a logit z_v is p_v (log(p_v / q_v) - KL), by one outside of S p_v (log(p_r / q_r) - KL).

Reverse, as Agarwal et al. (arXiv 2306.13649) for the student's own samples, MiniLLM (arXiv 2306.08543), and TRL's
DistillationTrainer by default (beta 1), whose tail (loss_add_tail) is r; that trainer sums over the student's likeliest
tokens. Here they are the teacher's, which stay the same over all updates of a rollout and are what a server can return,
as in verl (forward_kl_topk). verl's loss is the forward KL, sum_(v in S) q_v log(q_v / p_v), without r, so it may fall
below 0.

    N  responses    K  response-token slots    A  likeliest tokens

Metrics:
  Loss, KL and entropy:
    actor/distillation_kl:
      meaning: mean over response tokens of the KL of policy and teacher over the teacher's likeliest tokens
        (algorithm.distillation.loss top_k), 0 without a teacher, averaged over the step's updates
      unit: nat
      healthy: falls
      action: 'flat: raise algorithm.distillation.coef or optimizer.lr; read samples.jsonl for responses that no
        teacher would give'
"""

from __future__ import annotations

from mindspore import Tensor, nn, ops

from mindgspo.algorithms.loss_metrics import Metric

DISTILLATION_METRIC = Metric("distillation_kl", "sum", "token")
"""Stands behind all others of a loss with this KL."""
# Least mass of all other tokens: exp is off by 4e-6 on CPU, so that less is not known. It bounds log(p_r / q_r).
LEAST_REST = 1e-5


class TopKKL(nn.Cell):
    """construct(logp_NKA, teacher_ids_NKA, teacher_logp_NKA, mask_NK) -> KL of each token, float32 [N, K]; 0 where
    masked and without a teacher.

    logp_NKA, teacher_logp_NKA: float32, log-probs of the ids under policy and teacher; anything where the id is -1.
    """

    def construct(self, logp_NKA: Tensor, teacher_ids_NKA: Tensor, teacher_logp_NKA: Tensor, mask_NK: Tensor) -> Tensor:
        is_told_NKA = ops.logical_and(mask_NK.expand_dims(-1), teacher_ids_NKA >= 0)
        # Masked before any arithmetic: 0 * nan is nan, in the gradient too.
        logp_NKA = ops.where(is_told_NKA, logp_NKA, 0.0)
        teacher_logp_NKA = ops.where(is_told_NKA, teacher_logp_NKA, 0.0)
        probs_NKA = ops.where(is_told_NKA, ops.exp(logp_NKA), 0.0)
        rest_NK = self.rest(probs_NKA)
        teacher_rest_NK = self.rest(ops.where(is_told_NKA, ops.exp(teacher_logp_NKA), 0.0))
        of_told_NK = (probs_NKA * (logp_NKA - teacher_logp_NKA)).sum(-1)
        return of_told_NK + rest_NK * (ops.log(rest_NK) - ops.log(teacher_rest_NK))

    def rest(self, probs_NKA: Tensor) -> Tensor:
        """Mass of all other tokens; its gradient is 0 below the least."""
        rest_NK = 1.0 - probs_NKA.sum(-1)
        return ops.where(rest_NK > LEAST_REST, rest_NK, LEAST_REST)
