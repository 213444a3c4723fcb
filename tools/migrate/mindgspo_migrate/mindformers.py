"""MindFormers' finetune and predict YAML as an experiment: the special cases of mindformers.yaml, and what several keys
decide together.

A finetune YAML holds the plan of training, a predict YAML that of generation. Both are supervised or serving
configurations, so what a policy optimisation needs besides (prompts, group, reward) is assumed or still to be set.
`mindrlhf` takes the model and the tokenizer from such files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import lcm
from pathlib import Path
from typing import Any

from mindgspo.config.model import FAMILIES
from mindgspo.errors import ConfigError
from mindgspo_migrate import adapters
from mindgspo_migrate.experiment import INFER, SIZES, TRAIN, Experiment, schema_default
from mindgspo_migrate.models import take_sizes
from mindgspo_migrate.sources import Source
from mindgspo_migrate.tables import (
    Finding,
    Outcome,
    Row,
    Settings,
    Status,
    adjusted,
    flag,
    load_table,
    local_path,
    mapped,
    not_implemented,
    not_needed,
    number,
    run_name,
    text,
    whole,
)

_PLAN, _SCHEDULE, _CONFIG, _TOKENIZER = "parallel_config", "lr_schedule", "model.model_config", "processor.tokenizer"
_BIASES, _NORMS = ("qkv_has_bias", "attention_bias", "add_qkv_bias"), ("qk_layernorm", "use_qk_norm")
_FAMILY_KEYS = ("type", "model_type", "architectures", *_BIASES, *_NORMS, "multi_latent_attention")
_EXPERTS = tuple(f"{_CONFIG}.{name}" for name in ("num_experts", "n_routed_experts", "num_moe_experts"))
_SHARED = tuple(f"{_CONFIG}.{name}" for name in ("n_shared_experts", "shared_expert_num"))
_LAYERS_TELL = "LlamaConfig"
_GLM = {"ChatGLM2Config": "glm", "ChatGLM2ForConditionalGeneration": "glm"}
"""Legacy classes of GLM-4 of 2024, whose rotary embedding turns half of each head."""
_CLASSES = re.compile(r"(Parallel|Inference|Training)?(Llama|Qwen2|Qwen2_5|Qwen3|Qwen3Moe)ForCausalLM(_MF)?")
_THETA = {"rope_theta": 10_000.0}
_OF_CLASSES: Mapping[str, Mapping[str, Any]] = {
    "qwen3": {**_THETA, "head_dim": 128},
    "qwen3_moe": _THETA,
    "glm4": {**_THETA, "partial_rotary_factor": 0.5, "head_dim": 128},
    "glm4_moe": {**_THETA, "partial_rotary_factor": 0.5, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "deepseek_v3": {
        **{**_THETA, "vocab_size": 129_280, "hidden_size": 7168, "intermediate_size": 18_432, "num_hidden_layers": 61},
        **{"num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128},
        **{"qk_rope_head_dim": 64, "v_head_dim": 128, "num_experts": 256, "num_experts_per_tok": 8},
        **{"moe_intermediate_size": 2048, "norm_topk_prob": True, "n_shared_experts": 1, "first_k_dense_replace": 3},
        **{"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1},
        **{"max_position_embeddings": 4096, "rms_norm_eps": 1e-6},
    },
}
"""Defaults of the classes of configurations by model_type, where they are not ours."""
_YARN = {"factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 0.707}
_LENGTH = 4096
"""Defaults of latent attention's YaRN, and the length that it stretches."""
_TYPES = ("float32", "bfloat16", "float16")
_GROUP, _UPDATES, _PROMPTS_PER_UPDATE = 16, 4, 32
# In a second file: keys that count though they set nothing by themselves, and targets in which a predict file wins.
_OF_PREDICT = (*(f"{_PLAN}.{name}" for name in (*SIZES, "vocab_emb_dp")), "use_parallel", "run_mode", "processor.")
_OF_MODEL = (*(f"{_CONFIG}.{name}" for name in _FAMILY_KEYS), "processor.")
_TOKENS = ("tokenizer.eos_tokens", "tokenizer.pad_token")


def has_cosine(settings: Settings) -> bool:
    return settings[f"{_SCHEDULE}.type"] == "CosineWithWarmUpLR"


def no_rate_in_schedule(settings: Settings) -> bool:
    return f"{_SCHEDULE}.learning_rate" not in settings


