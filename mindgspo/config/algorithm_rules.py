"""Rules that join several keys of `algorithm`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from mindgspo.config.algorithm import (
    POLICY_LOSSES,
    AggregationMode,
    AlgorithmSection,
    FilterGroupsSection,
    KLSection,
    LossRecipe,
)
from mindgspo.config.model import FAMILIES
from mindgspo.config.schema import ExperimentConfig
from mindgspo.config.section import is_changed
from mindgspo.text import did_you_mean

# A sequence ratio is a geometric mean over a whole response: beyond this a range practically never clips it.
WIDEST_GSPO_CLIP = 0.01

# What an aggregation makes of the gradient of response i, against the paper's mean over responses.
# B: responses of a mini-batch, |y_i|: tokens of a response, L: loss_scale_factor.
LENGTH_FACTORS = {
    "token-mean": "B |y_i| / sum |y|",
    "token-sum": "B |y_i|",
    "seq-mean-token-sum": "|y_i|",
    "seq-mean-token-sum-norm": "|y_i| / L",
    "batch-token-sum-norm": "B |y_i| / L",
}

# Which surrogates read a bound of the loss.
_CAPS: Mapping[str, tuple[str, ...]] = {
    "clip_ratio_c": ("clip", "clip_cov", "fipo", "dppo_tv", "dppo_kl"),
    "ratio_upper_clamp": ("clip", "clip_cov", "fipo"),
    "loss_upper_clamp": ("clip", "clip_cov", "fipo"),
}
# Which losses read a key of their own.
_OWN_KEYS: Mapping[str, tuple[str, ...]] = {
    "tau_pos": ("sapo",),
    "tau_neg": ("sapo",),
    **dict.fromkeys(("vespo.k_pos", "vespo.lambda_pos", "vespo.k_neg", "vespo.lambda_neg"), ("vespo",)),
    **dict.fromkeys(("fipo.half_life", "fipo.influence_low", "fipo.influence_high", "fipo.safety_ratio"), ("fipo",)),
    "covariance.share": ("clip_cov", "kl_cov"),
    "covariance.low": ("clip_cov",),
    "covariance.high": ("clip_cov",),
    "covariance.kl_coef": ("kl_cov",),
}
# Which estimators read a key. The others would leave it without effect.
READERS: Mapping[str, tuple[str, ...]] = {
    "normalize_by_std": ("grpo", "pass_k"),
    "std_over": ("grpo", "pass_k"),
    "ddof": ("grpo", "pass_k"),
    "eps": ("grpo", "pass_k"),
    "singleton": (
        "grpo",
        "dr_grpo",
        "rloo",
        "opo",
        "max_rl",
        "pass_k",
        "gpg",
        "reinforce_plus_plus_baseline",
        "optimal_token_baseline",
    ),
    "combine": ("grpo",),
    "gamma": ("reinforce_plus_plus",),
    "whiten": ("reinforce_plus_plus", "reinforce_plus_plus_baseline"),
}
# What normalize_then_sum means; other values would not be read.
_FIXED_BY_COMBINE = ("normalize_by_std", "std_over", "singleton")
# Their baseline is not made of siblings, so one response per prompt will do.
WITHOUT_SIBLINGS = ("remax", "reinforce_plus_plus")
# They subtract a KL penalty from the reward of each token, the others its sum from the reward of the response.
_TOKEN_BY_TOKEN = ("remax", "reinforce_plus_plus", "optimal_token_baseline")
# Keys that ask for another objective; if they have no effect, the user expects something that will not happen.
_REFUSED_WHERE_UNREAD = ("std_over", "combine", "gamma", "whiten")
# arXiv 1909.08593, section 2.2, changes the coefficient by at most a fifth per horizon: after five of them at once it
# would not be positive.
_MOST_HORIZONS = 5
_KEY = "algorithm.filter_groups"
METRICS = ("none", "reward", "accuracy")
_OF_REFILL = ("prompts_per_draw", "max_num_gen_batches", "when_short", "keep_surplus_steps")


def recipe_of(algorithm: AlgorithmSection) -> LossRecipe:
    """The registry's line on the chosen loss."""
    return POLICY_LOSSES[algorithm.name]


