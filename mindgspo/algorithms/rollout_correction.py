"""Importance weights against a sampler whose log-probs differ from those of the trainer.

Truncated weights: Feng Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025; the
same bound in LlamaRL's loss, arXiv 2505.24034. Masked weights: Jiacai Liu, Yingru Li et al., "When Speed Kills
Stability", 2025 (responses), and IcePop, arXiv 2510.18855 (tokens). That the weight stands beside the clipped ratio,
which still compares with the old policy: decoupled PPO, arXiv 2110.00641.

The weights multiply token losses. The denominators of the loss stay as they are: a masked token or response counts in
them with a loss of 0, so masking makes a step smaller instead of making the rest louder. KL term and entropy bonus are
not weighed.

    N  responses    K  response-token slots    1  an axis kept for broadcasting
    U  units that have a weight of their own: tokens, or responses

Metrics:
  Sampler against trainer:
    rollout_corr/weight_mean:
      meaning: mean weight that corrects the mismatch of sampler and trainer (algorithm.rollout_correction)
      healthy: 0.95 to 1.05
      action: 'far below 1: many weights are cut or masked; see rollout_corr/clipped_share'
    rollout_corr/weight_max:
      meaning: largest weight
      healthy: at most algorithm.rollout_correction.max
      action: 'always at the bound: the mismatch is large; see training/rollout_logprob_diff_mean'
    rollout_corr/weight_min:
      meaning: smallest weight
      healthy: above 0.5; 0 where mode is mask and a weight was out of range
      action: 'near 0: the trainer finds what the sampler did unlikely; see training/rollout_logprob_diff_mean'
    rollout_corr/ess:
      meaning: effective sample size of the weights, (sum w)^2 / (n sum w^2), as a share of their number
      unit: share
      healthy: above 0.9
      action: 'below 0.5 a few samples decide the update: refresh the sampler''s weights more often, use the
        same numeric type for sampling and training, or correct per token'
    rollout_corr/clipped_share:
      meaning: weights that were truncated or masked
      unit: share
      healthy: below 0.05
      action: 'above: the mismatch is large; find its cause before widening algorithm.rollout_correction.max'
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mindgspo.config.algorithm import RolloutCorrectionSection
from mindgspo.errors import TrainingError
from mindgspo.types import Batch, BoolArray, Float32Array

# exp of it is still a normal float32, and so is exp of its negative.
LARGEST_EXPONENT = 80.0

METRIC_NAMES = ("weight_mean", "weight_max", "weight_min", "ess", "clipped_share")


def correction_weights(
    section: RolloutCorrectionSection,
    old_logp_NK: NDArray[np.floating],
    rollout_logp_NK: NDArray[np.floating],
    mask_NK: BoolArray,
) -> Float32Array:
    """Weights that correct the mismatch of sampler and trainer.

    With d = old_logp - rollout_logp and `section.level`:

        token      w = exp(d)
        sequence   w = exp(sum_t d), the same for all tokens of a response
        geometric  w = exp(mean_t d), the same for all tokens of a response
        none       1

    Mode truncate returns min(w, max); mode mask returns w where min <= w <= max, else 0.

    Returns float32 [N, K], exactly 1 in masked slots, whatever the inputs hold there. Raises TrainingError if a
    log-prob of a real token is not finite.
    """
    weights_NK = np.ones(mask_NK.shape, dtype=np.float32)
    if section.level == "none":
        return weights_NK
    log_weights = _log_weights(section, old_logp_NK, rollout_logp_NK, mask_NK)
    bounded, _ = _bounded(section, log_weights)
    return np.where(mask_NK, bounded, 1.0).astype(np.float32)


def step_correction_metrics(section: RolloutCorrectionSection, batches: Sequence[Batch]) -> dict[str, float]:
    """METRIC_NAMES of the weights of all micro-batches of a step, counted in their own units: tokens for level token,
    else responses.

    weight_mean, weight_max, weight_min: of the weights in use, bounds applied.
    ess: effective sample size as a share, (sum w)^2 / (U sum w^2): 1 if all weights are equal, 1 / U if one outweighs
        all others, 0 if all are masked.
    clipped_share: share of units whose weight was truncated or masked.

    With level none they are 1, 1, 1, 1, 0.
    """
    log_weights_U = np.concatenate([_unit_log_weights(section, batch) for batch in batches])
    assert log_weights_U.size > 0, "a batch without a single response token"
    weights_U, outside_U = _bounded(section, log_weights_U)
    # Shares of the largest weight: squares of the weights themselves may leave the range of float64.
    largest = float(weights_U.max())
    shares_U = weights_U / largest if largest > 0 else weights_U
    squares = float((shares_U**2).sum())
    values = (
        float(weights_U.mean()),
        largest,
        float(weights_U.min()),
        float(shares_U.sum()) ** 2 / (weights_U.size * squares) if squares > 0 else 0.0,
        float(outside_U.mean()),
    )
    return dict(zip(METRIC_NAMES, values, strict=True))


def smallest_kept(section: RolloutCorrectionSection) -> float:
    """Lower bound of mode mask: `min`, or 1 / max where that is None."""
    return section.min if section.min is not None else 1.0 / section.max


def _log_weights(
    section: RolloutCorrectionSection,
    old_logp_NK: NDArray[np.floating],
    rollout_logp_NK: NDArray[np.floating],
    mask_NK: BoolArray,
) -> NDArray[np.float64]:
    """log w before any bound: [N, K] for level token, else [N, 1]; 0 where masked and in rows without a token."""
    assert old_logp_NK.shape == rollout_logp_NK.shape == mask_NK.shape, (
        f"old {old_logp_NK.shape}, sampler {rollout_logp_NK.shape}, mask {mask_NK.shape}"
    )
    assert mask_NK.dtype == np.bool_, f"mask has dtype {mask_NK.dtype}"
    old_NK = np.where(mask_NK, old_logp_NK, 0.0).astype(np.float64)
    sampler_NK = np.where(mask_NK, rollout_logp_NK, 0.0).astype(np.float64)
    # A comparison with nan is false: mode mask would silently drop what must stop the run.
    num_bad = int((~np.isfinite(old_NK) | ~np.isfinite(sampler_NK)).sum())
    if num_bad:
        raise TrainingError(
            f"rollout correction: {num_bad} of {int(mask_NK.sum())} response tokens have a log-prob that is not "
            "finite, under the trainer or the sampler"
        )
    difference_NK = old_NK - sampler_NK
    if section.level == "token":
        return difference_NK
    total_N1 = difference_NK.sum(axis=1, keepdims=True)
    if section.level == "geometric":
        return total_N1 / np.maximum(mask_NK.sum(axis=1, keepdims=True), 1)
    return total_N1


def _bounded(
    section: RolloutCorrectionSection, log_weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], BoolArray]:
    """Weights within their bounds, and which of them were outside."""
    weights = np.exp(np.clip(log_weights, -LARGEST_EXPONENT, LARGEST_EXPONENT))
    if section.mode == "truncate":
        return np.minimum(weights, section.max), weights > section.max
    outside = (weights < smallest_kept(section)) | (weights > section.max)
    return np.where(outside, 0.0, weights), outside


def _unit_log_weights(section: RolloutCorrectionSection, batch: Batch) -> NDArray[np.float64]:
    """[U]: one entry per real token, or per response that has a token."""
    mask_NK = batch.mask_NK
    if section.level == "none":
        return np.zeros(int(mask_NK.any(axis=1).sum()))
    log_weights = _log_weights(section, batch.old_logp_NK, batch.rollout_logp_NK, mask_NK)
    return log_weights[mask_NK] if section.level == "token" else log_weights[mask_NK.any(axis=1), 0]
