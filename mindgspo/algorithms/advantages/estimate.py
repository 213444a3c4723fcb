"""The rewards of one training step -> an advantage for every response token. numpy only.

To add an estimator: its name in the configuration's advantage section, its function in `estimators`, and an entry in
`_BY_RESPONSE` or `_BY_TOKEN`.

    N  responses    L  tokens of one response    T  longest of them    F  reward functions
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mindgspo.algorithms.advantages import estimators
from mindgspo.algorithms.advantages.estimators import Whiten
from mindgspo.algorithms.advantages.groups import Float64Array, Groups, Int64Array, are_equal
from mindgspo.config.algorithm import AdvantageSection
from mindgspo.errors import DataError
from mindgspo.types import BoolArray, Float32Array

_PER_RESPONSE = (
    "rewards_N",
    "counted_N",
    "groups_N",
    "lengths_N",
    "part_rewards_NF",
    "baselines_N",
    "token_penalties",
    "energies_NT",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs:
    """Rewards of the responses of one step. Raises DataError for values that count and are not finite.

    Example: AdvantageInputs(rewards_N=np.array([1.0, 0.0]), counted_N=np.array([True, True]),
    groups_N=np.array([0, 0]), lengths_N=np.array([3, 5]))
    """

    rewards_N: Float64Array
    """Total rewards."""
    counted_N: BoolArray
    """False for a response whose reward abstained: it leaves every statistic and has advantage 0, whatever stands in
    its other rows."""
    groups_N: Int64Array
    """Group of each response; siblings have the same number."""
    lengths_N: Int64Array
    """Tokens of each response, at least 0."""
    part_rewards_NF: Float64Array | None = None
    """Rewards of each reward function, NaN where it abstained; combine = normalize_then_sum reads them in place of
    rewards_N."""
    part_weights_F: Float64Array | None = None
    """Weights of the reward functions."""
    baselines_N: Float64Array | None = None
    """Rewards of the greedy responses, for remax."""
    token_penalties: Float64Array | None = None
    """float64 [N, T], subtracted from the reward of each token (the KL, times its coefficient); slots past a response's
    length may hold anything."""

    energies_NT: Float64Array | None = None
    """float64 [N, T], squared gradient of each token's log-prob by the logits, for optimal_token_baseline; slots past a
    response's length may hold anything."""

    def __post_init__(self) -> None:
        assert self.counted_N.dtype == np.bool_, f"counted_N: {self.counted_N.dtype}"
        shapes = {name: np.shape(getattr(self, name)) for name in _PER_RESPONSE if getattr(self, name) is not None}
        assert len({shape[0] for shape in shapes.values()}) == 1, f"numbers of responses differ: {shapes}"
        _check_finite("rewards_N", self.rewards_N, self.counted_N)
        if self.baselines_N is not None:
            _check_finite("baselines_N", self.baselines_N, self.counted_N)
        if self.token_penalties is not None:
            longest = self.mask.shape[1]
            assert self.token_penalties.shape[1] >= longest, f"{shapes} for a response of {longest} tokens"
            _check_finite("token_penalties", self.penalties(), self.counted_N[:, None])

    @property
    def mask(self) -> BoolArray:
        """bool [N, T]: real tokens, which stand before all others; T is the longest response."""
        return np.arange(int(self.lengths_N.max(initial=0))) < self.lengths_N[:, None]

    def penalties(self) -> Float64Array:
        """float64 [N, T]: penalties of real tokens, 0 elsewhere and where there are none."""
        mask_NT = self.mask
        if self.token_penalties is None:
            return np.zeros(mask_NT.shape)
        return np.where(mask_NT, self.token_penalties[:, : mask_NT.shape[1]], 0.0)

    def outcome_rewards(self) -> Float64Array:
        """Rewards less the penalties of all tokens, float64 [N]."""
        if self.token_penalties is None:
            return self.rewards_N
        return self.rewards_N - self.penalties().sum(axis=1)

    def token_rewards(self) -> Float64Array:
        """Rewards at the last token less the penalty of each, float64 [N, T]."""
        return estimators.rewards_at_last_token(self.rewards_N, self.mask) - self.penalties()

    def groups(self) -> Groups:
        """The partition of the responses into groups."""
        return Groups.of(self.groups_N)

    def counted_rows(self) -> AdvantageInputs:
        """The same without the responses whose reward abstained."""
        given = {name: getattr(self, name) for name in _PER_RESPONSE if getattr(self, name) is not None}
        rows = {name: array[self.counted_N] for name, array in given.items()}
        return AdvantageInputs(**rows, part_weights_F=self.part_weights_F)


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
    reinforce_plus_plus, which knows no groups, reinforce_plus_plus_baseline, whose whitening shifts all tokens by
    their common mean, and optimal_token_baseline, which leaves the end of the longest response its reward. Whitening
    makes all tokens exactly 0 if their values are all equal, so also if there is only one.
    Token penalties: reinforce_plus_plus, remax and optimal_token_baseline subtract them token by token, all others
    their sum from the reward.

    section: of a resolved configuration. Raises DataError for rewards too large for the arithmetic.
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