def has_sequence_ratio(algorithm: AlgorithmSection) -> bool:
    """Whether there is one ratio per response: gspo and gspo_token."""
    return recipe_of(algorithm).ratio_level in ("sequence", "sequence_token")


def names_with(surrogates: Collection[str]) -> str:
    """Names of the losses with one of these surrogates: "gspo, gspo_token, ..."."""
    return ", ".join(name for name, recipe in POLICY_LOSSES.items() if recipe.surrogate in surrogates)


def loss_problems(config: ExperimentConfig) -> Iterator[str]:
    """Violated rules of the loss itself."""
    algorithm = config.algorithm
    yield from _clip_problems(algorithm)
    yield from _aggregation_problems(algorithm)
    yield from _surrogate_problems(algorithm)


def _clip_problems(algorithm: AlgorithmSection) -> Iterator[str]:
    low, high = algorithm.clip_low, algorithm.clip_high
    if recipe_of(algorithm).clip is None:
        for key in ("clip_low", "clip_high"):
            if getattr(algorithm, key) is not None:
                yield (
                    f"algorithm.{key}: {getattr(algorithm, key):g}, but {algorithm.name} has no clip range; "
                    f"remove it (--set algorithm.{key}=), or set algorithm.name to a loss that clips, e.g. grpo"
                )
        return
    assert low is not None and high is not None, "config is not resolved"
    if has_sequence_ratio(algorithm) and max(low, high) > WIDEST_GSPO_CLIP and not algorithm.allow_wide_clip:
        key = "clip_low" if low > WIDEST_GSPO_CLIP else "clip_high"
        yield (
            f"algorithm.{key}: a clip range of {low:g} / {high:g} is made for token ratios; {algorithm.name}'s ratio "
            "averages over the response and stays within about 1e-3 of 1, so nothing would be clipped and "
            "the objective would be a plain, unbounded policy gradient; set algorithm.clip_low=3e-4 and "
            "algorithm.clip_high=4e-4 (paper), or algorithm.allow_wide_clip=true to insist"
        )


def _aggregation_problems(algorithm: AlgorithmSection) -> Iterator[str]:
    mode, name = algorithm.loss_agg_mode, algorithm.name
    assert mode is not None, "config is not resolved"
    is_per_response = recipe_of(algorithm).surrogate == "gmpo"
    if is_per_response and mode != "batch-mean":
        yield (
            f"algorithm.loss_agg_mode: {mode} adds up losses of tokens, but {name} has one loss per response; "
            "set algorithm.loss_agg_mode=batch-mean"
        )
    if not is_per_response and mode == "batch-mean":
        yield (
            f"algorithm.loss_agg_mode: batch-mean is for gmpo, which has one loss per response and none per token; "
            f"for {name} set algorithm.loss_agg_mode={recipe_of(algorithm).agg_mode}"
        )
    if name == "luspo" and mode == "seq-mean-token-mean":
        yield (
            "algorithm.loss_agg_mode: seq-mean-token-mean divides every response by the length that luspo multiplies "
            "it by, which leaves gspo; set algorithm.loss_agg_mode=seq-mean-token-sum (paper), or algorithm.name=gspo"
        )
    is_weighted = has_sequence_ratio(algorithm) and name != "luspo"
    if is_weighted and mode in LENGTH_FACTORS and not algorithm.allow_token_weighting:
        yield (
            f"algorithm.loss_agg_mode: {mode} multiplies each response's gradient in {name} by "
            f"{LENGTH_FACTORS[mode]} (B responses of |y_i| tokens), so long responses dominate and short ones hardly "
            "count; the paper's objective weighs all responses the same; set "
            "algorithm.loss_agg_mode=seq-mean-token-mean (paper), or algorithm.allow_token_weighting=true to insist"
        )


