"""The section `algorithm`: policy loss, advantages, KL penalty, rollout correction, group filter.

To add a loss: its cell below `mindgspo/algorithms/losses`, and one line in `POLICY_LOSSES`. Defaults that depend on the
loss are None in the sections and filled in by `config.load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from mindgspo.config.distillation import DistillationSection
from mindgspo.config.section import Section

RatioLevel = Literal["token", "sequence", "sequence_token", "none"]
Surrogate = Literal["clip", "cispo", "sapo", "gpg", "gmpo", "dppo_tv", "dppo_kl", "vespo", "fipo", "clip_cov", "kl_cov"]
AggregationMode = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "batch-token-sum-norm",
    "batch-mean",
]
EstimatorName = Literal[
    "grpo",
    "dr_grpo",
    "rloo",
    "opo",
    "max_rl",
    "pass_k",
    "gpg",
    "remax",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "optimal_token_baseline",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRecipe:
    """One policy loss and the defaults that come with it."""

    source: str
    """Where the loss was published."""
    ratio_level: RatioLevel
    """See `LossDefinition`."""
    surrogate: Surrogate
    """See `LossDefinition`."""
    agg_mode: AggregationMode
    """Default `loss_agg_mode`."""
    clip: tuple[float, float] | None = None
    """Default (clip_low, clip_high); None if the loss clips nothing."""
    clip_ratio_c: float | None = None
    """Default dual clip."""
    advantage: str = "grpo"
    """Default estimator."""


POLICY_LOSSES: Mapping[str, LossRecipe] = {
    # Both clip ranges of arXiv 2507.18071: section 5.1 gives GSPO's, and that of its GRPO baseline.
    "gspo": LossRecipe(
        source="arXiv 2507.18071, eq. 5", ratio_level="sequence", surrogate="clip",
        clip=(3e-4, 4e-4), agg_mode="seq-mean-token-mean",
    ),
    "gspo_token": LossRecipe(
        source="arXiv 2507.18071, eq. 13", ratio_level="sequence_token",
        surrogate="clip", clip=(3e-4, 4e-4), agg_mode="seq-mean-token-mean",
    ),
    "grpo": LossRecipe(
        source="arXiv 2402.03300, eq. 3", ratio_level="token", surrogate="clip",
        clip=(0.2, 0.27), agg_mode="seq-mean-token-mean",
    ),
    "ppo": LossRecipe(
        source="arXiv 1707.06347, eq. 7; dual clip arXiv 1912.09729, eq. 5",
        ratio_level="token", surrogate="clip", clip=(0.2, 0.2), clip_ratio_c=3.0, agg_mode="token-mean",
    ),
    "dapo": LossRecipe(
        source="arXiv 2503.14476, eq. 8", ratio_level="token", surrogate="clip",
        clip=(0.2, 0.28), agg_mode="token-mean",
    ),
    "dr_grpo": LossRecipe(
        source="arXiv 2503.20783, section 3", ratio_level="token", surrogate="clip",
        clip=(0.2, 0.2), agg_mode="seq-mean-token-sum-norm", advantage="dr_grpo",
    ),
    "gmpo": LossRecipe(
        source="arXiv 2507.20673", ratio_level="token", surrogate="gmpo", clip=(0.4, 0.4), agg_mode="batch-mean",
    ),
    "cispo": LossRecipe(
        source="arXiv 2506.13585, eq. 4", ratio_level="token", surrogate="cispo",
        clip=(1.0, 4.0), agg_mode="token-mean",
    ),
    "sapo": LossRecipe(
        source="arXiv 2511.20347", ratio_level="token", surrogate="sapo", agg_mode="seq-mean-token-mean",
    ),
    "gpg": LossRecipe(
        source="arXiv 2504.02546", ratio_level="none", surrogate="gpg", agg_mode="token-mean", advantage="gpg",
    ),
    "luspo": LossRecipe(
        source="arXiv 2602.05261", ratio_level="sequence", surrogate="clip",
        clip=(2e-3, 2.5e-3), agg_mode="seq-mean-token-sum",
    ),
    "dppo_tv": LossRecipe(
        source="arXiv 2602.04879", ratio_level="token", surrogate="dppo_tv",
        clip=(0.15, 0.15), clip_ratio_c=20.0, agg_mode="token-mean",
    ),
    "dppo_kl": LossRecipe(
        source="arXiv 2602.04879", ratio_level="token", surrogate="dppo_kl",
        clip=(0.05, 0.05), clip_ratio_c=20.0, agg_mode="token-mean",
    ),
    "vespo": LossRecipe(
        source="arXiv 2602.10693", ratio_level="token", surrogate="vespo", agg_mode="token-mean",
    ),
    "fipo": LossRecipe(
        source="arXiv 2603.19835", ratio_level="token", surrogate="fipo",
        clip=(0.2, 0.28), clip_ratio_c=10.0, agg_mode="token-mean",
    ),
    "clip_cov": LossRecipe(
        source="arXiv 2505.22617", ratio_level="token", surrogate="clip_cov", clip=(1.0, 1.0), agg_mode="token-mean",
    ),
    "kl_cov": LossRecipe(
        source="arXiv 2505.22617", ratio_level="token", surrogate="kl_cov", agg_mode="token-mean",
    ),
}  # fmt: skip


class FilterGroupsSection(Section):
    """A group has a signal if its responses differ in `metric`. DAPO's dynamic sampling (arXiv 2503.14476, section 3.2)
    is `metric` with `refill`."""

    metric: str = "none"
    """Quantity in which the responses of a group are compared: reward (the total), accuracy (right or wrong), or one of
    reward.functions by its entry there. Groups without a signal leave the batch and its denominators. none: they count
    as responses with advantage 0. (verl: algorithm.filter_groups.metric)"""
    refill: bool = False
    """Draw further prompts until rollout.prompts_per_step groups have a signal, so that every update has its full size.
    (verl: algorithm.filter_groups.enable)"""
    prompts_per_draw: int | None = Field(default=None, ge=1)
    """Prompts per draw. None: first as many as are missing; then as many as are missing divided by the share of groups
    with a signal so far, at most rollout.prompts_per_step. (verl: data.gen_batch_size)"""
    max_num_gen_batches: int = Field(default=10, ge=1)
    """Maximum number of draws in one step. (verl: algorithm.filter_groups.max_num_gen_batches)"""
    when_short: Literal["train", "skip", "stop"] = "train"
    """Action if the batch is not full by then. train: train on the available groups, in fewer or smaller updates. skip:
    no update in this step. stop: the run ends with an error, as in verl."""
    keep_surplus_steps: int = Field(default=0, ge=0)
    """Number of further steps for which groups beyond the full batch are kept, to be trained first; their responses are
    then up to that many steps older than the weights. 0: they are dropped."""


if TYPE_CHECKING:
    PolicyLossName = str  # type checkers cannot read the table
else:
    PolicyLossName = Literal[tuple(POLICY_LOSSES)]


class AdvantageSection(Section):
    """How rewards become advantages. A response whose reward abstains is excluded from all statistics and has advantage
    0."""

    estimator: EstimatorName | None = None
    """grpo: (r - mean) / (std + eps) over the group. dr_grpo: r - mean. rloo: r - mean of the others. opo: r - mean
    weighted by length. max_rl: (r - mean) / mean. pass_k: best response of the group against the second best. gpg:
    r - mean, divided by the share of responses whose reward is not 0. remax: r - reward of the greedy response.
    reinforce_plus_plus: discounted return per token, whitened over the batch; reinforce_plus_plus_baseline: r - mean
    over the group, whitened over the batch. optimal_token_baseline: reward still to come minus its mean over the group,
    weighted by the gradients so far, token by token; one more scoring pass per step. None: the algorithm's own
    (dr_grpo, gpg), grpo for all others."""
    normalize_by_std: bool = True
    """grpo, pass_k: divide by the standard deviation. False for grpo: only subtract the mean, as dr_grpo."""
    std_over: Literal["group", "batch"] = "group"
    """Which rewards that deviation is taken over; means are always the group's (TRL: scale_rewards)."""
    ddof: Literal[0, 1] = 1
    """Delta degrees of freedom of that deviation: 1 as verl, TRL, slime; 0 as ChatLearn."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the deviation."""
    singleton: Literal["zero", "raw"] = "zero"
    """Advantage of the only rewarded response of a group: 0, as TRL, or its raw reward, as verl."""
    combine: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize"
    """Several reward functions with grpo: normalise their weighted sum, or each one by itself before summing, so that a
    function with rare differences still counts (GDPO)."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """reinforce_plus_plus: discount per token."""
    whiten: Literal["unbiased", "biased", "none"] = "unbiased"
    """The two reinforce_plus_plus: subtract the mean and divide by the deviation over all response tokens of the
    step; unbiased as verl, biased as OpenRLHF."""


class ReferenceSection(Section):
    """How the reference policy changes during training. It starts as the policy at the beginning of reinforcement
    learning, and changes before a step's responses are scored."""

    mode: Literal["frozen", "sync", "ema"] = "frozen"
    """frozen: it does not change. sync: it becomes the current policy (TRL, MindRLHF: sync_ref_model). ema: it moves
    towards the policy, reference + (1 - decay) (policy - reference), in float32."""
    every: int | None = Field(default=None, ge=1)
    """Steps of the run from one change to the next (TRL, MindRLHF: ref_model_sync_steps; slime: ref-update-interval).
    None: 1 for ema; required for sync."""
    decay: float | None = Field(default=None, gt=0, lt=1)
    """ema only: share of the reference that a change keeps (TRL: 1 - ref_model_mixup_alpha). None: 0.99."""


