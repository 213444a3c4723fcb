"""The batch table of the start banner: what the sizes in a config multiply to, and which formula is in use.

Objectives are maximised; sources stand in `config.algorithm` and, in full, in the cells of `algorithms/losses`.

    i  response    t  token    w_it  token ratio    s_i  ratio of a response    A  advantage    r  reward
    y  response, |y| its tokens    H  entropy    c  correction weight    sg[.]  without gradient
"""

from __future__ import annotations

from collections.abc import Sequence

from mindgspo.config.algorithm import (
    POLICY_LOSSES,
    AdvantageSection,
    AggregationMode,
    AlgorithmSection,
    ReferenceSection,
)
from mindgspo.config.algorithm_rules import is_per_token
from mindgspo.config.data import TrainSource
from mindgspo.config.schema import ExperimentConfig
from mindgspo.errors import ConfigError
from mindgspo.text import listed

_LABELS = {
    "gspo_token": "GSPO-token",
    "dr_grpo": "Dr.GRPO",
    "dppo_tv": "DPPO-TV",
    "dppo_kl": "DPPO-KL",
    "clip_cov": "Clip-Cov",
    "kl_cov": "KL-Cov",
}

_SEQUENCE_RATIO = "s_i = exp(mean_t(logp_it - old_it))"
_TURN_RATIO = "s_it = exp(mean over t's turn (logp_it - old_it))"
_TOKEN_RATIO = "w_it = exp(logp_it - old_it)"


def objective(config: ExperimentConfig) -> str:
    """The maximised objective: aggregation, surrogate with its bounds, KL term, entropy bonus, ratio."""
    algorithm = config.algorithm
    assert algorithm.loss_agg_mode is not None, "config is not resolved"
    label = _LABELS.get(algorithm.name, algorithm.name.upper())
    each = "A_it" if is_per_token(config) else "A_i"
    weight = {"none": "", "token": "c_it "}.get(algorithm.rollout_correction.level, "c_i ")
    ratio = ""
    match POLICY_LOSSES[algorithm.name].surrogate, POLICY_LOSSES[algorithm.name].ratio_level:
        case "clip", "sequence" if algorithm.ratio_over == "turn":
            term, ratio = _clipped("s_it", each, algorithm), _TURN_RATIO
        case "clip", "sequence" if not algorithm.has_taught_advantages:
            term, ratio = _clipped("s_i", each, algorithm), _SEQUENCE_RATIO
        case "clip", "sequence" | "sequence_token":
            term = _clipped("s_it", each, algorithm)
            ratio = f"s_it = sg[s_i] exp(logp_it - sg[logp_it]), {_SEQUENCE_RATIO}"
        case "clip", _:
            term, ratio = _clipped("w_it", each, algorithm), _TOKEN_RATIO
        case "cispo", _:
            term, ratio = f"sg[clip(w_it, {_range(algorithm)})] {each} logp_it", _TOKEN_RATIO
        case "sapo", _:
            term = f"{each} sigmoid(tau (w_it - 1)) 4 / tau"
            ratio = f"tau = {algorithm.tau_pos:g} if {each} > 0 else {algorithm.tau_neg:g}, {_TOKEN_RATIO}"
        case "gmpo", _:
            weight = "exp(mean_t(log c_it)) " if weight == "c_it " else weight
            term = "mean_t(A_it) s_i" if is_per_token(config) else "A_i s_i"
            ratio = _gmpo_ratio(algorithm, each)
        case "dppo_tv" | "dppo_kl", _:
            term = f"m_it sg[min(w_it, {algorithm.clip_ratio_c:g})] {each} logp_it"
            ratio = f"{_trust_region(algorithm)}, {_TOKEN_RATIO}"
        case "vespo", _:
            term, ratio = f"sg[phi(W_i)] {each} logp_it", _vespo_weight(algorithm, each)
            weight = ""  # a factor of W_i
        case "fipo", _:
            term, section = _clipped("w_it", f"f_it {each}", algorithm), algorithm.fipo
            future = f"sum_(k>=t) 2^(-(k-t)/{section.half_life:g}) log w_ik"
            bounds = f"{section.influence_low:g}, {section.influence_high:g}"
            ratio = f"f_it = sg[clip(exp({future}), {bounds})], {_TOKEN_RATIO}"
        case "clip_cov", _:
            section, term = algorithm.covariance, _clipped("w_it", each, algorithm)
            ratio = f"0 at {section.share:g} of the tokens, with {section.low:g} < cov_it < {section.high:g}"
        case "kl_cov", _:
            section = algorithm.covariance
            term = f"(w_it {each} - {section.kl_coef:g} m_it |log w_it|)"
            ratio = f"m_it = 1 at the {section.share:g} of the tokens with the largest cov_it, else 0"
        case _:
            term = f"{each} logp_it"
    # Of one value per response the mean over its tokens is that value.
    is_one_value = "_it" not in weight + term
    mean = _aggregation(algorithm.loss_agg_mode, algorithm.loss_scale_factor, is_one_value=is_one_value)
    line = f"{label}: {mean} {weight}{term}{_added(algorithm)}"
    if "w_it" in line and not ratio.endswith(_TOKEN_RATIO):
        ratio = f"{ratio}, {_TOKEN_RATIO}" if ratio else _TOKEN_RATIO
    return f"{line}, {ratio}" if ratio else line


