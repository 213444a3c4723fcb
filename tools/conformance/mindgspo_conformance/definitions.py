"""The `config` of a conformance case as the definitions that cells and twins read.

An absent key, or null, means off. Everything raises DataError for an unknown key or value, with the key, the rule, what
was given and the nearest legal one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

from numpy.typing import ArrayLike
from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from mindgspo.algorithms.losses.definition import Aggregation, KLKind, KLTerm, LossDefinition
from mindgspo.config.algorithm import AggregationMode, RatioLevel, Surrogate
from mindgspo.errors import DataError
from mindgspo_conformance.strict import Strict, read_model
from mindgspo_conformance.twins.aggregation import denominators


def _pair(bounds: list[float]) -> list[float]:
    if len(bounds) != 2:
        raise PydanticCustomError("pair", "expected [low, high], got {given}", {"given": str(bounds)})
    return bounds


Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Bounds = Annotated[list[float], AfterValidator(_pair)]


# Keys that the definition has a default for.
_OWN_KEYS = (
    "tau_pos", "tau_neg", "k_pos", "lambda_pos", "k_neg", "lambda_neg", "future_half_life", "influence_low",
    "influence_high", "safety_ratio", "kl_cov_coef", "opsm_threshold",
)  # fmt: skip


class LossConfig(Strict):
    """`config` of a policy_loss, kl or agg case. algorithm: a name for people, without a meaning of its own."""

    algorithm: Any = None
    surrogate: Surrogate | None = None
    ratio_level: RatioLevel | None = None
    ratio_len_eps: NotNegative | None = None
    log_ratio_min: float | None = None
    log_ratio_max: float | None = None
    clip_low: NotNegative | None = None
    clip_high: NotNegative | None = None
    clip_ratio_c: Positive | None = None
    ratio_upper_clamp: Positive | None = None
    loss_upper_clamp: float | None = None
    tau_pos: Positive | None = None
    tau_neg: Positive | None = None
    k_pos: Positive | None = None
    lambda_pos: Positive | None = None
    k_neg: Positive | None = None
    lambda_neg: Positive | None = None
    future_half_life: Positive | None = None
    influence_low: NotNegative | None = None
    influence_high: Positive | None = None
    safety_ratio: Positive | None = None
    kl_cov_coef: Positive | None = None
    opsm_threshold: float | None = None
    advantage_pool: Literal["none", "masked-mean"] | None = None
    loss_agg_mode: AggregationMode | None = None
    empty_rows: Literal["exclude", "include"] | None = None
    seq_len_eps: NotNegative | None = None
    token_mean_eps: NotNegative | None = None
    loss_scale_factor: Positive | None = None
    norm_seqs: Positive | None = None
    norm_tokens: Positive | None = None
    dp_size: Annotated[int, Field(ge=1)] | None = None
    kl_type: KLKind | None = None
    kl_coef: float | None = None
    kl_agg_mode: AggregationMode | None = None
    kl_arg_clamp: Bounds | None = None
    kl_value_clamp: Bounds | None = None
    kl_importance_weight: bool | None = None
    kl_straight_through_k2: bool | None = None
    metric_tokens: Positive | None = None
    metric_eps: NotNegative | None = None
    ppo_kl_clamped: bool | None = None

    @model_validator(mode="after")
    def _ordered(self) -> LossConfig:
        for low_key, high_key, bounds in (
            ("log_ratio_min", "log_ratio_max", (self.log_ratio_min, self.log_ratio_max)),
            ("kl_arg_clamp", "high", self.kl_arg_clamp),
            ("kl_value_clamp", "high", self.kl_value_clamp),
        ):
            low, high = bounds or (None, None)
            if low is not None and high is not None and low > high:
                rule = f"{low:g} is above {high_key} {high:g}"
                raise PydanticCustomError("order", "{rule}", {"rule": rule, "at": f".{low_key}"})
        return self

    def definition(self, num_slots: int) -> LossDefinition:
        """The policy loss of a policy_loss case. num_slots: T, the default of loss_scale_factor."""
        own = {key: value for key in _OWN_KEYS if (value := getattr(self, key)) is not None}
        return LossDefinition(
            ratio_level=self.ratio_level or "none",
            surrogate=self._needed("surrogate", Surrogate),
            aggregation=self.aggregation(num_slots),
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            clip_ratio_c=self.clip_ratio_c,
            ratio_upper_clamp=self.ratio_upper_clamp,
            loss_upper_clamp=self.loss_upper_clamp,
            log_ratio_min=self.log_ratio_min,
            log_ratio_max=self.log_ratio_max,
            ratio_len_eps=self.ratio_len_eps,
            **own,
            advantage_pool=self.advantage_pool or "none",
            kl=None if self.kl_type is None else self.kl_term(num_slots),
        )

    def kl_term(self, num_slots: int) -> KLTerm:
        """The KL term of a policy_loss case, or what a kl case measures; aggregated by kl_agg_mode, else loss_agg_mode.

        A KL estimate belongs to a token, so its batch-mean is the mean over all rows of the row's token mean (TRL's
        GMPO).
        """
        aggregation = self.aggregation(num_slots, of_kl=True)
        if aggregation.mode == "batch-mean":
            aggregation = replace(aggregation, mode="seq-mean-token-mean", empty_rows="include")
        return KLTerm(
            kind=self._needed("kl_type", KLKind),
            aggregation=aggregation,
            arg_clamp=tuple(self.kl_arg_clamp) if self.kl_arg_clamp else None,
            value_clamp=tuple(self.kl_value_clamp) if self.kl_value_clamp else None,
            importance_weight=bool(self.kl_importance_weight),
            straight_through_k2=bool(self.kl_straight_through_k2),
        )

    def aggregation(self, num_slots: int, *, of_kl: bool = False) -> Aggregation:
        """The aggregation of the loss, or of its KL term. empty_rows is `include` where it is absent.

        A sum without a denominator takes dp_size as the inverse of a scale: token-sum x dp_size (verl) is
        batch-token-sum-norm with 1 / dp_size. batch-token-sum-norm itself has no dp_size in verl.
        """
        own = self.kl_agg_mode if of_kl else None
        mode, scale = own or self._needed("loss_agg_mode", AggregationMode), None
        if mode == "token-sum" and (self.dp_size or 1) != 1:
            mode, scale = "batch-token-sum-norm", 1.0 / self.dp_size
        elif mode in ("seq-mean-token-sum-norm", "batch-token-sum-norm"):
            scale = num_slots if self.loss_scale_factor is None else self.loss_scale_factor
        return Aggregation(
            mode=mode,
            seq_len_eps=self.seq_len_eps,
            loss_scale_factor=scale,
            empty_rows=self.empty_rows or "include",
        )

    def denominators(self, aggregation: Aggregation, mask_NK: ArrayLike) -> tuple[float, float]:
        """(num_sequences, num_tokens) under one of the case's aggregations, see `twins.denominators`."""
        return denominators(
            mask_NK,
            aggregation,
            norm_seqs=self.norm_seqs,
            norm_tokens=self.norm_tokens,
            dp_size=self.dp_size or 1,
            token_mean_eps=self.token_mean_eps or 0.0,
        )

    def _needed(self, key: str, legal: Any) -> Any:
        value = getattr(self, key)
        if value is None:
            raise DataError(f"config.{key}: missing; one of {', '.join(get_args(legal))}")
        return value


class OverlongConfig(Strict):
    """`config` of an overlong case: the arguments of `overlong_penalty`."""

    max_len: Annotated[int, Field(ge=0)]
    buffer_len: Annotated[int, Field(ge=0)]
    penalty_factor: NotNegative = 1.0
    floor: Annotated[float, Field(le=0)] | None = None


def loss_config(config: Mapping[str, Any]) -> LossConfig:
    """The checked `config` of a policy_loss, kl or agg case."""
    return read_model("config", LossConfig, config)
