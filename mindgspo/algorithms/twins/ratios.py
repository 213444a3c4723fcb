"""Importance ratios of one response, as logarithms, and the way of their gradient back to the log-probs.

    d = logp - old_logp [L]    |y| real tokens of the response    L  real tokens of one response

Called by `policy_loss` and `metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mindgspo.algorithms.losses.definition import LossDefinition
from mindgspo.algorithms.twins.inputs import Float64Array, Response
from mindgspo.algorithms.twins.subgradients import clamp


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
