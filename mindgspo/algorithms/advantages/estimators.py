"""Advantage estimators: one number per response from its siblings' rewards, or one per token. numpy only.

A group of equal rewards is exactly 0 in all group-relative estimators. A group of one is 0 (`singleton="zero"`, the
default), keeps its reward ("raw", verl's convention) or is NaN ("nan", what OpenRLHF and MindSpeed-RL compute; for
conformance only). Rewards are finite float64.

    r reward    mean, std of the group    n its size    |y| tokens of a response
    N responses    T token slots per response    F reward functions
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from mindgspo.algorithms.advantages.groups import Float64Array, Groups, Int64Array, Singleton, are_equal
from mindgspo.types import BoolArray

StdOver = Literal["group", "batch", "none"]
Whiten = Literal["none", "unbiased", "unbiased_moments", "biased"]

# verl and slime add it to the variance, verl also to the number of tokens; OpenRLHF bounds the variance by it.
EPS = 1e-8


def grpo(
    rewards_N: Float64Array,
    groups: Groups,
    *,
    ddof: int = 1,
    eps: float = 1e-6,
    std_over: StdOver = "group",
    singleton: Singleton = "zero",
) -> Float64Array:
    """(r - mean) / (std + eps), float64 [N]: arXiv 2402.03300, section 4.1.2.

    ddof 1 and eps 1e-6 as verl and slime (TRL: 1e-4, OpenRLHF: 1e-9); ddof 0 and eps 1e-5 as ChatLearn.
    std_over: batch takes the deviation over all rewards (TRL: scale_rewards="batch"), none leaves out the division. A
    group of one with singleton="raw" is divided by 1 + eps, as in verl, or by the batch's deviation.
    """
    centred_N = rewards_N - groups.baseline(rewards_N, singleton)
    return centred_N / _divisor(rewards_N, groups, std_over=std_over, ddof=ddof, eps=eps)


def dr_grpo(rewards_N: Float64Array, groups: Groups, *, singleton: Singleton = "zero") -> Float64Array:
    """r - mean, float64 [N]: arXiv 2503.20783, section 3.1 (verl: norm_adv_by_std_in_grpo=False)."""
    return rewards_N - groups.baseline(rewards_N, singleton)


def max_rl(rewards_N: Float64Array, groups: Groups, *, singleton: Singleton = "zero") -> Float64Array:
    """(r - mean) / mean, float64 [N]: arXiv 2602.02710, as prime-rl computes it.

    Meant for rewards >= 0: a group whose mean is not positive carries no signal and is 0.
    """
    mean_N = np.where(groups.alone, 1.0, groups.mean(rewards_N))
    centred_N = rewards_N - groups.baseline(rewards_N, singleton)
    return np.where(mean_N > 0, centred_N / np.where(mean_N > 0, mean_N, 1.0), 0.0)


def rloo(rewards_N: Float64Array, groups: Groups, *, singleton: Singleton = "zero") -> Float64Array:
    """r - mean of the others, which is (r - mean) n / (n - 1), float64 [N]: arXiv 2402.14740, section 2.2."""
    factor_N = np.where(groups.alone, 1.0, groups.sizes_N / np.maximum(groups.sizes_N - 1, 1))
    return (rewards_N - groups.baseline(rewards_N, singleton)) * factor_N


def opo(
    rewards_N: Float64Array, groups: Groups, lengths_N: Int64Array, *, singleton: Singleton = "zero"
) -> Float64Array:
    """r - sum(|y| r) / sum(|y|), float64 [N]: arXiv 2505.23585, the optimal baseline for gradients of norm ~ |y|.

    lengths_N: tokens of each response, >= 0. A group without a single token has baseline 0.
    """
    return rewards_N - groups.baseline(rewards_N, singleton, weights_N=np.asarray(lengths_N, np.float64))


def gpg(rewards_N: Float64Array, groups: Groups, *, singleton: Singleton = "zero") -> Float64Array:
    """alpha (r - mean), float64 [N], alpha = N / (number of rewards other than 0): arXiv 2504.02546, as verl."""
    alpha = rewards_N.size / max(np.count_nonzero(rewards_N), 1)
    return alpha * (rewards_N - groups.baseline(rewards_N, singleton))


def pass_k(
    rewards_N: Float64Array,
    groups: Groups,
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
    lead_N = np.where(groups.alone, rewards_N - groups.baseline(rewards_N, singleton), 0.0)
    # Group after group, best reward first: the second best of a group follows its best.
    order = np.lexsort((-rewards_N, groups.index_N))
    starts = np.flatnonzero(np.diff(groups.index_N[order], prepend=-1))
    starts = starts[~groups.alone[order[starts]]]
    best, second = order[starts], order[starts + 1]
    lead_N[best] = rewards_N[best] - rewards_N[second]
    return lead_N / _divisor(rewards_N, groups, std_over=std_over, ddof=ddof, eps=eps)


def _divisor(
    rewards_N: Float64Array, groups: Groups, *, std_over: StdOver, ddof: int, eps: float
) -> Float64Array | float:
    """Divisor of a centred reward, float64 [N]."""
    if std_over == "none" or rewards_N.size == 0:
        return 1.0
    if std_over == "batch":
        groups = Groups.of(np.zeros(rewards_N.size))
    divisor_N = groups.std(rewards_N, ddof=ddof) + eps
    # eps 0 and equal rewards: 0 / 0 would be NaN.
    return np.where(divisor_N > 0, divisor_N, 1.0)


def normalize_then_sum(
    rewards_NF: Float64Array, weights_F: Float64Array, groups: Groups, *, ddof: int = 1, eps: float = 1e-4
) -> Float64Array:
    """GDPO, arXiv 2601.05242, as TRL computes it, float64 [N].

    GRPO of each function by itself, the weighted sum of them, and that sum normalised once more over the whole batch.
    A reward that is NaN is missing: a response without any leaves every statistic and has advantage 0, and a function
    with a reward for only one response of a group says nothing about it.
    """
    rated_NF = ~np.isnan(rewards_NF)
    total_N = np.zeros(rewards_NF.shape[0])
    for rated_N, rewards_N, weight in zip(rated_NF.T, rewards_NF.T, weights_F, strict=True):
        total_N += weight * grpo_of_rated(rated_N, rewards_N, groups.index_N, ddof=ddof, eps=eps)
    return grpo_of_rated(rated_NF.any(axis=1), total_N, np.zeros_like(groups.index_N), ddof=ddof, eps=eps)


def grpo_of_rated(
    rated_N: BoolArray,
    rewards_N: Float64Array,
    ids_N: Int64Array,
    *,
    ddof: int,
    eps: float,
    std_over: StdOver = "group",
) -> Float64Array:
    """GRPO of the rated responses alone, 0 for the others, float64 [N]. ids_N: group of each response."""
    advantages_N = np.zeros_like(rewards_N)
    groups = Groups.of(ids_N[rated_N])
    advantages_N[rated_N] = grpo(rewards_N[rated_N], groups, std_over=std_over, ddof=ddof, eps=eps)
    return advantages_N


# ----- one number per token


def rewards_at_last_token(rewards_N: Float64Array, mask_NT: BoolArray) -> Float64Array:
    """float64 [N, T]: each reward in the slot of its last real token, 0 elsewhere; a response without one has none."""
    is_last_NT = mask_NT & (np.cumsum(mask_NT, axis=1) == mask_NT.sum(axis=1, keepdims=True))
    return np.where(is_last_NT, rewards_N[:, None], 0.0)


def discounted_returns(token_rewards_NT: Float64Array, *, gamma: float = 1.0) -> Float64Array:
    """G_t = r_t + gamma G_{t+1}, float64 [N, T]. Slots past the end of a response must hold 0, and get 0."""
    returns_NT = np.zeros_like(token_rewards_NT)
    running_N = np.zeros(token_rewards_NT.shape[0])
    for t in reversed(range(token_rewards_NT.shape[1])):
        returns_NT[:, t] = running_N = token_rewards_NT[:, t] + gamma * running_N
    return returns_NT


def optimal_token_baseline(
    returns_NT: Float64Array,
    energies_NT: Float64Array,
    mask_NT: BoolArray,
    groups: Groups,
    *,
    singleton: Singleton = "zero",
    eps: float = EPS,
) -> Float64Array:
    """G_t - sum_i(G_t W_t) / (sum_i W_t + eps) over a group's responses that reach t, float64 [N, T].

    The baseline of least variance for the gradient up to t: arXiv 2602.07078, as verl. G_t is the reward still to come,
    W_t the energy so far, sum_{s <= t} e_s; e = |d log p / d logits|^2 = 1 - 2 p + sum_v p_v^2 at temperature 1. Where
    one response is longer than all others of its group, nothing is left to compare with, and its further tokens have
    G_t itself; a group of equal rewards is exactly 0 but for them.

    energies_NT: >= 0; anything in masked slots.
    """
    energy_NT = np.cumsum(np.where(mask_NT, energies_NT, 0.0), axis=1) * mask_NT
    slots, lengths_N = np.arange(mask_NT.shape[1]), mask_NT.sum(axis=1)
    baselines_NT = np.zeros_like(returns_NT)
    for group in np.unique(groups.index_N):
        rows = np.flatnonzero(groups.index_N == group)
        if rows.size == 1:
            lone = {"zero": returns_NT[rows], "raw": 0.0, "nan": np.nan}
            baselines_NT[rows] = lone[singleton]
            continue
        own_NT, energy_T = returns_NT[rows], energy_NT[rows].sum(axis=0)
        mean_T = (own_NT * energy_NT[rows]).sum(axis=0) / (
            energy_T + eps if eps else np.where(energy_T > 0, energy_T, 1)
        )
        low_T = np.where(mask_NT[rows], own_NT, np.inf).min(axis=0)
        high_T = np.where(mask_NT[rows], own_NT, -np.inf).max(axis=0)
        second, longest = np.sort(lengths_N[rows])[-2:]
        is_shared_NT = (lengths_N[rows, None] < longest) | (slots < second) | (second == longest)
        baselines_NT[rows] = np.where(is_shared_NT, np.where(are_equal(low_T, high_T), own_NT, mean_T), 0.0)
    return np.where(mask_NT, returns_NT - baselines_NT, 0.0)


def on_every_token(advantages_N: Float64Array, mask_NT: BoolArray) -> Float64Array:
    """float64 [N, T]: a response's advantage on each of its real tokens, 0 elsewhere."""
    return np.where(mask_NT, advantages_N[:, None], 0.0)