class KLSection(Section):
    """Penalty on the distance to the reference policy."""

    placement: Literal["none", "loss", "reward"] = "none"
    """none, as in GSPO's paper: no reference policy is kept. loss: added to the loss. reward: subtracted from the
    reward of each token before advantages are computed."""
    estimator: Literal["k1", "k2", "k3", "low_var_kl", "abs"] = "k3"
    """With u = log pi - log pi_ref: k1 u, k2 u^2 / 2, k3 or low_var_kl exp(-u) + u - 1, abs |u|. k1 in the loss has a
    gradient of mean 0, so it needs straight_through or importance_weight."""
    straight_through: bool = False
    """Loss only: the value of the estimator with the gradient of k2, which is that of the KL divergence (verl: k1+,
    k3+)."""
    importance_weight: bool = False
    """Loss only: times the token's importance ratio, which makes the estimate unbiased off the policy."""
    coef: float = Field(default=1e-3, ge=0)
    """Coefficient; with `target` its first value (verl: kl_loss_coef, kl_ctrl.kl_coef; TRL: beta)."""
    target: float | None = Field(default=None, gt=0)
    """Mean KL per token that an adaptive coefficient steers to (arXiv 1909.08593, section 2.2). None: fixed."""
    horizon: int = Field(default=10_000, ge=1)
    """Adaptive only: responses over which the coefficient can change by about a fifth."""
    exponent_clamp: float | None = Field(default=20.0, gt=0)
    """Bound of |u| in the exponent of k3; beyond it the gradient is 0 (verl: 20). None: no bound."""
    value_clamp: float | None = Field(default=10.0, gt=0)
    """Bound of the absolute estimate of k3; beyond it the gradient is 0 (verl, slime: 10). None: no bound."""
    reference: ReferenceSection = ReferenceSection()
    """Whether the reference policy follows the policy."""
    agg_mode: AggregationMode | None = None
    """Loss only: aggregation of the penalty. None: as the policy loss (seq-mean-token-mean for gmpo)."""


