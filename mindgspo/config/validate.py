"""Rules that join several fields of a config; those of one field stand in `config.schema`.

What enters: a resolved config. What leaves: lines "key: what is wrong, with numbers; what to write instead",
all of them at once, empty when all is well. Called by `config.load`. The rules of `algorithm` fill files of their own:
`algorithm_rules`, `penalty_rules`, `advantage_rules`; those of `reward` are in `reward_rules`, those of `eval` in
`eval_rules`, those of one device in `ascend_rules`, those of `model.backend` in `backend_rules`, those of a
step's batches in `batch_rules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mindgspo.config.advantage_rules import advantage_problems, group_problems
from mindgspo.config.algorithm_rules import loss_problems
from mindgspo.config.ascend_rules import device_problems
from mindgspo.config.backend_rules import backend_problems
from mindgspo.config.batch_rules import batch_problems
from mindgspo.config.data_section import DataSourceSection
from mindgspo.config.eval_rules import eval_problems
from mindgspo.config.families import FAMILIES
from mindgspo.config.filter_rules import filter_problems
from mindgspo.config.legal import divisors, nearest
from mindgspo.config.model_section import ModelSection
from mindgspo.config.penalty_rules import correction_problems, kl_problems, old_log_prob_problems
from mindgspo.config.plan import check_infer_plan, check_reference_plan, check_same_world, check_train_plan
from mindgspo.config.reward_rules import reward_file_problems, reward_problems
from mindgspo.config.schema import ExperimentConfig, PlansSection
from mindgspo.text import either

_FILE_FORMATS = ("gsm8k", "verl", "dapo", "math", "aime", "dianjin", "columns")
_SUFFIXES = (".jsonl", ".parquet")


def joined_problems(config: ExperimentConfig) -> list[str]:
    """Every violated rule that needs no file."""
    return [
        *model_and_plan_problems(config.model, config.plans),
        *device_problems(config),
        *backend_problems(config),
        *batch_problems(config),
        *_length_problems(config),
        *_sampling_problems(config),
        *eval_problems(config),
        *loss_problems(config),
        *kl_problems(config),
        *old_log_prob_problems(config),
        *correction_problems(config),
        *advantage_problems(config),
        *filter_problems(config),
        *reward_problems(config.reward),
        *_data_problems(config),
        *_resume_problems(config),
    ]


def _resume_problems(config: ExperimentConfig) -> Iterator[str]:
    if config.restore == "weights" and config.resume == "never":
        yield (
            "restore: weights of which checkpoint is for resume to say; set resume=runs/<run>/checkpoints/"
            "step_XXXXXXXX, or restore=all"
        )


def model_and_plan_problems(model: ModelSection, plans: PlansSection) -> list[str]:
    """Every violated rule of these two sections, which need no experiment around them."""
    problems = [
        *_model_problems(model),
        *check_train_plan("plans.train", plans.train, model),
        *check_infer_plan("plans.infer", plans.infer, model),
        *check_same_world(plans.train, plans.infer, "plans.infer"),
    ]
    if plans.reference is not None:
        problems += check_reference_plan("plans.reference", plans.reference, model)
        problems += check_same_world(plans.train, plans.reference, "plans.reference")
    return problems


def file_problems(config: ExperimentConfig) -> list[str]:
    """Every input path that does not exist, or is a file where a folder is read, or the reverse."""
    paths = [("model.path", config.model.path), ("tokenizer.path", config.tokenizer.path)]
    paths += [(f"{key}.path", source.path) for key, source in data_sources(config)]
    missing = [_missing(key, path) for key, path in paths if path is not None and not path.exists()]
    return [*missing, *_wrong_kinds(config), *reward_file_problems(config.reward)]


def data_sources(config: ExperimentConfig) -> list[tuple[str, DataSourceSection]]:
    """(key, section) of every data set the run reads."""
    sources = [("data.train", config.data.train), *eval_sources(config)]
    if config.warmup is not None and config.warmup.check is not None:
        sources.append(("warmup.check", config.warmup.check))
    return sources


def eval_sources(config: ExperimentConfig) -> list[tuple[str, DataSourceSection]]:
    """(key, section) of every set of held-out problems."""
    is_named = config.data.names_eval_sets
    return [(f"data.eval.{name}" if is_named else "data.eval", found) for name, found in config.data.eval_sets.items()]


def _missing(key: str, path: Path) -> str:
    folder = next(parent for parent in path.parents if parent.exists())
    return f"{key}: {path} does not exist (nearest existing folder: {folder}); set it with --set {key}=..."


def _wrong_kinds(config: ExperimentConfig) -> Iterator[str]:
    weights = config.model.path
    if weights is not None and weights.is_file():
        yield f"model.path: {weights} is a file; give the folder with config.json and *.safetensors"
    for key, source in data_sources(config):
        if source.format == "prepared" and source.path is not None and source.path.is_file():
            yield f"{key}.path: {source.path} is a file; give the prepared folder, or set {key}.format"


def _model_problems(model: ModelSection) -> Iterator[str]:
    heads, kv_heads = model.num_attention_heads, model.num_key_value_heads
    yield from _head_dim_problems(model)
    yield from _expert_problems(model)
    yield from _rope_scaling_problems(model)
    if heads % kv_heads:
        yield (
            f"model.num_key_value_heads: {kv_heads} does not divide num_attention_heads {heads}; "
            f"nearest legal: {either(nearest(divisors(heads), kv_heads))}"
        )


def _head_dim_problems(model: ModelSection) -> Iterator[str]:
    hidden, heads, head_dim = model.hidden_size, model.num_attention_heads, model.head_dim
    if head_dim is None or head_dim * heads == hidden:
        if hidden % heads or (hidden // heads) % 2:
            legal = [size for size in divisors(hidden) if (hidden // size) % 2 == 0]
            fix = f"nearest legal heads: {either(nearest(legal, heads))}" if legal else "use an even width"
            own = "; or set model.head_dim" if FAMILIES[model.architecture].has_own_head_dim else ""
            yield (
                f"model.hidden_size: {hidden} / num_attention_heads {heads} = {hidden / heads:g} must be an even "
                f"whole number (RoPE turns pairs); {fix}{own}"
            )
    elif not FAMILIES[model.architecture].has_own_head_dim:
        yield (
            f"model.head_dim: {head_dim} x {heads} attention heads = {head_dim * heads} is not hidden_size {hidden}, "
            f"as it must be for {model.architecture}; remove it, or set model.architecture=qwen3"
        )
    elif head_dim % 2:
        yield (
            f"model.head_dim: {head_dim} must be even (RoPE turns pairs); nearest legal: "
            f"{either([head_dim - 1, head_dim + 1] if head_dim > 1 else [2])}"
        )


def _expert_problems(model: ModelSection) -> Iterator[str]:
    sizes = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
    if not FAMILIES[model.architecture].has_experts:
        for name in (*sizes, "norm_topk_prob"):
            if getattr(model, name):
                yield (
                    f"model.{name}: {model.architecture} has no experts; remove it, or set model.architecture=qwen3_moe"
                )
        return
    missing = [name for name in sizes if getattr(model, name) is None]
    for name in missing:
        yield f"model.{name}: {model.architecture} needs it; take it from the model's config.json"
    if not missing and model.num_experts_per_tok > model.num_experts:
        yield (
            f"model.num_experts_per_tok: {model.num_experts_per_tok} is more than num_experts {model.num_experts}; "
            f"largest legal: {model.num_experts}"
        )


def _rope_scaling_problems(model: ModelSection) -> Iterator[str]:
    scaling = model.rope_scaling
    if scaling is None:
        return
    if not FAMILIES[model.architecture].scales_rope:
        yield f"model.rope_scaling: not implemented for {model.architecture}; remove it"
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        yield (
            f"model.rope_scaling.high_freq_factor: {scaling.high_freq_factor:g} must be more than low_freq_factor "
            f"{scaling.low_freq_factor:g}"
        )


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
    if config.rollout.temperature == 0:
        yield (
            "rollout.temperature: 0 makes all responses of a group equal, so there is nothing to compare; set 1.0 "
            "(paper). Evaluation is greedy by itself"
        )


def _data_problems(config: ExperimentConfig) -> Iterator[str]:
    sources = data_sources(config)
    for key, source in sources:
        if source.format == "arithmetic" and source.path is not None:
            yield f"{key}.path: arithmetic rows are generated; remove the path or change {key}.format"
        if source.format != "arithmetic" and source.path is None:
            yield f"{key}.path: missing; {source.format} rows are read from a file or folder"
        if source.format in _FILE_FORMATS and source.path is not None and source.path.suffix not in _SUFFIXES:
            yield (
                f"{key}.path: {source.format} rows are read from a {' or '.join(_SUFFIXES)} file, got "
                f"{source.path.name} (a folder made by `mindgspo data prepare` needs {key}.format=prepared)"
            )
        yield from columns_problems(key, source)
        if source.dedup and source.format == "prepared":
            yield f"{key}.dedup: a prepared folder is used as it is; prepare it with --dedup, or name the raw file"
    raw = [f"{key} is {source.format}" for key, source in sources if source.format in _FILE_FORMATS]
    if raw and config.tokenizer.path is None:
        yield (
            f"tokenizer.path: missing; the built-in tokenizer knows only the arithmetic task, but {raw[0]} "
            f"(a Hugging Face model folder usually holds its tokenizer)"
        )
    yield from _split_problems(sources)
    warmup = config.warmup
    if warmup is not None and warmup.stop_at_accuracy is not None and warmup.check is None:
        yield (
            "warmup.check: missing; stop_at_accuracy is measured on its rows, e.g. "
            "{format: arithmetic, split: dev, max_rows: 256}"
        )


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
    """Splits are disjoint by construction; two sources on one split would share rows."""
    used = {source.split for _, source in sources if source.format == "arithmetic"}
    first_on: dict[str, str] = {}
    for key, source in sources:
        if source.format != "arithmetic":
            continue
        other = first_on.setdefault(source.split, key)
        if other != key:
            free = [split for split in ("train", "dev", "test") if split not in used]
            yield (
                f"{key}.split: {source.split} is already the split of {other}, so they share rows; "
                f"nearest legal: {' or '.join(free)}"
            )