def embeddings_not_given(settings: Settings) -> bool:
    return f"{_CONFIG}.tie_word_embeddings" not in settings


def has_adapters(settings: Settings) -> bool:
    return settings[f"{_CONFIG}.pet_config.pet_type"] == "lora"


def is_stretched(settings: Settings) -> bool:
    return settings[f"{_CONFIG}.position_embedding_type"] == "yarn" and _has_latents(settings)


def run_mode(value: Any, settings: Settings, row: Row) -> Outcome:
    if value not in ("finetune", "train", "predict"):
        raise ValueError(f"expected finetune, train or predict, got {value!r}; read as one that trains")
    return mapped({})


def weights(value: Any, settings: Settings, row: Row) -> Outcome:
    if not value:
        return not_needed("none is given; set model.path to a Hugging Face folder")
    if settings["load_ckpt_format"] == "ckpt":
        return not_implemented(
            "weights are read from Hugging Face folders: `mindgspo convert weights`, then set model.path"
        )
    return mapped({"model.path": local_path(value)}, "must be a Hugging Face folder (config.json + *.safetensors)")


def pretrained(value: Any, settings: Settings, row: Row) -> Outcome:
    path = local_path(value)
    return mapped({"model.path": path, "tokenizer.path": path}, "sizes from its config.json, or by its name")


def last_rate(value: Any, settings: Settings, row: Row) -> Outcome:
    peak = settings.first(f"{_SCHEDULE}.learning_rate", "optimizer.learning_rate")
    if peak is None or number(peak) <= 0:
        return not_implemented("set optimizer.min_lr_ratio")
    return mapped({row.target: number(value) / number(peak)}, "lr_end / learning_rate")


def warmup_steps(value: Any, settings: Settings, row: Row) -> Any:
    if whole(value) == 0:
        return not_needed("no rise") if f"{_SCHEDULE}.warmup_ratio" in settings else 0.0
    return not_implemented(f"set optimizer.warmup_ratio to {value} / number of updates")


def clip_grad(value: Any, settings: Settings, row: Row) -> Outcome:
    if flag(value):
        return not_needed("gradients are always clipped, to optimizer.max_grad_norm")
    return not_implemented("gradients are always clipped; a large optimizer.max_grad_norm clips nothing")


def resume(value: Any, settings: Settings, row: Row) -> Any:
    return "auto" if value is True or (isinstance(value, str) and value) else not_needed("resume=never, as by default")


def recompute(value: Any, settings: Settings, row: Row) -> Outcome:
    """From a switch, or from a list of layers per stage; also of MindRLHF."""
    if isinstance(value, list) and any(value):
        return adjusted({row.target: "full"}, "every layer is computed again, or none")
    is_on = not isinstance(value, list) and flag(value)
    return mapped({row.target: "full"}) if is_on else not_needed("no layer is computed again")


def selective(value: Any, settings: Settings, row: Row) -> Outcome:
    """The same from the switch or the list of operators beside it; also of MindRLHF."""
    whole_layers = settings[row.source.replace("select_recompute*", "recompute")]
    if whole_layers is True or (isinstance(whole_layers, list) and any(whole_layers)):
        return not_needed("every layer is computed again as a whole")
    if not value or (isinstance(value, list) and not any(value)):
        return not_needed("no operator is computed again")
    return mapped({row.target: "selective"})


def recompute_mode(value: Any, settings: Settings, row: Row) -> Outcome:
    if value in ("full", "select"):
        return mapped({row.target: "full" if value == "full" else "selective"})
    return not_needed("no layer is computed again")


def replicas(value: Any, settings: Settings, row: Row) -> Outcome:
    if whole(value) < 1:
        return not_implemented("as many as cards are left, which the file does not say; set plans.train.data_parallel")
    return mapped({row.target: whole(value)})


def sharded(value: Any, settings: Settings, row: Row) -> Outcome:
    if text(value) == "optim":
        return mapped({row.target: True})
    return adjusted({row.target: True}, "the optimizer state is split; gradients and weights stay whole")


def device(value: Any, settings: Settings, row: Row) -> Any:
    """Also of MindRLHF."""
    return value if value in ("Ascend", "CPU") else adjusted({"device": "Ascend"}, "runs on Ascend or CPU only")


def experiment_name(value: Any, settings: Settings, row: Row) -> Any:
    return run_name(f"{text(value)}-gspo")