class RolloutCorrectionSection(Section):
    """Importance weights that correct a sampler whose log-probs differ from the trainer's."""

    level: Literal["none", "token", "sequence", "geometric"] = "none"
    """Weight exp(old - sampler) of the log-probs: of each token, of the response (their product), or its geometric
    mean per token."""
    mode: Literal["truncate", "mask"] = "truncate"
    """truncate: weights are at most `max` (TIS). mask: weights outside [min, max] become 0 (MIS)."""
    max: float = Field(default=2.0, gt=0)
    """Largest weight (verl: rollout_is_threshold)."""
    min: float | None = Field(default=None, gt=0)
    """mask only: smallest weight kept. None: 1 / max."""
    opsm_threshold: float | None = Field(default=None, gt=0)
    """Off-policy sequence mask (DeepSeek-V3.2, arXiv 2512.02556, section 3.1): a response with a negative advantage
    adds nothing to the loss while the mean over its tokens of sampler's minus present log-probs is above; apart from
    the weights, with any level. None: off. (TRL: off_policy_mask_threshold; slime: opsm-delta.)"""


class VESPOSection(Section):
    """Kernel of vespo, phi(W) = W^k exp(lambda (1 - W)), of the product W of a response's token ratios (arXiv
    2602.10693; TRL: vespo_k_pos and so on)."""

    k_pos: float = Field(default=2.0, gt=0)
    """k where the advantage is not negative."""
    lambda_pos: float = Field(default=3.0, gt=0)
    """lambda where the advantage is not negative."""
    k_neg: float = Field(default=3.0, gt=0)
    """k where the advantage is negative."""
    lambda_neg: float = Field(default=2.0, gt=0)
    """lambda where the advantage is negative."""


