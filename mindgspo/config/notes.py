"""Notes about legal settings that have no effect, or one that may surprise."""

from __future__ import annotations

from collections.abc import Iterator

from mindgspo.config.algorithm_rules import WIDEST_GSPO_CLIP, has_sequence_ratio, is_per_token, recipe_of, unread_keys
from mindgspo.config.rules import data_sources, longest_sample, train_sources
from mindgspo.config.schema import ExperimentConfig
from mindgspo.config.section import is_changed

# With these a group of equal rewards has advantages other than 0.
_SIGNAL_WITHOUT_DIFFERENCES = ("remax", "reinforce_plus_plus", "reinforce_plus_plus_baseline")

_NORM_MODES = ("seq-mean-token-sum-norm", "batch-token-sum-norm")

# d loss / d log-prob of a token at which float16 gradients of weights are off by 3 % (docs/exact_log_probs.md).
_LOST_IN_FLOAT16 = 1e-5

# Settings that k3 alone reads.
_BOUNDS = ("exponent_clamp", "value_clamp")


def algorithm_notes(config: ExperimentConfig) -> Iterator[str]:
    """Yield advice about `algorithm`."""
    rules = (
        _update_notes,
        _clip_notes,
        _cap_notes,
        _weighting_notes,
        _entropy_and_filter_notes,
        _advantage_notes,
        _kl_notes,
        _correction_notes,
    )
    for rule in rules:
        yield from rule(config)


def _update_notes(config: ExperimentConfig) -> Iterator[str]:
    algorithm, prompts = config.algorithm, config.rollout.prompts_per_step
    epochs = config.trainer.epochs_per_rollout
    updates = prompts // config.trainer.prompts_per_mini_batch * epochs
    is_single = updates == 1
    if recipe_of(algorithm).ratio_level == "none":
        if not is_single:
            yield (
                f"algorithm.name: {algorithm.name} has no ratio, so all but the first of the {updates} updates per "
                f"rollout are off-policy and nothing corrects that; trainer.prompts_per_mini_batch={prompts} "
                f"{'and trainer.epochs_per_rollout=1 make' if epochs > 1 else 'makes'} one"
            )
    elif is_single and algorithm.old_log_probs == "sampler":
        yield (
            "one update per rollout with algorithm.old_log_probs=sampler: every ratio is the mismatch of sampler and "
            "trainer and nothing else"
        )
    elif is_single and algorithm.name == "sapo":
        yield (
            "one update per rollout: every ratio is 1 when it is used, where sapo's gates are fully open, so it is a "
            "plain policy gradient; a smaller trainer.prompts_per_mini_batch makes more updates"
        )
    elif is_single:
        yield (
            "one update per rollout: every ratio is 1 when it is used, so nothing is ever clipped and the "
            "clip fraction is 0; a smaller trainer.prompts_per_mini_batch makes more updates (the paper "
            "makes 4)"
        )


def _clip_notes(config: ExperimentConfig) -> Iterator[str]:
    algorithm, recipe = config.algorithm, recipe_of(config.algorithm)
    if algorithm.name in ("dppo_tv", "dppo_kl") and algorithm.old_log_probs == "recompute":
        yield (
            f"algorithm.old_log_probs: recompute measures {algorithm.name}'s trust region from the trainer's policy; "
            "its paper measures from the sampler, so that the region bounds the mismatch as well (sampler)"
        )
    if recipe.clip is None:
        return
    low, high = algorithm.clip_low, algorithm.clip_high
    assert low is not None and high is not None, "config is not resolved"
    is_wide = max(low, high) > WIDEST_GSPO_CLIP
    if low == high == 0 and algorithm.name == "cispo":
        yield "algorithm.clip_low / clip_high: 0 / 0 makes every weight of cispo 1, so it is a plain policy gradient"
    elif low == high == 0:
        yield (
            "algorithm.clip_low / clip_high: 0 / 0 leaves a ratio no room: after the first update of a rollout only "
            "steps back towards the old policy have a gradient"
        )
    elif has_sequence_ratio(algorithm) and is_wide:
        yield "algorithm.allow_wide_clip: with this range practically no sequence ratio is clipped"
    elif not has_sequence_ratio(algorithm) and not is_wide and recipe.surrogate not in ("dppo_tv", "dppo_kl"):
        usual = f"{recipe.clip[0]:g} / {recipe.clip[1]:g}"
        yield (
            f"algorithm.clip_low / clip_high: {low:g} / {high:g} is a range for gspo; {algorithm.name}'s token ratios "
            f"leave it almost at once (usual: {usual})"
        )
    if config.model.dtype != "float32" and has_sequence_ratio(algorithm) and algorithm.old_log_probs == "sampler":
        yield (
            f"algorithm.old_log_probs: sampler puts the mismatch of sampler and trainer, in {config.model.dtype} about "
            f"1e-2 per token, into a ratio whose clip range is {low:g} / {high:g}; watch actor/pg_clipfrac_seq of runs "
            "with recompute beside it"
        )
    elif config.model.dtype != "float32" and has_sequence_ratio(algorithm):
        yield (
            f"model.dtype: {config.model.dtype} rounds the sequence ratio by up to about 2e-3, more than the "
            f"clip range {low:g} / {high:g}; watch the ratio of the first "
            "mini-batch"
        )