def whitening(values_NT: Float64Array, mask_NT: BoolArray, kind: Whiten) -> tuple[float, float]:
    """Shift and factor of the map (x - shift) * factor that whitens the real tokens.

    The kinds; the factor is (variance + 1e-8)^-1/2, for biased max(variance, 1e-8)^-1/2:

        none              x stays
        unbiased          mean sum(x) / (n + 1e-8), variance sum((x - mean)^2) / (n + 1e-8) * n / (n - 1)
                          (verl's masked_whiten)
        unbiased_moments  mean sum(x) / n, variance (sum(x^2) / n - mean^2) n / (n - 1) (slime)
        biased            mean sum(x) / n, variance sum((x - mean)^2) / n (OpenRLHF)

    One real token is mapped to 0, and so is everything if there is none: a deviation says nothing about one value. verl
    rejects one token; here it is 0, as in slime and OpenRLHF, because a step must not end over it.
    """
    if kind == "none":
        return 0.0, 1.0
    values = values_NT[mask_NT]
    count = values.size
    if count == 0:
        return 0.0, 0.0
    bessel = count / max(count - 1, 1)
    if kind == "unbiased":
        # A single value must be mapped to 0 exactly, which the 1e-8 would prevent.
        tokens = count + (EPS if count > 1 else 0.0)
        mean = values.sum() / tokens
        variance = ((values - mean) ** 2).sum() / tokens * bessel
        return float(mean), float(1 / np.sqrt(variance + EPS))
    mean = values.mean()
    if kind == "unbiased_moments":
        # The difference of two large moments can round below 0.
        variance = max((values**2).mean() - mean**2, 0.0) * bessel
        return float(mean), float(1 / np.sqrt(variance + EPS))
    variance = ((values - mean) ** 2).mean()
    return float(mean), float(1 / np.sqrt(max(variance, EPS)))


def whiten(values_NT: Float64Array, mask_NT: BoolArray, kind: Whiten) -> Float64Array:
    """Whitened values, float64 [N, T], 0 in masked slots whatever stands there; `kind` as in `whitening`."""
    clean_NT = np.where(mask_NT, values_NT, 0.0)
    shift, factor = whitening(clean_NT, mask_NT, kind)
    return np.where(mask_NT, (clean_NT - shift) * factor, 0.0)
