"""The `config` of a conformance case as the definitions that cells and twins read.

What enters: the JSON object `config` of a case of kind policy_loss, kl or agg, and the number of token slots T of its
arrays. What leaves: `LossDefinition`, `KLTerm`, `Aggregation`, the denominators and the options of the metrics. An
absent key, or null, means off. Called by the runner of conformance files and by tests. numpy only.

Raises DataError for an unknown key or value, with the key, the rule, what was given and the nearest legal one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from numpy.typing import ArrayLike

from mindgspo.algorithms.losses.definition import Aggregation, KLKind, KLTerm, LossDefinition
from mindgspo.algorithms.twins import denominators
from mindgspo.config.algorithm import AggregationMode, RatioLevel, Surrogate
from mindgspo.errors import DataError
from mindgspo.text import did_you_mean

Config = Mapping[str, Any]

_CHOICES = {
    "surrogate": get_args(Surrogate),
    "ratio_level": get_args(RatioLevel),
    "loss_agg_mode": get_args(AggregationMode),
    "kl_agg_mode": get_args(AggregationMode),
    "kl_type": get_args(KLKind),
    "advantage_pool": ("none", "masked-mean"),
    "empty_rows": ("exclude", "include"),
}
_POSITIVE = (
    "clip_ratio_c", "ratio_upper_clamp", "tau_pos", "tau_neg", "loss_scale_factor", "norm_seqs", "norm_tokens",
    "metric_tokens",
)  # fmt: skip
_NOT_NEGATIVE = ("clip_low", "clip_high", "ratio_len_eps", "seq_len_eps", "token_mean_eps", "metric_eps")
_ANY_NUMBER = ("log_ratio_min", "log_ratio_max", "loss_upper_clamp", "kl_coef")
_PAIRS = ("kl_arg_clamp", "kl_value_clamp")
_FLAGS = ("kl_importance_weight", "kl_straight_through_k2", "ppo_kl_clamped")
# algorithm: a name for people, without a meaning of its own.
_KNOWN = ("algorithm", "dp_size", *_CHOICES, *_POSITIVE, *_NOT_NEGATIVE, *_ANY_NUMBER, *_PAIRS, *_FLAGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricOptions:
    """Options of `twins.conformance_metrics`, under its names."""

    metric_tokens: float | None = None
    metric_eps: float = 0.0
    ppo_kl_clamped: bool = False


def definition_of(config: Config, num_slots: int) -> LossDefinition:
    """The policy loss of a policy_loss case. num_slots: T, the default of loss_scale_factor."""
    check(config)
    _require(config, "surrogate", "loss_agg_mode")
    tau_pos, tau_neg = config.get("tau_pos"), config.get("tau_neg")
    return LossDefinition(
        ratio_level=config.get("ratio_level") or "none",
        surrogate=config["surrogate"],
        aggregation=aggregation_of(config, num_slots),
        clip_low=config.get("clip_low"),
        clip_high=config.get("clip_high"),
        clip_ratio_c=config.get("clip_ratio_c"),
        ratio_upper_clamp=config.get("ratio_upper_clamp"),
        loss_upper_clamp=config.get("loss_upper_clamp"),
        log_ratio_min=config.get("log_ratio_min"),
        log_ratio_max=config.get("log_ratio_max"),
        ratio_len_eps=config.get("ratio_len_eps"),
        tau_pos=1.0 if tau_pos is None else tau_pos,
        tau_neg=1.05 if tau_neg is None else tau_neg,
        advantage_pool=config.get("advantage_pool") or "none",
        kl=None if config.get("kl_type") is None else kl_term_of(config, num_slots),
    )


def kl_term_of(config: Config, num_slots: int) -> KLTerm:
    """The KL term of a policy_loss case, or what a kl case measures; aggregated by kl_agg_mode, else loss_agg_mode.

    A KL estimate belongs to a token, so its batch-mean is the mean over all rows of the row's token mean (TRL's GMPO).
    """
    check(config)
    _require(config, "kl_type")
    aggregation = aggregation_of(
        config, num_slots, key="loss_agg_mode" if _off(config, "kl_agg_mode") else "kl_agg_mode"
    )
    if aggregation.mode == "batch-mean":
        aggregation = replace(aggregation, mode="seq-mean-token-mean", empty_rows="include")
    return KLTerm(
        kind=config["kl_type"],
        aggregation=aggregation,
        arg_clamp=_pair(config, "kl_arg_clamp"),
        value_clamp=_pair(config, "kl_value_clamp"),
        importance_weight=bool(config.get("kl_importance_weight")),
        straight_through_k2=bool(config.get("kl_straight_through_k2")),
    )


def aggregation_of(config: Config, num_slots: int, *, key: str = "loss_agg_mode") -> Aggregation:
    """The aggregation that `key` names. empty_rows is `include` where it is absent, as the format has it.

    A sum without a denominator takes dp_size as the inverse of a scale: token-sum x dp_size (verl) is
    batch-token-sum-norm with 1 / dp_size. batch-token-sum-norm itself has no dp_size in verl.
    """
    check(config)
    _require(config, key)
    mode, scale = config[key], None
    if mode == "token-sum" and config.get("dp_size", 1) not in (None, 1):
        mode, scale = "batch-token-sum-norm", 1.0 / config["dp_size"]
    elif mode in ("seq-mean-token-sum-norm", "batch-token-sum-norm"):
        scale = num_slots if _off(config, "loss_scale_factor") else config["loss_scale_factor"]
    return Aggregation(
        mode=mode,
        seq_len_eps=config.get("seq_len_eps"),
        loss_scale_factor=scale,
        empty_rows=config.get("empty_rows") or "include",
    )


def denominators_of(config: Config, aggregation: Aggregation, mask_NK: ArrayLike) -> tuple[float, float]:
    """(num_sequences, num_tokens) of a case under one of its aggregations, see `twins.denominators`."""
    check(config)
    return denominators(
        mask_NK,
        aggregation,
        norm_seqs=config.get("norm_seqs"),
        norm_tokens=config.get("norm_tokens"),
        dp_size=config.get("dp_size") or 1,
        token_mean_eps=config.get("token_mean_eps") or 0.0,
    )


def kl_coef_of(config: Config, *, absent: float = 0.0) -> float:
    """kl_coef, or `absent` where the key is."""
    check(config)
    return absent if _off(config, "kl_coef") else float(config["kl_coef"])


def metric_options_of(config: Config) -> MetricOptions:
    """How a case averages its metrics."""
    check(config)
    return MetricOptions(
        metric_tokens=config.get("metric_tokens"),
        metric_eps=config.get("metric_eps") or 0.0,
        ppo_kl_clamped=bool(config.get("ppo_kl_clamped")),
    )


def check(config: Config) -> None:
    """Raises DataError unless every key is known and every value legal by itself and beside the others."""
    for key in config:
        if key not in _KNOWN:
            raise DataError(f"config.{key}: unknown key{did_you_mean(key, _KNOWN)}")
    given = {key: value for key, value in config.items() if value is not None}
    for key, legal in _CHOICES.items():
        if key in given and given[key] not in legal:
            raise DataError(
                f"config.{key}: expected one of {', '.join(legal)}, got {given[key]!r}{did_you_mean(given[key], legal)}"
            )
    for key in (*_POSITIVE, *_NOT_NEGATIVE, *_ANY_NUMBER):
        if key in given:
            _check_number(f"config.{key}", given[key], positive=key in _POSITIVE, any_sign=key in _ANY_NUMBER)
    for key in _PAIRS:
        if key in given:
            _check_pair(f"config.{key}", given[key])
    for key in _FLAGS:
        if key in given and not isinstance(given[key], bool):
            raise DataError(f"config.{key}: expected true or false, got {given[key]!r}")
    dp_size = given.get("dp_size", 1)
    if not isinstance(dp_size, int) or isinstance(dp_size, bool) or dp_size < 1:
        raise DataError(f"config.dp_size: expected a whole number >= 1, got {dp_size!r}")
    low, high = given.get("log_ratio_min", -math.inf), given.get("log_ratio_max", math.inf)
    if low > high:
        raise DataError(f"config.log_ratio_min: {low} is above log_ratio_max {high}")


def _check_number(path: str, value: object, *, positive: bool = False, any_sign: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{path}: expected a finite number, got {value!r}")
    if positive and value <= 0:
        raise DataError(f"{path}: must be > 0, got {value}")
    if not any_sign and value < 0:
        raise DataError(f"{path}: must be >= 0, got {value}; ranges and epsilons are sizes, without a sign")


def _check_pair(path: str, value: object) -> None:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise DataError(f"{path}: expected [low, high], got {value!r}")
    for bound in value:
        _check_number(path, bound, any_sign=True)
    if value[0] > value[1]:
        raise DataError(f"{path}: low {value[0]} is above high {value[1]}")


def _pair(config: Config, key: str) -> tuple[float, float] | None:
    return None if _off(config, key) else (float(config[key][0]), float(config[key][1]))


def _off(config: Config, key: str) -> bool:
    return config.get(key) is None


def _require(config: Config, *keys: str) -> None:
    for key in keys:
        if _off(config, key):
            raise DataError(f"config.{key}: missing; one of {', '.join(_CHOICES[key])}")
