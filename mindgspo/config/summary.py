"""The start banner: the batch table (what the sizes in a config multiply to, and which formula is in use), and notes
about legal settings that have no effect, or another one than it seems.

Objectives are maximised; sources stand in `config.algorithm` and, in full, in the cells of `algorithms/losses`.

    i  response    t  token    w_it  token ratio    s_i  ratio of a response    A  advantage    r  reward
    y  response, |y| its tokens    H  entropy    c  correction weight    sg[.]  without gradient
"""

from __future__ import annotations

from collections.abc import Iterator

from mindgspo.config.algorithm import (
    AggregationMode,
    AlgorithmSection,
)
from mindgspo.config.algorithm_rules import (
    WIDEST_GSPO_CLIP,
    default_kl_agg_mode,
    has_sequence_ratio,
    is_per_token,
    recipe_of,
    unread_keys,
)
from mindgspo.config.rules import data_sources, longest_sample
from mindgspo.config.schema import ExperimentConfig
from mindgspo.config.section import is_changed
from mindgspo.errors import ConfigError
from mindgspo.text import counted

# With these a group of equal rewards has advantages other than 0.
_SIGNAL_WITHOUT_DIFFERENCES = ("remax", "reinforce_plus_plus", "reinforce_plus_plus_baseline")
_NORM_MODES = ("seq-mean-token-sum-norm", "batch-token-sum-norm")
# Of k3 alone.
_BOUNDS = ("exponent_clamp", "value_clamp")
_LABELS = {"gspo_token": "GSPO-token", "dr_grpo": "Dr.GRPO"}
_SEQUENCE_RATIO, _TOKEN_RATIO = "s_i = exp(mean_t(logp_it - old_it))", "w_it = exp(logp_it - old_it)"
# (surrogate, ratio) of each loss; {A} stands for the advantage, {range} for the clip range.
_OBJECTIVES = {
    ("clip", "sequence"): ("min(s_i {A}, clip(s_i, {range}) {A})", _SEQUENCE_RATIO),
    ("clip", "sequence_token"): (
        "min(s_it {A}, clip(s_it, {range}) {A})", f"s_it = sg[s_i] exp(logp_it - sg[logp_it]), {_SEQUENCE_RATIO}",
    ),
    ("clip", "token"): ("min(w_it {A}, clip(w_it, {range}) {A})", _TOKEN_RATIO),
    ("cispo", "token"): ("sg[clip(w_it, {range})] {A} logp_it", _TOKEN_RATIO),
    ("sapo", "token"): (
        "{A} sigmoid(tau (w_it - 1)) 4 / tau", f"tau = {{tau_pos:g}} if {{A}} > 0 else {{tau_neg:g}}, {_TOKEN_RATIO}",
    ),
    ("gmpo", "token"): (
        "{A} s_i", "s_i = exp(mean_t d_it), d_it = logp_it - old_it, at most {clip_high:g} if {A} > 0, "
        "at least -{clip_low:g} if {A} < 0",
    ),
    ("gpg", "none"): ("{A} logp_it", ""),
}  # fmt: skip
_AGGREGATIONS = {
    "seq-mean-token-mean": "mean_i mean_t",
    "batch-mean": "mean_i",
    "token-mean": "mean_it",
    "token-sum": "sum_it",
    "seq-mean-token-sum": "mean_i sum_t",
    "seq-mean-token-sum-norm": "1/{scale:g} mean_i sum_t",
    "batch-token-sum-norm": "1/{scale:g} sum_it",
}
_CAPS = ("clip_ratio_c", "ratio_upper_clamp", "loss_upper_clamp")
# Advantages; {std}, {returns} and {whitened} are filled in from the settings.
_ADVANTAGES = {
    "grpo": "A_i = (r_i - mean(r)){std}, over the group",
    "dr_grpo": "A_i = r_i - mean(r), over the group",
    "rloo": "A_i = r_i - mean(r of the others), over the group",
    "opo": "A_i = r_i - sum(|y| r) / sum(|y|), over the group",
    "max_rl": "A_i = (r_i - mean(r)) / mean(r), over the group",
    "pass_k": "A_i = (r_i - second best r){std} for the best of the group, else 0",
    "gpg": "A_i = N / (number of r other than 0) (r_i - mean(r)), mean over the group, N over the batch",
    "remax": "{returns} - r of the greedy response",
    "reinforce_plus_plus": "{returns}{whitened}",
    "reinforce_plus_plus_baseline": "A_i = r_i - mean(r), over the group{whitened}",
}
_CORRECTIONS = {
    "token": "c_it = exp(old_it - sampler_it)",
    "sequence": "c_i = exp(sum_t(old_it - sampler_it))",
    "geometric": "c_i = exp(mean_t(old_it - sampler_it))",
}


