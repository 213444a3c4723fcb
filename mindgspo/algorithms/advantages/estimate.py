"""The trainer's door: the rewards of one training step into an advantage for every response token.

What enters: the advantage section of an experiment, and `AdvantageInputs`. What leaves: one float32 [L] array per
response. Called by the trainer when it makes `Group`s. numpy only.

To add an estimator: its name in `config.algorithm_section`, and a function in `_OUTCOME` or `_TOKEN`.

    N responses    L tokens of one response    T longest of them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from mindgspo.algorithms.advantages import group_relative, reward_norm, token_level
from mindgspo.algorithms.advantages.arrays import BoolArray, Float64Array
from mindgspo.algorithms.advantages.group_relative import StdOver
from mindgspo.algorithms.advantages.step_rewards import AdvantageInputs
from mindgspo.algorithms.advantages.whitening import Whiten, whiten
from mindgspo.config.algorithm import AdvantageSection
from mindgspo.errors import ConfigError, DataError
from mindgspo.text import did_you_mean
from mindgspo.types import Float32Array


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
    """Whether the rewards of one group tell any two of its responses apart: those that count are not all equal.

    counted: bool [G], which rewards count; None: those that are not None.
    """
    if counted is None:
        counted = [reward is not None for reward in rewards]
    values = [reward for reward, counts in zip(rewards, np.asarray(counted, dtype=bool), strict=True) if counts]
    return bool(values) and min(values) != max(values)


def _too_large(inputs: AdvantageInputs) -> DataError:
    largest = np.abs(inputs.rewards_N).max(initial=0.0)
    return DataError(f"rewards up to {largest:g} in magnitude are too large to make float32 advantages from")


def _estimate(section: AdvantageSection, inputs: AdvantageInputs) -> list[Float64Array]:
    """float64 [L] per response; every response counts."""
    name = section.estimator
    if name in _TOKEN:
        _check_combine(section, inputs)
        tokens_NT = _TOKEN[name](section, inputs)
        return [row[:length] for row, length in zip(tokens_NT, inputs.lengths_N, strict=True)]
    if name not in _OUTCOME:
        known = [*_OUTCOME, *_TOKEN]
        hint = did_you_mean(name, known, otherwise=f"; known: {', '.join(known)}")
        raise ConfigError(f"algorithm.advantage.estimator: unknown estimator {name!r}{hint}")
    _check_combine(section, inputs)
    advantages_N = _OUTCOME[name](section, inputs)
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
        return reward_norm.normalize_then_sum(
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


def _dr_grpo(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    return group_relative.dr_grpo(_outcome_rewards(inputs), inputs.groups_N, singleton=section.singleton)


def _rloo(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    return group_relative.rloo(_outcome_rewards(inputs), inputs.groups_N, singleton=section.singleton)


def _opo(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    return group_relative.opo(_outcome_rewards(inputs), inputs.groups_N, inputs.lengths_N, singleton=section.singleton)


def _max_rl(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    return group_relative.max_rl(_outcome_rewards(inputs), inputs.groups_N, singleton=section.singleton)


def _pass_k(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    return group_relative.grpo_passk(
        _outcome_rewards(inputs),
        inputs.groups_N,
        ddof=section.ddof,
        eps=section.eps,
        std_over=_std_over(section),
        singleton=section.singleton,
    )


def _gpg(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    return group_relative.gpg(_outcome_rewards(inputs), inputs.groups_N, singleton=section.singleton)


def _remax(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    if inputs.baselines_N is None:
        raise DataError("remax needs baselines_N, the reward of a greedy response to each response's prompt")
    return token_level.remax(_token_rewards(inputs), inputs.baselines_N, inputs.mask).advantages_NT


def _reinforce_plus_plus(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    returns_NT = token_level.discounted_returns(_token_rewards(inputs), inputs.mask, gamma=section.gamma)
    return _whiten(returns_NT, inputs.mask, section.whiten)


def _reinforce_plus_plus_baseline(section: AdvantageSection, inputs: AdvantageInputs) -> Float64Array:
    mask_NT = inputs.mask
    returns_NT = token_level.on_every_token(_dr_grpo(section, inputs), mask_NT)
    return _whiten(returns_NT, mask_NT, section.whiten)


def _whiten(values_NT: Float64Array, mask_NT: BoolArray, kind: Whiten) -> Float64Array:
    """As `whiten`, but exactly 0 for equal values, of which the 1e-8 in verl's mean would leave a trace."""
    values = values_NT[mask_NT]
    if kind != "none" and (values.size == 0 or values.min() == values.max()):
        return np.zeros_like(values_NT)
    return whiten(values_NT, mask_NT, kind)


_Estimator = Callable[[AdvantageSection, AdvantageInputs], Float64Array]

# One number per response.
_OUTCOME: Mapping[str, _Estimator] = {
    "grpo": _grpo,
    "dr_grpo": _dr_grpo,
    "rloo": _rloo,
    "opo": _opo,
    "max_rl": _max_rl,
    "pass_k": _pass_k,
    "gpg": _gpg,
}
# One number per token: [N, T].
_TOKEN: Mapping[str, _Estimator] = {
    "remax": _remax,
    "reinforce_plus_plus": _reinforce_plus_plus,
    "reinforce_plus_plus_baseline": _reinforce_plus_plus_baseline,
}
