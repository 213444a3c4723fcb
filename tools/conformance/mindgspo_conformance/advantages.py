"""Advantages as a case of the conformance format defines them: `config` names the estimator and all its options.

To add an estimator: the model of its options, and an entry in `_PER_RESPONSE` or `_PER_TOKEN`.

    N  responses    T  token slots per response    F  reward functions
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from mindgspo.algorithms.advantages import estimators as core
from mindgspo.algorithms.advantages.groups import Float64Array, Groups, Int64Array
from mindgspo.algorithms.kl_control import reward_penalty
from mindgspo.config import KLSection
from mindgspo.errors import DataError
from mindgspo.types import BoolArray
from mindgspo_conformance import estimators
from mindgspo_conformance.arrays import finite_numbers, masked_numbers, numbers, token_mask, whole_numbers
from mindgspo_conformance.definitions import NotNegative
from mindgspo_conformance.estimators import TokenAdvantages
from mindgspo_conformance.strict import Strict, hint, read_model

Singleton = Literal["zero", "raw", "nan"]
Whiten = Literal["none", "unbiased", "unbiased_moments", "biased"]
Hole = Literal["carry", "reset", "discount"]
Share = Annotated[float, Field(ge=0, le=1)]
ZeroOrOne = Annotated[int, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageResult:
    """advantages: float64 [N] or [N, T]. returns: float64 [N, T], None where there is one number per response.

    Masked slots are 0, except in OpenRLHF's two whitened estimators, which whiten them like all others.
    """

    advantages: Float64Array
    returns: Float64Array | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """arrays: what the case gives, by name. what: begins every message, e.g. "advantage grpo"."""

    arrays: Mapping[str, ArrayLike]
    what: str

    def __getitem__(self, name: str) -> ArrayLike:
        if name not in self.arrays:
            raise DataError(f"{self.what}: needs the input {name!r}; given: {', '.join(self.arrays) or 'none'}")
        return self.arrays[name]

    def mask(self) -> BoolArray:
        """bool [N, T]: real tokens."""
        return token_mask(self["mask"])

    def token_values(self, name: str) -> Float64Array:
        """float64 [N, T] with 0 in masked slots."""
        return masked_numbers(name, self[name], self.mask())

    def rewards(self) -> Float64Array:
        """float64 [N]: `rewards`, or the sum of `token_rewards` over real tokens."""
        if self._has_token_rewards():
            return self.token_values("token_rewards").sum(axis=1)
        return finite_numbers("rewards", self["rewards"], (None,))

    def token_rewards(self) -> Float64Array:
        """float64 [N, T]: `token_rewards`, or `rewards` at the last real token, 0 in masked slots."""
        if self._has_token_rewards():
            return self.token_values("token_rewards")
        mask_NT = self.mask()
        rewards_N = finite_numbers("rewards", self["rewards"], mask_NT.shape[:1])
        return core.rewards_at_last_token(rewards_N, mask_NT)

    def groups(self) -> Groups:
        """The partition of the responses into groups."""
        return Groups.of(whole_numbers("group", self["group"], self.rewards().shape))

    def _has_token_rewards(self) -> bool:
        if "rewards" in self.arrays and "token_rewards" in self.arrays:
            raise DataError(f"{self.what}: give rewards or token_rewards, not both")
        return "token_rewards" in self.arrays


def advantages_of_case(config: Mapping[str, Any], inputs: Mapping[str, ArrayLike]) -> AdvantageResult:
    """Advantages of a case of kind `advantage`.

    inputs: rewards [N] or token_rewards [N, T]; mask [N, T]; group [N]; values [N, T]; reward_baselines [N];
    old_logp, ref_logp [N, T]; each where the estimator needs it. Masked slots may hold anything. The number of a
    response is put on all its tokens if `broadcast` is true, or absent and there is a mask.
    Raises DataError for an unknown estimator, key or value, for a missing input and for shapes that do not match.
    """
    name = config.get("estimator")
    known = (*_PER_RESPONSE, *_PER_TOKEN)
    if name not in known:
        raise DataError(f"advantage: unknown estimator {name!r}{hint(name, known)}")
    given = _Inputs(arrays=inputs, what=f"advantage {name}")
    if name in _PER_TOKEN:
        options, estimate = _PER_TOKEN[name]
        result = estimate(read_model(given.what, options, config), given)
        return AdvantageResult(advantages=result.advantages_NT, returns=result.returns_NT)
    options, estimate = _PER_RESPONSE[name]
    read = read_model(given.what, options, config)
    advantages_N = estimate(read, given)
    if read.broadcast is False or (read.broadcast is None and "mask" not in inputs):
        return AdvantageResult(advantages=advantages_N, returns=None)
    mask_NT = given.mask()
    if mask_NT.shape[0] != advantages_N.size:
        raise DataError(f"{given.what}: mask has {mask_NT.shape[0]} rows for {advantages_N.size} rewards")
    advantages_NT = core.on_every_token(advantages_N, mask_NT)
    return AdvantageResult(advantages=advantages_NT, returns=advantages_NT)


# ----- one number per response


class _Options(Strict):
    """Every estimator's. compare: tells the reader of a result which slots count; it changes nothing here."""

    estimator: str
    compare: Literal["valid_slots"] | None = None
    broadcast: bool | None = None