def objective(config: ExperimentConfig) -> str:
    """The maximised objective: aggregation, surrogate with its bounds, KL term, entropy bonus, ratio."""
    algorithm = config.algorithm
    recipe, mode = recipe_of(algorithm), algorithm.loss_agg_mode
    assert mode is not None, "config is not resolved"
    term, ratio = _OBJECTIVES[recipe.surrogate, recipe.ratio_level]
    level = algorithm.rollout_correction.level
    name, weight = _advantage_name(config), {"none": "", "token": "c_it "}.get(level, "c_i ")
    if recipe.surrogate == "gmpo":  # one value per response
        name, weight = name.replace("A_it", "mean_t(A_it)"), weight.replace("c_it", "exp(mean_t(log c_it))")
    term = weight + term.replace("{A}", name)
    # The mean over tokens of one value per response is that value.
    mean = "mean_i" if mode == "seq-mean-token-mean" and "_it" not in term else _aggregation(algorithm, mode)
    line = f"{_LABELS.get(algorithm.name, algorithm.name.upper())}: {mean} {term}{_added_terms(algorithm)}"
    caps = "".join(f", {key} {value:g}" for key in _CAPS if (value := getattr(algorithm, key)) is not None)
    text = f"{line}, {ratio.replace('{A}', _advantage_name(config))}".removesuffix(", ") + caps
    values = algorithm.model_dump(include={"tau_pos", "tau_neg", "clip_low", "clip_high"})
    clip = "" if recipe.clip is None else f"1-{algorithm.clip_low:g}, 1+{algorithm.clip_high:g}"
    return text.format(range=clip, **values)


def _advantage_name(config: ExperimentConfig) -> str:
    return "A_it" if is_per_token(config) else "A_i"


def _aggregation(algorithm: AlgorithmSection, mode: AggregationMode) -> str:
    return _AGGREGATIONS[mode].format(scale=algorithm.loss_scale_factor)


def _added_terms(algorithm: AlgorithmSection) -> str:
    """KL term and entropy bonus, where they are on."""
    kl, mode, text = algorithm.kl, algorithm.loss_agg_mode, ""
    assert mode is not None and kl.agg_mode is not None, "config is not resolved"
    if kl.placement == "loss":
        text += f" - {_kl_text(algorithm, mean=f'{_aggregation(algorithm, kl.agg_mode)} ', policy='logp_it')}"
    if algorithm.entropy_coef > 0:
        text += f" + {algorithm.entropy_coef:g} {_aggregation(algorithm, default_kl_agg_mode(mode))} H_it"
    return text


def _kl_text(algorithm: AlgorithmSection, *, mean: str, policy: str) -> str:
    """`0.001 mean_i mean_t k3(logp_it - ref_it)`; an adaptive coefficient is called beta."""
    kl = algorithm.kl
    coefficient = "beta" if kl.target is not None else f"{kl.coef:g}"
    weight = "w_it " if kl.importance_weight else ""
    gradient = " with the gradient of k2" if kl.straight_through else ""
    return f"{coefficient} {mean}{weight}{kl.estimator}({policy} - ref_it){gradient}"


