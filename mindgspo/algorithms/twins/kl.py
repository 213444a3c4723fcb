"""Estimates of the KL divergence from a reference policy at the sampled tokens, with their derivatives.

    u = logp - ref_logp    d = logp - old_logp
    N  responses    K  response-token slots    L  real tokens

John Schulman, "Approximating KL divergence" (2020): over tokens drawn from the policy E[k1] = E[k3] = KL. As a loss,
differentiated token by token, they are something else: the gradient of k1 has mean 0, that of k2 has the mean of the
divergence's own gradient, that of k3 is biased. Called by `policy_loss`, `conformance` and tests.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mindgspo.algorithms.losses.definition import KLTerm
from mindgspo.algorithms.twins.inputs import Float64Array, read_mask, read_matrix
from mindgspo.algorithms.twins.subgradients import clamp, exponential
from mindgspo.errors import DataError


def kl_penalty(
    term: KLTerm,
    *,
    logp_NK: ArrayLike,
    ref_logp_NK: ArrayLike,
    mask_NK: ArrayLike,
    old_logp_NK: ArrayLike | None = None,
) -> tuple[Float64Array, Float64Array]:
    """The estimate at every token [N, K] and its derivative by that token's logp, both exactly 0 in masked slots.

    old_logp_NK: needed by the importance weight only. Raises DataError where it is missing or a shape differs.
    """
    mask_NK = read_mask(mask_NK)
    logp_NK = read_matrix("logp", logp_NK, mask_NK.shape)
    ref_logp_NK = read_matrix("ref_logp", ref_logp_NK, mask_NK.shape)
    old_logp = None if old_logp_NK is None else read_matrix("old_logp", old_logp_NK, mask_NK.shape)[mask_NK]
    value_NK, grad_NK = np.zeros(mask_NK.shape), np.zeros(mask_NK.shape)
    value_NK[mask_NK], grad_NK[mask_NK] = token_kl(term, logp_NK[mask_NK], ref_logp_NK[mask_NK], old_logp)
    return value_NK, grad_NK


def token_kl(
    term: KLTerm, logp: Float64Array, ref_logp: Float64Array, old_logp: Float64Array | None
) -> tuple[Float64Array, Float64Array]:
    """Estimate [L] and derivative by logp [L] at real tokens.

    The importance weight exp(d) is that of tokens drawn from the old policy (DeepSeek-V3.2, arXiv 2512.02556, section
    3.1); its gradient counts, and k3 times the weight is then unbiased in value and in gradient. The value is clamped
    after weighting (slime). straight_through_k2: the value stays, the derivative is that of k2, u.
    """
    above = logp - ref_logp
    value, slope = _estimate(term, above)
    if term.importance_weight:
        if old_logp is None:
            raise DataError("kl_importance_weight needs old_logp")
        log_weight, passes = clamp(logp - old_logp, None, term.log_ratio_max)
        weight, weight_slope = exponential(log_weight)
        value, slope = value * weight, slope * weight + value * weight_slope * passes
    if term.value_clamp is not None:
        value, passes = clamp(value, *term.value_clamp)
        slope = slope * passes
    if term.straight_through_k2:
        slope = above
    return value, slope


def _estimate(term: KLTerm, above: Float64Array) -> tuple[Float64Array, Float64Array]:
    """The estimate of u = `above` and its derivative by u."""
    if term.kind == "k1":
        return above, np.ones_like(above)
    if term.kind == "k2":
        return above**2 / 2, above
    if term.kind == "abs":
        return np.abs(above), np.sign(above)
    exponent, passes = clamp(-above, *(term.arg_clamp or (None, None)))
    power, power_slope = exponential(exponent)
    return power - exponent - 1.0, (1.0 - power_slope) * passes