def tokenizer_file(value: Any, settings: Settings, row: Row) -> Outcome:
    return mapped({}) if value else not_needed("none is given")


def config_class(value: Any, settings: Settings, row: Row) -> Outcome:
    if isinstance(value, str) and value in _GLM:
        return mapped({"model.partial_rotary_factor": 0.5})
    return mapped({}, "the layers tell the family") if value == _LAYERS_TELL else _another_family()


def rope_ratio(value: Any, settings: Settings, row: Row) -> Outcome:
    return mapped({row.target: 10_000.0 * number(value)}, "times 10,000")


def model_class(value: Any, settings: Settings, row: Row) -> Outcome:
    is_known = str(value) in _GLM or _CLASSES.fullmatch(str(value))
    return mapped({}, "the layers tell the family") if is_known else _another_family()


def model_type(value: Any, settings: Settings, row: Row) -> Outcome:
    return mapped({}) if str(value) in FAMILIES else _another_family()


def _another_family() -> Outcome:
    return not_implemented(f"model.architecture is one of {', '.join(FAMILIES)}")


def dtype(value: Any, settings: Settings, row: Row) -> str:
    if value not in _TYPES:
        raise ValueError(f"expected one of {', '.join(_TYPES)}, got {value!r}")
    return value


def head_dim_of_kv(value: Any, settings: Settings, row: Row) -> Any:
    heads = settings.first(f"{_CONFIG}.num_heads", f"{_CONFIG}.num_attention_heads")
    hidden = settings[f"{_CONFIG}.hidden_size"]
    if isinstance(heads, int) and isinstance(hidden, int) and heads > 0 and whole(value) * heads == hidden:
        return not_needed("hidden_size / num_heads, as without it")
    return whole(value)


def untied(value: Any, settings: Settings, row: Row) -> bool:
    return not flag(value)


def extension(value: Any, settings: Settings, row: Row) -> Outcome:
    if str(value).lower() == "none":
        return not_needed("no extension")
    if str(value).upper() == "LLAMA3":
        return not_needed("scaling_factor has its numbers")
    return not_implemented("set model.rope_scaling: rope_type and its numbers")


def pet_type(value: Any, settings: Settings, row: Row) -> Outcome:
    return mapped({}) if has_adapters(settings) else not_implemented("adapters are LoRA's: set model.lora")


def shared_width(value: Any, settings: Settings, row: Row) -> Outcome:
    count = settings.first(f"{_CONFIG}.n_shared_experts", f"{_CONFIG}.shared_expert_num")
    size = settings.first(f"{_CONFIG}.moe_intermediate_size", f"{_CONFIG}.moe_ffn_hidden_size")
    if count is None or size is None or whole(count) * whole(size) == whole(value):
        return not_needed("n_shared_experts x moe_intermediate_size")
    return not_implemented("shared experts have n_shared_experts x moe_intermediate_size")


def router_scale(value: Any, settings: Settings, row: Row) -> Outcome:
    if value is None or (number(value) != 1 and _architecture(settings) == "qwen3_moe"):
        return not_needed("none") if value is None else not_implemented("qwen3_moe's router has no factor")
    return mapped({row.target: number(value)})


def scores(value: Any, settings: Settings, row: Row) -> Outcome:
    wanted = "softmax" if _architecture(settings) == "qwen3_moe" else "sigmoid"
    return not_needed("as it is here") if value == wanted else not_implemented(f"{wanted} in this family")


def positions(value: Any, settings: Settings, row: Row) -> Outcome:
    if value in ("rope", "partial_rope"):
        return not_needed("as trained")
    if is_stretched(settings):
        return mapped({row.target: "yarn"})
    return not_implemented("rotary; if stretched, set model.rope_scaling")


def mscale(value: Any, settings: Settings, row: Row) -> Any:
    of_scores = settings[f"{_CONFIG}.mscale_all_dim"]
    if number(value) != number(_YARN["mscale_all_dim"] if of_scores is None else of_scores):
        return not_implemented("mscale_all_dim says how scores are scaled; weights trained with another differ")
    return number(value)


def bare_scaling(value: Any, settings: Settings, row: Row) -> Outcome:
    if is_stretched(settings):
        return mapped({row.target: number(value)})
    if number(value) == 1:
        return not_needed("1: not stretched")
    return not_implemented("set model.rope_scaling: rope_type and its numbers")


TABLE = load_table("mindformers", globals() | adapters.FUNCTIONS)