def _trust_region(algorithm: AlgorithmSection) -> str:
    distance = "|p - q|" if algorithm.name == "dppo_tv" else "KL of q and p"
    return f"m_it = 0 beyond {distance} of {algorithm.clip_low:g} below, {algorithm.clip_high:g} above q, else 1"


def _vespo_weight(algorithm: AlgorithmSection, each: str) -> str:
    weight = {"none": "w_it"}.get(algorithm.rollout_correction.level, "c_it w_it")
    section = algorithm.vespo
    positive, negative = f"{section.k_pos:g}, {section.lambda_pos:g}", f"{section.k_neg:g}, {section.lambda_neg:g}"
    kernel = f"phi(W) = W^k exp(lambda (1 - W)), k, lambda = {positive} if {each} >= 0 else {negative}"
    return f"W_i = prod_t {weight}, {kernel}, {_TOKEN_RATIO}"


def advantage(config: ExperimentConfig) -> str:
    """Formula that turns rewards into advantages."""
    kl, distillation = config.algorithm.kl, config.algorithm.distillation
    line = _estimator(config)
    if distillation is not None and config.algorithm.has_taught_advantages:
        taught = f"{distillation.coef:g} (teacher_it - old_it)"
        line = f"A_it = A_i + {taught}, {line}" if distillation.with_rewards else f"A_it = {taught}"
    elif distillation is not None and not distillation.with_rewards:
        line = "A_i = 0"
    if kl.placement == "reward":
        is_each_token = is_per_token(config)
        penalty = _kl_text(config.algorithm, policy="old_it")
        line += f"; r_it less {penalty}" if is_each_token else f"; r_i less sum_t {penalty}"
    return line


def reference_policy(config: ExperimentConfig) -> str:
    """Describe the reference of the KL penalty, its place, and its coefficient over the run."""
    kl = config.algorithm.kl
    coefficient = f"coefficient {kl.coef:g}"
    if kl.target is not None:
        steered = f"steered to a mean KL of {kl.target:g} per token"
        coefficient = f"coefficient beta = {kl.coef:g} at first, {steered} (horizon {kl.horizon:,})"
    of_base = " (with the policy's own base weights, no second model)" if config.shares_base else ""
    return f"{_reference_text(kl.reference)}{of_base}; {kl.estimator} in the {kl.placement}, {coefficient}"


def _reference_text(reference: ReferenceSection) -> str:
    if reference.mode == "frozen":
        return "the policy before the first step"
    when = "each step" if reference.every == 1 else f"every {reference.every} steps"
    if reference.mode == "sync":
        return f"the policy, taken anew {when}"
    share = 1 - (reference.decay or 0)
    return f"a moving average: ref + {share:g} (policy - ref), {when}"


def correction(config: ExperimentConfig) -> str:
    """Weights against the mismatch of sampler and trainer."""
    section = config.algorithm.rollout_correction
    formula = {
        "token": "c_it = exp(old_it - sampler_it)",
        "sequence": "c_i = exp(sum_t(old_it - sampler_it))",
        "geometric": "c_i = exp(mean_t(old_it - sampler_it))",
    }[section.level]
    if section.mode == "truncate":
        return f"{formula}, at most {section.max:g}"
    smallest = section.min if section.min is not None else 1 / section.max
    return f"{formula}, 0 outside [{smallest:g}, {section.max:g}]"