def _surrogate_problems(algorithm: AlgorithmSection) -> Iterator[str]:
    surrogate, name = recipe_of(algorithm).surrogate, algorithm.name
    for key, readers in _CAPS.items():
        if surrogate not in readers and getattr(algorithm, key) is not None:
            yield (
                f"algorithm.{key}: {getattr(algorithm, key):g} bounds the clipped surrogate, which {name} does not "
                f"use; remove it (--set algorithm.{key}=), or set algorithm.name to one of {names_with(readers)}"
            )
    if surrogate == "clip" and algorithm.ratio_upper_clamp is not None and algorithm.ratio_upper_clamp <= 1:
        yield (
            f"algorithm.ratio_upper_clamp: {algorithm.ratio_upper_clamp:g} is not above 1, where every ratio starts, "
            "so nothing but ratios below it would be trained; set it above 1 + algorithm.clip_high"
        )
    for key, losses in _OWN_KEYS.items():
        owner, _, field = key.rpartition(".")
        section = getattr(algorithm, owner) if owner else algorithm
        if name not in losses and is_changed(section, field):
            yield (
                f"algorithm.{key}: {getattr(section, field):g} is read by {' and '.join(losses)} alone, not by {name}; "
                f"remove it, or set algorithm.name={losses[0]}"
            )
    if algorithm.covariance.low >= algorithm.covariance.high:
        yield (
            f"algorithm.covariance.low: {algorithm.covariance.low:g} is not below algorithm.covariance.high "
            f"{algorithm.covariance.high:g}, so no token lies between; paper: 1 and 5"
        )
    level = algorithm.rollout_correction.level
    if name == "vespo" and level in ("sequence", "geometric"):
        yield (
            f"algorithm.rollout_correction.level: {level} gives every token of a response one weight, and vespo "
            "multiplies the weights of a response's tokens; set algorithm.rollout_correction.level=token"
        )
    if algorithm.ratio_over == "turn" and name != "gspo":
        yield (
            f"algorithm.ratio_over: turn is for gspo, whose ratio is a mean over tokens, not for {name}; remove it, or "
            "set algorithm.name=gspo"
        )


def unread_keys(config: ExperimentConfig) -> list[str]:
    """Keys that were changed, but are not read by the estimator in use."""
    section = config.algorithm.advantage
    return [key for key, readers in READERS.items() if is_changed(section, key) and section.estimator not in readers]


def is_per_token(config: ExperimentConfig) -> bool:
    """Whether the tokens of one response may have different advantages."""
    section, kl = config.algorithm.advantage, config.algorithm.kl
    if section.estimator == "optimal_token_baseline" or config.algorithm.has_taught_advantages:
        return True
    if kl.placement == "reward":
        return section.estimator in _TOKEN_BY_TOKEN
    return section.estimator == "reinforce_plus_plus" and section.gamma != 1


def advantage_problems(config: ExperimentConfig) -> Iterator[str]:
    """Violated rules of the estimator."""
    section, functions = config.algorithm.advantage, config.reward.functions
    for key in unread_keys(config):
        if key in _REFUSED_WHERE_UNREAD:
            yield (
                f"algorithm.advantage.{key}: {_shown(getattr(section, key))} is not read by estimator "
                f"{section.estimator}; remove it, or set algorithm.advantage.estimator={' or '.join(READERS[key])}"
            )
    if section.combine != "normalize_then_sum" or section.estimator not in READERS["combine"]:
        return
    if len(functions) < 2:
        yield (
            f"algorithm.advantage.combine: normalize_then_sum joins several reward functions, but reward.functions "
            f"has only {', '.join(functions)}; add one, or set algorithm.advantage.combine=sum_then_normalize"
        )
    elif "auto" in functions:
        yield (
            "reward.functions: auto stands for another function in each row, but "
            "algorithm.advantage.combine=normalize_then_sum compares each function with itself; name the functions, "
            "e.g. [gsm8k, math_dapo]"
        )
    for key in _FIXED_BY_COMBINE:
        if is_changed(section, key):
            default = _shown(type(section).model_fields[key].default)
            yield (
                f"algorithm.advantage.{key}: {_shown(getattr(section, key))} is not read with "
                f"algorithm.advantage.combine=normalize_then_sum, which means {default}; remove it, or set "
                "algorithm.advantage.combine=sum_then_normalize"
            )
    if config.algorithm.kl.placement == "reward":
        yield (
            "algorithm.kl.placement: a penalty in the reward has no unit beside rewards that are normalised one by "
            "one (algorithm.advantage.combine=normalize_then_sum); set algorithm.kl.placement=loss"
        )


