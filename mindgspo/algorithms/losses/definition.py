"""The complete mathematical definition of a policy loss, as data that cells and twins both read.

The names of the fields are those of the conformance format; each is switched off by None or 0. Pure Python.

    d = logp - old_logp    r ratio    A advantage    |y| real tokens of a response    u = logp - ref_logp
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from mindgspo.config.algorithm import AggregationMode, RatioLevel, Surrogate

KLKind = Literal["k1", "k2", "k3", "abs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """Reduction of a matrix of token losses L to one number. N_seq and N_tok are global and passed in at run time.

    The modes:

        token-mean               sum(L) / N_tok
        token-sum                sum(L)
        seq-mean-token-sum       sum(L) / N_seq
        seq-mean-token-mean      sum_i(sum_t(L) / |y_i|) / N_seq
        seq-mean-token-sum-norm  sum(L) / N_seq / loss_scale_factor
        batch-token-sum-norm     sum(L) / loss_scale_factor
        batch-mean               sum_i(L_i) / rows, for losses with one value per response
    """

    mode: AggregationMode
    seq_len_eps: float | None = None
    """If set, a length is |y| + eps instead of max(|y|, 1)."""
    loss_scale_factor: float | None = None
    """Required by the two norm modes."""
    empty_rows: Literal["exclude", "include"] = "exclude"
    """Whether N_seq counts responses without a real token. A cell only sees it if such a row has a loss of its own
    (batch-mean)."""

    def __post_init__(self) -> None:
        needs_scale = self.mode in ("seq-mean-token-sum-norm", "batch-token-sum-norm")
        assert not needs_scale or (self.loss_scale_factor or 0) > 0, f"{self.mode}: scale {self.loss_scale_factor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KLTerm:
    """A penalty on the distance to a reference policy, added to the loss; its coefficient is a run-time input."""

    kind: KLKind
    """k1 = u, k2 = u^2 / 2, k3 = exp(-u) + u - 1 (John Schulman, "Approximating KL divergence"), abs = |u|."""
    aggregation: Aggregation
    arg_clamp: tuple[float, float] | None = None
    """Bounds of -u, the exponent of k3; beyond them the gradient is 0."""
    value_clamp: tuple[float, float] | None = None
    """Bounds of the estimate; beyond them the gradient is 0."""
    importance_weight: bool = False
    """Whether the estimate is multiplied by exp(d), with its gradient."""
    log_ratio_max: float | None = None
    """Upper bound of the d in that weight."""
    straight_through_k2: bool = False
    """Whether the value of `kind` gets the gradient of k2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossDefinition:
    """A policy loss. Ties follow torch: max and min split a gradient in halves, a clamp passes it on its edges."""

    ratio_level: RatioLevel | Literal["turn"]
    """token: log r = d. sequence: log r = mean_t d, with its gradient. sequence_token: the same value, with the
    gradient of logp_t only (GSPO-token). turn: as sequence, over the tokens of one assistant turn. none: no ratio."""
    surrogate: Surrogate
    """clip: max(-A r, -A clip(r)). cispo: -sg[clip(r)] A logp. sapo: -A sigmoid(tau (r - 1)) 4 / tau, with tau_pos
    where A > 0, else tau_neg. gpg: -A logp. gmpo: -A exp(mean_t of d clipped to [-low, high] on the side that A
    pushes it to). dppo_tv, dppo_kl: -sg[min(r, c)] A logp, 0 where the policy has gone further than the clip range in
    the direction of A. vespo: -sg[phi(W)] A logp, W the product of a response's ratios. fipo: clip, with A weighted by
    the discounted log-ratios that follow. clip_cov: clip, 0 at selected tokens. kl_cov: -A r, plus kl_cov_coef |d| at
    selected tokens."""
    aggregation: Aggregation
    clip_low: float | None = None
    """The clip range is [1 - low, 1 + high]; None: no bound on that side."""
    clip_high: float | None = None
    clip_ratio_c: float | None = None
    """Dual clip: min(loss, -c A) where A < 0; for dppo_tv and dppo_kl the largest ratio."""
    ratio_upper_clamp: float | None = None
    """Bound of the ratio in the unclipped branch."""
    loss_upper_clamp: float | None = None
    """Bound of the token loss."""
    log_ratio_min: float | None = None
    """Lower bound of the log-ratio before exp."""
    log_ratio_max: float | None = None
    """Upper bound of the log-ratio before exp."""
    ratio_len_eps: float | None = None
    """If set, the mean over tokens divides by |y| + eps instead of max(|y|, 1)."""
    tau_pos: float = 1.0
    tau_neg: float = 1.05
    k_pos: float = 2.0
    """For vespo only, with the three that follow: phi(W) = W^k exp(lambda (1 - W)), by the sign of A."""
    lambda_pos: float = 3.0
    k_neg: float = 3.0
    lambda_neg: float = 2.0
    future_half_life: float = 32.0
    """For fipo only, with the three that follow: tokens after which a log-ratio counts half."""
    influence_low: float = 1.0
    influence_high: float = 1.2
    safety_ratio: float = 10.0
    kl_cov_coef: float = 1.0
    opsm_threshold: float | None = None
    """A response with A < 0 whose mean of sampler's minus present log-probs is above has a loss of 0."""
    advantage_pool: Literal["none", "masked-mean"] = "none"
    """For gmpo only. masked-mean: A = sum(A m) / |y|, with the length of the aggregation. none: the response's own
    advantage."""
    kl: KLTerm | None = None
    entropy_coef: float = 0.0
    """The entropy, aggregated like the loss, times this is subtracted from the loss."""

    def __post_init__(self) -> None:
        for name in ("clip_low", "clip_high"):
            bound = getattr(self, name)
            assert bound is None or 0 <= bound < math.inf, f"{name} {bound}"
        for name in ("clip_ratio_c", "ratio_upper_clamp", "tau_pos", "tau_neg"):
            value = getattr(self, name)
            assert value is None or value > 0, f"{name} {value}"
