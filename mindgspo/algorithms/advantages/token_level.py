"""Estimators that give every token its own advantage: discounted returns, ReMax, GAE, and whitening over the batch.

A mask may have holes: tokens of an observation (a tool's answer) between those of the response. Masked slots of the
inputs may hold anything, NaN included. All raise DataError for shapes that do not match, masks with values other than 0
and 1 and real slots that are not finite.

    N responses    T token slots per response    n real tokens of the batch
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from mindgspo.algorithms.advantages.group_relative import dr_grpo
from mindgspo.algorithms.advantages.groups import (
    BoolArray,
    Float64Array,
    Singleton,
    finite_numbers,
    masked_numbers,
    token_mask,
)

Hole = Literal["carry", "reset", "discount"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAdvantages:
    """advantages_NT, returns_NT: float64 [N, T], 0 in masked slots."""

    advantages_NT: Float64Array
    returns_NT: Float64Array


def rewards_at_last_token(rewards_N: ArrayLike, mask_NT: ArrayLike) -> Float64Array:
    """float64 [N, T]: each reward in the slot of its last real token, 0 elsewhere; a response without one has none."""
    mask_NT = token_mask(mask_NT)
    rewards_N = finite_numbers("rewards", rewards_N, mask_NT.shape[:1])
    is_last_NT = mask_NT & (np.cumsum(mask_NT, axis=1) == mask_NT.sum(axis=1, keepdims=True))
    return np.where(is_last_NT, rewards_N[:, None], 0.0)


def discounted_returns(
    token_rewards_NT: ArrayLike, mask_NT: ArrayLike, *, gamma: float = 1.0, hole: Hole = "carry"
) -> Float64Array:
    """G_t = r_t + gamma G_{t+1}, float64 [N, T].

    hole, for masked slots between real ones: carry hands the return over, undiscounted (verl 0.9.1); reset starts
    again from 0 (verl 0.8); discount treats them as slots with reward 0 (OpenRLHF, slime). carry and reset leave 0
    in masked slots, discount what is handed over.
    """
    mask_NT = token_mask(mask_NT)
    token_rewards_NT = masked_numbers("token_rewards", token_rewards_NT, mask_NT)
    returns_NT = np.zeros_like(token_rewards_NT)
    running_N = np.zeros(mask_NT.shape[0])
    for t in reversed(range(mask_NT.shape[1])):
        here_N = token_rewards_NT[:, t] + gamma * running_N
        returns_NT[:, t] = here_N if hole == "discount" else np.where(mask_NT[:, t], here_N, 0.0)
        masked_N = {"carry": running_N, "reset": np.zeros_like(running_N), "discount": here_N}[hole]
        running_N = np.where(mask_NT[:, t], here_N, masked_N)
    return returns_NT


def reinforce_plus_plus(
    token_rewards_NT: ArrayLike,
    mask_NT: ArrayLike,
    *,
    gamma: float = 1.0,
    hole: Hole = "carry",
    whiten_kind: Whiten = "unbiased",
) -> TokenAdvantages:
    """Discounted returns, whitened over all real tokens of the batch: REINFORCE++, arXiv 2501.03262, as verl."""
    mask_NT = token_mask(mask_NT)
    returns_NT = np.where(mask_NT, discounted_returns(token_rewards_NT, mask_NT, gamma=gamma, hole=hole), 0.0)
    return TokenAdvantages(advantages_NT=whiten(returns_NT, mask_NT, whiten_kind), returns_NT=returns_NT)


def reinforce_plus_plus_baseline(
    rewards_N: ArrayLike,
    groups_N: ArrayLike,
    mask_NT: ArrayLike,
    *,
    singleton: Singleton = "zero",
    whiten_kind: Whiten = "unbiased",
) -> TokenAdvantages:
    """r - mean of the group on every token, whitened over the batch: REINFORCE++-baseline, arXiv 2501.03262, as verl.

    returns_NT is r - mean. Whitening moves the mean over tokens to 0, so that a group of equal rewards gets minus
    that mean over the deviation, unless longer responses earn as much as shorter ones.
    """
    mask_NT = token_mask(mask_NT)
    rewards_N = finite_numbers("rewards", rewards_N, mask_NT.shape[:1])
    returns_NT = np.where(mask_NT, dr_grpo(rewards_N, groups_N, singleton=singleton)[:, None], 0.0)
    return TokenAdvantages(advantages_NT=whiten(returns_NT, mask_NT, whiten_kind), returns_NT=returns_NT)


def remax(token_rewards_NT: ArrayLike, baselines_N: ArrayLike, mask_NT: ArrayLike) -> TokenAdvantages:
    """Reward still to come minus the reward of the greedy response: arXiv 2310.10505, section 3, as verl.

    baselines_N: reward of the greedy response to each response's prompt. With one reward at the last token all
    tokens of a response have r - baseline.
    """
    mask_NT = token_mask(mask_NT)
    baselines_N = finite_numbers("reward_baselines", baselines_N, mask_NT.shape[:1])
    returns_NT = discounted_returns(token_rewards_NT, mask_NT)
    advantages_NT = np.where(mask_NT, returns_NT - baselines_N[:, None], 0.0)
    return TokenAdvantages(advantages_NT=advantages_NT, returns_NT=returns_NT)


def gae(
    token_rewards_NT: ArrayLike,
    values_NT: ArrayLike,
    mask_NT: ArrayLike,
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
    mask_NT = token_mask(mask_NT)
    token_rewards_NT = masked_numbers("token_rewards", token_rewards_NT, mask_NT)
    values_NT = masked_numbers("values", values_NT, mask_NT)
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


def on_every_token(advantages_N: Float64Array, mask_NT: BoolArray) -> Float64Array:
    """float64 [N, T]: a response's advantage on each of its real tokens, 0 elsewhere."""
    return np.where(mask_NT, advantages_N[:, None], 0.0)


