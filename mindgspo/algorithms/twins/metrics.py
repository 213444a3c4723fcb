"""The averages that a loss reports: those of the training cells, and those of the conformance format.

By token: sum over real tokens / number of tokens. By sequence (_seq, or _mean of the log-ratio): sum over rows of the
row's mean over its real tokens / number of sequences. Called by `policy_loss`, `conformance` and tests.

    N  responses    K  response-token slots    L  real tokens of one response
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from mindgspo.algorithms.losses.definition import LossDefinition
from mindgspo.algorithms.twins.evaluate import Evaluated, evaluate
from mindgspo.algorithms.twins.inputs import Float64Array, read_responses
from mindgspo.algorithms.twins.subgradients import clamp

Quantity = Callable[[Evaluated], Float64Array]


def policy_metrics(
    evaluated: Sequence[Evaluated], *, num_sequences: float, num_tokens: float, pg_loss: float, kl_loss: float
) -> dict[str, float]:
    """What `loss_metrics` tells of a mini-batch, under its names.

    pg_clipfrac, split by the sign of A into _pos and _neg, and ppo_kl = mean of -d, each by token and (_seq) by
    sequence; log_ratio_mean, ratio_error_mean = mean |r - 1| by sequence; pg_clipfrac_lower (dual clip) and kl by
    token; log_ratio_max and _min over real tokens (-inf, inf without any); ratio_error_max, the largest |r - 1|.
    Log-ratios are those before log_ratio_min and log_ratio_max; a loss without a ratio reports those of its tokens.
    """
    both = {
        "pg_clipfrac": lambda one: one.clipped,
        "pg_clipfrac_pos": lambda one: one.clipped & (one.advantages > 0),
        "pg_clipfrac_neg": lambda one: one.clipped & (one.advantages < 0),
        "ppo_kl": lambda one: -one.difference,
    }
    by_sequence = {"log_ratio_mean": lambda one: one.log_ratio, "ratio_error_mean": lambda one: np.abs(one.ratio - 1)}
    by_token = {"pg_clipfrac_lower": lambda one: one.capped, "kl": lambda one: one.kl}

    metrics = {name: _sum_of_tokens(evaluated, quantity) / num_tokens for name, quantity in (both | by_token).items()}
    metrics |= {f"{name}_seq": _sum_of_means(evaluated, quantity) / num_sequences for name, quantity in both.items()}
    metrics |= {name: _sum_of_means(evaluated, quantity) / num_sequences for name, quantity in by_sequence.items()}
    every = np.concatenate([one.log_ratio for one in evaluated] or [np.zeros(0)])
    return metrics | {
        "pg_loss": pg_loss,
        "kl_loss": kl_loss,
        "log_ratio_max": float(every.max(initial=-np.inf)),
        "log_ratio_min": float(every.min(initial=np.inf)),
        # e^709 is about the largest float64.
        "ratio_error_max": float(np.abs(np.expm1(np.minimum(every, 709.0))).max(initial=0.0)),
    }


def conformance_metrics(
    definition: LossDefinition,
    *,
    logp_NK: ArrayLike,
    old_logp_NK: ArrayLike,
    advantages_NK: ArrayLike,
    mask_NK: ArrayLike,
    ref_logp_NK: ArrayLike | None = None,
    correction_NK: ArrayLike | None = None,
    metric_tokens: float | None = None,
    metric_eps: float = 0.0,
    ppo_kl_clamped: bool = False,
) -> dict[str, float]:
    """Every metric of the conformance format, each with the suffixes _token and _seq.

    _token divides by metric_tokens (default: real tokens) + metric_eps; _seq is the mean over all N rows, where a row
    without a real token counts 0. ppo_kl_clamped: ppo_kl from d within log_ratio_min and log_ratio_max.

    pg_clipfrac: the clip acts (of a clipped surrogate: its clipped branch has strictly the larger loss).
    pg_clipfrac_lower: the dual clip acts. clip_low, clip_high, clip_region: ratio (GMPO: log-ratio) below, above,
    either of the range, with the sign of A that makes it matter. cispo_clipfrac: clip(r) != r, for any surrogate.
    gmpo_clipped_Apos, _Aneg: ratio (GMPO: log-ratio) outside either bound, by the sign of A. kl: the estimate of the
    KL term, 0 without one.

    Arrays as in `policy_loss`. Raises DataError as it does.
    """
    batch = read_responses(
        logp_NK=logp_NK,
        old_logp_NK=old_logp_NK,
        advantages_NK=advantages_NK,
        mask_NK=mask_NK,
        ref_logp_NK=ref_logp_NK,
        correction_NK=correction_NK,
    )
    evaluated = [
        evaluate(definition, response, token_weights=np.zeros(response.length), response_weight=0.0)
        for _, response in batch
    ]
    num_tokens = (batch.mask_NK.sum() if metric_tokens is None else metric_tokens) + metric_eps
    num_rows = batch.mask_NK.shape[0]
    quantities = _conformance_quantities(definition, ppo_kl_clamped=ppo_kl_clamped)
    by_token = {f"{name}_token": _sum_of_tokens(evaluated, of) / (num_tokens or 1) for name, of in quantities.items()}
    by_sequence = {f"{name}_seq": _sum_of_means(evaluated, of) / (num_rows or 1) for name, of in quantities.items()}
    return by_token | by_sequence


def _conformance_quantities(definition: LossDefinition, *, ppo_kl_clamped: bool) -> dict[str, Quantity]:
    low, high = definition.clip_low, definition.clip_high

    def bounded_log_ratio(one: Evaluated) -> Float64Array:
        return clamp(one.log_ratio, definition.log_ratio_min, definition.log_ratio_max)[0]

    def below(one: Evaluated) -> Float64Array:
        if low is None:
            return np.zeros(one.length, dtype=np.bool_)
        return bounded_log_ratio(one) < -low if definition.surrogate == "gmpo" else one.ratio < 1.0 - low

    def above(one: Evaluated) -> Float64Array:
        if high is None:
            return np.zeros(one.length, dtype=np.bool_)
        return bounded_log_ratio(one) > high if definition.surrogate == "gmpo" else one.ratio > 1.0 + high

    def ppo_kl(one: Evaluated) -> Float64Array:
        if ppo_kl_clamped:
            return -clamp(one.difference, definition.log_ratio_min, definition.log_ratio_max)[0]
        return -one.difference

    return {
        "pg_clipfrac": lambda one: one.clipped,
        "pg_clipfrac_lower": lambda one: one.capped,
        "clip_low": lambda one: below(one) & (one.advantages < 0),
        "clip_high": lambda one: above(one) & (one.advantages > 0),
        "clip_region": lambda one: (below(one) & (one.advantages < 0)) | (above(one) & (one.advantages > 0)),
        "cispo_clipfrac": lambda one: below(one) | above(one),
        "gmpo_clipped_Apos": lambda one: (below(one) | above(one)) & (one.advantages > 0),
        "gmpo_clipped_Aneg": lambda one: (below(one) | above(one)) & (one.advantages < 0),
        "ppo_kl": ppo_kl,
        "kl": lambda one: one.kl,
    }


def _sum_of_tokens(evaluated: Sequence[Evaluated], quantity: Quantity) -> float:
    return float(sum(quantity(one).sum() for one in evaluated))


def _sum_of_means(evaluated: Sequence[Evaluated], quantity: Quantity) -> float:
    return float(sum(quantity(one).mean() for one in evaluated if one.length))
