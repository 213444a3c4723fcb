"""The twin of every policy-loss cell: loss, gradient by logp and averages of a batch.

loss = policy loss + kl_coef * KL - entropy_coef * entropy, each aggregated with global denominators. Averages by token:
sum over real tokens / number of tokens; by sequence (_seq, or _mean of the log-ratio): sum over rows of the row's mean
over its real tokens / number of sequences.

    N  responses    K  response-token slots    L  real tokens of one response
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mindgspo.algorithms.losses.definition import LossDefinition
from mindgspo.errors import DataError
from mindgspo_conformance.twins.aggregation import denominators, response_weights, token_weights
from mindgspo_conformance.twins.inputs import (
    BoolArray,
    Float64Array,
    Response,
    Responses,
    clamp,
    exponential,
    read_responses,
)
from mindgspo_conformance.twins.successors import SUCCESSORS, is_off_policy
from mindgspo_conformance.twins.surrogates import gmpo_loss, gradient_by_logp, log_ratios, token_kl, token_losses


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLossResult:
    """What a cell should have returned.

    loss: pg_loss + kl_coef * kl_loss - entropy_coef * aggregated entropy. pg_loss, kl_loss: the policy loss alone, and
    the aggregated KL estimate without its coefficient (0 without a KL term). grad_logp_NK: d loss / d logp, float64
    [N, K], exactly 0 in masked slots; the entropy, an input, has no part in it. metrics: averages by name, see
    `policy_metrics`.
    """

    loss: float
    pg_loss: float
    kl_loss: float
    grad_logp_NK: Float64Array
    metrics: Mapping[str, float]


def policy_loss(
    definition: LossDefinition,
    *,
    logp_NK: ArrayLike,
    old_logp_NK: ArrayLike,
    advantages_NK: ArrayLike,
    mask_NK: ArrayLike,
    ref_logp_NK: ArrayLike | None = None,
    correction_NK: ArrayLike | None = None,
    entropy_NK: ArrayLike | None = None,
    sampler_logp_NK: ArrayLike | None = None,
    selected_NK: ArrayLike | None = None,
    kl_coef: float = 0.0,
    num_sequences: float | None = None,
    num_tokens: float | None = None,
    kl_num_sequences: float | None = None,
) -> PolicyLossResult:
    """Loss, gradient by logp and metrics of a batch, or of one micro-batch of it.

    All arrays are [N, K] of any float type, with anything in masked slots; advantages_NK may be [N]. mask_NK: 0 and 1,
    or bool. ref_logp_NK, entropy_NK: needed by a definition with a KL term or an entropy bonus. correction_NK: weights
    against the mismatch of sampler and trainer, which multiply every token's loss; for GMPO their geometric mean
    multiplies the response's. sampler_logp_NK: read by the off-policy sequence mask, old_logp_NK by default.
    selected_NK: 0 and 1, the tokens that Clip-Cov and KL-Cov have selected.

    num_sequences, num_tokens: global denominators; those of these arrays by default, see `denominators`.
    kl_num_sequences: the KL term's own, num_sequences by default. The two differ in one case only: beside a
    batch-mean, which counts every row, a KL term whose aggregation leaves out empty rows. Where both are left to their
    defaults each term is given its own.

    Raises DataError where a shape, the mask or a missing array is wrong.
    """
    batch = read_responses(
        logp_NK=logp_NK,
        old_logp_NK=old_logp_NK,
        advantages_NK=advantages_NK,
        mask_NK=mask_NK,
        ref_logp_NK=ref_logp_NK,
        correction_NK=correction_NK,
        entropy_NK=entropy_NK,
        sampler_logp_NK=sampler_logp_NK,
        selected_NK=selected_NK,
    )
    own_sequences, own_tokens = denominators(batch.mask_NK, definition.aggregation)
    if kl_num_sequences is None:
        kl_num_sequences = num_sequences
    if kl_num_sequences is None and definition.kl is not None:
        kl_num_sequences, _ = denominators(batch.mask_NK, definition.kl.aggregation)
    num_sequences = own_sequences if num_sequences is None else num_sequences
    num_tokens = own_tokens if num_tokens is None else num_tokens

    per = {"num_sequences": num_sequences, "num_tokens": num_tokens}
    weights_NK = token_weights(definition.aggregation, batch.mask_NK, **per)
    weights_N = response_weights(definition.aggregation, batch.mask_NK, **per)
    kl_weights_NK = np.zeros(batch.mask_NK.shape)
    if definition.kl is not None:
        kl_weights_NK = token_weights(
            definition.kl.aggregation, batch.mask_NK, num_sequences=kl_num_sequences, num_tokens=num_tokens
        )

    pg_loss, kl_loss, grad_NK, evaluated = 0.0, 0.0, np.zeros(batch.mask_NK.shape), []
    for row, response in batch:
        real = batch.mask_NK[row]
        one = evaluate(definition, response, token_weights=weights_NK[row, real], response_weight=weights_N[row])
        kl_weights = kl_weights_NK[row, real]
        pg_loss += one.pg_loss
        kl_loss += float((kl_weights * one.kl).sum())
        grad_NK[row, real] = one.grad_logp + kl_coef * kl_weights * one.kl_slope
        evaluated.append(one)
    loss = pg_loss + kl_coef * kl_loss - definition.entropy_coef * _entropy(definition, batch, weights_NK)
    metrics = policy_metrics(evaluated, pg_loss=pg_loss, kl_loss=kl_loss, **per)
    if definition.opsm_threshold is not None:
        metrics["opsm_masked_seq"] = sum(one.is_left_out for one in evaluated) / num_sequences
    return PolicyLossResult(loss=loss, pg_loss=pg_loss, kl_loss=kl_loss, grad_logp_NK=grad_NK, metrics=metrics)


def _entropy(definition: LossDefinition, batch: Responses, weights_NK: Float64Array) -> float:
    """Entropy averaged with the weights of the token losses; 0 without a bonus."""
    if definition.entropy_coef == 0:
        return 0.0
    total = 0.0
    for row, response in batch:
        if response.entropy is None:
            raise DataError("the entropy bonus needs entropy")
        total += float((weights_NK[row, batch.mask_NK[row]] * response.entropy).sum())
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """pg_loss: its share of the policy loss. grad_logp [L]: d pg_loss / d logp. The others are [L], token by token.

    log_ratio: before its bounds. ratio: e to the bounded log-ratio. clipped, capped: see `surrogates.TokenLosses`.
    kl, kl_slope: the KL estimate and its derivative by logp, 0 without a KL term.
    """

    pg_loss: float
    grad_logp: Float64Array
    advantages: Float64Array
    difference: Float64Array
    log_ratio: Float64Array
    ratio: Float64Array
    clipped: BoolArray
    capped: BoolArray
    kl: Float64Array
    kl_slope: Float64Array
    is_left_out: bool
    """By the off-policy sequence mask."""

    @property
    def length(self) -> int:
        return self.log_ratio.size


def evaluate(
    definition: LossDefinition, response: Response, *, token_weights: Float64Array, response_weight: float
) -> Evaluated:
    """token_weights [L], response_weight: d loss / d token loss and d loss / d response's loss, from `aggregation`."""
    ratios = log_ratios(definition, response)
    capped = np.zeros(response.length, dtype=np.bool_)
    if definition.surrogate == "gmpo":
        response_loss = gmpo_loss(definition, response, ratios.used)
        pg_loss = response_weight * response_loss.value
        by_log_ratio, by_logp = response_weight * response_loss.by_log_ratio, np.zeros(response.length)
        clipped = response_loss.clipped
    else:
        losses = SUCCESSORS.get(definition.surrogate, token_losses)(definition, response, ratios.used)
        # VESPO's own weight has them already.
        weights = token_weights if definition.surrogate == "vespo" else token_weights * response.correction
        pg_loss = float((weights * losses.value).sum())
        by_log_ratio, by_logp = weights * losses.by_log_ratio, weights * losses.by_logp
        clipped, capped = losses.clipped, losses.capped
    kl, kl_slope = _kl(definition, response)
    is_left_out = is_off_policy(definition, response)
    keeps = 0.0 if is_left_out else 1.0
    return Evaluated(
        pg_loss=keeps * pg_loss,
        grad_logp=keeps * (gradient_by_logp(definition, response, ratios, by_log_ratio) + by_logp),
        advantages=response.advantages,
        difference=response.difference,
        log_ratio=ratios.raw,
        ratio=exponential(ratios.bounded)[0],
        clipped=clipped,
        capped=capped,
        kl=kl,
        kl_slope=kl_slope,
        is_left_out=is_left_out,
    )


def _kl(definition: LossDefinition, response: Response) -> tuple[Float64Array, Float64Array]:
    if definition.kl is None:
        return np.zeros(response.length), np.zeros(response.length)
    if response.ref_logp is None:
        raise DataError("the KL term needs ref_logp")
    return token_kl(definition.kl, response.logp, response.ref_logp, response.old_logp)


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
    sampler_logp_NK: ArrayLike | None = None,
    selected_NK: ArrayLike | None = None,
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
        sampler_logp_NK=sampler_logp_NK,
        selected_NK=selected_NK,
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