class _Deviation(_Options):
    ddof: ZeroOrOne = 1
    eps: NotNegative = 1e-6


class _Grpo(_Deviation):
    center: Literal["mean", "none"] = "mean"
    scale: Literal["std", "none", "mean"] = "std"
    singleton: Singleton = "zero"
    var_floor: NotNegative | None = None


class _DrGrpo(_Grpo):
    scale: Literal["std", "none", "mean"] = "none"


class _MaxRl(_Grpo):
    scale: Literal["std", "none", "mean"] = "mean"


class _PassK(_Deviation):
    scale: Literal["std", "none"] = "std"


class _Centred(_Options):
    singleton: Singleton = "zero"


class _Raw(_Options):
    """A group of one keeps its reward in verl's opo and gpg, which have no key for it."""

    singleton: Singleton = "raw"


def _grpo(options: _Grpo, inputs: _Inputs) -> Float64Array:
    if options.scale == "mean":
        if options.center == "none":
            raise DataError("advantage: center none with scale mean has no definition; use center mean")
        return core.max_rl(inputs.rewards(), inputs.groups(), singleton=options.singleton)
    return estimators.grpo_with_floor(
        inputs.rewards(),
        inputs.groups(),
        center=options.center,
        by_std=options.scale == "std",
        ddof=options.ddof,
        eps=options.eps,
        var_floor=options.var_floor,
        singleton=options.singleton,
    )


def _by_group(estimate: Callable[..., Float64Array]) -> Callable[[Any, _Inputs], Float64Array]:
    return lambda options, inputs: estimate(inputs.rewards(), inputs.groups(), singleton=options.singleton)


def _opo(options: _Raw, inputs: _Inputs) -> Float64Array:
    rewards_N, lengths_N = inputs.rewards(), inputs.mask().sum(axis=1)
    lengths_N = whole_numbers("lengths", lengths_N, rewards_N.shape)
    return core.opo(rewards_N, inputs.groups(), lengths_N, singleton=options.singleton)


def _pass_k(options: _PassK, inputs: _Inputs) -> Float64Array:
    std_over = "group" if options.scale == "std" else "none"
    return core.pass_k(inputs.rewards(), inputs.groups(), std_over=std_over, ddof=options.ddof, eps=options.eps)


