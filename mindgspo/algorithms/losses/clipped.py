"""The clipped surrogate of PPO with its caps. The ratio is clipped in `PolicyLoss.construct`; the choice between it and
the free one is made here. Twin: `twins.surrogates`.

The losses that pair it with a ratio, an aggregation and a clip range (`config.algorithm.POLICY_LOSSES`); each loss is
-J. clip(r) is clip(r, 1 - el, 1 + eh).

GSPO, arXiv 2507.18071, eq. 5: J = mean_i min(s_i A_i, clip(s_i) A_i), one ratio per response. s_i is eq. 7's, see
`SequenceRatio`. Section 5.1: el = 3e-4, eh = 4e-4, every response weighs the same (seq-mean-token-mean). Gradient (eq.
10): - s_i A_i / |y_i| for every token of a response that is not clipped.
With `TurnRatio` (algorithm.ratio_over=turn): J = mean_i sum_j |y_ij|/|y_i| min(s_ij A_i, clip(s_ij) A_i) over the turns
j of an episode; |y_i| = sum_j |y_ij| counts sampled tokens. A turn weighs by its tokens, so that on the old policy the
gradient is eq. 10's, token by token: - s_ij A_i / |y_i| in every turn that is not clipped.
GSPO-token, eq. 13 there: J = mean_i 1/|y_i| sum_t min(s_it A_it, clip(s_it) A_it). s_it is eq. 14's: the value of
GSPO's ratio, the gradient of the token's own log-prob. Where all tokens of a response have one advantage, value, clip
condition and gradient are those of GSPO.
LUSPO, arXiv 2602.05261: J = mean_i |y_i| min(s_i A_i, clip(s_i) A_i). GSPO's surrogate, times the length: every token
weighs the same, where GSPO's gradient (eq. 10 there) divides by |y_i|, which shortens responses. The length comes in by
the sum over tokens (seq-mean-token-sum). Its section 5.1: el = 2e-3, eh = 2.5e-3.
GRPO, arXiv 2402.03300, eq. 3: J = mean_i 1/|y_i| sum_t min(r_it A_i, clip(r_it) A_i). Its KL term is a setting of its
own here (`algorithm.kl`), with k3 as in eq. 4.
PPO, arXiv 1707.06347, eq. 7, as the mean over all tokens, with the dual clip of arXiv 1912.09729, eq. 5: where A < 0 a
token's loss is at most -c A, so that one token of a tiny old probability cannot carry the batch away.
DAPO, arXiv 2503.14476, eq. 8: J = 1 / sum_i |y_i| sum_i sum_t min(r_it A_i, clip(r_it) A_i). GRPO's surrogate with a
higher upper clip (section 3.1: 0.2 / 0.28), averaged over the tokens of the whole mini-batch (section 3.3), so that a
long response weighs more than a short one.
Dr.GRPO, arXiv 2503.20783, section 3: J = mean_i 1/L sum_t min(r_it A_i, clip(r_it) A_i). L is a constant (the longest
response allowed), not |y_i|, so that long wrong answers are not favoured; its advantage is r - mean, undivided
(estimator dr_grpo).

    N  responses    K  response-token slots
"""

from __future__ import annotations

from mindspore import Tensor, ops

from mindgspo.algorithms.losses.definition import LossDefinition
from mindgspo.algorithms.losses.policy_loss import PolicyLoss, bounded, log_bound, zeros_like
from mindgspo.algorithms.losses.ratios import Ratio


class ClippedLoss(PolicyLoss):
    """max(-A r, -A clip(r, 1 - el, 1 + eh)), arXiv 1707.06347, eq. 7.

    Then, where A < 0, at most -c A (dual clip, arXiv 1912.09729, eq. 5); and at most `loss_upper_clamp` (ChatLearn's
    final_clip_ratio). `ratio_upper_clamp` bounds the ratio of the unclipped branch only (TRL's delta).
    """

    def __init__(self, definition: LossDefinition, ratio: type[Ratio]) -> None:
        super().__init__(definition, ratio)
        self.log_upper_clamp = log_bound(definition.ratio_upper_clamp)
        self.clip_ratio_c = definition.clip_ratio_c
        self.loss_upper_clamp = definition.loss_upper_clamp

    def surrogate(
        self, log_ratio: Tensor, inside: Tensor, logp_NK: Tensor, advantages_NK: Tensor, mask_NK: Tensor, *read: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        free = bounded(log_ratio, None, self.log_upper_clamp)
        # The larger loss is the smaller r A: a choice between logarithms, which are exact where ratios are not, and
        # the metrics need it. Exactly on an edge both branches are one, and the gradient is whole.
        clipped = ops.logical_or(
            ops.logical_and(free > inside, advantages_NK > 0), ops.logical_and(free < inside, advantages_NK < 0)
        )
        token_loss = -advantages_NK * ops.exp(ops.where(clipped, inside, free))
        capped = zeros_like(clipped)
        if self.clip_ratio_c is not None:
            cap_NK = -self.clip_ratio_c * advantages_NK
            capped = ops.logical_and(token_loss > cap_NK, advantages_NK < 0)
            token_loss = ops.where(advantages_NK < 0, ops.minimum(token_loss, cap_NK), token_loss)
        if self.loss_upper_clamp is not None:
            token_loss = ops.minimum(token_loss, self.loss_upper_clamp)
        return token_loss, clipped, capped
