"""Losses of the tokens of one response, and their derivatives, for GSPO's successors: DPPO, VESPO, FIPO, Clip-Cov,
KL-Cov; and the off-policy sequence mask. LUSPO is GSPO with another aggregation.

    r  ratio    A  advantage    d = logp - old_logp    p = exp(logp)    q = exp(old_logp)    L  real tokens

| loss             | paper            | judge          | surrogate                                                |
|------------------|------------------|----------------|----------------------------------------------------------|
| DPPO-TV, DPPO-KL | arXiv 2602.04879 | verl 0.9.1     | -sg[min(r, c)] A logp, 0 outside the trust region        |
| VESPO            | arXiv 2602.10693 | TRL 1.16       | -sg[phi(prod r)] A logp                                  |
| FIPO             | arXiv 2603.19835 | qwenpilot/FIPO | PPO's with the dual clip, A weighted by later log-ratios |
| Clip-Cov, KL-Cov | arXiv 2505.22617 | verl 0.9.1     | PPO's, 0 at selected tokens; -A r, plus beta |d| at them |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from mindgspo.algorithms.losses.definition import LossDefinition
from mindgspo_conformance.twins.inputs import Float64Array, Response, clamp, exponential
from mindgspo_conformance.twins.surrogates import TokenLosses, clipped_losses


def is_off_policy(definition: LossDefinition, response: Response) -> bool:
    """Whether the off-policy sequence mask leaves it out: A < 0, and mean(sampler - logp) above the threshold."""
    if definition.opsm_threshold is None or not response.length or response.advantages.sum() >= 0:
        return False
    return float((response.sampler_logp - response.logp).mean()) > definition.opsm_threshold


def _dppo(definition: LossDefinition, response: Response, log_ratio: Float64Array) -> TokenLosses:
    """The trust region is one-sided: what moves back towards the old policy is never masked."""
    with np.errstate(all="ignore"):  # log-probs above 0 have no distance
        p, q = np.exp(response.logp), np.exp(response.old_logp)
        distance = np.abs(p - q)
        if definition.surrogate == "dppo_kl":
            distance = q * -response.difference + (1.0 - q) * np.log((1.0 - q + 1e-8) / (1.0 - p + 1e-8))
    up = (response.advantages > 0) & (p > q) & (distance > definition.clip_high)
    down = (response.advantages <= 0) & (p < q) & (distance > definition.clip_low)
    outside = up | down
    ratio, _ = exponential(log_ratio)
    slope = np.where(outside, 0.0, -response.advantages * np.minimum(ratio, definition.clip_ratio_c))
    return TokenLosses(
        value=slope * response.logp,
        by_log_ratio=np.zeros_like(slope),
        by_logp=slope,
        clipped=outside,
        capped=(ratio > definition.clip_ratio_c) & ~outside,
    )


def _vespo(definition: LossDefinition, response: Response, log_ratio: Float64Array) -> TokenLosses:
    """phi(W) = exp(lambda + k log W - lambda W); log W adds up d within +-20 and logarithms of weights."""
    low, high = np.log(1e-8), 20.0
    total = clamp(log_ratio, -20.0, 20.0)[0].sum()
    total += np.log(np.maximum(response.correction, 1e-8)).clip(low, high).sum()
    log_weight = min(max(total, low), high)
    positive = response.advantages >= 0
    k = np.where(positive, definition.k_pos, definition.k_neg)
    rate = np.where(positive, definition.lambda_pos, definition.lambda_neg)
    slope = -np.exp(rate + k * log_weight - rate * np.exp(log_weight)) * response.advantages
    return TokenLosses(
        value=slope * response.logp,
        by_log_ratio=np.zeros_like(slope),
        by_logp=slope,
        clipped=np.full(slope.shape, total != log_weight),
        capped=np.zeros(slope.shape, np.bool_),
    )


def _fipo(definition: LossDefinition, response: Response, log_ratio: Float64Array) -> TokenLosses:
    """The sum over later tokens runs backwards; distances are between slots, so that holes count."""
    assert definition.clip_ratio_c is not None
    gamma, running, future = 2.0 ** (-1.0 / definition.future_half_life), 0.0, np.zeros(response.length)
    for t in reversed(range(response.length)):
        if t + 1 < response.length:
            running *= gamma ** float(response.slots[t + 1] - response.slots[t])
        if log_ratio[t] <= np.log(definition.clip_ratio_c):
            running += log_ratio[t]
        future[t] = running
    influence = np.clip(exponential(future)[0], definition.influence_low, definition.influence_high)
    unsafe = (response.advantages < 0) & (exponential(log_ratio)[0] > definition.safety_ratio)
    influence = np.where(unsafe, np.clip(influence, 0.8, 1.0), influence)
    losses = clipped_losses(definition, log_ratio, response.advantages * influence)
    keeps = float(losses.capped.sum() <= 1)
    return replace(losses, value=keeps * losses.value, by_log_ratio=keeps * losses.by_log_ratio)


def _clip_cov(definition: LossDefinition, response: Response, log_ratio: Float64Array) -> TokenLosses:
    losses = clipped_losses(definition, log_ratio, response.advantages)
    keeps = np.where(response.selected, 0.0, 1.0)
    return replace(
        losses,
        value=keeps * losses.value,
        by_log_ratio=keeps * losses.by_log_ratio,
        clipped=response.selected,
    )


def _kl_cov(definition: LossDefinition, response: Response, log_ratio: Float64Array) -> TokenLosses:
    ratio, slope = exponential(log_ratio)
    coef = np.where(response.selected, definition.kl_cov_coef, 0.0)
    return TokenLosses(
        value=-response.advantages * ratio + coef * np.abs(log_ratio),
        by_log_ratio=-response.advantages * slope + coef * np.sign(log_ratio),
        by_logp=np.zeros_like(ratio),
        clipped=response.selected,
        capped=np.zeros(ratio.shape, np.bool_),
    )


SUCCESSORS: Mapping[str, Callable[[LossDefinition, Response, Float64Array], TokenLosses]] = {
    "dppo_tv": _dppo,
    "dppo_kl": _dppo,
    "vespo": _vespo,
    "fipo": _fipo,
    "clip_cov": _clip_cov,
    "kl_cov": _kl_cov,
}
"""(definition, response, log-ratios within their bounds) -> losses, by surrogate."""