_PER_RESPONSE: Mapping[str, tuple[type[_Options], Callable[[Any, _Inputs], Float64Array]]] = {
    "grpo": (_Grpo, _grpo),
    "dr_grpo": (_DrGrpo, _grpo),
    "max_rl": (_MaxRl, _grpo),
    "rloo": (_Centred, _by_group(core.rloo)),
    "opo": (_Raw, _opo),
    "gpg": (_Raw, _by_group(core.gpg)),
    "grpo_passk": (_PassK, _pass_k),
}


# ----- one number per token; `whiten` has the peer's kind as its default


class _Discounted(_Options):
    gamma: Share = 1.0
    hole: Hole = "carry"
    whiten: Whiten = "unbiased"


class _DiscountedBiased(_Discounted):
    hole: Hole = "discount"
    whiten: Whiten = "biased"


class _Baseline(_Options):
    singleton: Singleton = "raw"
    whiten: Whiten = "unbiased"


class _BaselineBiased(_Options):
    hole: Hole = "discount"
    whiten: Whiten = "biased"
    singleton: Singleton = "zero"


class _WithKL(_Options):
    whiten: Whiten = "none"
    gamma: Share = 1.0
    kl_type: Literal["k1", "k2", "k3", "low_var_kl", "abs"] = "k1"
    kl_coef: NotNegative = 0.0


class _TokenBaseline(_Options):
    singleton: Singleton = "raw"


class _Gae(_WithKL):
    lam: Share = 1.0
    skip_masked: bool = False


def _reinforce_plus_plus(options: _Discounted, inputs: _Inputs) -> TokenAdvantages:
    mask_NT = inputs.mask()
    returns_NT = estimators.returns_with_holes(inputs.token_rewards(), mask_NT, gamma=options.gamma, hole=options.hole)
    return estimators.whitened(returns_NT, mask_NT, options.whiten)


def _reinforce_plus_plus_baseline(options: _Baseline, inputs: _Inputs) -> TokenAdvantages:
    mask_NT = inputs.mask()
    centred_N = finite_numbers("rewards", inputs.rewards(), mask_NT.shape[:1])
    centred_N = core.dr_grpo(centred_N, inputs.groups(), singleton=options.singleton)
    return estimators.whitened(core.on_every_token(centred_N, mask_NT), mask_NT, options.whiten)


def _remax(options: _Options, inputs: _Inputs) -> TokenAdvantages:
    mask_NT = inputs.mask()
    baselines_N = finite_numbers("reward_baselines", inputs["reward_baselines"], mask_NT.shape[:1])
    returns_NT = estimators.returns_with_holes(inputs.token_rewards(), mask_NT)
    advantages_NT = np.where(mask_NT, returns_NT - baselines_N[:, None], 0.0)
    return TokenAdvantages(advantages_NT=advantages_NT, returns_NT=returns_NT)


def _optimal_token_baseline(options: _TokenBaseline, inputs: _Inputs) -> TokenAdvantages:
    mask_NT = inputs.mask()
    returns_NT = estimators.returns_with_holes(inputs.token_rewards(), mask_NT)
    energies_NT = 1 - 2 * np.exp(inputs.token_values("old_logp")) + inputs.token_values("sum_pi_squared")
    if "rollout_is_weights" in inputs.arrays:
        energies_NT = energies_NT * inputs.token_values("rollout_is_weights") ** 2
    advantages_NT = core.optimal_token_baseline(
        returns_NT, energies_NT, mask_NT, inputs.groups(), singleton=options.singleton
    )
    return TokenAdvantages(advantages_NT=advantages_NT, returns_NT=returns_NT)


def _gae(options: _Gae, inputs: _Inputs) -> TokenAdvantages:
    return estimators.gae(
        inputs.token_rewards() - _kl_penalty(options, inputs),
        inputs.token_values("values"),
        inputs.mask(),
        gamma=options.gamma,
        lam=options.lam,
        skip_masked=options.skip_masked,
        whiten_kind=options.whiten,
    )


