"""Losses of the tokens of one response, their derivatives and where a clip acts: ratios, surrogates and KL estimates.

All are losses, the negative of the papers' objectives.

    r  ratio    A  advantage    d = logp - old_logp    u = logp - ref_logp    sg  stop-gradient
    N  responses    K  response-token slots    L  real tokens of one response

| loss       | paper                                | ratio          | surrogate | aggregation                 |
|------------|--------------------------------------|----------------|-----------|-----------------------------|
| GSPO       | arXiv 2507.18071, eq. 5              | sequence       | clip      | seq-mean-token-mean         |
| GSPO-token | arXiv 2507.18071, eq. 13             | sequence_token | clip      | seq-mean-token-mean         |
| GRPO       | arXiv 2402.03300, eq. 3              | token          | clip      | seq-mean-token-mean         |
| PPO        | arXiv 1707.06347, eq. 7              | token          | clip      | token-mean                  |
| DAPO       | arXiv 2503.14476, eq. 8              | token          | clip      | token-mean                  |
| Dr.GRPO    | arXiv 2503.20783, section 3.2        | token          | clip      | seq-mean-token-sum-norm     |
| GMPO       | arXiv 2507.20673, eq. 4              | token          | gmpo      | batch-mean                  |
| CISPO      | arXiv 2506.13585, eq. 4 and 5        | token          | cispo     | token-mean                  |
| SAPO       | arXiv 2511.20347, eq. 5              | token          | sapo      | seq-mean-token-mean         |
| GPG        | arXiv 2504.02546, eq. 6              | none           | gpg       | token-mean                  |

John Schulman, "Approximating KL divergence" (2020): over tokens drawn from the policy E[k1] = E[k3] = KL. As a loss,
differentiated token by token, they are something else: the gradient of k1 has mean 0, that of k2 has the mean of the
divergence's own gradient, that of k3 is biased.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mindgspo.algorithms.losses.definition import KLTerm, LossDefinition
from mindgspo.errors import DataError
from mindgspo_conformance.twins.aggregation import mean_length
from mindgspo_conformance.twins.inputs import (
    BoolArray,
    Float64Array,
    Response,
    clamp,
    exponential,
    larger,
    read_mask,
    read_matrix,
    smaller,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRatios:
    """log r of every token; every array is [L].

    raw, bounded: before and within log_ratio_min and log_ratio_max. used: what the surrogate gets, `bounded`, or 0
    where the definition has no ratio; then the others are those of tokens, to be measured only. passes: 1 where the
    bounds let the gradient of `used` through, else 0.
    """

    raw: Float64Array
    bounded: Float64Array
    used: Float64Array
    passes: Float64Array


def log_ratios(definition: LossDefinition, response: Response) -> LogRatios:
    """log r at every token.

    token, PPO (arXiv 1707.06347, section 3): log r_t = d_t.
    sequence, GSPO (arXiv 2507.18071, eq. 7): log s = 1/|y| sum_t d_t, the same at every token.
    sequence_token, GSPO-token (eq. 14): log s_t = sg[log s] + logp_t - sg[logp_t], which has GSPO's value.
    none: the surrogate gets the constant r = 1.
    """
    raw = response.difference
    if definition.ratio_level in ("sequence", "sequence_token"):
        raw = np.full(response.length, response.difference.sum() / ratio_length(definition, response))
    bounded, passes = clamp(raw, definition.log_ratio_min, definition.log_ratio_max)
    if definition.ratio_level == "none":
        return LogRatios(raw=raw, bounded=bounded, used=np.zeros_like(raw), passes=np.zeros_like(raw))
    return LogRatios(raw=raw, bounded=bounded, used=bounded, passes=passes)


def gradient_by_logp(
    definition: LossDefinition, response: Response, ratios: LogRatios, by_log_ratio: Float64Array
) -> Float64Array:
    """d loss / d logp [L] from d loss / d log r [L], where log r is `used`.

    Through a sequence's mean every token gets 1/|y| of the sum; GSPO-token gives each token its own.
    """
    by_raw = by_log_ratio * ratios.passes
    if definition.ratio_level == "sequence":
        return np.full(response.length, by_raw.sum() / ratio_length(definition, response))
    return by_raw


def ratio_length(definition: LossDefinition, response: Response) -> float:
    """What the mean of d is divided by: |y| + ratio_len_eps where that is set (ChatLearn), else max(|y|, 1)."""
    if definition.ratio_len_eps:
        return response.length + definition.ratio_len_eps
    return max(response.length, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLosses:
    """Losses of a response's tokens; every array is [L].

    by_log_ratio, by_logp: derivatives by the bounded log-ratio, and by logp where it enters by itself.
    clipped: where the clip acts. capped: where the dual clip does.
    """

    value: Float64Array
    by_log_ratio: Float64Array
    by_logp: Float64Array
    clipped: BoolArray
    capped: BoolArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseLoss:
    """The one loss of a response; by_log_ratio [L] is its derivative by every token's bounded log-ratio.

    clipped [L]: where the clip acts.
    """

    value: float
    by_log_ratio: Float64Array
    clipped: BoolArray


def token_losses(definition: LossDefinition, response: Response, log_ratio: Float64Array) -> TokenLosses:
    """The surrogate that the definition names. log_ratio: [L], within its bounds."""
    if definition.surrogate == "clip":
        return clipped_losses(definition, log_ratio, response.advantages)
    if definition.surrogate == "cispo":
        return cispo_losses(definition, log_ratio, response.advantages, response.logp)
    if definition.surrogate == "sapo":
        return sapo_losses(definition, log_ratio, response.advantages)
    assert definition.surrogate == "gpg", f"{definition.surrogate} has no loss of tokens"
    return gpg_losses(response.advantages, response.logp)


def clipped_losses(definition: LossDefinition, log_ratio: Float64Array, advantage: Float64Array) -> TokenLosses:
    """max(-A r, -A clip(r, 1 - low, 1 + high)): PPO, arXiv 1707.06347, eq. 7, and with it GRPO, DAPO, Dr.GRPO, GSPO,
    GSPO-token (see the table above for their equations).

    clip_ratio_c, dual clip (arXiv 1912.09729, eq. 5): where A < 0 at most -c A. ratio_upper_clamp (TRL's delta): the
    unclipped branch takes min(r, delta). loss_upper_clamp (ChatLearn's final_clip_ratio): min(loss, cap), last.
    """
    ratio, ratio_slope = exponential(log_ratio)
    free, free_passes = clamp(ratio, None, definition.ratio_upper_clamp)
    inside, inside_passes = clip_ratio(definition, ratio)
    free_loss, inside_loss = -advantage * free, -advantage * inside
    value, share = larger(free_loss, inside_loss)
    by_ratio = -advantage * (share * free_passes + (1.0 - share) * inside_passes)

    capped = np.zeros(advantage.shape, dtype=np.bool_)
    if definition.clip_ratio_c is not None:
        cap = np.where(advantage < 0, -advantage * definition.clip_ratio_c, np.inf)
        capped = value > cap
        value, share = smaller(value, cap)
        by_ratio = by_ratio * share
    if definition.loss_upper_clamp is not None:
        value, share = smaller(value, np.full(value.shape, definition.loss_upper_clamp))
        by_ratio = by_ratio * share
    return TokenLosses(
        value=value,
        by_log_ratio=by_ratio * ratio_slope,
        by_logp=np.zeros_like(value),
        clipped=inside_loss > free_loss,
        capped=capped,
    )


def cispo_losses(
    definition: LossDefinition, log_ratio: Float64Array, advantage: Float64Array, logp: Float64Array
) -> TokenLosses:
    """-sg[clip(r, 1 - low, 1 + high)] A logp: CISPO, arXiv 2506.13585, eq. 4 and 5.

    The ratio is a weight and has no gradient, so a clipped token still has one.
    """
    ratio, _ = exponential(log_ratio)
    weight, _ = clip_ratio(definition, ratio)
    return TokenLosses(
        value=-weight * advantage * logp,
        by_log_ratio=np.zeros_like(ratio),
        by_logp=-weight * advantage,
        clipped=weight != ratio,
        capped=np.zeros(ratio.shape, dtype=np.bool_),
    )


def sapo_losses(definition: LossDefinition, log_ratio: Float64Array, advantage: Float64Array) -> TokenLosses:
    """-A sigmoid(tau (r - 1)) 4 / tau: SAPO, arXiv 2511.20347, eq. 5. tau is tau_pos where A > 0, else tau_neg."""
    ratio, ratio_slope = exponential(log_ratio)
    tau = np.where(advantage > 0, definition.tau_pos, definition.tau_neg)
    gate = 1.0 / (1.0 + np.exp(-tau * (ratio - 1.0)))
    nowhere = np.zeros(ratio.shape, dtype=np.bool_)
    return TokenLosses(
        value=-advantage * gate * 4.0 / tau,
        by_log_ratio=-advantage * gate * (1.0 - gate) * 4.0 * ratio_slope,
        by_logp=np.zeros_like(ratio),
        clipped=nowhere,
        capped=nowhere,
    )


def gpg_losses(advantage: Float64Array, logp: Float64Array) -> TokenLosses:
    """-A logp: GPG, arXiv 2504.02546, eq. 6, the plain policy gradient."""
    nowhere = np.zeros(logp.shape, dtype=np.bool_)
    return TokenLosses(
        value=-advantage * logp,
        by_log_ratio=np.zeros_like(logp),
        by_logp=-advantage,
        clipped=nowhere,
        capped=nowhere,
    )


def gmpo_loss(definition: LossDefinition, response: Response, log_ratio: Float64Array) -> ResponseLoss:
    """-A exp(1/|y| sum_t c_t(log r_t)): GMPO, arXiv 2507.20673, eq. 4, a geometric mean of clipped ratios.

    c_t keeps the log-ratio of a token with A > 0 at or below `high`, with A < 0 at or above -low; the range bounds
    logarithms (paper: 0.4). A token with A = 0 counts as log-ratio 0 without gradient (verl's sign of 0; it only shows
    where tokens of one response differ in A).

    The response's A is pooled over its tokens, sum(A) / (|y| + eps) (verl), or its own (TRL). A response without a
    real token has the ratio 1. Pooled, it has A = 0, and so the loss 0. With its own A it has the loss -A where empty
    rows count (empty_rows: include, as in TRL), 0 where they do not. Its gradient is 0 and batch-mean counts its row in
    each of these cases. Importance weights multiply by their geometric mean. All means over |y| divide by the length
    that the aggregation gives, |y| + seq_len_eps or max(|y|, 1).
    """
    length = mean_length(definition.aggregation, response.length)
    pooled = definition.advantage_pool == "masked-mean"
    sign = np.sign(response.advantages if pooled else np.full(response.length, response.own_advantage))
    below, below_passes = clamp(log_ratio, None, definition.clip_high)
    above, above_passes = clamp(log_ratio, None if definition.clip_low is None else -definition.clip_low, None)
    kept = np.select([sign > 0, sign < 0], [below, above], 0.0)
    passes = np.select([sign > 0, sign < 0], [below_passes, above_passes], 0.0)

    if pooled:
        advantage = response.advantages.sum() / length if response.length else 0.0
    else:
        counts = response.length > 0 or definition.aggregation.empty_rows == "include"
        advantage = response.own_advantage if counts else 0.0
    mean = kept.sum() / length if response.length else 0.0
    (ratio,), (ratio_slope,) = exponential(np.array([mean]))
    weight = geometric_mean(response.correction, length)
    return ResponseLoss(
        value=float(-advantage * ratio * weight),
        by_log_ratio=-advantage * ratio_slope * weight * passes / length,
        clipped=(sign != 0) & (passes == 0),
    )


def geometric_mean(weights: Float64Array, length: float) -> float:
    """exp(sum log w / length): 0 where a weight is 0, 1 without weights."""
    if (weights == 0).any():
        return 0.0
    return float(np.exp(np.log(weights).sum() / length))


def clip_ratio(definition: LossDefinition, ratio: Float64Array) -> tuple[Float64Array, Float64Array]:
    """The ratio within [1 - clip_low, 1 + clip_high], and 1 where it was inside, else 0. None: no bound."""
    low = None if definition.clip_low is None else 1.0 - definition.clip_low
    high = None if definition.clip_high is None else 1.0 + definition.clip_high
    return clamp(ratio, low, high)


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