class FIPOSection(Section):
    """Weights of fipo, by the log-ratios that follow a token (arXiv 2603.19835; its published 32B run)."""

    half_life: float = Field(default=32.0, gt=0)
    """Tokens after which a log-ratio counts half (qwenpilot/FIPO: decay_rate)."""
    influence_low: float = Field(default=1.0, ge=0, le=1)
    """Smallest weight of an advantage (there: 1 with future_kl_clip_high_only, else 1 - future_kl_clip_ratio)."""
    influence_high: float = Field(default=1.2, ge=1)
    """Largest weight (there: 1 + future_kl_clip_ratio)."""
    safety_ratio: float = Field(default=10.0, gt=1)
    """Ratio above which a token with a negative advantage has a weight within [0.8, 1] (there: safety_thresh)."""


class CovarianceSection(Section):
    """Tokens that clip_cov and kl_cov select, by cov = (A - mean A) (log-prob - mean log-prob) over the response tokens
    of a mini-batch (arXiv 2505.22617)."""

    share: float = Field(default=2e-4, gt=0, le=1)
    """Share of the tokens that is selected; at least one is (verl: clip_cov_ratio, kl_cov_ratio)."""
    low: float = 1.0
    """clip_cov: tokens are drawn at random among those with cov between low and high (verl: clip_cov_lb)."""
    high: float = 5.0
    """clip_cov: see low (verl: clip_cov_ub)."""
    kl_coef: float = Field(default=1.0, gt=0)
    """kl_cov: coefficient of |log ratio| at the tokens with the largest cov (verl: ppo_kl_coef)."""