def _openrlhf_reinforce(options: _DiscountedBiased, inputs: _Inputs) -> TokenAdvantages:
    return _openrlhf_whitened(options, inputs, inputs.token_rewards(), gamma=options.gamma)


def _openrlhf_reinforce_baseline(options: _BaselineBiased, inputs: _Inputs) -> TokenAdvantages:
    centred_N = core.dr_grpo(inputs.rewards(), inputs.groups(), singleton=options.singleton)
    token_rewards_NT = core.rewards_at_last_token(centred_N, inputs.mask())
    return _openrlhf_whitened(options, inputs, token_rewards_NT, gamma=1.0)


def _openrlhf_whitened(
    options: _DiscountedBiased | _BaselineBiased, inputs: _Inputs, token_rewards_NT: Float64Array, *, gamma: float
) -> TokenAdvantages:
    """OpenRLHF maps masked slots as well, where the return is 0; `broadcast: true` sets them to 0."""
    mask_NT = inputs.mask()
    returns_NT = estimators.returns_with_holes(token_rewards_NT, mask_NT, gamma=gamma, hole=options.hole)
    shift, factor = core.whitening(returns_NT, mask_NT, options.whiten)
    advantages_NT = (returns_NT - shift) * factor
    if options.broadcast:
        advantages_NT = np.where(mask_NT, advantages_NT, 0.0)
    return TokenAdvantages(advantages_NT=advantages_NT, returns_NT=returns_NT)


def _slime_outcome(options: _WithKL, inputs: _Inputs) -> TokenAdvantages:
    """The reward, which slime has normalised before, on every token; the KL is not used."""
    mask_NT = inputs.mask()
    return estimators.whitened(core.on_every_token(inputs.rewards(), mask_NT), mask_NT, options.whiten)


def _slime_reinforce_plus_plus(options: _WithKL, inputs: _Inputs) -> TokenAdvantages:
    """Discounted returns of the reward on the last token and minus the KL penalty on each."""
    token_rewards_NT = inputs.token_rewards() - _kl_penalty(options, inputs)
    returns_NT = estimators.returns_with_holes(token_rewards_NT, inputs.mask(), gamma=options.gamma, hole="discount")
    return estimators.whitened(returns_NT, inputs.mask(), options.whiten)


def _slime_reinforce_plus_plus_baseline(options: _WithKL, inputs: _Inputs) -> TokenAdvantages:
    """The reward, which lost its group's mean before, minus the token's own KL penalty."""
    mask_NT = inputs.mask()
    returns_NT = core.on_every_token(inputs.rewards(), mask_NT) - _kl_penalty(options, inputs)
    return estimators.whitened(returns_NT, mask_NT, options.whiten)


def _kl_penalty(options: _WithKL, inputs: _Inputs) -> Float64Array:
    """kl_coef times the trainer's own penalty, float64 [N, T], 0 in masked slots; only low_var_kl is bounded."""
    kind, mask_NT = options.kl_type, inputs.mask()
    if options.kl_coef == 0:
        return np.zeros(mask_NT.shape)
    section = KLSection(estimator=kind, exponent_clamp=None, value_clamp=10.0 if kind == "low_var_kl" else None)
    penalty_NT = reward_penalty(section, inputs.token_values("old_logp"), inputs.token_values("ref_logp"), mask_NT)
    return options.kl_coef * penalty_NT


_PER_TOKEN: Mapping[str, tuple[type[_Options], Callable[[Any, _Inputs], TokenAdvantages]]] = {
    "reinforce_plus_plus": (_Discounted, _reinforce_plus_plus),
    "reinforce_plus_plus_baseline": (_Baseline, _reinforce_plus_plus_baseline),
    "reinforce_whiten_biased": (_DiscountedBiased, _openrlhf_reinforce),
    "reinforce_plus_plus_baseline_biased": (_BaselineBiased, _openrlhf_reinforce_baseline),
    "remax": (_Options, _remax),
    "optimal_token_baseline": (_TokenBaseline, _optimal_token_baseline),
    "gae": (_Gae, _gae),
    "slime_grpo": (_WithKL, _slime_outcome),
    "slime_gspo": (_WithKL, _slime_outcome),
    "slime_cispo": (_WithKL, _slime_outcome),
    "slime_reinforce_plus_plus": (_WithKL, _slime_reinforce_plus_plus),
    "slime_reinforce_plus_plus_baseline": (_WithKL, _slime_reinforce_plus_plus_baseline),
}