def advantage(config: ExperimentConfig) -> str:
    """How advantages come from rewards."""
    section, each = config.algorithm.advantage, is_per_token(config)
    assert section.estimator is not None, "config is not resolved"
    std = f" / (std(r) + {section.eps:g})" if section.normalize_by_std else ""
    discount = "" if section.gamma == 1 else f"{section.gamma:g}^(s-t) "
    line = _ADVANTAGES[section.estimator].format(
        std=std,
        returns=f"A_it = (sum of {discount}r_is over s >= t)" if each else "A_i = r_i",
        whitened="" if section.whiten == "none" else f", whitened over all tokens ({section.whiten})",
    )
    if section.estimator == "grpo":
        line += ", std over the batch" if section.std_over == "batch" and std else ""
        line += f", ddof {section.ddof}" if std else ""
        line += ", per reward function, their sum normalised again" if section.combine == "normalize_then_sum" else ""
    if config.algorithm.kl.placement == "reward":
        penalty = _kl_text(config.algorithm, mean="" if each else "sum_t ", policy="old_it")
        line += f"; {'r_it' if each else 'r_i'} less {penalty}"
    return line


def reference_policy(config: ExperimentConfig) -> str:
    """The reference policy, where the penalty is put, and its coefficient."""
    kl, reference = config.algorithm.kl, config.algorithm.kl.reference
    when = counted(reference.every or 1, "step")
    policy = {
        "frozen": "the policy before the first step",
        "sync": f"the policy, copied every {when}",
        "ema": f"a moving average of the policy, decay {reference.decay}, every {when}",
    }[reference.mode]
    coefficient = f"coefficient {kl.coef:g}"
    if kl.target is not None:
        coefficient += f" at first, steered to a mean KL of {kl.target:g} per token (horizon {kl.horizon:,})"
    return f"{policy}; {kl.estimator} in the {kl.placement}, {coefficient}"


def correction(config: ExperimentConfig) -> str:
    """Weights against the mismatch of sampler and trainer."""
    section = config.algorithm.rollout_correction
    smallest = section.min if section.min is not None else 1 / section.max
    bound = f"at most {section.max:g}" if section.mode == "truncate" else f"0 outside [{smallest:g}, {section.max:g}]"
    return f"{_CORRECTIONS[section.level]}, {bound}"


def planned_steps(config: ExperimentConfig, num_rows: int | None) -> int | None:
    """Training steps of the whole run: trainer.max_steps, else the full steps in `epochs` passes over
    `num_rows`.

    Prompts run on from one epoch into the next; only the rest after the last epoch is left over. None: epochs
    decide and the number of rows is not known yet. Raises ConfigError if not one step is full.
    """
    if config.trainer.max_steps is not None:
        return config.trainer.max_steps
    if num_rows is None:
        return None
    epochs, prompts = config.trainer.epochs, config.rollout.prompts_per_step
    steps = epochs * num_rows // prompts
    if steps == 0:
        raise ConfigError(
            f"rollout.prompts_per_step: {prompts} prompts do not fit into {num_rows} rows x {epochs} epochs; "
            f"largest legal: {epochs * num_rows}; or raise trainer.epochs, or set trainer.max_steps"
        )
    return steps


def batch_table(config: ExperimentConfig, num_rows: int | None) -> list[tuple[str, str]]:
    """(name, text) of every line of the table. num_rows: rows of the training set, None while unknown."""
    rollout, trainer, algorithm = config.rollout, config.trainer, config.algorithm
    samples = rollout.prompts_per_step * rollout.num_generations
    mini_samples = trainer.prompts_per_mini_batch * rollout.num_generations
    updates = rollout.prompts_per_step // trainer.prompts_per_mini_batch * trainer.epochs_per_rollout
    often = f", {trainer.epochs_per_rollout} times over the rollout" if trainer.epochs_per_rollout > 1 else ""
    prompt, response = config.data.max_prompt_length, rollout.max_new_tokens
    most_tokens = f"{samples * (prompt + response):,} = {samples:,} x ({prompt:,} prompt + {response:,} response)"
    steps = planned_steps(config, num_rows)
    rows = [
        ("prompts per step", f"{rollout.prompts_per_step:,}"),
        ("samples per step", f"{samples:,} = {rollout.prompts_per_step} prompts x {rollout.num_generations}"),
        ("updates per rollout",
         f"{updates:,} of {mini_samples:,} samples ({trainer.prompts_per_mini_batch} prompts){often}"),
        ("micro-batches per update", _micro_batches(config, mini_samples)),
        ("max tokens per step", most_tokens),
        ("steps", _steps_text(config, steps, num_rows)),
        ("total samples", "known when the rows are counted" if steps is None else f"{steps * samples:,}"),
        ("objective", objective(config)),
        ("advantage", advantage(config)),
    ]  # fmt: skip
    if algorithm.kl.placement != "none":
        rows.append(("reference policy", reference_policy(config)))
    if algorithm.old_log_probs == "sampler":
        rows.append(("old log-probs", "the sampler's, without a scoring pass"))
    if algorithm.rollout_correction.level != "none":
        rows.append(("rollout correction", correction(config)))
    if rollout.cache_dtype != config.model.dtype:
        rows.append(("key/value cache", f"{rollout.cache_dtype}, and the model {config.model.dtype}"))
    if rollout.record_experts:
        rows.append(("recorded experts", recorded_experts(config)))
    return [*rows, ("plans", _plans_text(config))]


