"""Rules that join several fields of a config.

Every check yields lines "key: what is wrong, with numbers; what to write instead".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mindgspo.config.algorithm_rules import (
    advantage_problems,
    correction_problems,
    filter_problems,
    group_problems,
    kl_problems,
    loss_problems,
    old_log_prob_problems,
    router_bias_problems,
    router_problems,
)
from mindgspo.config.cache import cache_budget_problems
from mindgspo.config.data import LEAST_TEMPERATURE, OVERALL, OVERALL_REWARD, DataSourceSection, EvalSection
from mindgspo.config.deployment_rules import backend_problems, device_problems, schedule_problems
from mindgspo.config.distillation_rules import distillation_problems
from mindgspo.config.environment import environment_problems
from mindgspo.config.generation import exact_log_prob_problems
from mindgspo.config.lora import rollout_lora_problems
from mindgspo.config.model import ModelSection
from mindgspo.config.model_rules import model_problems
from mindgspo.config.plan import check_infer_plan, check_reference_plan, check_same_world, check_train_plan
from mindgspo.config.profile import profile_problems
from mindgspo.config.reward import SHAPERS, reward_problems
from mindgspo.config.schema import ExperimentConfig, PlansSection
from mindgspo.text import closest, divisors, either, nearest

_BEST = re.compile(r"val-core/(?P<part>.+)/(?P<metric>(?:acc|reward)/[a-z]+@[0-9]+)")
_FILE_FORMATS = ("gsm8k", "verl", "dapo", "math", "aime", "dianjin", "columns")
_SUFFIXES = (".jsonl", ".parquet")
_MOST_GENERATED = 100_000  # more would only repeat problems


def batch_problems(config: ExperimentConfig) -> Iterator[str]:
    """Every violated rule of the batches."""
    prompts, mini = config.rollout.prompts_per_step, config.trainer.prompts_per_mini_batch
    if prompts % mini:
        yield (
            f"trainer.prompts_per_mini_batch: {mini} does not divide rollout.prompts_per_step {prompts}; "
            f"nearest legal: {either(nearest(divisors(prompts), mini))}"
        )
    infer = config.plans.infer
    if not config.has_servers and prompts % infer.data_parallel:
        yield (
            f"plans.infer.data_parallel: {infer.data_parallel} replicas do not share rollout.prompts_per_step "
            f"{prompts} evenly; nearest legal: {either(nearest(divisors(prompts), infer.data_parallel))}"
        )
    trainer = config.trainer
    number, tokens = trainer.samples_per_micro_batch, trainer.max_tokens_per_micro_batch
    if number is None and tokens is None:
        yield (
            "trainer.samples_per_micro_batch: missing; set it, the responses of one pass, or "
            "trainer.max_tokens_per_micro_batch, its token slots"
        )
    elif number is not None and tokens is not None:
        yield (
            f"trainer.max_tokens_per_micro_batch: {tokens} and samples_per_micro_batch {number} both say how large a "
            "micro-batch is; leave one out (--set trainer.samples_per_micro_batch= takes an inherited one back)"
        )
    elif number is not None:
        yield from _number_problems(config, number)
    elif tokens is not None:
        yield from _budget_problems(config, tokens)
    if trainer.packing and tokens is None:
        yield (
            "trainer.packing: true needs trainer.max_tokens_per_micro_batch instead of samples_per_micro_batch, e.g. "
            f"{2 * longest_sample(config)}, two samples of full length"
        )


def longest_sample(config: ExperimentConfig) -> int:
    """Token slots of the longest prompt and response together, rounded up."""
    longest, multiple = config.data.max_prompt_length + config.rollout.max_new_tokens, config.trainer.length_multiple
    return -(-longest // multiple) * multiple


def _budget_problems(config: ExperimentConfig, tokens: int) -> Iterator[str]:
    needed = longest_sample(config)
    if tokens < needed:
        yield (
            f"trainer.max_tokens_per_micro_batch: {tokens} slots do not hold the longest sample, "
            f"data.max_prompt_length {config.data.max_prompt_length} + rollout.max_new_tokens "
            f"{config.rollout.max_new_tokens}, rounded up to a multiple of trainer.length_multiple "
            f"{config.trainer.length_multiple}: {needed}; nearest legal: {needed}"
        )
    train, samples = config.plans.train, _samples(config)
    parts = train.data_parallel * train.micro_batch_num
    if samples < parts:
        yield (
            f"trainer.prompts_per_mini_batch: {samples} samples of a mini-batch do not fill the {parts} micro-batches "
            f"that data_parallel {train.data_parallel} x micro_batch_num {train.micro_batch_num} of plans.train "
            f"compute at once; smallest legal: {-(-parts // config.rollout.num_generations)}"
        )


def _number_problems(config: ExperimentConfig, micro: int) -> Iterator[str]:
    """Every replica must get the same work: whole rounds of micro-batches."""
    mini, group = config.trainer.prompts_per_mini_batch, config.rollout.num_generations
    samples, train = _samples(config), config.plans.train
    if samples % micro:
        yield (
            f"trainer.samples_per_micro_batch: {micro} does not divide the {mini} x {group} = {samples} "
            f"samples of a mini-batch; nearest legal: {either(nearest(divisors(samples), micro))}"
        )
        return
    parts = train.data_parallel * train.micro_batch_num
    if samples // micro % parts:
        legal = [samples // number for number in divisors(samples) if number % parts == 0]
        fix = (
            f"nearest legal trainer.samples_per_micro_batch: {either(nearest(sorted(legal), micro))}"
            if legal
            else f"make the samples of a mini-batch, {samples}, a multiple of {parts}"
        )
        yield (
            f"trainer.samples_per_micro_batch: {micro} makes {samples // micro} micro-batches per update, which "
            f"data_parallel {train.data_parallel} x micro_batch_num {train.micro_batch_num} = {parts} of plans.train "
            f"does not divide; {fix}"
        )


def _samples(config: ExperimentConfig) -> int:
    """Samples of a mini-batch."""
    return config.trainer.prompts_per_mini_batch * config.rollout.num_generations


def eval_problems(config: ExperimentConfig) -> Iterator[str]:
    """Every violated rule about evaluation."""
    section = config.eval
    if section.stop.is_on and section.every is None:
        yield "eval.stop: there are no evaluations between the first and the last step; set eval.every"
    if section.do_sample and section.num_samples > 1:
        yield (
            f"eval.do_sample: with eval.num_samples {section.num_samples} as many are drawn without it, beside a "
            "greedy one; leave it out"
        )
    most = max(section.pass_at_k)
    if most > section.num_samples:
        yield (
            f"eval.pass_at_k: {most} needs as many samples, but eval.num_samples is "
            f"{section.num_samples}; set eval.num_samples={most} or drop {most}"
        )
    else:
        yield from _best_metric_problems(config)


def part_of(best_metric: str | None) -> str | None:
    """The set or data source that a legal eval.best_metric is about; None for all problems together."""
    found = _BEST.fullmatch(best_metric or OVERALL)
    return None if found is None else found["part"]


def evaluation_metrics(section: EvalSection) -> list[str]:
    """The metrics that an evaluation reports for each set or data source."""
    size = section.num_samples
    single = ["acc/mean@1", "reward/mean@1"]
    if size == 1:
        return single
    several = sorted({*section.pass_at_k, size} - {1})
    return [
        *single,
        *(f"{kind}/mean@{size}" for kind in ("acc", "reward")),
        *(f"acc/pass@{k}" for k in section.pass_at_k),
        *(f"acc/maj@{k}" for k in several),
        *(f"reward/best@{k}" for k in several),
    ]


def _best_metric_problems(config: ExperimentConfig) -> Iterator[str]:
    name = config.eval.best_metric
    if name is None or name in (OVERALL, OVERALL_REWARD):
        return
    found, metrics = _BEST.fullmatch(name), evaluation_metrics(config.eval)
    if found is None:
        example = next(iter(config.data.eval_sets)) if config.data.names_eval_sets else "<data source>"
        yield f"eval.best_metric: {name} is no metric of an evaluation; e.g. {OVERALL} or val-core/{example}/acc/mean@1"
        return
    if found["metric"] not in metrics:
        close = closest(found["metric"], metrics, cutoff=0.0)
        yield (
            f"eval.best_metric: {found['metric']} is not computed with eval.num_samples {config.eval.num_samples} and "
            f"eval.pass_at_k {list(config.eval.pass_at_k)}; nearest: val-core/{found['part']}/{close}"
        )
    names = list(config.data.eval_sets)
    if config.data.names_eval_sets and found["part"].split("/")[0] not in names:
        yield f"eval.best_metric: there is no set {found['part']} under data.eval; there are {', '.join(names)}"


def joined_problems(config: ExperimentConfig) -> list[str]:
    """Every violated rule that needs no file."""
    return [
        *model_and_plan_problems(config.model, config.plans),
        *schedule_problems(config),
        *device_problems(config),
        *backend_problems(config),
        *batch_problems(config),
        *_length_problems(config),
        *_sampling_problems(config),
        *rollout_lora_problems(config),
        *exact_log_prob_problems(config),
        *cache_budget_problems(config),
        *eval_problems(config),
        *loss_problems(config),
        *kl_problems(config),
        *old_log_prob_problems(config),
        *router_problems(config),
        *router_bias_problems(config),
        *correction_problems(config),
        *advantage_problems(config),
        *filter_problems(config),
        *distillation_problems(config),
        *reward_problems(config.reward),
        *profile_problems(config.profile, world_size=config.plans.train.world_size, num_steps=config.trainer.max_steps),
        *_environment_problems(config),
        *_data_problems(config),
        *_resume_problems(config),
    ]


def _environment_problems(config: ExperimentConfig) -> Iterator[str]:
    section = config.environment
    if section is None:
        if "environment" in config.reward.functions:
            yield "reward.functions: environment: there is none; set environment.path, or remove the function"
        return
    yield from environment_problems(section, max_new_tokens=config.rollout.max_new_tokens)
    if config.algorithm.advantage.estimator == "remax":
        yield "algorithm.advantage.estimator: remax compares with a greedy response, which environments do not have"


def _resume_problems(config: ExperimentConfig) -> Iterator[str]:
    if config.restore == "weights" and config.resume == "never":
        yield (
            "restore: weights of which checkpoint is for resume to say; set resume=runs/<run>/checkpoints/"
            "step_XXXXXXXX, or restore=all"
        )


def model_and_plan_problems(model: ModelSection, plans: PlansSection) -> list[str]:
    """Every violated rule of these two sections, which need no experiment around them."""
    problems = [
        *model_problems(model),
        *check_train_plan("plans.train", plans.train, model),
        *check_infer_plan("plans.infer", plans.infer, model),
    ]
    if plans.reference is not None:
        problems += check_reference_plan("plans.reference", plans.reference, model)
        problems += check_same_world(plans.train, plans.reference, "plans.reference")
    return problems


def data_sources(config: ExperimentConfig) -> list[tuple[str, DataSourceSection]]:
    """(key, section) of every data set the run reads."""
    sources = [*train_sources(config), *eval_sources(config)]
    if config.warmup is not None and config.warmup.check is not None:
        sources.append(("warmup.check", config.warmup.check))
    return sources


def train_sources(config: ExperimentConfig) -> list[tuple[str, DataSourceSection]]:
    """(key, section) of every source of training prompts."""
    is_list = bool(config.data.train_names)
    return [(f"data.train[{n}]" if is_list else "data.train", one) for n, one in enumerate(config.data.train_sources)]


def eval_sources(config: ExperimentConfig) -> list[tuple[str, DataSourceSection]]:
    """(key, section) of every set of held-out problems."""
    is_named = config.data.names_eval_sets
    return [(f"data.eval.{name}" if is_named else "data.eval", found) for name, found in config.data.eval_sets.items()]


def _length_problems(config: ExperimentConfig) -> Iterator[str]:
    prompt, response = config.data.max_prompt_length, config.rollout.max_new_tokens
    longest = config.model.max_position_embeddings
    if prompt + response > longest:
        room = longest - prompt
        fix = f"rollout.max_new_tokens={room}" if room >= 1 else f"data.max_prompt_length={longest // 2}"
        yield (
            f"rollout.max_new_tokens: {response} + data.max_prompt_length {prompt} = {prompt + response} "
            f"tokens exceed model.max_position_embeddings {longest}; nearest legal: {fix}"
        )


def _sampling_problems(config: ExperimentConfig) -> Iterator[str]:
    yield from group_problems(config)
    if config.rollout.temperature < LEAST_TEMPERATURE:
        yield (
            f"rollout.temperature: {config.rollout.temperature:g} makes all responses of a group equal, so there is "
            f"nothing to compare; set 1.0 (paper), at least {LEAST_TEMPERATURE:g}. Evaluation is greedy by itself"
        )


def _data_problems(config: ExperimentConfig) -> Iterator[str]:
    sources = data_sources(config)
    for key, source in sources:
        if source.format == "arithmetic" and source.path is not None:
            yield f"{key}.path: arithmetic rows are generated; remove the path or change {key}.format"
        if source.format != "arithmetic" and source.path is None:
            yield f"{key}.path: missing; {source.format} rows are read from a file or folder"
        if source.format in _FILE_FORMATS and source.path is not None and source.path.suffix not in _SUFFIXES:
            is_table = source.path.suffix in (".csv", ".tsv", ".json")
            mend = (
                f"`mindgspo init --data {source.path.name}` converts it"
                if is_table
                else f"a folder made by `mindgspo data prepare` needs {key}.format=prepared"
            )
            yield (
                f"{key}.path: {source.format} rows are read from a {' or '.join(_SUFFIXES)} file, got "
                f"{source.path.name} ({mend})"
            )
        yield from source_problems(key, source)
        if source.dedup and source.format == "prepared":
            yield f"{key}.dedup: a prepared folder is used as it is; prepare it with --dedup, or name the raw file"
    raw = [f"{key} is {source.format}" for key, source in sources if source.format in (*_FILE_FORMATS, "mindrlhf")]
    if raw and config.tokenizer.path is None:
        yield (
            f"tokenizer.path: missing; the built-in tokenizer knows only the arithmetic task, but {raw[0]} "
            f"(a Hugging Face model folder usually holds its tokenizer)"
        )
    yield from _split_problems(sources)
    yield from _mixture_problems(config)
    yield from _curriculum_problems(config)
    warmup = config.warmup
    if warmup is not None and warmup.stop_at_accuracy is not None and warmup.check is None:
        yield (
            "warmup.check: missing; stop_at_accuracy is measured on its rows, e.g. "
            "{format: arithmetic, split: dev, max_rows: 256}"
        )


def _mixture_problems(config: ExperimentConfig) -> Iterator[str]:
    """Rules of the sources of a list: names of their own, and a weight in all of them or in none."""
    train = config.data.train
    if isinstance(train, DataSourceSection):
        return
    names = config.data.train_names
    for number, name in enumerate(names):
        if (first := names.index(name)) != number:
            yield f"data.train[{number}].name: {name} is the name of data.train[{first}]; give each a name of its own"
    weighted = next((number for number, one in enumerate(train) if one.weight is not None), None)
    for number, one in enumerate(train):
        if weighted is not None and one.weight is None:
            yield (
                f"data.train[{number}].weight: missing, but data.train[{weighted}] has one; give each source a weight, "
                "or none, which draws all rows equally often"
            )


def _curriculum_problems(config: ExperimentConfig) -> Iterator[str]:
    """Rules of the curriculum: its pass rates must be able to tell rows apart."""
    section = config.data.curriculum
    if section is None:
        return
    if section.min_pass_rate >= section.max_pass_rate:
        yield (
            f"data.curriculum.min_pass_rate: {section.min_pass_rate:g} is not below max_pass_rate "
            f"{section.max_pass_rate:g}, so every row would rest"
        )
    if config.rollout.num_generations == 1:
        yield (
            "data.curriculum: with rollout.num_generations 1 every row counts as always or never solved; set 2 or "
            "more, or remove it"
        )
    if all(name in SHAPERS for name in config.reward.functions):
        yield (
            f"data.curriculum: none of reward.functions ({', '.join(config.reward.functions)}) says whether an answer "
            "is right; add one that does, or remove it"
        )


def source_problems(key: str, source: DataSourceSection) -> Iterator[str]:
    """Rules of one source that need no file."""
    yield from columns_problems(key, source)
    if source.format == "arithmetic" and (source.max_rows or 0) > _MOST_GENERATED:
        yield (
            f"{key}.max_rows: {source.max_rows:,} rows of a task that has a few thousand problems; largest legal: "
            f"{_MOST_GENERATED:,}"
        )
    if source.format != "arithmetic" and source.operation is not None:
        yield f"{key}.operation: {source.operation} selects generated arithmetic rows; remove it from {source.format}"


def columns_problems(key: str, source: DataSourceSection) -> Iterator[str]:
    """Rules of a source's `columns`: there if, and only if, the format reads them; one name of the data source."""
    columns = source.columns
    if columns is None:
        if source.format == "columns":
            yield (
                f"{key}.columns: missing; format columns needs to know which columns hold what, e.g. "
                "{prompt: question, answer: final_answer, data_source_name: math}"
            )
        return
    if source.format != "columns":
        yield (
            f"{key}.columns: read with format columns only, but the format is {source.format}; remove it or set "
            "format=columns"
        )
    if columns.data_source is not None and columns.data_source_name is not None:
        yield f"{key}.columns.data_source_name: data_source names a column with it already; remove one of the two"
    if columns.data_source is None and columns.data_source_name is None:
        yield (
            f"{key}.columns.data_source_name: missing; give one name for all rows (math, gsm8k, ...: "
            "reward.functions=[auto] goes by it), or data_source, the column that holds it"
        )


def _split_problems(sources: list[tuple[str, DataSourceSection]]) -> Iterator[str]:
    """Splits are disjoint by construction, and so are sums and differences; two sources on one of them share rows."""
    generated = [(key, source) for key, source in sources if source.format == "arithmetic"]
    free = [split for split in ("train", "dev", "test") if all(source.split != split for _, source in generated)]
    nearest = " or ".join(free) or "operation: + for one of them and - for the other"
    for number, (key, source) in enumerate(generated):
        for other, first in generated[:number]:
            is_apart = source.operation != first.operation and None not in (source.operation, first.operation)
            if source.split == first.split and not is_apart:
                yield (
                    f"{key}.split: {source.split} is already the split of {other}, so they share rows; "
                    f"nearest legal: {nearest}"
                )
                break