def off_policy_mask(config: ExperimentConfig) -> str:
    """Which responses the off-policy sequence mask leaves out; "" if it is off."""
    threshold = config.algorithm.rollout_correction.opsm_threshold
    return "" if threshold is None else f"0 of A_i < 0 while mean_t(sampler_it - logp_it) > {threshold:g}"


def _range(algorithm: AlgorithmSection) -> str:
    assert algorithm.clip_low is not None and algorithm.clip_high is not None, "config is not resolved"
    return f"1-{algorithm.clip_low:g}, 1+{algorithm.clip_high:g}"


def _clipped(ratio: str, each: str, algorithm: AlgorithmSection) -> str:
    """The clipped surrogate; caps of the loss bound the objective from below."""
    free = ratio if algorithm.ratio_upper_clamp is None else f"min({ratio}, {algorithm.ratio_upper_clamp:g})"
    bounds = []
    if algorithm.clip_ratio_c is not None:
        bounds.append(f"{algorithm.clip_ratio_c:g} {each} if {each} < 0")
    if algorithm.loss_upper_clamp is not None:
        bounds.append(f"-{algorithm.loss_upper_clamp:g}")
    clipped = f"min({free} {each}, clip({ratio}, {_range(algorithm)}) {each})"
    return f"max({', '.join([clipped, *bounds])})" if bounds else clipped


def _gmpo_ratio(algorithm: AlgorithmSection, each: str) -> str:
    low, high = algorithm.clip_low, algorithm.clip_high
    assert low is not None and high is not None, "config is not resolved"
    bounds = f"at most {high:g} if {each} > 0, at least -{low:g} if {each} < 0"
    return f"s_i = exp(mean_t d_it), d_it = logp_it - old_it, {bounds}"


def _aggregation(mode: AggregationMode, scale: float | None, *, is_one_value: bool) -> str:
    match mode:
        case "seq-mean-token-mean":
            return "mean_i" if is_one_value else "mean_i mean_t"
        case "batch-mean":
            return "mean_i"
        case "token-mean":
            return "mean_it"
        case "token-sum":
            return "sum_it"
        case "seq-mean-token-sum":
            return "mean_i sum_t"
    assert scale is not None, "config is not resolved"
    return f"1/{scale:g} mean_i sum_t" if mode == "seq-mean-token-sum-norm" else f"1/{scale:g} sum_it"


def _added(algorithm: AlgorithmSection) -> str:
    """KL term, entropy bonus and KL to a teacher, where they are on."""
    assert algorithm.loss_agg_mode is not None and algorithm.kl.agg_mode is not None, "config is not resolved"
    scale, text = algorithm.loss_scale_factor, ""
    if algorithm.kl.placement == "loss":
        mean = _aggregation(algorithm.kl.agg_mode, scale, is_one_value=False)
        text += f" - {_kl_text(algorithm, policy='logp_it', mean=mean)}"
    mode = "seq-mean-token-mean" if algorithm.loss_agg_mode == "batch-mean" else algorithm.loss_agg_mode
    mean = _aggregation(mode, scale, is_one_value=False)
    if algorithm.entropy_coef > 0:
        text += f" + {algorithm.entropy_coef:g} {mean} H_it"
    if algorithm.distillation is not None and (count := algorithm.teacher_top_k):
        text += f" - {algorithm.distillation.coef:g} {mean} KL_it(policy || teacher, its {count:,} likeliest tokens)"
    return text


def _kl_text(algorithm: AlgorithmSection, *, policy: str, mean: str = "") -> str:
    """`0.001 mean_i mean_t k3(logp_it - ref_it)`; an adaptive coefficient is called beta."""
    kl = algorithm.kl
    coefficient = f"{kl.coef:g}" if kl.target is None else "beta"
    weight = "w_it" if kl.importance_weight else ""
    lent = "with the gradient of k2" if kl.straight_through else ""
    estimate = f"{kl.estimator}({policy} - ref_it)"
    return " ".join(part for part in (coefficient, mean, weight, estimate, lent) if part)