class AlgorithmSection(Section):
    """The policy loss and the terms around it."""

    name: PolicyLossName = "gspo"
    """gspo, gspo_token, luspo, grpo, ppo, dapo, dr_grpo, gmpo, cispo, sapo, gpg, dppo_tv, dppo_kl, vespo, fipo,
    clip_cov, kl_cov: see docs/algorithms.md."""
    clip_low: float | None = Field(default=None, ge=0, le=1)
    """Lower clip range: ratios below 1 - clip_low are clipped; 1: no lower bound (gmpo: log-ratios below -clip_low;
    dppo_tv, dppo_kl: divergences above clip_low, where the policy makes a token less likely). None: the value of the
    paper, e.g. 3e-4 for gspo, 0.2 for grpo. (verl: clip_ratio_low; TRL: epsilon.)"""
    clip_high: float | None = Field(default=None, ge=0)
    """Upper clip range (dppo_tv, dppo_kl: of the divergence, where the policy makes a token likelier). None: the value
    of the paper, e.g. 4e-4 for gspo, 0.27 for the GRPO of its comparison, 0.28 for dapo. (verl: clip_ratio_high; TRL:
    epsilon_high.)"""
    clip_ratio_c: float | None = Field(default=None, gt=1)
    """Dual clip: where the advantage is negative, the token loss is at most -c A; dppo_tv, dppo_kl: the largest ratio.
    None: off, except for ppo: 3, fipo: 10, dppo_tv and dppo_kl: 20."""
    ratio_upper_clamp: float | None = Field(default=None, gt=0)
    """Upper bound of the ratio in the unclipped branch (TRL: delta). None: off."""
    loss_upper_clamp: float | None = Field(default=None, gt=0)
    """Upper bound of a token's loss; beyond it its gradient is 0, so that with 3, for instance, the only wrong answer
    in a group of 32 has no effect (ChatLearn: final_clip_ratio). None: off."""
    log_ratio_max: float = Field(default=10.0, gt=0)
    """Upper bound of the log ratio before exp, so that an extreme response cannot overflow (verl's gspo: 10)."""
    log_ratio_min: float | None = Field(default=None, lt=0)
    """Lower bound of the log ratio before exp (verl's ppo: -20). None: off."""
    tau_pos: float = Field(default=1.0, gt=0)
    """sapo: temperature of the gate where the advantage is positive."""
    tau_neg: float = Field(default=1.05, gt=0)
    """sapo: temperature of the gate where it is negative; larger, so that such tokens fade out faster."""
    vespo: VESPOSection = VESPOSection()
    """Kernel of vespo."""
    fipo: FIPOSection = FIPOSection()
    """Weights of fipo."""
    covariance: CovarianceSection = CovarianceSection()
    """Tokens that clip_cov and kl_cov select."""
    loss_agg_mode: AggregationMode | None = None
    """How token losses become one number; see `algorithms/losses/definition.py`. None: as in the algorithm's paper:
    seq-mean-token-mean for gspo, gspo_token, grpo, sapo; token-mean for ppo, dapo, cispo, gpg, dppo_tv, dppo_kl,
    vespo, fipo, clip_cov, kl_cov; seq-mean-token-sum for luspo; seq-mean-token-sum-norm for dr_grpo; batch-mean for
    gmpo."""
    loss_scale_factor: float | None = Field(default=None, gt=0)
    """Constant length of the two -norm modes. None: rollout.max_new_tokens, as in Dr.GRPO."""
    ratio_over: Literal["response", "turn"] = "response"
    """gspo: the tokens whose mean is one ratio, which is clipped as a whole. response: all sampled tokens of the
    response (arXiv 2507.18071, eq. 7). turn: those of one assistant turn of an episode, see docs/algorithms.md; equal
    where every response is one turn."""
    allow_wide_clip: bool = False
    """Permit a sequence-ratio clip range above 0.01, which practically never clips."""
    allow_token_weighting: bool = False
    """Permit gspo with an aggregation that weighs responses by their length."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the mean entropy per response token, which is added to the objective."""
    filter_groups: FilterGroupsSection = FilterGroupsSection()
    """Groups without a signal, and prompts drawn in their place."""
    advantage: AdvantageSection = AdvantageSection()
    """How rewards become advantages."""
    kl: KLSection = KLSection()
    """Penalty on the distance to the reference policy."""
    distillation: DistillationSection | None = None
    """Teachers whose log-probs of the policy's responses become advantages or a term of the loss. None: no teacher."""
    old_log_probs: Literal["auto", "recompute", "sampler"] = "auto"
    """Log-probs of the old policy, the denominator of the ratio. recompute: a scoring pass of the training graph before
    the first update. sampler: those that the responses were drawn with; no scoring pass, and the ratio carries the
    mismatch of sampler and trainer as well (verl: rollout_correction.bypass_mode; slime: use-rollout-logprobs).
    auto: those of the sampler if they equal the trainer's, bit for bit (on CPU kernels, not in vLLM or SGLang, with a
    cache that rounds no more than the model, no matrix or expert split over processes, every response from the current
    weights; docs/exact_log_probs.md), else recompute."""
    rollout_correction: RolloutCorrectionSection = RolloutCorrectionSection()
    """Correction of the mismatch between sampler and trainer."""
    router_replay: Literal["none", "old", "rollout"] = "none"
    """Mixtures of experts: which experts the updates use. none: those that the routers choose in the update itself.
    old: those that they chose when the old log-probs were scored (R2). rollout: those that they chose when the response
    was sampled, in scoring, too (R3, arXiv 2510.11370). Gradients flow through the weights of the replayed experts; the
    reference policy chooses for itself (verl: router_replay.mode; slime: use-routing-replay,
    use-rollout-routing-replay)."""

    @property
    def teacher_top_k(self) -> int:
        """Number of likeliest tokens whose log-probs a teacher gives for the loss; 0 without that loss."""
        return self.distillation.top_k if self.distillation is not None and self.distillation.loss == "top_k" else 0

    @property
    def has_taught_advantages(self) -> bool:
        """Whether log-probs of teachers are added to the advantage of each token."""
        return self.distillation is not None and self.distillation.loss == "k1"