def recorded_experts(config: ExperimentConfig) -> str:
    """Host memory of recorded routing, and its use in the updates."""
    model, rollout = config.model, config.rollout
    assert model.num_experts is not None and model.num_experts_per_tok is not None, "config.rules refuses it"
    size = 1 if model.num_experts <= 256 else 2
    per_token = model.num_hidden_layers * model.num_experts_per_tok * size
    responses = rollout.prompts_per_step * rollout.num_generations
    most = per_token * (responses * rollout.max_new_tokens + rollout.prompts_per_step * config.data.max_prompt_length)
    choices = f"{model.num_hidden_layers} layers x {model.num_experts_per_tok} experts x {size} byte{'s' * (size > 1)}"
    used = {"none": "compared, not replayed", "old": "compared; updates replay those of scoring", "rollout": "replayed"}
    return (
        f"{per_token:,} bytes per token = {choices}, at most {most / 2**20:,.1f} MB per step in all; "
        f"{used[config.algorithm.router_replay]}"
    )


def _plans_text(config: ExperimentConfig) -> str:
    plans = config.plans
    own = plans.reference is not None and config.algorithm.kl.placement != "none"
    reference = f", reference {plans.reference}" if own else ""
    return f"train {plans.train}, infer {plans.infer}{reference} (data x model x pipeline)"


def _micro_batches(config: ExperimentConfig, samples: int) -> str:
    trainer, replicas = config.trainer, config.plans.train.data_parallel
    balanced = f", balanced over {replicas} replicas" if trainer.balance_batches and replicas > 1 else ""
    if trainer.max_tokens_per_micro_batch is None:
        assert trainer.samples_per_micro_batch is not None
        number = samples // trainer.samples_per_micro_batch
        return f"{number:,} of {trainer.samples_per_micro_batch:,} samples{balanced}"
    rows = "several samples per row" if trainer.packing else "one sample per row"
    return f"as lengths ask for, of up to {trainer.max_tokens_per_micro_batch:,} token slots, {rows}{balanced}"


def _steps_text(config: ExperimentConfig, steps: int | None, num_rows: int | None) -> str:
    if config.trainer.max_steps is not None:
        return f"{steps:,}" if num_rows is None else f"{steps:,} (trainer.max_steps), {num_rows:,} rows"
    epochs = config.trainer.epochs
    return f"{epochs} epochs" if steps is None else f"{steps:,} = {epochs} epochs x {num_rows:,} rows"


def notes(config: ExperimentConfig) -> list[str]:
    """Advice about legal settings that may not do what they seem to."""
    rules = (_update_notes, _clip_notes, _weighting_notes, _signal_notes, _unread_notes, _data_notes)
    return [line for rule in rules for line in rule(config)]