def _cap_notes(config: ExperimentConfig) -> Iterator[str]:
    algorithm, group = config.algorithm, config.rollout.num_generations
    if has_sequence_ratio(algorithm) and algorithm.clip_ratio_c is not None:
        yield (
            f"algorithm.clip_ratio_c: {algorithm.clip_ratio_c:g} bounds only responses with a ratio above it, but "
            f"{algorithm.name}'s stays within about 1e-3 of 1; the paper has no dual clip"
        )
    section, cap = algorithm.advantage, algorithm.loss_upper_clamp
    # The only wrong one of G answers lies (G - 1) / sqrt(G - 1 + ddof) deviations below the mean.
    lowest = (group - 1) / (group - 1 + section.ddof) ** 0.5 if group > 1 else 0.0
    is_standardised = section.estimator == "grpo" and section.normalize_by_std and section.std_over == "group"
    if cap is not None and is_standardised and cap < lowest:
        yield (
            f"algorithm.loss_upper_clamp: {cap:g} is below {lowest:.2f}, the loss of the only wrong answer of a group "
            f"of {group} at ratio 1, so such an answer has no gradient at all"
        )


def _weighting_notes(config: ExperimentConfig) -> Iterator[str]:
    algorithm = config.algorithm
    is_weighted = has_sequence_ratio(algorithm) and algorithm.name != "luspo"
    if is_weighted and algorithm.loss_agg_mode != "seq-mean-token-mean":
        yield (
            f"algorithm.allow_token_weighting: with {algorithm.loss_agg_mode} a response counts in proportion to its "
            "length, which is not the paper's objective"
        )
    modes = [algorithm.loss_agg_mode] + [algorithm.kl.agg_mode] * (algorithm.kl.placement == "loss")
    is_read = any(mode in _NORM_MODES for mode in modes)
    if not is_read and algorithm.loss_scale_factor != config.rollout.max_new_tokens:
        yield (
            f"algorithm.loss_scale_factor: {algorithm.loss_scale_factor:g} is not read by "
            f"algorithm.loss_agg_mode={algorithm.loss_agg_mode}, only by {' and '.join(_NORM_MODES)}"
        )


def _entropy_and_filter_notes(config: ExperimentConfig) -> Iterator[str]:
    algorithm = config.algorithm
    if algorithm.entropy_coef > 0:
        yield (
            f"algorithm.entropy_coef: {algorithm.entropy_coef:g} takes the entropy of every token through the "
            "backward pass, which costs time in the log-prob head"
        )
    section = algorithm.filter_groups
    if section.metric != "none":
        if not section.refill:
            yield (
                "algorithm.filter_groups: groups of equal rewards leave the denominators as well, so the others count "
                "for more, the more such groups there are; left in, they count as responses with advantage 0. "
                "refill=true draws others in their place"
            )
        elif config.trainer.max_steps is None:
            yield (
                "algorithm.filter_groups: trainer.epochs counts the prompts of full batches; those drawn in place of "
                "others come on top, so the data is passed over more often"
            )
        if section.keep_surplus_steps:
            yield (
                f"algorithm.filter_groups: kept groups are up to {section.keep_surplus_steps} steps older than the "
                "weights; their old log-probs are computed anew, so the ratio starts at 1 and does not see that age"
            )
        if algorithm.advantage.estimator in _SIGNAL_WITHOUT_DIFFERENCES:
            yield (
                f"algorithm.filter_groups: with estimator {algorithm.advantage.estimator} groups of equal rewards do "
                "have advantages, which the filter throws away"
            )


def _advantage_notes(config: ExperimentConfig) -> Iterator[str]:
    section = config.algorithm.advantage
    unread = unread_keys(config)
    if unread:
        keys = ", ".join(f"algorithm.advantage.{key}" for key in unread)
        yield f"{keys}: not read by estimator {section.estimator}"
    if config.algorithm.name == "gspo" and is_per_token(config) and not config.algorithm.has_taught_advantages:
        yield (
            f"algorithm.advantage.estimator: {section.estimator} gives each token its own advantage here, but gspo's "
            "ratio belongs to the whole response, so its tokens share their mean; algorithm.name=gspo_token keeps "
            "them apart"
        )
    distillation = config.algorithm.distillation
    if distillation is not None and distillation.loss == "k1" and is_changed(distillation, "top_k"):
        yield "algorithm.distillation.top_k: not read, because algorithm.distillation.loss is k1"