def has_signal(rewards: Sequence[float | None]) -> bool:
    """Whether any two of a group's rewards differ by more than rounding; None does not count."""
    values = [reward for reward in rewards if reward is not None]
    return bool(values) and not are_equal(min(values), max(values))


def _too_large(inputs: AdvantageInputs) -> DataError:
    largest = np.abs(inputs.rewards_N).max(initial=0.0)
    return DataError(f"rewards up to {largest:g} in magnitude are too large to make float32 advantages from")


def _estimate(section: AdvantageSection, inputs: AdvantageInputs) -> list[Float64Array]:
    """float64 [L] per response; every response counts."""
    name = section.estimator
    assert name is not None, "config is not resolved"
    if name in _BY_TOKEN:
        tokens_NT = _BY_TOKEN[name](section, inputs)
    else:
        tokens_NT = estimators.on_every_token(_BY_RESPONSE[name](section, inputs), inputs.mask)
    return [row[:length] for row, length in zip(tokens_NT, inputs.lengths_N, strict=True)]


_Estimator = Callable[[AdvantageSection, AdvantageInputs], Float64Array]


def _scaled(section: AdvantageSection, inputs: AdvantageInputs, estimate: Callable[..., Float64Array]) -> Float64Array:
    return estimate(
        inputs.outcome_rewards(),
        inputs.groups(),
        ddof=section.ddof,
        eps=section.eps,
        std_over=section.std_over if section.normalize_by_std else "none",
        singleton=section.singleton,
    )


def _grpo(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    if section.combine == "sum_then_normalize":
        return _scaled(section, inputs, estimators.grpo)
    parts_NF, weights_F = inputs.part_rewards_NF, inputs.part_weights_F
    assert parts_NF is not None and weights_F is not None, "normalize_then_sum without the reward of each function"
    return estimators.normalize_then_sum(parts_NF, weights_F, inputs.groups(), ddof=section.ddof, eps=section.eps)


def _by_group(estimate: Callable[..., Float64Array]) -> _Estimator:
    return lambda section, inputs: estimate(inputs.outcome_rewards(), inputs.groups(), singleton=section.singleton)


def _opo(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    return estimators.opo(inputs.outcome_rewards(), inputs.groups(), inputs.lengths_N, singleton=section.singleton)


def _remax(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    """Reward still to come minus the reward of the greedy response: arXiv 2310.10505, section 3, as verl."""
    assert inputs.baselines_N is not None, "remax without the reward of a greedy response to each prompt"
    returns_NT = estimators.discounted_returns(inputs.token_rewards())
    return np.where(inputs.mask, returns_NT - inputs.baselines_N[:, None], 0.0)


def _optimal_token_baseline(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    assert inputs.energies_NT is not None, "optimal_token_baseline without energies"
    returns_NT, mask_NT = estimators.discounted_returns(inputs.token_rewards()), inputs.mask
    energies_NT = inputs.energies_NT[:, : mask_NT.shape[1]]
    return estimators.optimal_token_baseline(
        returns_NT, energies_NT, mask_NT, inputs.groups(), singleton=section.singleton
    )


def _reinforce_plus_plus(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    """Discounted returns, whitened over all tokens of the batch: arXiv 2501.03262, as verl."""
    returns_NT = estimators.discounted_returns(inputs.token_rewards(), gamma=section.gamma)
    return _whitened(returns_NT, inputs.mask, section.whiten)


def _reinforce_plus_plus_baseline(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    """r - mean of the group on every token, whitened over the batch: arXiv 2501.03262, as verl.

    Whitening moves the mean over tokens to 0, so that a group of equal rewards gets minus that mean over the deviation,
    unless longer responses earn as much as shorter ones.
    """
    centred_N = _by_group(estimators.dr_grpo)(section, inputs)
    return _whitened(estimators.on_every_token(centred_N, inputs.mask), inputs.mask, section.whiten)


def _whitened(values_NT: Float64Array, mask_NT: BoolArray, kind: Whiten) -> Float64Array:
    """Like `estimators.whiten`, but exactly 0 for equal values, where the 1e-8 in verl's mean would leave a residue."""
    values = values_NT[mask_NT]
    if kind != "none" and (values.size == 0 or values.min() == values.max()):
        return np.zeros_like(values_NT)
    return estimators.whiten(values_NT, mask_NT, kind)


# One number per response.
_BY_RESPONSE: Mapping[str, _Estimator] = {
    "grpo": _grpo,
    "dr_grpo": _by_group(estimators.dr_grpo),
    "rloo": _by_group(estimators.rloo),
    "opo": _opo,
    "max_rl": _by_group(estimators.max_rl),
    "pass_k": lambda section, inputs: _scaled(section, inputs, estimators.pass_k),
    "gpg": _by_group(estimators.gpg),
}
# One number per token: [N, T].
_BY_TOKEN: Mapping[str, _Estimator] = {
    "remax": _remax,
    "optimal_token_baseline": _optimal_token_baseline,
    "reinforce_plus_plus": _reinforce_plus_plus,
    "reinforce_plus_plus_baseline": _reinforce_plus_plus_baseline,
}