def _update_notes(config: ExperimentConfig) -> Iterator[str]:
    algorithm, prompts = config.algorithm, config.rollout.prompts_per_step
    epochs = config.trainer.epochs_per_rollout
    updates = prompts // config.trainer.prompts_per_mini_batch * epochs
    if recipe_of(algorithm).ratio_level == "none" and updates > 1:
        yield (
            f"algorithm.name: {algorithm.name} has no ratio, so all but the first of the {updates} updates per "
            f"rollout are off-policy and nothing corrects that; trainer.prompts_per_mini_batch={prompts} "
            f"{'and trainer.epochs_per_rollout=1 make' if epochs > 1 else 'makes'} one"
        )
    elif recipe_of(algorithm).ratio_level != "none" and updates == 1 and algorithm.old_log_probs == "sampler":
        yield (
            "one update per rollout with algorithm.old_log_probs=sampler: every ratio is the mismatch of sampler and "
            "trainer and nothing else"
        )
    elif recipe_of(algorithm).ratio_level != "none" and updates == 1:
        yield (
            "one update per rollout: every ratio is 1 when it is used, so nothing is ever clipped and the clip "
            "fraction is 0; a smaller trainer.prompts_per_mini_batch makes more updates (the paper makes 4)"
        )


def _clip_notes(config: ExperimentConfig) -> Iterator[str]:
    algorithm, recipe = config.algorithm, recipe_of(config.algorithm)
    if recipe.clip is None:
        return
    low, high = algorithm.clip_low, algorithm.clip_high
    assert low is not None and high is not None, "config is not resolved"
    is_wide, is_sequence = max(low, high) > WIDEST_GSPO_CLIP, has_sequence_ratio(algorithm)
    if is_sequence and is_wide:
        yield "algorithm.allow_wide_clip: with this range practically no sequence ratio is clipped"
    if not is_sequence and not is_wide:
        yield (
            f"algorithm.clip_low / clip_high: {low:g} / {high:g} is a range for gspo; {algorithm.name}'s token ratios "
            f"leave it almost at once (usual: {recipe.clip[0]:g} / {recipe.clip[1]:g})"
        )
    if is_sequence and config.model.dtype != "float32":
        yield (
            f"model.dtype: {config.model.dtype} rounds the sequence ratio by up to about 2e-3, more than the clip "
            f"range {low:g} / {high:g}; watch "
            + ("actor/pg_clipfrac_seq of runs with recompute beside it" if algorithm.old_log_probs == "sampler"
               else "the ratio of the first mini-batch")
        )  # fmt: skip


def _weighting_notes(config: ExperimentConfig) -> Iterator[str]:
    algorithm = config.algorithm
    if has_sequence_ratio(algorithm) and algorithm.loss_agg_mode != "seq-mean-token-mean":
        yield (
            f"algorithm.allow_token_weighting: with {algorithm.loss_agg_mode} a response counts in proportion to its "
            "length, which is not the paper's objective"
        )
    key, section = "algorithm.rollout_correction", algorithm.rollout_correction
    if section.level != "none" and config.device == "CPU":
        yield (
            f"{key}.level: {section.level}, but on the CPU sampler and trainer compute the same float32 log-probs "
            "up to rounding, so all weights are 1 up to rounding"
        )
    if algorithm.name == "gspo" and section.level == "token":
        yield (
            f"{key}.level: token weights act in gspo through their mean over a response, because its ratio has one "
            "gradient for all tokens; algorithm.name=gspo_token keeps them apart"
        )
    if algorithm.name == "gspo" and is_per_token(config):
        yield (
            f"algorithm.advantage.estimator: {algorithm.advantage.estimator} gives each token its own advantage here, "
            "but gspo's ratio belongs to the whole response, so its tokens share their mean; "
            "algorithm.name=gspo_token keeps them apart"
        )


def _signal_notes(config: ExperimentConfig) -> Iterator[str]:
    filtered, estimator = config.algorithm.filter_groups, config.algorithm.advantage.estimator
    if filtered.metric != "none" and not filtered.refill:
        yield (
            "algorithm.filter_groups: groups of equal rewards leave the denominators as well, so the others count "
            "for more, the more such groups there are; left in, they count as responses with advantage 0. "
            "refill=true draws others in their place"
        )
    if filtered.metric != "none" and estimator in _SIGNAL_WITHOUT_DIFFERENCES:
        yield (
            f"algorithm.filter_groups: with estimator {estimator} groups of equal rewards do have advantages, which "
            "the filter throws away"
        )
    cuts = [f"top_p {config.rollout.top_p:g}"] if config.rollout.top_p < 1 else []
    cuts += [f"top_k {config.rollout.top_k}"] if config.rollout.top_k > 0 else []
    if cuts:
        yield (
            f"rollout: {' and '.join(cuts)} cut the distribution that responses are drawn from, while the trained "
            "ratio compares uncut ones, so it is not against the policy that sampled; the paper uses top_p 1, top_k 0"
        )