def _kl_notes(config: ExperimentConfig) -> Iterator[str]:
    kl = config.algorithm.kl
    if kl.placement == "none":
        unread = [key for key in ("estimator", "coef", "horizon", *_BOUNDS) if is_changed(kl, key)]
        reason = "algorithm.kl.placement is none"
    else:
        is_k3 = kl.estimator in ("k3", "low_var_kl")
        unread = [key for key in _BOUNDS if is_changed(kl, key) and not is_k3]
        reason = f"they bound k3 alone, and algorithm.kl.estimator is {kl.estimator}"
        if kl.target is None and is_changed(kl, "horizon"):
            yield "algorithm.kl.horizon: not read, because algorithm.kl.target is not set"
        if kl.straight_through and kl.importance_weight:
            yield (
                "algorithm.kl.importance_weight: with straight_through the gradient is k2's alone, so the weight "
                "changes only the value that is reported"
            )
        if kl.coef == 0:
            yield "algorithm.kl.coef: 0 computes the reference policy's log-probs for a penalty of 0"
    if unread:
        keys = ", ".join(f"algorithm.kl.{key}" for key in unread)
        yield f"{keys}: not read, because {reason}"


def _correction_notes(config: ExperimentConfig) -> Iterator[str]:
    section, name = config.algorithm.rollout_correction, config.algorithm.name
    key = "algorithm.rollout_correction"
    if section.level == "none":
        unread = [f"{key}.{one}" for one in ("mode", "max") if is_changed(section, one)]
        if unread:
            yield f"{', '.join(unread)}: not read, because {key}.level is none"
        return
    if config.device == "CPU":
        yield (
            f"{key}.level: {section.level}, but on the CPU sampler and trainer compute the same float32 log-probs "
            "up to rounding, so all weights are 1 up to rounding"
        )
    if name == "gspo" and section.level == "token":
        yield (
            f"{key}.level: token weights act in gspo through their mean over a response, because its ratio has one "
            "gradient for all tokens; algorithm.name=gspo_token keeps them apart"
        )
    if section.level == "geometric" and section.max > 1.1:
        yield (
            f"{key}.max: {section.max:g} hardly ever bounds a geometric mean over a response, which stays close to "
            "1 (verl: 1.0001 to 1.001)"
        )


def notes(config: ExperimentConfig) -> list[str]:
    """Advice about legal settings that may not do what they seem to."""
    rules = (
        algorithm_notes,
        _exactness_notes,
        _float16_notes,
        _lora_notes,
        _left_out_notes,
        _sampling_notes,
        _unread_notes,
        _packing_notes,
        _curriculum_notes,
        _same_rows_notes,
    )
    return [line for rule in rules for line in rule(config)]


def _exactness_notes(config: ExperimentConfig) -> Iterator[str]:
    trainer, surplus = config.trainer, config.algorithm.filter_groups.keep_surplus_steps
    if not trainer.require_exact_logprobs:
        if is_changed(trainer, "exact_logprobs_every"):
            yield "trainer.exact_logprobs_every: not read, because trainer.require_exact_logprobs is false"
        return
    older = [f"trainer.max_staleness {config.staleness}"] if config.staleness else []
    older += [f"algorithm.filter_groups.keep_surplus_steps {surplus}"] if surplus else []
    if older:
        yield (
            f"trainer.require_exact_logprobs: with {' and '.join(older)} earlier weights drew some tokens; these are "
            "not compared, and training/exact_logprobs_tokens counts those that are"
        )
    if config.device == "Ascend":
        yield (
            "trainer.require_exact_logprobs: on Ascend it has not been seen to hold for more than one layer "
            "(docs/exact_log_probs.md); where it does not, the run stops at its first step and names the operator"
        )


def _float16_notes(config: ExperimentConfig) -> Iterator[str]:
    responses = config.trainer.prompts_per_mini_batch * config.rollout.num_generations
    share = 1 / (responses * config.rollout.max_new_tokens)
    if config.model.dtype == "float16" and share < _LOST_IN_FLOAT16:
        yield (
            f"model.dtype: float16 without loss scaling; a token of a mini-batch of {responses:,} responses of "
            f"{config.rollout.max_new_tokens:,} tokens has a gradient of about {share:.1g}, and below "
            f"{_LOST_IN_FLOAT16:g} float16 loses 3 % of it and more; set model.dtype=bfloat16"
        )