def fill(sources: Sequence[Source], experiment: Experiment) -> None:
    """The experiment of a finetune file, a predict file, or both. Raises ConfigError for two of a kind."""
    predict = [source for source in sources if is_predict(source)]
    finetune = [source for source in sources if not is_predict(source)]
    if len(predict) > 1 or len(finetune) > 1:
        mode = sources[0].reading.values.get("run_mode", "not given")
        raise ConfigError(
            f"{sources[1].path}: run_mode is {mode} in both files; give one of training and one of predict"
        )
    if finetune:
        settings = experiment.apply(TABLE, finetune[0])
        experiment.findings = [_of_plan(finding, TRAIN) for finding in experiment.findings]
        _fill_model(settings, experiment)
        _fill_train_plan(settings, experiment)
        _fill_lengths(settings, experiment)
    if predict:
        _fill_predict(predict[0], experiment, is_alone=not finetune)
    experiment.name_after(sources[0])
    experiment.assume_infer_plan()
    if finetune:
        experiment.spread_infer_plan()
    else:
        _assume_train_plan(experiment)
    _assume_batches(experiment)


def is_predict(source: Source) -> bool:
    """Whether a file is one of generation."""
    return source.reading.values.get("run_mode") == "predict"


def fill_model(source: Source, experiment: Experiment) -> None:
    """Only the model and the tokenizer of a file that another suite's file names."""
    own = Experiment()
    settings = own.apply(TABLE, source, with_defaults=False)
    _fill_model(settings, own)
    wanted = ("model.", "tokenizer.", "trainer.max_ratio_error")
    own.values = {target: value for target, value in own.values.items() if target.startswith(wanted)}
    text = "of such a file MindRLHF reads the model and the tokenizer only"
    own.findings = [
        finding
        if finding.status is Status.ASSUMED or finding.source.startswith(("model.", "processor."))
        else replace(finding, status=Status.NOT_NEEDED, targets=(), text=text)
        for finding in own.findings
    ]
    _merge(own, experiment, joined=_OF_MODEL, winning=_TOKENS if is_predict(source) else (), plan=TRAIN)


def _fill_model(settings: Settings, experiment: Experiment) -> None:
    """Family, folder and sizes of the model, and the tokenizer's folder."""
    family = _architecture(settings)
    if family is not None:
        experiment.set({"model.architecture": family}, "what the layers of model.model_config have")
    elif (path := experiment.get("model.path")) is not None:
        take_sizes(experiment, "pretrained_model_dir", str(path), fill=True)
    if family in FAMILIES:
        _fill_family(family, settings, experiment)
    experiment.assume_rounding()
    files = [settings[f"{_TOKENIZER}.{name}"] for name in ("vocab_file", "merges_file")]
    folders = {str(Path(str(file)).parent) for file in files if file}
    if all(files) and len(folders) == 1:
        experiment.set({"tokenizer.path": local_path(folders.pop())}, f"{_TOKENIZER}.vocab_file and .merges_file")
    elif len(folders) > 1:
        why = "in another folder than vocab_file: put them together"
        experiment.report(Status.NOT_IMPLEMENTED, f"{_TOKENIZER}.merges_file", files[1], why)


def _fill_family(family: str, settings: Settings, experiment: Experiment) -> None:
    """What a family leaves open, and the defaults of its class where no folder has them."""
    own = {"attention_bias": (_BIASES, FAMILIES[family].has_attention_bias),
           "use_qk_norm": (_NORMS, FAMILIES[family].has_head_norms)}  # fmt: skip
    for name, (keys, fixed) in own.items():
        for key in keys:
            if fixed is None and f"{_CONFIG}.{key}" in settings:
                experiment.set({f"model.{name}": settings.is_on(f"{_CONFIG}.{key}")}, f"{_CONFIG}.{key}")
    if settings[f"{_CONFIG}.model_type"] == family and experiment.get("model.path") is None:
        for name, value in _OF_CLASSES.get(family, {}).items():
            if experiment.get(f"model.{name}") is None and value != schema_default(f"model.{name}"):
                experiment.assume(f"model.{name}", value, f"{_CONFIG}.{name}, its default")
    if not FAMILIES[family].has_latent_attention:
        return
    if is_stretched(settings):
        for name, value in _YARN.items():
            if experiment.get(f"model.rope_scaling.{name}") is None:
                experiment.assume(f"model.rope_scaling.{name}", value, "YaRN's default of latent attention there")
        length = experiment.get("model.max_position_embeddings", _LENGTH)
        why = "YaRN there stretches max_position_embeddings"
        experiment.assume("model.rope_scaling.original_max_position_embeddings", length, why)
    heads = experiment.get("model.num_attention_heads")
    if heads is not None and experiment.get("model.num_key_value_heads") != heads:
        experiment.assume("model.num_key_value_heads", heads, "latent attention", "every head has its own")