def _unread_notes(config: ExperimentConfig) -> Iterator[str]:
    """Settings that another one leaves without effect."""
    algorithm, trainer, evaluation, optimizer = config.algorithm, config.trainer, config.eval, config.optimizer
    kl, correction_ = algorithm.kl, algorithm.rollout_correction
    is_k3 = kl.estimator in ("k3", "low_var_kl")
    has_penalty, has_scale = (
        kl.placement != "none",
        any(mode in _NORM_MODES for mode in (algorithm.loss_agg_mode, kl.agg_mode if kl.placement == "loss" else None)),
    )
    scale = algorithm.loss_scale_factor != config.rollout.max_new_tokens
    drawn = {"temperature": 1.0, "top_p": config.rollout.top_p, "top_k": config.rollout.top_k}
    is_greedy = evaluation.num_samples == 1 and not evaluation.do_sample
    unread: list[tuple[bool, str, list[str]]] = [
        (True, f"by estimator {algorithm.advantage.estimator}",
         [f"algorithm.advantage.{key}" for key in unread_keys(config)]),
        (not has_scale and scale, f"by algorithm.loss_agg_mode={algorithm.loss_agg_mode}",
         ["algorithm.loss_scale_factor"]),
        (not has_penalty, "because algorithm.kl.placement is none",
         [f"algorithm.kl.{key}" for key in ("estimator", "coef", "horizon", *_BOUNDS) if is_changed(kl, key)]),
        (not has_penalty and config.plans.reference is not None, "because algorithm.kl.placement is none, so there is "
         "no reference policy", ["plans.reference"]),
        (has_penalty and not is_k3, f"because algorithm.kl.estimator is {kl.estimator}, and they bound k3",
         [f"algorithm.kl.{key}" for key in _BOUNDS if is_changed(kl, key)]),
        (has_penalty and kl.target is None and is_changed(kl, "horizon"), "because algorithm.kl.target is not set",
         ["algorithm.kl.horizon"]),
        (correction_.level == "none", "because algorithm.rollout_correction.level is none",
         [f"algorithm.rollout_correction.{key}" for key in ("mode", "max") if is_changed(correction_, key)]),
        (trainer.max_steps is not None and trainer.epochs != 1, "because trainer.max_steps is set", ["trainer.epochs"]),
        (is_greedy, "because the one answer is greedy; eval.do_sample=true draws it",
         [f"eval.{key}" for key, value in drawn.items() if getattr(evaluation, key) != value]),
        (optimizer.warmup_steps is not None and is_changed(optimizer, "warmup_ratio"),
         "because optimizer.warmup_steps is set", ["optimizer.warmup_ratio"]),
    ]  # fmt: skip
    for holds, why, keys in unread:
        if holds and keys:
            yield f"{', '.join(keys)}: not read{', ' if why.startswith('because') else ' '}{why}"


def _data_notes(config: ExperimentConfig) -> Iterator[str]:
    warmup, steps = config.optimizer.warmup_steps, config.trainer.max_steps
    if warmup is not None and steps is not None and warmup > steps:
        yield f"optimizer.warmup_steps: {warmup} is more than the run's {steps} steps, so optimizer.lr is never reached"
    tokens, longest = config.trainer.max_tokens_per_micro_batch, longest_sample(config)
    if config.trainer.packing and tokens is not None and tokens < 2 * longest:
        yield (
            f"trainer.max_tokens_per_micro_batch: {tokens} token slots leave little to pack beside a sample of up to "
            f"{longest}; {2 * longest} or more pack better, where memory allows"
        )
    train = config.data.train.path
    for key, source in data_sources(config)[1:]:
        if train is not None and source.path == train:
            yield f"{key}.path: the same as data.train.path, so accuracy is measured on trained rows"