def _estimator(config: ExperimentConfig) -> str:
    section = config.algorithm.advantage
    match section.estimator:
        case "grpo":
            return _grpo(section)
        case "dr_grpo":
            return "A_i = r_i - mean(r), over the group"
        case "rloo":
            return "A_i = r_i - mean(r of the others), over the group"
        case "opo":
            return "A_i = r_i - sum(|y| r) / sum(|y|), over the group"
        case "max_rl":
            return "A_i = (r_i - mean(r)) / mean(r), over the group"
        case "pass_k":
            return f"A_i = (r_i - second best r){_deviation(section)} for the best of the group, else 0"
        case "gpg":
            return "A_i = N / (number of r other than 0) (r_i - mean(r)), mean over the group, N over the batch"
        case "remax":
            each = "A_it = (sum of r_is over s >= t)" if is_per_token(config) else "A_i = r_i"
            return f"{each} - r of the greedy response"
        case "reinforce_plus_plus":
            discount = "" if section.gamma == 1 else f"{section.gamma:g}^(s-t) "
            returns = f"A_it = sum of {discount}r_is over s >= t" if is_per_token(config) else "A_i = r_i"
            return f"{returns}{_whitening(section)}"
        case "reinforce_plus_plus_baseline":
            return f"A_i = r_i - mean(r), over the group{_whitening(section)}"
        case "optimal_token_baseline":
            energy = "W_it = sum of |d logp_is / d logits|^2 over s <= t"
            return f"A_it = G_it - sum(G_t W_t) / sum(W_t), over the group, G_it = sum of r_is over s >= t, {energy}"
    raise AssertionError(f"config is not resolved: estimator {section.estimator}")


def _grpo(section: AdvantageSection) -> str:
    if section.combine == "normalize_then_sum":
        return (
            f"A_i = B_i normalised over the batch, B_i = sum_k weight_k (r_ik - mean(r_k)){_deviation(section, 'r_k')}"
            ", over the group"
        )
    if not section.normalize_by_std:
        return "A_i = r_i - mean(r), over the group"
    divided = f"A_i = (r_i - mean(r)){_deviation(section)}"
    if section.std_over == "batch":
        return f"{divided}, mean over the group, std over the batch, ddof {section.ddof}"
    return f"{divided}, over the group, ddof {section.ddof}"


def _deviation(section: AdvantageSection, of: str = "r") -> str:
    return f" / (std({of}) + {section.eps:g})" if section.normalize_by_std else ""


def _whitening(section: AdvantageSection) -> str:
    return "" if section.whiten == "none" else f", whitened over all tokens ({section.whiten})"


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


def batch_table(
    config: ExperimentConfig, num_rows: int | None, mixture: Sequence[TrainSource] = ()
) -> list[tuple[str, str]]:
    """(name, text) of every line of the table. num_rows: rows of the training set, None while unknown. mixture: the
    sources of a list in `data.train`."""
    rollout, trainer = config.rollout, config.trainer
    samples = rollout.prompts_per_step * rollout.num_generations
    mini_samples = trainer.prompts_per_mini_batch * rollout.num_generations
    updates = rollout.prompts_per_step // trainer.prompts_per_mini_batch * trainer.epochs_per_rollout
    mini_batch = f"{mini_samples:,} samples ({trainer.prompts_per_mini_batch} prompts)"
    longest = config.data.max_prompt_length + rollout.max_new_tokens
    steps = planned_steps(config, num_rows)
    return [
        ("prompts per step", f"{rollout.prompts_per_step:,}"),
        ("samples per step", f"{samples:,} = {rollout.prompts_per_step} prompts x {rollout.num_generations}"),
        ("updates per rollout", f"{updates:,} of {mini_batch}{_epochs_text(trainer.epochs_per_rollout)}"),
        ("micro-batches per update", _micro_batches(config, mini_samples)),
        ("max tokens per step", f"{samples * longest:,} = {samples:,} x ({_length_text(config)})"),
        ("steps", _steps_text(config, steps, num_rows)),
        ("total samples", "known when the rows are counted" if steps is None else f"{steps * samples:,}"),
        *((f"source {source.name}", _source_text(config, source, steps)) for source in mixture),
        ("objective", objective(config)),
        ("advantage", advantage(config)),
        *([("reference policy", reference_policy(config))] if config.algorithm.kl.placement != "none" else []),
        *(
            [("old log-probs", "the sampler's, without a scoring pass")]
            if config.algorithm.old_log_probs == "sampler"
            else []
        ),
        *([("exact log-probs", exact_log_probs(config))] if trainer.require_exact_logprobs else []),
        *([("rollout correction", correction(config))] if config.algorithm.rollout_correction.level != "none" else []),
        *([("off-policy mask", off_policy_mask(config))] if off_policy_mask(config) else []),
        *(
            [("key/value cache", f"{rollout.cache_dtype}, and the model {config.model.dtype}")]
            if rollout.cache_dtype != config.model.dtype
            else []
        ),
        *([("recorded experts", recorded_experts(config))] if rollout.record_experts else []),
        ("plans", _plans_text(config)),
        *([("profile", _profile_text(config))] if config.profile.steps else []),
    ]


