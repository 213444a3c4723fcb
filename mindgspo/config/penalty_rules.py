"""Rules of `algorithm.kl`, `old_log_probs` and `rollout_correction` that join several keys.

What enters: a resolved config. What leaves: lines as in `config.validate`, which calls this.
"""

from __future__ import annotations

from collections.abc import Iterator

from mindgspo.config.algorithm_section import AlgorithmSection, KLSection
from mindgspo.config.policy_losses import AggregationMode
from mindgspo.config.schema import ExperimentConfig

# arXiv 1909.08593, section 2.2, changes the coefficient by at most a fifth per horizon: after five of them at once it
# would not be positive.
_MOST_HORIZONS = 5


def kl_problems(config: ExperimentConfig) -> Iterator[str]:
    """Violated rules of the penalty on the distance to the reference policy."""
    kl = config.algorithm.kl
    yield from _loss_only_problems(config.algorithm)
    if kl.placement == "loss" and kl.estimator == "k1" and not kl.straight_through and not kl.importance_weight:
        yield (
            "algorithm.kl.estimator: k1 in the loss has a gradient of mean 0, because the mean of grad log pi under "
            "pi is 0: it would add noise and no pull towards the reference; set algorithm.kl.straight_through=true "
            "(value of k1, gradient of k2), algorithm.kl.importance_weight=true, or algorithm.kl.estimator=k2"
        )
    if kl.placement == "loss" and kl.agg_mode == "batch-mean":
        yield (
            "algorithm.kl.agg_mode: batch-mean takes one value per response, but a KL estimate has one per token; "
            "set algorithm.kl.agg_mode=seq-mean-token-mean"
        )
    yield from _adaptive_problems(config)
    yield from _reference_problems(kl)


def default_kl_agg_mode(loss_agg_mode: AggregationMode) -> AggregationMode:
    """What `algorithm.kl.agg_mode` None stands for: the mode of the loss, or its nearest for token values."""
    return "seq-mean-token-mean" if loss_agg_mode == "batch-mean" else loss_agg_mode


def _loss_only_problems(algorithm: AlgorithmSection) -> Iterator[str]:
    kl = algorithm.kl
    assert algorithm.loss_agg_mode is not None, "config is not resolved"
    if kl.placement == "loss":
        return
    given = [key for key in ("straight_through", "importance_weight") if getattr(kl, key)]
    given += ["agg_mode"] if kl.agg_mode != default_kl_agg_mode(algorithm.loss_agg_mode) else []
    for key in given:
        yield (
            f"algorithm.kl.{key}: {_shown(getattr(kl, key))} belongs to a penalty in the loss, but "
            f"algorithm.kl.placement is {kl.placement}; set algorithm.kl.placement=loss, or remove it"
        )


def _adaptive_problems(config: ExperimentConfig) -> Iterator[str]:
    kl: KLSection = config.algorithm.kl
    if kl.target is None:
        return
    if kl.placement == "none":
        yield (
            f"algorithm.kl.target: {kl.target:g} has no penalty to steer, because algorithm.kl.placement is none; "
            "set algorithm.kl.placement to loss or reward, or remove it"
        )
    elif kl.coef == 0:
        yield (
            f"algorithm.kl.coef: 0 stays 0, because steering to algorithm.kl.target {kl.target:g} multiplies it; "
            "set a first value, e.g. algorithm.kl.coef=1e-3"
        )
    samples = config.rollout.prompts_per_step * config.rollout.num_generations
    if samples >= _MOST_HORIZONS * kl.horizon:
        yield (
            f"algorithm.kl.horizon: {kl.horizon} is too short for the {samples} responses of a step, after which "
            f"the coefficient could be 0 or negative; legal: above {samples // _MOST_HORIZONS}; usual: at least "
            f"{samples}"
        )


def _reference_problems(kl: KLSection) -> Iterator[str]:
    """Of a reference policy that follows the policy."""
    key, reference = "algorithm.kl.reference", kl.reference
    if reference.mode != "frozen" and kl.placement == "none":
        yield (
            f"{key}.mode: {reference.mode}, but algorithm.kl.placement is none, so there is no reference policy; set "
            "algorithm.kl.placement to loss or reward, or remove it"
        )
    if reference.mode == "frozen" and reference.every is not None:
        yield f"{key}.every: {reference.every}, but a frozen reference never changes; set {key}.mode=sync, or remove it"
    if reference.mode != "ema" and reference.decay is not None:
        yield (
            f"{key}.decay: {reference.decay:g} belongs to a moving average, but {key}.mode is {reference.mode}; set "
            f"{key}.mode=ema, or remove it"
        )
    if reference.mode == "sync" and reference.every is None:
        yield f"{key}.every: missing; after how many steps does the reference become the policy? e.g. {key}.every=100"
    if reference.mode == "sync" and reference.every == 1 and kl.placement == "reward":
        yield (
            f"{key}.every: 1 makes the old policy of each step its reference, from which it has no distance: the "
            "penalty in the reward would always be 0; smallest legal: 2"
        )


def old_log_prob_problems(config: ExperimentConfig) -> Iterator[str]:
    """Violated rules of old log-probs that come from the sampler: they must be those that tokens were drawn with."""
    if config.algorithm.old_log_probs != "sampler":
        return
    key, rollout = "algorithm.old_log_probs", config.rollout
    cuts = [f"rollout.top_p {rollout.top_p:g}"] if rollout.top_p < 1 else []
    cuts += [f"rollout.top_k {rollout.top_k}"] if rollout.top_k > 0 else []
    if cuts:
        yield (
            f"{key}: sampler, but {' and '.join(cuts)} cut the distribution that tokens are drawn from, and the "
            "sampler's log-probs are those before the cut: the ratio would compare with a policy that sampled nothing; "
            f"set rollout.top_p=1 and rollout.top_k=0, or {key}=recompute"
        )
    if config.algorithm.rollout_correction.level != "none":
        yield (
            f"{key}: sampler makes the sampler the old policy, so that every weight of algorithm.rollout_correction."
            f"level {config.algorithm.rollout_correction.level}, exp(old - sampler), is 1; "
            f"set algorithm.rollout_correction.level=none (the ratio carries the mismatch), or {key}=recompute"
        )


def correction_problems(config: ExperimentConfig) -> Iterator[str]:
    """Violated rules of the weights against the mismatch of sampler and trainer."""
    section = config.algorithm.rollout_correction
    key = "algorithm.rollout_correction"
    if section.min is not None and section.mode != "mask":
        yield (
            f"{key}.min: {section.min:g} is the lower bound of mode mask, but {key}.mode is {section.mode}; "
            f"set {key}.mode=mask, or remove it"
        )
    if section.max < 1:
        yield (
            f"{key}.max: {section.max:g} is below 1, the weight where sampler and trainer agree; set 1 or more "
            "(usual: 2)"
        )
    elif section.mode == "mask":
        smallest = section.min if section.min is not None else 1 / section.max
        if smallest > 1 or smallest >= section.max:
            given = f"{section.min:g}" if section.min is not None else f"none, so 1 / max = {smallest:g}"
            yield (
                f"{key}.min: {given} must be below {key}.max {section.max:g} and at most 1, the weight where sampler "
                f"and trainer agree; usual: 0.5 to 2"
            )


def _shown(value: object) -> str:
    return "true" if value is True else str(value)