def group_problems(config: ExperimentConfig) -> Iterator[str]:
    """Too few responses per prompt for the estimator."""
    estimator = config.algorithm.advantage.estimator
    if config.rollout.num_generations < 2 and estimator not in WITHOUT_SIBLINGS:
        yield (
            f"rollout.num_generations: 1 leaves estimator {estimator} nothing to compare a response with; "
            f"nearest legal: 2 (usual: 8 or 16), or algorithm.advantage.estimator={' or '.join(WITHOUT_SIBLINGS)}"
        )


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


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
    if kl.reference.mode == "ema" and config.model.lora is not None:
        yield (
            "algorithm.kl.reference.mode: ema; the average of adapters' matrices is not that of their products; set "
            "sync or frozen, or remove model.lora"
        )


def default_kl_agg_mode(loss_agg_mode: AggregationMode) -> AggregationMode:
    """Default of `algorithm.kl.agg_mode`: the mode of the loss, or its nearest for token values."""
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
    """Rules of a reference policy that follows the policy."""
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


def router_problems(config: ExperimentConfig) -> Iterator[str]:
    """Violated rules of routing that is recorded and replayed."""
    key, replay, records = "algorithm.router_replay", config.algorithm.router_replay, config.rollout.record_experts
    model = config.model
    if model.num_experts is None:
        given = f"{key}: {replay}" if replay != "none" else "rollout.record_experts: true" if records else None
        if given:
            yield f"{given}, but {model.architecture} has no experts; remove it"
        return
    if replay == "rollout" and not records:
        yield (
            f"{key}: rollout replays what the sampler's routers chose, and rollout.record_experts=false keeps nothing "
            f"of it; remove that, or set {key}=old"
        )
    if replay == "old" and config.algorithm.old_log_probs == "sampler":
        yield (
            f"{key}: old takes the experts of the scoring pass, which algorithm.old_log_probs=sampler leaves out; set "
            f"{key}=rollout, or algorithm.old_log_probs=recompute"
        )


def router_bias_problems(config: ExperimentConfig) -> Iterator[str]:
    """Violated rules of correction biases that are moved by load."""
    rate, model, recompute = config.optimizer.router_bias_update_rate, config.model, config.plans.train.recompute
    key = f"optimizer.router_bias_update_rate: {rate:g}"
    if not rate:
        return
    if model.num_experts is None or not FAMILIES[model.architecture].has_shared_experts:
        yield f"{key}, but routers of {model.architecture} have no correction bias; remove it"
    elif model.lora is not None:
        yield f"{key} would change the base, which model.lora freezes; remove one of the two"
    elif recompute != "none" and config.algorithm.router_replay == "none":
        yield (
            f"{key}: with plans.train.recompute={recompute} the updates do not say which experts they use; set "
            "algorithm.router_replay=rollout, or plans.train.recompute=none"
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


def filter_problems(config: ExperimentConfig) -> Iterator[str]:
    """Violated rules of filtering groups and drawing others in their place."""
    section = config.algorithm.filter_groups
    legal = [*METRICS, *config.reward.functions]
    if section.metric not in legal:
        hint = did_you_mean(section.metric, legal)
        yield f"{_KEY}.metric: {section.metric!r} is unknown{hint} (one of {', '.join(legal)})"
    if not section.refill:
        yield from _needless(section)
        return
    if section.metric == "none":
        yield f"{_KEY}.refill: no group is left out while metric is none; set {_KEY}.metric=reward, or refill=false"
    draw, replicas = section.prompts_per_draw, config.plans.infer.data_parallel
    if draw is not None and not config.has_servers and draw % replicas:
        lower = draw // replicas * replicas
        yield (
            f"{_KEY}.prompts_per_draw: {draw} is not shared evenly by the {replicas} replicas of plans.infer; nearest "
            f"legal: {f'{lower} or ' if lower else ''}{lower + replicas}"
        )


def _needless(section: FilterGroupsSection) -> Iterator[str]:
    for key in _OF_REFILL:
        value = getattr(section, key)
        if value != FilterGroupsSection.model_fields[key].default:
            yield (
                f"{_KEY}.{key}: {value} is read only where prompts are drawn again; set {_KEY}.refill=true, or "
                "remove it"
            )
