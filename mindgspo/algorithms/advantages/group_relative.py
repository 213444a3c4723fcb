"""Estimators that compare a response with its siblings: one number per response, the same for all its tokens.

Siblings have the same group id (any whole number) and need not stand together. A group of equal rewards is exactly 0 in
all estimators. A group of one is 0 (`singleton="zero"`, the default), keeps its reward ("raw", verl's convention) or is
NaN ("nan", what OpenRLHF and MindSpeed-RL compute; for conformance only). All raise DataError for shapes that do not
match and for rewards that are not finite.

`sum_then_normalize` and `normalize_then_sum` combine several reward functions. A reward that is NaN is missing; a
response without any leaves every statistic and has advantage 0.

    r reward    mean, std of the group    n its size    |y| tokens of a response    N responses    F reward functions
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from mindgspo.algorithms.advantages.groups import (
    BoolArray,
    Float64Array,
    Groups,
    Singleton,
    finite_numbers,
    groups_of,
    numbers,
    whole_numbers,
)
from mindgspo.errors import DataError

StdOver = Literal["group", "batch", "none"]


def grpo(
    rewards_N: ArrayLike,
    groups_N: ArrayLike,
    *,
    ddof: int = 1,
    eps: float = 1e-6,
    std_over: StdOver = "group",
    var_floor: float | None = None,
    singleton: Singleton = "zero",
) -> Float64Array:
    """(r - mean) / (std + eps), float64 [N]: arXiv 2402.03300, section 4.1.2.

    ddof 1 and eps 1e-6 as verl and slime (TRL: 1e-4, OpenRLHF: 1e-9); ddof 0 and eps 1e-5 as ChatLearn.
    std_over: batch takes the deviation over all rewards (TRL: scale_rewards="batch"), none leaves out the division.
    var_floor: lower bound of the variance (verl 0.8's grpo_vectorized: 1e-6). A group of one with singleton="raw" is
    divided by 1 + eps, as in verl, or by the batch's deviation.
    """
    rewards_N, groups = _read(rewards_N, groups_N)
    return (rewards_N - groups.baseline(rewards_N, singleton)) / _divisor(
        rewards_N, groups, std_over=std_over, ddof=ddof, eps=eps, var_floor=var_floor
    )


def uncentred(
    rewards_N: ArrayLike,
    groups_N: ArrayLike,
    *,
    ddof: int = 1,
    eps: float = 1e-6,
    std_over: StdOver = "none",
    var_floor: float | None = None,
) -> Float64Array:
    """r, or r / (std + eps), float64 [N]: rewards that keep their mean (slime's ppo). Options as in `grpo`."""
    rewards_N, groups = _read(rewards_N, groups_N)
    return rewards_N / _divisor(rewards_N, groups, std_over=std_over, ddof=ddof, eps=eps, var_floor=var_floor)


def dr_grpo(rewards_N: ArrayLike, groups_N: ArrayLike, *, singleton: Singleton = "zero") -> Float64Array:
    """r - mean, float64 [N]: arXiv 2503.20783, section 3.1 (verl: norm_adv_by_std_in_grpo=False)."""
    rewards_N, groups = _read(rewards_N, groups_N)
    return rewards_N - groups.baseline(rewards_N, singleton)


def max_rl(rewards_N: ArrayLike, groups_N: ArrayLike, *, singleton: Singleton = "zero") -> Float64Array:
    """(r - mean) / mean, float64 [N]: arXiv 2602.02710, as prime-rl computes it.

    Meant for rewards >= 0: a group whose mean is not positive carries no signal and is 0.
    """
    rewards_N, groups = _read(rewards_N, groups_N)
    mean_N = np.where(groups.alone, 1.0, groups.mean(rewards_N))
    centred_N = rewards_N - groups.baseline(rewards_N, singleton)
    return np.where(mean_N > 0, centred_N / np.where(mean_N > 0, mean_N, 1.0), 0.0)


def rloo(rewards_N: ArrayLike, groups_N: ArrayLike, *, singleton: Singleton = "zero") -> Float64Array:
    """r - mean of the others, which is (r - mean) n / (n - 1), float64 [N]: arXiv 2402.14740, section 2.2."""
    rewards_N, groups = _read(rewards_N, groups_N)
    factor_N = np.where(groups.alone, 1.0, groups.sizes_N / np.maximum(groups.sizes_N - 1, 1))
    return (rewards_N - groups.baseline(rewards_N, singleton)) * factor_N


def opo(
    rewards_N: ArrayLike, groups_N: ArrayLike, lengths_N: ArrayLike, *, singleton: Singleton = "zero"
) -> Float64Array:
    """r - sum(|y| r) / sum(|y|), float64 [N]: arXiv 2505.23585, the optimal baseline for gradients of norm ~ |y|.

    lengths_N: tokens of each response, >= 0. A group without a single token has baseline 0.
    """
    rewards_N, groups = _read(rewards_N, groups_N)
    lengths_N = whole_numbers("lengths", lengths_N, rewards_N.shape, least=0).astype(np.float64)
    return rewards_N - groups.baseline(rewards_N, singleton, weights_N=lengths_N)


def gpg(rewards_N: ArrayLike, groups_N: ArrayLike, *, singleton: Singleton = "zero") -> Float64Array:
    """alpha (r - mean), float64 [N], alpha = N / (number of rewards other than 0): arXiv 2504.02546, as verl."""
    rewards_N, groups = _read(rewards_N, groups_N)
    alpha = rewards_N.size / max(np.count_nonzero(rewards_N), 1)
    return alpha * (rewards_N - groups.baseline(rewards_N, singleton))


def grpo_passk(
    rewards_N: ArrayLike,
    groups_N: ArrayLike,
    *,
    ddof: int = 1,
    eps: float = 1e-6,
    std_over: StdOver = "group",
    singleton: Singleton = "zero",
) -> Float64Array:
    """Best reward of the group minus the second best, for the best response; 0 for all others, float64 [N].

    arXiv 2503.19595, as verl's grpo_passk; divided by std + eps unless std_over="none". Two equal best: all 0. A group
    of one (verl raises) has no second best, `singleton` as in `grpo`.
    """
    rewards_N, groups = _read(rewards_N, groups_N)
    lead_N = np.where(groups.alone, rewards_N - groups.baseline(rewards_N, singleton), 0.0)
    # Group after group, best reward first: behind the best of a group stands its second best.
    order = np.lexsort((-rewards_N, groups.index_N))
    starts = np.flatnonzero(np.diff(groups.index_N[order], prepend=-1))
    starts = starts[~groups.alone[order[starts]]]
    best, second = order[starts], order[starts + 1]
    lead_N[best] = rewards_N[best] - rewards_N[second]
    return lead_N / _divisor(rewards_N, groups, std_over=std_over, ddof=ddof, eps=eps)


def _read(rewards_N: ArrayLike, groups_N: ArrayLike) -> tuple[Float64Array, Groups]:
    rewards_N = finite_numbers("rewards", rewards_N, (None,))
    return rewards_N, groups_of(groups_N, rewards_N.size)


def _divisor(
    rewards_N: Float64Array,
    groups: Groups,
    *,
    std_over: StdOver,
    ddof: int,
    eps: float,
    var_floor: float | None = None,
) -> Float64Array:
    """What a centred reward is divided by, float64 [N]."""
    if std_over == "none" or rewards_N.size == 0:
        return np.ones_like(rewards_N)
    if std_over == "batch":
        groups = groups_of(np.zeros_like(rewards_N), rewards_N.size)
    divisor_N = groups.std(rewards_N, ddof=ddof, var_floor=var_floor) + eps
    # eps 0 and equal rewards: 0 / 0 would be NaN.
    return np.where(divisor_N > 0, divisor_N, 1.0)


def sum_then_normalize(
    rewards_NF: ArrayLike,
    weights_F: ArrayLike,
    groups_N: ArrayLike,
    *,
    std_over: StdOver = "group",
    ddof: int = 1,
    eps: float = 1e-4,
) -> Float64Array:
    """GRPO of the weighted sum of all rewards, float64 [N] (TRL: multi_objective_aggregation, scale_rewards)."""
    rewards_NF, weights_F, groups_N = _read_parts(rewards_NF, weights_F, groups_N)
    rated_N = ~np.isnan(rewards_NF).all(axis=1)
    total_N = np.nansum(rewards_NF * weights_F, axis=1)
    return _grpo_of(rated_N, total_N, groups_N, std_over=std_over, ddof=ddof, eps=eps)


def normalize_then_sum(
    rewards_NF: ArrayLike,
    weights_F: ArrayLike,
    groups_N: ArrayLike,
    *,
    ddof: int = 1,
    eps: float = 1e-4,
) -> Float64Array:
    """GDPO, arXiv 2601.05242, as TRL computes it, float64 [N].

    GRPO of each function by itself, the weighted sum of them, and that sum normalised once more over the whole batch.
    A function with a reward for only one response of a group says nothing about it.
    """
    rewards_NF, weights_F, groups_N = _read_parts(rewards_NF, weights_F, groups_N)
    rated_NF = ~np.isnan(rewards_NF)
    total_N = np.zeros(rewards_NF.shape[0])
    for rated_N, rewards_N, weight in zip(rated_NF.T, rewards_NF.T, weights_F, strict=True):
        total_N += weight * _grpo_of(rated_N, rewards_N, groups_N, std_over="group", ddof=ddof, eps=eps)
    one_group_N = np.zeros_like(groups_N)
    return _grpo_of(rated_NF.any(axis=1), total_N, one_group_N, std_over="group", ddof=ddof, eps=eps)


def _read_parts(rewards_NF: ArrayLike, weights_F: ArrayLike, groups_N: ArrayLike) -> tuple[Float64Array, ...]:
    rewards_NF = numbers("rewards_per_func", rewards_NF, (None, None))
    if np.isinf(rewards_NF).any():
        raise DataError("rewards_per_func: a reward is infinite; a missing one is NaN")
    weights_F = finite_numbers("reward_weights", weights_F, rewards_NF.shape[1:])
    return rewards_NF, weights_F, whole_numbers("group", groups_N, rewards_NF.shape[:1])


def _grpo_of(
    rated_N: BoolArray, rewards_N: Float64Array, groups_N: Float64Array, *, std_over: StdOver, ddof: int, eps: float
) -> Float64Array:
    """GRPO of the rated responses alone, 0 for the others."""
    advantages_N = np.zeros_like(rewards_N)
    advantages_N[rated_N] = grpo(rewards_N[rated_N], groups_N[rated_N], std_over=std_over, ddof=ddof, eps=eps)
    return advantages_N
