"""How far the sampler's log-probs lie from the trainer's: the same tokens, the same weights, two graphs.

What enters: log-probs of a step's response tokens under the trainer, before any update, and under the sampler. What
leaves: flat metrics under verl's names. Called by the trainer's step. numpy only, float64.

    d = trainer - sampler of a token    I  response tokens    N  responses    K  response-token slots
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mindgspo.algorithms.rollout_correction import LARGEST_EXPONENT
from mindgspo.types import Batch, Float32Array


def batch_mismatch(
    batches: Sequence[Batch], trainer_logp_NK: Sequence[Float32Array], *, first_number: int = 0
) -> dict[str, float]:
    """`mismatch_metrics` over the tokens of batches; {} if there are none. trainer_logp_NK: of each batch; anything may
    stand in masked slots. first_number: samples with smaller numbers are left out, because other weights drew them."""
    masks = [batch.mask_NK & (batch.samples_N >= first_number)[:, None] for batch in batches]
    if not any(mask.any() for mask in masks):
        return {}
    sampler = np.concatenate([batch.rollout_logp_NK[mask] for batch, mask in zip(batches, masks, strict=True)])
    trainer = np.concatenate([logp_NK[mask] for logp_NK, mask in zip(trainer_logp_NK, masks, strict=True)])
    return mismatch_metrics(sampler, trainer)


def mismatch_metrics(sampler_I: NDArray[np.floating], trainer_I: NDArray[np.floating]) -> dict[str, float]:
    """Over all tokens given, at least one. Two estimates of the KL divergence from sampler to trainer: kl, the mean of
    -d (k1), which may be negative, and k3_kl, the mean of exp(d) - 1 - d, which may not and is 0 only where all tokens
    agree (John Schulman, "Approximating KL divergence"); d counts as 80 at most in it. The correlation (Pearson) of the
    probabilities is left out where either are all alike, so that none exists."""
    assert sampler_I.shape == trainer_I.shape and sampler_I.size > 0, f"{sampler_I.shape}, {trainer_I.shape}"
    sampler, trainer = sampler_I.astype(np.float64), trainer_I.astype(np.float64)
    difference = trainer - sampler
    bounded = np.minimum(difference, LARGEST_EXPONENT)
    gap = np.abs(np.exp(sampler) - np.exp(trainer))
    metrics = {
        "training/rollout_logprob_diff_max": np.abs(difference).max(),
        "training/rollout_logprob_diff_mean": np.abs(difference).mean(),
        "training/rollout_probs_diff_max": gap.max(),
        "training/rollout_probs_diff_mean": gap.mean(),
        "training/rollout_probs_diff_std": gap.std(),
        "rollout_corr/kl": (sampler - trainer).mean(),
        "rollout_corr/k3_kl": (np.expm1(bounded) - bounded).mean(),
    }
    correlation = _correlation(np.exp(sampler), np.exp(trainer))
    if correlation is not None:
        metrics["training/rollout_actor_probs_pearson_corr"] = correlation
    return {name: float(value) for name, value in metrics.items()}


def _correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    """Pearson's, within [-1, 1]; None where one of the two does not vary."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:  # a mean that rounds would make a deviation of nothing
        return None
    one, other = one - one.mean(), other - other.mean()
    # Each by its own largest value: squares of small probabilities leave the range of float64.
    one, other = one / np.abs(one).max(), other / np.abs(other).max()
    found = float((one * other).sum() / np.sqrt((one**2).sum() * (other**2).sum()))
    return min(max(found, -1.0), 1.0)