def _lora_notes(config: ExperimentConfig) -> Iterator[str]:
    if config.model.lora is None:
        return
    if not is_changed(config.optimizer, "lr"):
        yield (
            f"optimizer.lr: {config.optimizer.lr:g}, the default, is for training every weight of a large model; "
            "adapters usually take ten times the rate"
        )
    if config.warmup is not None:
        yield (
            "warmup: it trains the adapters and nothing else; warmup.lr is theirs, and a reference policy "
            "(algorithm.kl) begins with the adapters that it leaves"
        )
    if config.has_servers and not config.sends_adapters:
        fix = "" if config.model.lora.init == "pissa" else "; with rollout.lora=separate only adapters travel"
        yield f"rollout.lora: {config.rollout.lora}; servers get whole merged weights at every hand-over{fix}"


def _left_out_notes(config: ExperimentConfig) -> Iterator[str]:
    if left_out := config.model.left_out_layers:
        layers = f"model.layers.{left_out[0]}" + (f" to {left_out[-1]}" if len(left_out) > 1 else "")
        yield (
            f"model.num_nextn_predict_layers: {len(left_out)}; {layers} of the model's files predict further tokens; "
            "they are neither loaded nor trained, and exports have none"
        )


def _sampling_notes(config: ExperimentConfig) -> Iterator[str]:
    cuts = [f"top_p {config.rollout.top_p:g}"] if config.rollout.top_p < 1 else []
    cuts += [f"top_k {config.rollout.top_k}"] if config.rollout.top_k > 0 else []
    if cuts:
        yield (
            f"rollout: {' and '.join(cuts)} cut the distribution that responses are drawn from, while the "
            "trained ratio compares uncut ones, so it is not against the policy that sampled; the paper uses "
            "top_p 1, top_k 0"
        )


def _unread_notes(config: ExperimentConfig) -> Iterator[str]:
    if config.trainer.max_steps is not None and config.trainer.epochs != 1:
        yield f"trainer.epochs: {config.trainer.epochs} is not read, because trainer.max_steps is set"
    section = config.eval
    if section.num_samples == 1 and not section.do_sample:
        usual = {"temperature": 1.0, "top_p": config.rollout.top_p, "top_k": config.rollout.top_k}
        unread = [f"eval.{key}" for key, value in usual.items() if getattr(section, key) != value]
        if unread:
            yield f"{', '.join(unread)}: not read, because the one answer is greedy; eval.do_sample=true draws it"
    warmup, steps = config.optimizer.warmup_steps, config.trainer.max_steps
    if warmup is not None and is_changed(config.optimizer, "warmup_ratio"):
        ratio = config.optimizer.warmup_ratio
        yield f"optimizer.warmup_ratio: {ratio:g} is not read, because optimizer.warmup_steps is set"
    if warmup is not None and steps is not None and warmup > steps:
        yield f"optimizer.warmup_steps: {warmup} is more than the run's {steps} steps, so optimizer.lr is never reached"
    dump = config.trainer.dump_step
    if dump is not None and steps is not None and dump > steps:
        yield f"trainer.dump_step: {dump} comes after the run's {steps} steps, so no step is dumped"
    if config.plans.reference is not None and config.algorithm.kl.placement == "none":
        yield "plans.reference: not read, because algorithm.kl.placement is none, so there is no reference policy"
    if config.device == "CPU" and config.trainer.deterministic:
        yield "trainer.deterministic: without effect, because on a CPU everything is added up in one order"
    if config.device == "CPU" and config.plans.train.overlap_grad_reduce:
        yield "plans.train.overlap_grad_reduce: without effect, because kernels on a CPU run one after the other"


def _packing_notes(config: ExperimentConfig) -> Iterator[str]:
    tokens, longest = config.trainer.max_tokens_per_micro_batch, longest_sample(config)
    if config.trainer.packing and tokens is not None and tokens < 2 * longest:
        yield (
            f"trainer.max_tokens_per_micro_batch: {tokens} token slots leave little to pack beside a sample of up to "
            f"{longest}; {2 * longest} or more pack better, where memory allows"
        )


def _curriculum_notes(config: ExperimentConfig) -> Iterator[str]:
    if config.data.curriculum is None:
        return
    if config.trainer.max_steps is None:
        yield (
            "data.curriculum: trainer.epochs counts the prompts that are drawn; others are drawn in place of rows that "
            "rest, so the data is passed over more often"
        )
    if config.reward.is_own:
        yield (
            "data.curriculum: an answer is right if your function's `acc` or `verdict` says so; without them, if its "
            "score is above 0"
        )


def _same_rows_notes(config: ExperimentConfig) -> Iterator[str]:
    trained = {source.path: key for key, source in train_sources(config) if source.path is not None}
    for key, source in data_sources(config)[len(config.data.train_sources) :]:
        if source.path in trained:
            yield f"{key}.path: the same as {trained[source.path]}.path, so accuracy is measured on trained rows"
