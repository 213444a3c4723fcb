"""The rewards of one training step -> an advantage for every response token. numpy only.

To add an estimator: its name in the configuration's advantage section, a function in `_BY_RESPONSE` or `_BY_TOKEN`.

    N  responses    L  tokens of one response    T  longest of them    F  reward functions
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mindgspo.algorithms.advantages import group_relative, token_level
from mindgspo.algorithms.advantages.group_relative import StdOver
from mindgspo.algorithms.advantages.groups import BoolArray, Float64Array, Int64Array, are_equal, numbers, whole_numbers
from mindgspo.algorithms.advantages.token_level import Whiten, whiten
from mindgspo.config.algorithm import AdvantageSection
from mindgspo.errors import ConfigError, DataError
from mindgspo.text import did_you_mean
from mindgspo.types import Float32Array

_PER_RESPONSE = ("rewards_N", "counted_N", "groups_N", "lengths_N")
_OPTIONAL_PER_RESPONSE = ("part_rewards_NF", "baselines_N", "token_penalties")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs:
    """What the responses of one step earned.

    rewards_N: float64, total rewards. counted_N: bool; a response whose reward abstained (False) leaves every
    statistic and has advantage 0, whatever stands in its other rows.
    groups_N: int, siblings have the same number. lengths_N: int, tokens of each response, at least 0.
    part_rewards_NF, part_weights_F: rewards of each reward function, NaN where it abstained, and their weights;
    needed by combine = normalize_then_sum, which reads them instead of rewards_N.
    baselines_N: rewards of the greedy responses; needed by remax.
    token_penalties: float64 [N, T], subtracted from the reward of each token (the KL, times its coefficient); slots
    past a response's length may hold anything.

    Raises DataError for shapes that do not match, lengths below 0 and values that count and are not finite.
    Example: AdvantageInputs(rewards_N=np.array([1.0, 0.0]), counted_N=np.array([True, True]),
    groups_N=np.array([0, 0]), lengths_N=np.array([3, 5]))
    """

    rewards_N: Float64Array
    counted_N: BoolArray
    groups_N: Int64Array
    lengths_N: Int64Array
    part_rewards_NF: Float64Array | None = None
    part_weights_F: Float64Array | None = None
    baselines_N: Float64Array | None = None
    token_penalties: Float64Array | None = None

    def __post_init__(self) -> None:
        rewards_N = numbers("rewards_N", self.rewards_N, (None,))
        shape, counted_N = rewards_N.shape, np.asarray(self.counted_N)
        if counted_N.dtype != np.bool_ or counted_N.shape != shape:
            raise DataError(f"counted_N: expected bool {list(shape)}, got {counted_N.dtype} {list(counted_N.shape)}")
        _check_finite("rewards_N", rewards_N, counted_N)
        whole_numbers("groups_N", self.groups_N, shape)
        lengths_N = whole_numbers("lengths_N", self.lengths_N, shape, least=0)
        if self.baselines_N is not None:
            _check_finite("baselines_N", numbers("baselines_N", self.baselines_N, shape), counted_N)
        self._check_parts(shape)
        self._check_penalties(shape, counted_N, longest=int(lengths_N.max(initial=0)))

    def _check_parts(self, shape: tuple[int, ...]) -> None:
        if (self.part_rewards_NF is None) != (self.part_weights_F is None):
            raise DataError("part_rewards_NF, part_weights_F: give both or neither")
        if self.part_rewards_NF is not None and self.part_weights_F is not None:
            parts_NF = numbers("part_rewards_NF", self.part_rewards_NF, (*shape, None))
            numbers("part_weights_F", self.part_weights_F, parts_NF.shape[1:])

    def _check_penalties(self, shape: tuple[int, ...], counted_N: BoolArray, *, longest: int) -> None:
        if self.token_penalties is None:
            return
        penalties_NT = numbers("token_penalties", self.token_penalties, (*shape, None))
        if penalties_NT.shape[1] < longest:
            raise DataError(f"token_penalties: {penalties_NT.shape[1]} slots for a response of {longest} tokens")
        is_real_NT = np.arange(penalties_NT.shape[1]) < np.asarray(self.lengths_N)[:, None]
        _check_finite("token_penalties", penalties_NT, is_real_NT & counted_N[:, None])

    @property
    def mask(self) -> BoolArray:
        """bool [N, T]: real tokens, which stand before all others; T is the longest response."""
        lengths_N = np.asarray(self.lengths_N)
        return np.arange(int(lengths_N.max(initial=0))) < lengths_N[:, None]

    def penalties(self) -> Float64Array:
        """float64 [N, T]: penalties of real tokens, 0 elsewhere and where there are none."""
        mask_NT = self.mask
        if self.token_penalties is None:
            return np.zeros(mask_NT.shape)
        return np.where(mask_NT, np.asarray(self.token_penalties)[:, : mask_NT.shape[1]], 0.0)

    def counted_rows(self) -> AdvantageInputs:
        """The same without the responses whose reward abstained."""
        rows = np.flatnonzero(self.counted_N)
        required = {name: np.asarray(getattr(self, name))[rows] for name in _PER_RESPONSE}
        given = [name for name in _OPTIONAL_PER_RESPONSE if getattr(self, name) is not None]
        optional = {name: np.asarray(getattr(self, name))[rows] for name in given}
        return AdvantageInputs(**required, **optional, part_weights_F=self.part_weights_F)


def _check_finite(name: str, values: Float64Array, counts: BoolArray) -> None:
    bad = np.argwhere(counts & ~np.isfinite(values))
    if bad.size:
        place = tuple(int(i) for i in bad[0])
        raise DataError(f"{name}: {values[place]:g} at {list(place)}, but every value that counts must be finite")


def estimate_advantages(section: AdvantageSection, inputs: AdvantageInputs) -> tuple[Float32Array, ...]:
    """One float32 [L] array per response, in the order of the inputs; computed in float64.

    Invariant to the order of responses and to the numbers that groups have. A response that abstained has zeros,
    and the others have what they would have without it.
    Exactly 0, without token penalties: groups of equal rewards, and the only counted response of a group unless
    section.singleton is "raw"; in all estimators but remax, which compares with the greedy response,
    reinforce_plus_plus, which knows no groups, and reinforce_plus_plus_baseline, whose whitening shifts all tokens by
    their common mean. Whitening makes all tokens exactly 0 if their values are all equal, so also if there is only one.
    Token penalties: reinforce_plus_plus and remax subtract them token by token, all others their sum from the reward.

    Raises ConfigError for an unknown estimator and settings that mean nothing together; DataError for an input
    that the estimator needs and does not get, and for rewards too large for the arithmetic.
    """
    counted = inputs.counted_rows()
    try:
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            rows = [row.astype(np.float32) for row in _estimate(section, counted)]
    except FloatingPointError as error:
        raise _too_large(counted) from error
    if not all(np.isfinite(row).all() for row in rows):
        raise _too_large(counted)
    advantages = [np.zeros(int(length), dtype=np.float32) for length in inputs.lengths_N]
    for place, row in zip(np.flatnonzero(inputs.counted_N), rows, strict=True):
        advantages[place] = row
    return tuple(advantages)


def has_signal(rewards: Sequence[float | None] | Float64Array, counted: ArrayLike | None = None) -> bool:
    """Whether the rewards of one group tell any two of its responses apart: those that count are not all
    equal but for rounding.

    counted: bool [G], which rewards count; None: those that are not None.
    """
    if counted is None:
        counted = [reward is not None for reward in rewards]
    values = [reward for reward, counts in zip(rewards, np.asarray(counted, dtype=bool), strict=True) if counts]
    return bool(values) and not are_equal(min(values), max(values))


def _too_large(inputs: AdvantageInputs) -> DataError:
    largest = np.abs(inputs.rewards_N).max(initial=0.0)
    return DataError(f"rewards up to {largest:g} in magnitude are too large to make float32 advantages from")


def _estimate(section: AdvantageSection, inputs: AdvantageInputs) -> list[Float64Array]:
    """float64 [L] per response; every response counts."""
    name = section.estimator
    if name in _BY_TOKEN:
        _check_combine(section, inputs)
        tokens_NT = _BY_TOKEN[name](section, inputs)
        return [row[:length] for row, length in zip(tokens_NT, inputs.lengths_N, strict=True)]
    if name not in _BY_RESPONSE:
        known = [*_BY_RESPONSE, *_BY_TOKEN]
        hint = did_you_mean(name, known, otherwise=f"; known: {', '.join(known)}")
        raise ConfigError(f"algorithm.advantage.estimator: unknown estimator {name!r}{hint}")
    _check_combine(section, inputs)
    advantages_N = _BY_RESPONSE[name](section, inputs)
    return [np.full(int(length), value) for value, length in zip(advantages_N, inputs.lengths_N, strict=True)]


def _check_combine(section: AdvantageSection, inputs: AdvantageInputs) -> None:
    """normalize_then_sum fixes what is normalised, and how: other settings about it would not be read."""
    if section.combine != "normalize_then_sum":
        return
    defaults = {"estimator": "grpo", "normalize_by_std": True, "std_over": "group", "singleton": "zero"}
    for key, value in defaults.items():
        if getattr(section, key) != value:
            raise ConfigError(
                f"algorithm.advantage.{key}: {getattr(section, key)} is not read with combine: normalize_then_sum, "
                f"which means {value}; set {key}: {value} or combine: sum_then_normalize"
            )
    if inputs.token_penalties is not None:
        raise ConfigError(
            "algorithm.kl.placement: reward has no meaning with algorithm.advantage.combine: normalize_then_sum, whose "
            "sum has no unit of reward; set algorithm.kl.placement: loss"
        )
    if inputs.part_rewards_NF is None:
        raise DataError("combine: normalize_then_sum needs part_rewards_NF, the reward of each function")


def _outcome_rewards(inputs: AdvantageInputs) -> Float64Array:
    """Rewards less the penalties of all tokens, float64 [N]."""
    if inputs.token_penalties is None:
        return np.asarray(inputs.rewards_N, dtype=np.float64)
    return inputs.rewards_N - inputs.penalties().sum(axis=1)


def _token_rewards(inputs: AdvantageInputs) -> Float64Array:
    """Rewards at the last token less the penalty of each, float64 [N, T]."""
    return token_level.rewards_at_last_token(inputs.rewards_N, inputs.mask) - inputs.penalties()


def _std_over(section: AdvantageSection) -> StdOver:
    return section.std_over if section.normalize_by_std else "none"


def _grpo(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    if section.combine == "normalize_then_sum":
        return group_relative.normalize_then_sum(
            inputs.part_rewards_NF, inputs.part_weights_F, inputs.groups_N, ddof=section.ddof, eps=section.eps
        )
    return group_relative.grpo(
        _outcome_rewards(inputs),
        inputs.groups_N,
        ddof=section.ddof,
        eps=section.eps,
        std_over=_std_over(section),
        singleton=section.singleton,
    )


_Estimator = Callable[[AdvantageSection, AdvantageInputs], Float64Array]


def _by_group(estimate: Callable[..., Float64Array]) -> _Estimator:
    return lambda section, inputs: estimate(_outcome_rewards(inputs), inputs.groups_N, singleton=section.singleton)


def _opo(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    return group_relative.opo(_outcome_rewards(inputs), inputs.groups_N, inputs.lengths_N, singleton=section.singleton)


def _pass_k(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    return group_relative.grpo_passk(
        _outcome_rewards(inputs),
        inputs.groups_N,
        ddof=section.ddof,
        eps=section.eps,
        std_over=_std_over(section),
        singleton=section.singleton,
    )


def _remax(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    if inputs.baselines_N is None:
        raise DataError("remax needs baselines_N, the reward of a greedy response to each response's prompt")
    return token_level.remax(_token_rewards(inputs), inputs.baselines_N, inputs.mask).advantages_NT


def _reinforce_plus_plus(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    returns_NT = token_level.discounted_returns(_token_rewards(inputs), inputs.mask, gamma=section.gamma)
    return _whiten(returns_NT, inputs.mask, section.whiten)


def _reinforce_plus_plus_baseline(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    mask_NT = inputs.mask
    returns_NT = token_level.on_every_token(_by_group(group_relative.dr_grpo)(section, inputs), mask_NT)
    return _whiten(returns_NT, mask_NT, section.whiten)


def _whiten(values_NT: Float64Array, mask_NT: BoolArray, kind: Whiten) -> Float64Array:
    """As `whiten`, but exactly 0 for equal values, of which the 1e-8 in verl's mean would leave a trace."""
    values = values_NT[mask_NT]
    if kind != "none" and (values.size == 0 or values.min() == values.max()):
        return np.zeros_like(values_NT)
    return whiten(values_NT, mask_NT, kind)


# One number per response.
_BY_RESPONSE: Mapping[str, _Estimator] = {
    "grpo": _grpo,
    "dr_grpo": _by_group(group_relative.dr_grpo),
    "rloo": _by_group(group_relative.rloo),
    "opo": _opo,
    "max_rl": _by_group(group_relative.max_rl),
    "pass_k": _pass_k,
    "gpg": _by_group(group_relative.gpg),
}
# One number per token: [N, T].
_BY_TOKEN: Mapping[str, _Estimator] = {
    "remax": _remax,
    "reinforce_plus_plus": _reinforce_plus_plus,
    "reinforce_plus_plus_baseline": _reinforce_plus_plus_baseline,
}
