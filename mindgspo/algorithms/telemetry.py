"""What the updates of a step did to ratios and to responses of different length, as flat metrics.

What enters: for every micro-batch the log-ratios and the gradient of the loss with respect to the log-probs, as they
really flowed. What leaves: `log_ratio_hist/<bin>` and `grad_share_length_decile/<decile>` (the caller adds "actor/").
Called by `update` (collect) and the trainer's step metrics (telemetry_metrics). numpy only.

    N  responses    K  response-token slots    1  an axis kept for broadcasting    L  longest length + 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mindgspo.metrics.glossary import LOG_RATIO_BINS, LOG_RATIO_EDGES
from mindgspo.types import BoolArray, Float32Array

NUM_DECILES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTelemetry:
    """Counts that simply add up, over micro-batches, updates and ranks.

    log_ratio_counts: int64 [len(LOG_RATIO_BINS)], responses (one ratio per response) or tokens by bin.
    responses_L: int64, number of responses by length in tokens. gradient_L: float64, summed weight of these
    responses in the gradient, where a response weighs sum_t |d loss / d logp_t|.

    Example: two responses of 1 and 3 tokens have responses_L [0, 1, 0, 1].
    """

    log_ratio_counts: NDArray[np.int64]
    responses_L: NDArray[np.int64]
    gradient_L: NDArray[np.float64]

    def __post_init__(self) -> None:
        assert self.log_ratio_counts.shape == (len(LOG_RATIO_BINS),), f"log-ratio counts {self.log_ratio_counts.shape}"
        assert self.responses_L.shape == self.gradient_L.shape, f"{self.responses_L.shape}, {self.gradient_L.shape}"


def collect(*, log_ratio: Float32Array, grad_logp_NK: Float32Array, mask_NK: BoolArray) -> UpdateTelemetry:
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
        gradient_L=np.bincount(length_N[is_real_N], weights=weight_N[is_real_N], minlength=slots + 1),
    )


def telemetry_metrics(parts: Sequence[UpdateTelemetry]) -> dict[str, float]:
    """Shares over all of `parts` (the micro-batches of all updates of a step), in any order.

    log_ratio_hist/<bin>: share of responses or tokens; the bins sum to 1. grad_share_length_decile/1..10: the
    responses are ranked by length, shortest first, and cut into ten equal parts; each value is the share of the
    gradient's weight in its part, and they sum to 1. Responses of equal length are not ranked among each other: they
    share their common weight evenly, and one that lies across a cut counts in both parts accordingly. So the result
    depends on neither the order nor the number of responses. No decile where no gradient flowed; {} of no responses.
    """
    total = _sum(parts)
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


def _sum(parts: Sequence[UpdateTelemetry]) -> UpdateTelemetry | None:
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
    # Lengths that do not occur repeat a point of the curve, which np.interp wants only once.
    occurs = np.concatenate(([True], responses_L > 0))
    cuts = np.linspace(0, 1, NUM_DECILES + 1)
    shares = np.diff(np.interp(cuts, reached[occurs], accumulated[occurs]))
    return {f"grad_share_length_decile/{number}": float(share) for number, share in enumerate(shares, start=1)}
