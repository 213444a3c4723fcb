"""Estimators and options of peers that training has no setting for, beside those of `mindgspo.algorithms.advantages`.

A mask may have holes: tokens of an observation (a tool's answer) between those of the response. Inputs are finite, and
0 in masked slots.

    N  responses    T  token slots per response    F  reward functions
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mindgspo.algorithms.advantages.estimators import StdOver, Whiten, grpo_of_rated, whiten
from mindgspo.algorithms.advantages.groups import Float64Array, Groups, Int64Array, Singleton
from mindgspo.types import BoolArray

Hole = Literal["carry", "reset", "discount"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAdvantages:
    """Advantages and returns of one estimator, float64 [N, T], 0 in masked slots."""

    advantages_NT: Float64Array
    returns_NT: Float64Array


def grpo_with_floor(
    rewards_N: Float64Array,
    groups: Groups,
    *,
    center: Literal["mean", "none"] = "mean",
    by_std: bool = True,
    ddof: int = 1,
    eps: float = 1e-6,
    var_floor: float | None = None,
    singleton: Singleton = "zero",
) -> Float64Array:
    """GRPO over groups, float64 [N], with slime's uncentred rewards (center none) and a lower bound of the variance
    (verl 0.8's grpo_vectorized: 1e-6)."""
    baseline_N = groups.baseline(rewards_N, singleton) if center == "mean" else np.zeros_like(rewards_N)
    if not by_std:
        return rewards_N - baseline_N
    std_N = groups.std(rewards_N, ddof=ddof)
    if var_floor is not None:
        std_N = np.where(groups.alone, std_N, np.maximum(std_N, np.sqrt(var_floor)))
    divisor_N = std_N + eps
    return (rewards_N - baseline_N) / np.where(divisor_N > 0, divisor_N, 1.0)


def sum_then_normalize(
    rewards_NF: Float64Array, weights_F: Float64Array, ids_N: Int64Array, *, std_over: StdOver, ddof: int, eps: float
) -> Float64Array:
    """GRPO of the weighted sum of all rewards, float64 [N] (TRL: multi_objective_aggregation, scale_rewards). A reward
    that is NaN is missing; a response without any leaves every statistic and has advantage 0."""
    rated_N = ~np.isnan(rewards_NF).all(axis=1)
    total_N = np.nansum(rewards_NF * weights_F, axis=1)
    return grpo_of_rated(rated_N, total_N, ids_N, std_over=std_over, ddof=ddof, eps=eps)


def returns_with_holes(
    token_rewards_NT: Float64Array, mask_NT: BoolArray, *, gamma: float = 1.0, hole: Hole = "carry"
) -> Float64Array:
    """G_t = r_t + gamma G_{t+1}, float64 [N, T].

    hole, for masked slots between real ones: carry hands the return over, undiscounted (verl 0.9.1); reset starts
    again from 0 (verl 0.8); discount treats them as slots with reward 0 (OpenRLHF, slime). carry and reset leave 0
    in masked slots, discount what is handed over.
    """
    returns_NT = np.zeros_like(token_rewards_NT)
    running_N = np.zeros(mask_NT.shape[0])
    for t in reversed(range(mask_NT.shape[1])):
        here_N = token_rewards_NT[:, t] + gamma * running_N
        returns_NT[:, t] = here_N if hole == "discount" else np.where(mask_NT[:, t], here_N, 0.0)
        masked_N = {"carry": running_N, "reset": np.zeros_like(running_N), "discount": here_N}[hole]
        running_N = np.where(mask_NT[:, t], here_N, masked_N)
    return returns_NT


def gae(
    token_rewards_NT: Float64Array,
    values_NT: Float64Array,
    mask_NT: BoolArray,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    skip_masked: bool = True,
    whiten_kind: Whiten = "none",
) -> TokenAdvantages:
    """Generalized advantage estimation: arXiv 1506.02438, eq. 16. returns_NT = unwhitened advantages + values.

    A_t = delta_t + gamma lam A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t. skip_masked: the slot after t is the next
    real one (verl); otherwise masked slots are slots with r = V = 0 (OpenRLHF). Without holes both are the same.
    """
    advantages_NT = np.zeros_like(values_NT)
    next_value_N = np.zeros(mask_NT.shape[0])
    running_N = np.zeros(mask_NT.shape[0])
    for t in reversed(range(mask_NT.shape[1])):
        counts_N = mask_NT[:, t] | (not skip_masked)
        delta_N = token_rewards_NT[:, t] + gamma * next_value_N - values_NT[:, t]
        running_N = np.where(counts_N, delta_N + gamma * lam * running_N, running_N)
        next_value_N = np.where(counts_N, values_NT[:, t], next_value_N)
        advantages_NT[:, t] = running_N
    returns_NT = np.where(mask_NT, advantages_NT + values_NT, 0.0)
    return TokenAdvantages(advantages_NT=whiten(advantages_NT, mask_NT, whiten_kind), returns_NT=returns_NT)


def whitened(returns_NT: Float64Array, mask_NT: BoolArray, kind: Whiten) -> TokenAdvantages:
    """Returns, and the same whitened over all real tokens of the batch."""
    returns_NT = np.where(mask_NT, returns_NT, 0.0)
    return TokenAdvantages(advantages_NT=whiten(returns_NT, mask_NT, kind), returns_NT=returns_NT)