# ----- rewards normalised before they reach an estimator


class _RewardNorm(Strict):
    mode: str
    group_size: Annotated[int, Field(ge=1)]
    ddof: ZeroOrOne = 1


class _SumThenNormalize(_RewardNorm):
    eps: NotNegative = 1e-4
    missing: Literal["zero_advantage"] = "zero_advantage"
    scale: Literal["group", "batch", "none"] = "group"


class _NormalizeThenSum(_SumThenNormalize):
    scale: Literal["group"] = "group"


class _Slime(_RewardNorm):
    eps: NotNegative = 1e-6
    center: Literal["mean", "none"] = "mean"
    scale: Literal["std", "none"] = "std"


_MODES: Mapping[str, type[_RewardNorm]] = {
    "sum_then_normalize": _SumThenNormalize,
    "normalize_then_sum": _NormalizeThenSum,
    "slime": _Slime,
}


def normalized_rewards(config: Mapping[str, Any], inputs: Mapping[str, ArrayLike]) -> Float64Array:
    """Advantages of a case of kind `reward_norm`, float64 [N]; responses stand group after group.

    inputs: rewards [N], or rewards_per_func [N, F] (NaN: no reward) with reward_weights [F].
    mode sum_then_normalize, normalize_then_sum: TRL's. slime: one reward, none missing.
    Raises DataError for an unknown mode, key or value, a missing input, and rewards that are not whole groups.
    """
    mode = config.get("mode")
    if mode not in _MODES:
        raise DataError(f"reward_norm: unknown mode {mode!r}{hint(mode, _MODES)}")
    given = _Inputs(arrays=inputs, what=f"reward_norm {mode}")
    options = read_model(given.what, _MODES[mode], config)
    if isinstance(options, _Slime):
        rewards_N = finite_numbers("rewards", given["rewards"], (None,))
        return estimators.grpo_with_floor(
            rewards_N,
            Groups.of(_groups(given.what, rewards_N.size, options.group_size)),
            center=options.center,
            by_std=options.scale == "std",
            ddof=options.ddof,
            eps=options.eps,
        )
    if "rewards" in inputs:  # a lone reward counts once
        rewards_NF, weights_F = numbers("rewards", given["rewards"], (None,))[:, None], np.ones(1)
    else:
        rewards_NF = numbers("rewards_per_func", given["rewards_per_func"], (None, None))
        weights_F = finite_numbers("reward_weights", given["reward_weights"], rewards_NF.shape[1:])
    if np.isinf(rewards_NF).any():
        raise DataError("rewards_per_func: a reward is infinite; a missing one is NaN")
    groups_N = _groups(given.what, rewards_NF.shape[0], options.group_size)
    deviation = {"ddof": options.ddof, "eps": options.eps}
    if isinstance(options, _NormalizeThenSum):
        return core.normalize_then_sum(rewards_NF, weights_F, Groups.of(groups_N), **deviation)
    return estimators.sum_then_normalize(rewards_NF, weights_F, groups_N, std_over=options.scale, **deviation)


def _groups(what: str, num_responses: int, group_size: int) -> Int64Array:
    """Group ids of responses that stand group after group."""
    if num_responses % group_size:
        raise DataError(f"{what}: {num_responses} rewards are not whole groups of group_size {group_size}")
    return np.arange(num_responses) // group_size
