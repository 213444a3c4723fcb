"""Clip-Cov and KL-Cov: the few tokens that drive the entropy down get no gradient, or a penalty. Twin:
`twins.successors`.

Paper: "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", arXiv 2505.22617. Entropy falls
with the covariance of advantage and log-prob over the tokens (section 3), so a token counts by its part of it,

    cov_t = (A_t - mean A) (log pi(y_t) - mean log pi)        eq. 10

Which tokens are selected is decided before the updates of a mini-batch, over all of its tokens and with the log-probs
of the old policy. verl decides it anew in every micro-batch, by the present log-probs: the same in one micro-batch of
a first update, but there it depends on how the mini-batch was cut.

    N  responses    K  response-token slots    I  response tokens of a mini-batch
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor, ops
from numpy.typing import NDArray

from mindgspo.algorithms.losses.clipped import ClippedLoss
from mindgspo.algorithms.losses.definition import LossDefinition
from mindgspo.algorithms.losses.policy_loss import PolicyLoss, zeros_like
from mindgspo.algorithms.losses.ratios import Ratio
from mindgspo.config.algorithm import CovarianceSection
from mindgspo.types import Batch, BoolArray

SELECTION_KEY = 0x636F76
"""Keeps the selection's random numbers apart from those of data and sampling."""


class ClipCovLoss(ClippedLoss):
    """Eq. 11: the clipped surrogate, 0 at selected tokens; the mean over all tokens. As verl."""

    reads_selection = True

    def surrogate(
        self, log_ratio: Tensor, inside: Tensor, logp_NK: Tensor, advantages_NK: Tensor, mask_NK: Tensor, *read: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        token_loss, _, capped = super().surrogate(log_ratio, inside, logp_NK, advantages_NK, mask_NK)
        selected_NK = read[0]
        return ops.where(selected_NK, 0.0, token_loss), selected_NK, capped


class KLCovLoss(PolicyLoss):
    """Eq. 12 and 13: -A r, plus beta |d| at selected tokens; the mean over all tokens. As verl, without a clip."""

    reads_selection = True

    def __init__(self, definition: LossDefinition, ratio: type[Ratio]) -> None:
        super().__init__(definition, ratio)
        self.kl_coef = definition.kl_cov_coef

    def surrogate(
        self, log_ratio: Tensor, inside: Tensor, logp_NK: Tensor, advantages_NK: Tensor, mask_NK: Tensor, *read: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        selected_NK = read[0]
        penalty_NK = ops.where(selected_NK, self.kl_coef * ops.abs(log_ratio), 0.0)
        return penalty_NK - advantages_NK * ops.exp(log_ratio), selected_NK, zeros_like(selected_NK)


def select_tokens(
    section: CovarianceSection, batches: Sequence[Batch], *, at_random: bool, seed: Sequence[int]
) -> list[BoolArray]:
    """Tokens of one mini-batch that are selected, bool [N, K] by micro-batch, False where masked.

    share * I of them, rounded down, at least one. at_random (Clip-Cov): drawn among those with low < cov < high, as
    many as there are; else (KL-Cov) those with the largest cov. Depends neither on the cut into `batches` nor on
    padding: tokens are told apart by sample number and slot.

    batches: with old_logp_NK and advantages_NK. seed: not negative.
    """
    places = [np.nonzero(batch.mask_NK) for batch in batches]
    sample_I = np.concatenate([batch.samples_N[rows] for batch, (rows, _) in zip(batches, places, strict=True)])
    slot_I = np.concatenate([slots for _, slots in places])
    in_order = np.lexsort((slot_I, sample_I))
    covariance = covariances(
        np.concatenate([batch.advantages_NK[batch.mask_NK] for batch in batches])[in_order],
        np.concatenate([batch.old_logp_NK[batch.mask_NK] for batch in batches])[in_order],
    )
    count = max(int(section.share * covariance.size), 1)
    if at_random:
        candidates = np.flatnonzero((covariance > section.low) & (covariance < section.high))
        # Sorting raw words: numpy promises the generator's sequence, but not that of its `permutation`.
        words = np.random.Philox(np.random.SeedSequence([SELECTION_KEY, *seed])).random_raw(covariance.size)
        chosen = candidates[np.argsort(words[candidates], kind="stable")[:count]]
    else:
        chosen = np.argsort(-covariance, kind="stable")[:count]
    is_selected = np.zeros(covariance.size, np.bool_)
    is_selected[in_order[chosen]] = True
    selections, first = [], 0
    for batch, (rows, slots) in zip(batches, places, strict=True):
        selected_NK = np.zeros(batch.mask_NK.shape, np.bool_)
        selected_NK[rows, slots] = is_selected[first : first + rows.size]
        first += rows.size
        selections.append(selected_NK)
    return selections


def covariances(advantages_I: NDArray[np.floating], logp_I: NDArray[np.floating]) -> NDArray[np.float64]:
    """cov of each token, float64 [I]."""
    advantages_I, logp_I = advantages_I.astype(np.float64), logp_I.astype(np.float64)
    return (advantages_I - advantages_I.mean()) * (logp_I - logp_I.mean())
