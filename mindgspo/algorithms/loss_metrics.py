"""Numbers about the updates of a step: a loss cell's own metrics, histograms of ratios and gradients, and the mismatch
between sampler and trainer. numpy only.

    N  responses    K  response-token slots    1  an axis kept for broadcasting    L  longest length + 1
    d = trainer - sampler log-prob of a token    I  response tokens

Metrics:
  Clipping:
    actor/pg_clipfrac_seq:
      meaning: share of responses whose ratio is clipped; with a ratio per token, mean over responses of the
        share of their tokens
      unit: share of responses
      healthy: gspo 0.02 to 0.6; grpo below 0.01; exactly 0 with one update per rollout
      action: 'above: lower optimizer.lr, or use fewer updates per rollout; below: the clip range is too wide
        to act, or lr is tiny'
    actor/pg_clipfrac:
      meaning: share of response tokens whose ratio is clipped
      unit: share of tokens
      healthy: as actor/pg_clipfrac_seq; in the paper 0.15 for gspo against 0.0013 for grpo
      action: 'far above actor/pg_clipfrac_seq: long responses are clipped more often; check response_length'
    actor/pg_clipfrac_pos_seq:
      meaning: 'responses clipped above, where the advantage is positive: they have become likelier than the
        range allows'
      unit: share of responses
      healthy: of the order of actor/pg_clipfrac_neg_seq
      action: 'much larger: raise clip_high a little, or lower optimizer.lr'
    actor/pg_clipfrac_neg_seq:
      meaning: 'responses clipped below, where the advantage is negative: they have become less likely than
        the range allows'
      unit: share of responses
      healthy: of the order of actor/pg_clipfrac_pos_seq
      action: 'much larger: the policy mostly unlearns; watch actor/entropy, lower optimizer.lr'
    actor/pg_clipfrac_pos:
      meaning: tokens clipped above, where the advantage is positive
      unit: share of tokens
      healthy: as actor/pg_clipfrac_pos_seq
    actor/pg_clipfrac_neg:
      meaning: tokens clipped below, where the advantage is negative
      unit: share of tokens
      healthy: as actor/pg_clipfrac_neg_seq
    actor/pg_clipfrac_lower:
      meaning: tokens whose loss is capped by the dual clip (clip_ratio_c), where the advantage is negative
      unit: share of tokens
      healthy: 0 to 0.001
      action: 'the policy has moved far from the one that sampled: lower optimizer.lr, or use fewer updates
        per rollout'
    actor/opsm_masked_seq:
      meaning: responses that the off-policy sequence mask leaves out (algorithm.rollout_correction.opsm_threshold)
      unit: share of responses
      healthy: below 0.1; exactly 0 on fresh responses
      action: 'above: lower optimizer.lr, use fewer updates per rollout, or less staleness'
  Importance ratio:
    actor/log_ratio_mean:
      meaning: mean log of the importance ratio, log s for gspo; every response weighs 1
      unit: nat
      healthy: '|x| below 0.01'
      action: lower optimizer.lr, or use fewer updates per rollout
    actor/log_ratio_min:
      meaning: smallest log ratio of the step
      unit: nat
      healthy: above -1; gspo mostly above -0.1
      action: lower optimizer.lr, or use fewer updates per rollout
    actor/log_ratio_max:
      meaning: largest log ratio of the step
      unit: nat
      healthy: below 1; gspo mostly below 0.1
      action: lower optimizer.lr, or use fewer updates per rollout
    actor/log_ratio_hist/<bin>:
      meaning: share of responses (one ratio per response) or of tokens (one per token) whose log ratio lies
        in the bin; the bins are signed decades and sum to 1
      unit: share
      healthy: 'centred on 0; gspo: most between -1e-2 and 1e-2'
      action: 'outer bins fill up: lower optimizer.lr, or use fewer updates per rollout; all in within_1e-4:
        one update per rollout, or lr is tiny'
    actor/ratio_error_mean:
      meaning: mean |ratio - 1|
      healthy: gspo 3e-4 to 1e-2; grpo 0.01 to 0.1
      action: 'above: lower optimizer.lr, or use fewer updates per rollout; below: clipping cannot act'
    actor/ratio_error_max:
      meaning: largest |ratio - 1|
      healthy: below 1
      action: lower optimizer.lr, or use fewer updates per rollout
    actor/ppo_kl:
      meaning: mean of old minus new log-probability per token since the rollout
      unit: nat
      healthy: '|x| below 0.01'
      action: lower optimizer.lr, or use fewer updates per rollout
    actor/ppo_kl_seq:
      meaning: the same, every response weighing 1
      unit: nat
      healthy: '|x| below 0.01'
      action: lower optimizer.lr, or use fewer updates per rollout
  Gradient and learning rate:
    actor/grad_share_length_decile/<decile>:
      meaning: 'share of the gradient in one tenth of the step''s responses, ranked by length (1: shortest);
        a response weighs sum_t |d loss / d logp_t|, the tenths sum to 1'
      unit: share of the gradient
      healthy: 'seq-mean-token-mean: each near 0.1; token-mean: grows like the length'
      action: 'decile 10 above 0.3: a few long responses decide the update; use seq-mean-token-mean, or look
        at what the longest responses are'
  Loss, KL and entropy:
    actor/pg_loss:
      meaning: policy loss, averaged over the step's updates
      healthy: small and noisy around 0; it need not fall
      action: measure progress by critic/score/mean
    actor/kl:
      meaning: mean KL estimate per response token between the policy and the reference, by the estimator that
        is set
      unit: nat
      healthy: grows slowly, below 0.2; k1 may be slightly negative
      action: 'above: raise algorithm.kl.coef or lower optimizer.lr; read samples.jsonl for language that has
        drifted'
    actor/kl_loss:
      meaning: KL penalty as it enters the loss, aggregated, before its coefficient
      unit: nat
      healthy: 'as actor/kl (with a -norm aggregation: times length)'
      action: 'actor/kl_coef * actor/kl_loss far above |actor/pg_loss|: lower algorithm.kl.coef'
  Sampler against trainer:
    training/rollout_logprob_diff_max:
      meaning: largest difference between the sampler's and the trainer's token log-probability
      unit: nat
      healthy: float32 below 1e-4; bfloat16 below 1
      action: 'a growing trend: stale rollout weights or a numeric difference between the two graphs'
    training/rollout_logprob_diff_mean:
      meaning: mean of that difference
      unit: nat
      healthy: float32 below 1e-5; bfloat16 below 0.02
      action: 'a growing trend: stale rollout weights or a numeric difference between the two graphs'
    training/rollout_probs_diff_max:
      meaning: largest difference between the sampler's and the trainer's token probability
      healthy: float32 below 1e-3; bfloat16 below 0.1
      action: 'a growing trend: stale rollout weights or a numeric difference between the two graphs'
    training/rollout_probs_diff_mean:
      meaning: mean of that difference
      healthy: float32 below 1e-5; bfloat16 below 0.01
      action: 'a growing trend: stale rollout weights or a numeric difference between the two graphs'
    training/rollout_probs_diff_std:
      meaning: standard deviation of that difference
      healthy: of the order of its mean
      action: 'a growing trend: stale rollout weights or a numeric difference between the two graphs'
    training/rollout_actor_probs_pearson_corr:
      meaning: correlation of the sampler's and the trainer's token probabilities; absent where one does not
        vary
      healthy: above 0.999
      action: 'below 0.99: the two compute with other weights, positions or temperatures, not only with other
        rounding'
    rollout_corr/kl:
      meaning: KL divergence from sampler to trainer per response token, estimated by the mean log-probability
        gap
      unit: nat
      healthy: of the order of the next one; may be slightly negative
      action: 'a growing trend: stale rollout weights or a numeric difference between the two graphs'
    rollout_corr/k3_kl:
      meaning: the same divergence by the estimate that is never negative; one token that is far off shows here
        first
      unit: nat
      healthy: float32 below 1e-8; bfloat16 below 0.005
      action: 'above 0.01: look at training/rollout_actor_probs_pearson_corr for the kind, and at the largest
        differences for single tokens; algorithm.rollout_correction bounds what they do'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mindgspo.algorithms.advantages.groups import weighted_bincount
from mindgspo.algorithms.rollout_correction import LARGEST_EXPONENT
from mindgspo.metrics.glossary import LOG_RATIO_BINS, LOG_RATIO_EDGES
from mindgspo.types import Batch, BoolArray, Float32Array


class Metric(NamedTuple):
    """One number: its name, how micro-batches combine, and the global denominator that makes a sum a mean."""

    name: str
    reduction: Literal["sum", "max", "min"]
    per: Literal["sequence", "token", "none"] = "none"


# Weighted sums by sequence (every response weighs 1), then by token, then extremes, then parts of the loss.
# clipped_pos and clipped_neg split the clipped tokens by the sign of their advantage.
POLICY_METRICS: tuple[Metric, ...] = (
    Metric("pg_clipfrac_seq", "sum", "sequence"),
    Metric("pg_clipfrac_pos_seq", "sum", "sequence"),
    Metric("pg_clipfrac_neg_seq", "sum", "sequence"),
    Metric("ppo_kl_seq", "sum", "sequence"),
    Metric("log_ratio_mean", "sum", "sequence"),
    Metric("ratio_error_mean", "sum", "sequence"),
    Metric("pg_clipfrac", "sum", "token"),
    Metric("pg_clipfrac_pos", "sum", "token"),
    Metric("pg_clipfrac_neg", "sum", "token"),
    Metric("ppo_kl", "sum", "token"),
    Metric("pg_clipfrac_lower", "sum", "token"),
    Metric("kl", "sum", "token"),
    Metric("log_ratio_max", "max"),
    Metric("log_ratio_min", "min"),
    Metric("pg_loss", "sum"),
    Metric("kl_loss", "sum"),
)
OPSM_METRIC = Metric("opsm_masked_seq", "sum", "sequence")
"""Stands behind the others where the off-policy sequence mask is on."""


def summarize(
    table: Sequence[Metric], vectors: Sequence[Float32Array], *, num_sequences: int, num_tokens: int
) -> dict[str, float]:
    """Combine the vectors of all micro-batches (each [len(table)]) into floats by name.

    num_sequences, num_tokens: the global denominators of the mini-batch. A table with log_ratio_max also
    gives ratio_error_max = max |s - 1|, which float32 could not resolve from s itself.
    """
    rows = np.stack(vectors).astype(np.float64)
    assert rows.shape[1] == len(table), f"{rows.shape[1]} metrics for a table of {len(table)}"
    reduce = {"sum": np.sum, "max": np.max, "min": np.min}
    denominator = {"sequence": num_sequences, "token": num_tokens, "none": 1}
    metrics = {
        metric.name: float(reduce[metric.reduction](rows[:, column])) / denominator[metric.per]
        for column, metric in enumerate(table)
    }
    if "log_ratio_max" in metrics:
        metrics["ratio_error_max"] = ratio_error(metrics["log_ratio_min"], metrics["log_ratio_max"])
    return metrics


def ratio_error(lowest: float, highest: float) -> float:
    """Largest |s - 1| of ratios whose logarithms lie between `lowest` and `highest`; always finite."""
    # exp(709) is about the largest float64; a metric must stay a JSON number.
    return max(float(np.expm1(min(highest, 709.0))), -float(np.expm1(lowest)))


NUM_DECILES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTelemetry:
    """Counts that add up over micro-batches, updates and ranks.

    Example: two responses of 1 and 3 tokens have responses_L [0, 1, 0, 1].
    """

    log_ratio_counts: NDArray[np.int64]
    """int64 [len(LOG_RATIO_BINS)], responses (with one ratio per response) or tokens in each bin."""
    responses_L: NDArray[np.int64]
    """int64, number of responses of each length in tokens."""
    gradient_L: NDArray[np.float64]
    """float64, summed weight of these responses in the gradient, where a response weighs sum_t |d loss / d logp_t|."""

    def __post_init__(self) -> None:
        assert self.log_ratio_counts.shape == (len(LOG_RATIO_BINS),), f"log-ratio counts {self.log_ratio_counts.shape}"
        assert self.responses_L.shape == self.gradient_L.shape, f"{self.responses_L.shape}, {self.gradient_L.shape}"


def collect_telemetry(*, log_ratio: Float32Array, grad_logp_NK: Float32Array, mask_NK: BoolArray) -> UpdateTelemetry:
    """The telemetry of one micro-batch.

    log_ratio: [N, 1] for one ratio per response, [N, K] for one per token. grad_logp_NK: d loss / d logp of the
    sampled tokens. mask_NK: bool, real tokens; anything may stand in masked slots. A row without a real token is a
    filler and counts nowhere.
    """
    rows, slots = mask_NK.shape
    assert log_ratio.shape in ((rows, 1), (rows, slots)), f"log_ratio {log_ratio.shape} for a mask {mask_NK.shape}"
    assert grad_logp_NK.shape == mask_NK.shape, f"gradient {grad_logp_NK.shape} for a mask {mask_NK.shape}"
    length_N = mask_NK.sum(axis=1)
    is_real_N = length_N > 0
    is_per_response = log_ratio.shape[1] == 1
    ratios = log_ratio[is_real_N, 0] if is_per_response else log_ratio[mask_NK]
    weight_N = np.abs(np.where(mask_NK, grad_logp_NK, 0)).sum(axis=1, dtype=np.float64)
    return UpdateTelemetry(
        log_ratio_counts=_count_by_bin(ratios),
        responses_L=np.bincount(length_N[is_real_N], minlength=slots + 1),
        gradient_L=weighted_bincount(length_N[is_real_N], weight_N[is_real_N], minlength=slots + 1),
    )


def telemetry_metrics(parts: Sequence[UpdateTelemetry]) -> dict[str, float]:
    """Shares over all of `parts` (the micro-batches of all updates of a step), in any order.

    log_ratio_hist/<bin>: share of responses or tokens; the bins sum to 1. grad_share_length_decile/1..10: the
    responses are ranked by length, shortest first, and cut into ten equal parts; each value is the share of the
    gradient's weight in its part, and they sum to 1. Responses of equal length are not ranked among each other: they
    share their common weight evenly, and one that lies across a cut counts in both parts accordingly. So the result
    depends on neither the order nor the number of responses. No decile where no gradient flowed; {} of no responses.
    """
    total = _total(parts)
    if total is None or not total.responses_L.any():
        return {}
    counts = total.log_ratio_counts
    histogram = {
        f"log_ratio_hist/{name}": int(count) / int(counts.sum())
        for name, count in zip(LOG_RATIO_BINS, counts, strict=True)
    }
    return histogram | _gradient_by_length(total.responses_L, total.gradient_L)


def _count_by_bin(log_ratios: Float32Array) -> NDArray[np.int64]:
    decade = np.searchsorted(LOG_RATIO_EDGES, np.abs(log_ratios), side="right")
    signed = np.where(log_ratios < 0, -decade, decade) + len(LOG_RATIO_EDGES)
    return np.bincount(signed, minlength=len(LOG_RATIO_BINS))


def _total(parts: Sequence[UpdateTelemetry]) -> UpdateTelemetry | None:
    if not parts:
        return None
    longest = max(part.responses_L.size for part in parts)
    responses_L, gradient_L = np.zeros(longest, np.int64), np.zeros(longest)
    for part in parts:
        responses_L[: part.responses_L.size] += part.responses_L
        gradient_L[: part.gradient_L.size] += part.gradient_L
    return UpdateTelemetry(
        log_ratio_counts=np.sum([part.log_ratio_counts for part in parts], axis=0),
        responses_L=responses_L,
        gradient_L=gradient_L,
    )


def _gradient_by_length(responses_L: NDArray[np.int64], gradient_L: NDArray[np.float64]) -> dict[str, float]:
    """Ten slices of the Lorenz curve: accumulated gradient over accumulated responses, straight between lengths."""
    gradient = gradient_L.sum()
    assert np.isfinite(gradient), "a gradient that is not finite should have stopped the update"
    if gradient == 0:
        return {}
    reached = np.concatenate(([0], np.cumsum(responses_L))) / responses_L.sum()
    accumulated = np.concatenate(([0.0], np.cumsum(gradient_L))) / gradient
    # Lengths that do not occur repeat a point of the curve, which np.interp accepts only once.
    occurs = np.concatenate(([True], responses_L > 0))
    cuts = np.linspace(0, 1, NUM_DECILES + 1)
    shares = np.diff(np.interp(cuts, reached[occurs], accumulated[occurs]))
    return {f"grad_share_length_decile/{number}": float(share) for number, share in enumerate(shares, start=1)}


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
    """Pearson's, within [-1, 1]; None if one of the two does not vary."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:  # a mean that rounds would make a deviation of nothing
        return None
    one, other = one - one.mean(), other - other.mean()
    # Each by its own largest value: squares of small probabilities leave the range of float64.
    one, other = one / np.abs(one).max(), other / np.abs(other).max()
    found = float((one * other).sum() / np.sqrt((one**2).sum() * (other**2).sum()))
    return min(max(found, -1.0), 1.0)
