"""The numpy float64 twins that judge the loss cells: value, analytic gradient and metrics.

What enters: the inputs of `PolicyLoss.construct` as arrays of any float type. What leaves: a `Reference`.
Written from the papers with plain loops, min and clip, one sequence at a time, and not from the cells, so
that the two can disagree. Called by tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float64Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What a cell should have returned.

    loss: scalar. grad_logp_NK: d loss / d logp, exactly 0 in masked slots. metrics: averages, by name.
    """

    loss: float
    grad_logp_NK: Float64Array
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Clip range [1 - low, 1 + high] of the ratio, and the bound on its logarithm."""

    low: float
    high: float
    log_ratio_max: float = np.inf

    def surrogate(self, log_ratio: Float64Array, advantage: float) -> tuple[Float64Array, Float64Array]:
        """min(r A, clip(r) A) and its derivative by log r, with torch's subgradients.

        At a tie of min each branch gets half; clip passes the gradient on its closed interval, so on an edge
        the two halves add up to the whole.
        """
        ratio = np.exp(np.minimum(log_ratio, self.log_ratio_max))
        free = ratio * advantage
        clipped = np.clip(ratio, 1 - self.low, 1 + self.high) * advantage
        share_of_free = np.where(free < clipped, 1.0, np.where(free == clipped, 0.5, 0.0))
        inside = (ratio >= 1 - self.low) & (ratio <= 1 + self.high)
        slope = advantage * (share_of_free + (1 - share_of_free) * inside)
        return np.minimum(free, clipped), np.where(log_ratio <= self.log_ratio_max, slope * ratio, 0.0)

    def is_clipped(self, log_ratio: Float64Array, advantage: float) -> NDArray[np.bool_]:
        """Where the clipped branch is strictly the smaller one."""
        ratio = np.exp(np.minimum(log_ratio, self.log_ratio_max))
        return np.clip(ratio, 1 - self.low, 1 + self.high) * advantage < ratio * advantage


def gspo(
    logp_NK: ArrayLike,
    old_logp_NK: ArrayLike,
    advantages_N: ArrayLike,
    mask_NK: ArrayLike,
    clip: Clip,
    *,
    num_sequences: float | None = None,
    num_tokens: float | None = None,
    length_eps: float = 0.0,
) -> Reference:
    """arXiv 2507.18071, eq. 5 and 7. Denominators default to the real sequences and tokens of these arrays.

    length_eps: added to |y| in the token mean of the loss; 1e-8 in verl, 0 in the cell.
    """
    logp_NK, old_logp_NK, advantages_N, mask_NK = _arrays(logp_NK, old_logp_NK, advantages_N, mask_NK)
    account = _Account(mask_NK, num_sequences, num_tokens)
    objective, grad_NK = 0.0, np.zeros(mask_NK.shape)
    for row in np.flatnonzero(mask_NK.any(axis=1)):
        real, advantage = mask_NK[row], advantages_N[row]
        difference = logp_NK[row, real] - old_logp_NK[row, real]
        log_s = difference.mean(keepdims=True)
        value, slope = clip.surrogate(log_s, advantage)
        length = difference.size + length_eps
        objective += value.item() * difference.size / length / account.num_sequences
        grad_NK[row, real] = -slope.item() / length / account.num_sequences
        account.add(difference, np.repeat(log_s, difference.size), advantage, clip)
    return Reference(loss=-objective, grad_logp_NK=grad_NK, metrics=account.metrics())


def grpo(
    logp_NK: ArrayLike,
    old_logp_NK: ArrayLike,
    advantages_N: ArrayLike,
    mask_NK: ArrayLike,
    clip: Clip,
    *,
    num_sequences: float | None = None,
    num_tokens: float | None = None,
    length_eps: float = 0.0,
) -> Reference:
    """arXiv 2402.03300, eq. 3 without KL; keywords as in `gspo`."""
    logp_NK, old_logp_NK, advantages_N, mask_NK = _arrays(logp_NK, old_logp_NK, advantages_N, mask_NK)
    account = _Account(mask_NK, num_sequences, num_tokens)
    objective, grad_NK = 0.0, np.zeros(mask_NK.shape)
    for row in np.flatnonzero(mask_NK.any(axis=1)):
        real, advantage = mask_NK[row], advantages_N[row]
        difference = logp_NK[row, real] - old_logp_NK[row, real]
        value, slope = clip.surrogate(difference, advantage)
        length = difference.size + length_eps
        objective += value.sum() / length / account.num_sequences
        grad_NK[row, real] = -slope / length / account.num_sequences
        account.add(difference, difference, advantage, clip)
    return Reference(loss=-objective, grad_logp_NK=grad_NK, metrics=account.metrics())


def _arrays(logp: ArrayLike, old_logp: ArrayLike, advantages: ArrayLike, mask: ArrayLike) -> tuple[NDArray, ...]:
    float64 = [np.asarray(array, dtype=np.float64) for array in (logp, old_logp, advantages)]
    return (*float64, np.asarray(mask).astype(bool))


class _Account:
    """Collects, per real token, what the metrics average: once over tokens, once over sequences."""

    def __init__(self, mask_NK: NDArray[np.bool_], num_sequences: float | None, num_tokens: float | None) -> None:
        self.num_sequences = num_sequences or max(int(mask_NK.any(axis=1).sum()), 1)
        self.num_tokens = num_tokens or max(int(mask_NK.sum()), 1)
        self.sequences: list[dict[str, Float64Array]] = []

    def add(self, difference: Float64Array, log_ratio: Float64Array, advantage: float, clip: Clip) -> None:
        clipped = clip.is_clipped(log_ratio, advantage)
        self.sequences.append(
            {
                "pg_clipfrac": clipped,
                "pg_clipfrac_pos": clipped & (advantage > 0),
                "pg_clipfrac_neg": clipped & (advantage < 0),
                "ppo_kl": -difference,
                "log_ratio": log_ratio,
                "ratio_error": np.abs(np.exp(np.minimum(log_ratio, clip.log_ratio_max)) - 1),
            }
        )

    def metrics(self) -> dict[str, float]:
        def by_token(name: str) -> float:
            return float(sum(sequence[name].sum() for sequence in self.sequences) / self.num_tokens)

        def by_sequence(name: str) -> float:
            return float(sum(sequence[name].mean() for sequence in self.sequences) / self.num_sequences)

        weighted = ("pg_clipfrac", "pg_clipfrac_pos", "pg_clipfrac_neg", "ppo_kl")
        ratios = np.concatenate([sequence["log_ratio"] for sequence in self.sequences] or [np.zeros(0)])
        return (
            {name: by_token(name) for name in weighted}
            | {f"{name}_seq": by_sequence(name) for name in weighted}
            | {f"{name}_mean": by_sequence(name) for name in ("log_ratio", "ratio_error")}
            | {"log_ratio_max": ratios.max(initial=-np.inf), "log_ratio_min": ratios.min(initial=np.inf)}
            | {"ratio_error_max": np.abs(np.exp(np.minimum(ratios, 709.0)) - 1).max(initial=0.0)}
        )