def _architecture(settings: Settings) -> str | None:
    """`model.architecture`: by model_type, else by what the layers have; None if the file holds no sizes of a model.

    The name of a family that is not implemented stays, so that it is refused and not taken for another.
    """
    named, kind = settings[f"{_CONFIG}.model_type"], settings[f"{_CONFIG}.type"]
    built = settings["model.arch.type"]
    if built is not None and not _CLASSES.fullmatch(str(built)):
        return _GLM.get(
            str(built), str(built)
        )  # whatever the configuration's class says: Baichuan2 has LlamaConfig, too
    if named is not None:
        return str(named)
    if kind not in (None, _LAYERS_TELL):
        return _GLM.get(str(kind), str(kind))
    if settings.first(f"{_CONFIG}.num_layers", f"{_CONFIG}.num_hidden_layers") is None:
        return None
    if _has_latents(settings):
        return "deepseek_v3"
    if settings.first(*_SHARED) is not None:
        return "glm4_moe"
    if settings.first(*_EXPERTS) is not None:
        return "qwen3_moe"
    if settings.is_on(f"{_CONFIG}.qk_layernorm"):
        return "qwen3"
    return "qwen2" if any(settings.is_on(f"{_CONFIG}.{key}") for key in _BIASES) else "llama"


def _has_latents(settings: Settings) -> bool:
    named = settings[f"{_CONFIG}.model_type"]
    return named == "deepseek_v3" or (named is None and settings.is_on(f"{_CONFIG}.multi_latent_attention"))


def _fill_sizes(settings: Settings, experiment: Experiment, plan: str) -> None:
    """The sizes of a plan as the file gives them; one card where it says that nothing is parallel."""
    names = [name for name in SIZES if f"{_PLAN}.{name}" in settings]
    if not settings.is_on("use_parallel") and "use_parallel" in settings:
        names = []
        why = f"{plan} is one card, whatever {_PLAN} says"
        experiment.report(Status.ADJUSTED, "use_parallel", False, why)
    for name in names:
        experiment.set({f"{plan}.{name}": settings.size(f"{_PLAN}.{name}")}, f"{_PLAN}.{name}")
    key = f"{_PLAN}.vocab_emb_dp"
    if key in settings:
        experiment.set({f"{plan}.vocab_emb_dp": settings.is_on(key)}, key)


def _fill_train_plan(settings: Settings, experiment: Experiment) -> None:
    _fill_sizes(settings, experiment, TRAIN)
    for key, target in (
        (f"{_PLAN}.use_seq_parallel", f"{TRAIN}.use_seq_parallel"),
        (f"{_PLAN}.optimizer_shard", f"{TRAIN}.optimizer_shard"),
        ("parallel.enable_parallel_optimizer", f"{TRAIN}.optimizer_shard"),
    ):
        if key in settings:
            experiment.set({target: settings.is_on(key)}, key)
    key = f"{_PLAN}.micro_batch_num"
    if key in settings:
        experiment.set({f"{TRAIN}.micro_batch_num": settings.size(key)}, key)
    else:
        experiment.assume_micro_batches()
    experiment.drop_what_has_no_effect()
    if experiment.count(f"{TRAIN}.expert_parallel") > 1 and experiment.count(f"{TRAIN}.model_parallel") > 1:
        why = "expert_parallel has whole experts there"
        experiment.assume(f"{TRAIN}.expert_tensor_parallel", 1, why)
    key = "runner_config.batch_size"
    if key in settings:
        experiment.set({"trainer.samples_per_micro_batch": settings.size(key)}, key)