def _profile_text(config: ExperimentConfig) -> str:
    section = config.profile
    ranks = "all" if section.ranks is None else listed(section.ranks)
    return f"{'/'.join(section.phases)} of steps {listed(section.steps)}, ranks {ranks}, in {config.run_dir}/profile"


def _source_text(config: ExperimentConfig, source: TrainSource, steps: int | None) -> str:
    """Rows and share of a training source, and how often the run passes over it."""
    assert steps is not None, "rows are counted"
    prompts = config.rollout.prompts_per_step
    drawn = float(source.share * prompts)
    return (
        f"{source.num_rows:,} rows, {float(source.share):.1%} of the prompts: {drawn:.4g} of {prompts:,} per step, "
        f"{steps * drawn / source.num_rows:.3g} epochs in the run"
    )


def exact_log_probs(config: ExperimentConfig) -> str:
    """Say when `trainer.require_exact_logprobs` compares."""
    every = config.trainer.exact_logprobs_every
    steps = "each step" if every == 1 else f"steps 1, {1 + every}, {1 + 2 * every}, ..."
    return f"required: sampler and trainer are compared bit for bit before the first update of {steps}"


def recorded_experts(config: ExperimentConfig) -> str:
    """Describe the host memory that recorded routing takes, and how updates use it."""
    model, rollout = config.model, config.rollout
    assert model.num_experts is not None and model.num_experts_per_tok is not None, "config.rules refuses it"
    size = 1 if model.num_experts <= 256 else 2
    layers = len(model.expert_layers)
    per_token = layers * model.num_experts_per_tok * size
    responses = rollout.prompts_per_step * rollout.num_generations
    most = per_token * (responses * rollout.max_new_tokens + rollout.prompts_per_step * config.data.max_prompt_length)
    choices = f"{layers} layers x {model.num_experts_per_tok} experts x {size} byte{'s' * (size > 1)}"
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


def _epochs_text(epochs: int) -> str:
    return f", {epochs} times over the rollout" if epochs > 1 else ""


def _micro_batches(config: ExperimentConfig, samples: int) -> str:
    trainer, replicas = config.trainer, config.plans.train.data_parallel
    balanced = f", balanced over {replicas} replicas" if trainer.balance_batches and replicas > 1 else ""
    if trainer.max_tokens_per_micro_batch is None:
        assert trainer.samples_per_micro_batch is not None
        number = samples // trainer.samples_per_micro_batch
        return f"{number:,} of {trainer.samples_per_micro_batch:,} samples{balanced}"
    rows = "several samples per row" if trainer.packing else "one sample per row"
    return f"as lengths ask for, of up to {trainer.max_tokens_per_micro_batch:,} token slots, {rows}{balanced}"


def _length_text(config: ExperimentConfig) -> str:
    return f"{config.data.max_prompt_length:,} prompt + {config.rollout.max_new_tokens:,} response"


def _steps_text(config: ExperimentConfig, steps: int | None, num_rows: int | None) -> str:
    if config.trainer.max_steps is not None:
        return f"{steps:,}" if num_rows is None else f"{steps:,} (trainer.max_steps), {num_rows:,} rows"
    epochs = config.trainer.epochs
    return f"{epochs} epochs" if steps is None else f"{steps:,} = {epochs} epochs x {num_rows:,} rows"