Whiten = Literal["none", "unbiased", "unbiased_moments", "biased"]

# verl and slime add it to the variance, verl also to the number of tokens; OpenRLHF bounds the variance by it.
EPS = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineMap:
    """x -> (x - shift) * factor."""

    shift: float
    factor: float

    def __call__(self, values_NT: Float64Array) -> Float64Array:
        """The mapped values, float64 of the same shape."""
        return (values_NT - self.shift) * self.factor


def whitening(values_NT: Float64Array, mask_NT: BoolArray, kind: Whiten) -> AffineMap:
    """The map that whitens the real tokens.

    none: x stays. unbiased: mean sum(x) / (n + 1e-8), variance sum((x - mean)^2) / (n + 1e-8) * n / (n - 1),
    factor (variance + 1e-8)^-1/2 (verl's masked_whiten). unbiased_moments: mean sum(x) / n, variance
    (sum(x^2) / n - mean^2) n / (n - 1), same factor (slime). biased: variance sum((x - mean)^2) / n, but at least 1e-8
    (OpenRLHF).
    One real token is mapped to 0, and so is everything if there is none: a deviation says nothing about one value.
    verl refuses one token; here it is 0, as in slime and OpenRLHF, because a step must not end over it.
    """
    if kind == "none":
        return AffineMap(shift=0.0, factor=1.0)
    values = values_NT[mask_NT]
    count = values.size
    if count == 0:
        return AffineMap(shift=0.0, factor=0.0)
    bessel = count / max(count - 1, 1)
    if kind == "unbiased":
        # A single value must be mapped to 0 exactly, which the 1e-8 would prevent.
        tokens = count + (EPS if count > 1 else 0.0)
        mean = values.sum() / tokens
        variance = ((values - mean) ** 2).sum() / tokens * bessel
        return AffineMap(shift=float(mean), factor=float(1 / np.sqrt(variance + EPS)))
    mean = values.mean()
    if kind == "unbiased_moments":
        # The difference of two large moments can round below 0.
        variance = max((values**2).mean() - mean**2, 0.0) * bessel
        return AffineMap(shift=float(mean), factor=float(1 / np.sqrt(variance + EPS)))
    variance = ((values - mean) ** 2).mean()
    return AffineMap(shift=float(mean), factor=float(1 / np.sqrt(max(variance, EPS))))


def whiten(values_NT: Float64Array, mask_NT: BoolArray, kind: Whiten) -> Float64Array:
    """Whitened values, float64 [N, T], 0 in masked slots whatever stands there; `kind` as in `whitening`."""
    clean_NT = np.where(mask_NT, values_NT, 0.0)
    return np.where(mask_NT, whitening(clean_NT, mask_NT, kind)(clean_NT), 0.0)