def _fill_lengths(settings: Settings, experiment: Experiment) -> None:
    """Prompt and response of a file that only says how long both are together."""
    key = f"{_CONFIG}.seq_length"
    if key not in settings or experiment.get("data.max_prompt_length") is not None:
        return
    longest = settings.size(key)
    prompt = max(1, min(2048, longest // 4))
    why = f"{key} = {longest} is prompt and response together"
    experiment.assume("data.max_prompt_length", prompt, why, "a quarter, at most 2048")
    experiment.assume("rollout.max_new_tokens", max(1, longest - prompt), why, "the rest")


def _fill_predict(source: Source, experiment: Experiment, *, is_alone: bool) -> None:
    """A predict file: the plan of generation and its end tokens; the rest counts where no other file says it."""
    own = Experiment()
    settings = own.apply(TABLE, source, with_defaults=False)
    _fill_model(settings, own)
    joined = (*_OF_PREDICT, "model.") if is_alone else _OF_PREDICT
    _merge(own, experiment, joined=joined, winning=_TOKENS, plan=INFER)
    _fill_sizes(settings, experiment, INFER)
    if is_alone:
        _fill_lengths(settings, experiment)


def _assume_train_plan(experiment: Experiment) -> None:
    """Of a predict file alone: training on the cards that it generates on."""
    why, how = "no plan of training is given", "that of generation"
    for name in ("data_parallel", "model_parallel"):
        experiment.assume(f"{TRAIN}.{name}", experiment.get(f"{INFER}.{name}", 1), why, how)
    rest = experiment.cards(INFER) // experiment.cards(TRAIN)
    if rest > 1:
        key = f"{TRAIN}.data_parallel"
        experiment.assume(key, experiment.get(key) * rest, why, how)


def _assume_batches(experiment: Experiment) -> None:
    """Sizes that a policy optimisation has and these files do not: the paper's group and updates per rollout."""
    micro = "trainer.samples_per_micro_batch"
    if experiment.get(micro) is None:
        experiment.assume(micro, 1, "no micro-batch is given", "more is faster where memory allows")
    parts = experiment.count(f"{TRAIN}.data_parallel") * experiment.count(f"{TRAIN}.micro_batch_num")
    parts *= experiment.get(micro)
    step = lcm(parts, _GROUP) // _GROUP
    prompts = step * -(-_PROMPTS_PER_UPDATE // step)
    replicas = experiment.count(f"{INFER}.data_parallel")
    experiment.assume("algorithm.name", "gspo", "supervised training has no policy loss", "this project's own")
    why = "supervised training has no groups"
    experiment.assume("rollout.num_generations", _GROUP, why, "GSPO's paper: 16")
    rounds = f"{_GROUP * prompts} responses, whole rounds of {parts}"
    experiment.assume("trainer.prompts_per_mini_batch", prompts, why, rounds)
    experiment.assume("rollout.prompts_per_step", lcm(_UPDATES * prompts, replicas), why, "GSPO's paper: 4 updates")


# Two files about one experiment


def _merge(
    own: Experiment, experiment: Experiment, *, joined: tuple[str, ...], winning: tuple[str, ...], plan: str
) -> None:
    """A second file put under the first one. joined: keys that count though they set nothing by themselves. winning:
    targets in which the second file wins. plan: the plan that its sizes are of."""
    before = {target: value.value for target, value in experiment.values.items()}
    own.values = {target: value for target, value in own.values.items() if not target.startswith(TRAIN)}
    for target, value in own.values.items():
        if target.startswith(winning) or target not in before:
            experiment.values[target] = value
    experiment.used += own.used
    for finding in own.findings:
        if finding.status is not Status.ASSUMED or finding.source not in before:
            experiment.findings.append(_of_plan(_settled(finding, own, before, joined, winning), plan))


def _settled(
    finding: Finding, own: Experiment, before: Mapping[str, Any], joined: tuple[str, ...], winning: tuple[str, ...]
) -> Finding:
    """The finding as it is where another file said things before."""
    if finding.status not in (Status.MAPPED, Status.ADJUSTED):
        return finding
    placed = [target for target in finding.targets if target in own.values]
    differing = [one for one in placed if one in before and before[one] != own.values[one].value]
    if not placed and not finding.source.startswith(joined):
        text = "of training; the other file says it"
    elif differing and not differing[0].startswith(winning):
        text = f"the other file's {before[differing[0]]} counts"
    else:
        return finding
    return replace(finding, status=Status.NOT_NEEDED, targets=(), text=text)


def _of_plan(finding: Finding, plan: str) -> Finding:
    """The finding without the keys of the other plan, which a file of this kind does not set."""
    other = INFER if plan == TRAIN else TRAIN
    return replace(finding, targets=tuple(one for one in finding.targets if not one.startswith(other)))
