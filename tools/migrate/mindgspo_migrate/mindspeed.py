"""MindSpeed-RL's two kinds of YAML as an experiment: configs/*.yaml, which describe a run, and configs/model/*.yaml,
which hold the sizes of the models that they name.

Defaults are those of its configuration classes. An option of Megatron stands in `megatron_training` or `actor_config`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mindgspo.errors import ConfigError
from mindgspo_migrate import adapters, mindrlhf, verl
from mindgspo_migrate.experiment import INFER, TRAIN, Experiment
from mindgspo_migrate.models import is_local, take_sizes
from mindgspo_migrate.sources import Source, read_source
from mindgspo_migrate.tables import (
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
    texts,
)

_MEGATRON, _ACTOR, _RL, _GENERATE, _MODEL = (
    "megatron_training",
    "actor_config",
    "rl_config",
    "generate_config",
    "model_config",
)
_FILTER = "algorithm.filter_groups"
_VERIFIERS = {
    **dict.fromkeys(("acc", "base_acc", "math_17k_acc", "acc_for_dapo", "acc_for_ppo", "math_verify_reward"), "math"),
    **dict.fromkeys(("format", "strict_format"), "format"),
}


def of_megatron(settings: Settings, name: str) -> str:
    """The key under which an option of Megatron stands."""
    keys = [f"{section}.{name}" for section in (_ACTOR, _MEGATRON)]
    return next((key for key in keys if key in settings), keys[0])


def is_dapo(settings: Settings) -> bool:
    return settings[f"{_MEGATRON}.stage"] == "ray_dapo"


def has_penalty(settings: Settings) -> bool:
    return not is_dapo(settings) and number(settings[f"{_RL}.init_kl_coef"] or 0) != 0


def kl_adapts(settings: Settings) -> bool:
    return has_penalty(settings) and settings[f"{_RL}.kl_ctrl_type"] == "adaptive"


def has_adapters(settings: Settings) -> bool:
    return bool(settings[f"{_MEGATRON}.lora_target_modules"])


def clips_higher(settings: Settings) -> bool:
    return is_dapo(settings) and settings.is_on(f"{_RL}.clip_higher_enable")


def clips_evenly(settings: Settings) -> bool:
    return not clips_higher(settings)


def filters_groups(settings: Settings) -> bool:
    return settings.is_on(f"{_RL}.filter_groups_enable")


def penalizes_overlong(settings: Settings) -> bool:
    return settings.is_on(f"{_RL}.overlong_buffer_enable")


def is_dynamic(settings: Settings) -> bool:
    return settings.is_on(f"{_RL}.use_dynamic_bsz")


def stage(value: Any, settings: Settings, row: Row) -> Outcome:
    if value in ("ray_grpo", "ray_dapo"):
        values = {"algorithm.name": "grpo", "algorithm.loss_agg_mode": "token-mean"}
        if value == "ray_dapo" and not settings.is_on(f"{_RL}.token_level_loss"):
            values["algorithm.loss_agg_mode"] = "seq-mean-token-mean"
        return mapped(values, "for GSPO: algorithm.name=gspo and its clip range")
    if value == "ray_ppo":
        return not_implemented("it needs a value model, which is not built; set algorithm.name")
    return not_implemented("no preference training; ray_grpo and ray_dapo are read")


def experiment_name(value: Any, settings: Settings, row: Row) -> Any:
    return run_name(f"{text(value)}-{str(settings[f'{_MEGATRON}.stage'] or 'grpo').removeprefix('ray_')}")


def tokenizer(value: Any, settings: Settings, row: Row) -> Outcome:
    if not is_local(text(value)):
        return not_implemented("a name on a hub: nothing is downloaded; set tokenizer.path to a local folder")
    return mapped({row.target: local_path(value)})


def clip(value: Any, settings: Settings, row: Row) -> Outcome:
    return mapped(dict.fromkeys(row.targets, number(value)))


def estimator(value: Any, settings: Settings, row: Row) -> Any:
    return "grpo" if value == "group_norm" else not_implemented("it needs a value model; group_norm is grpo here")


def penalty(value: Any, settings: Settings, row: Row) -> Outcome:
    if is_dapo(settings):
        return not_needed("the loss of ray_dapo has no penalty")
    if number(value) == 0:
        return not_needed("no penalty")
    return mapped({"algorithm.kl.placement": "loss", "algorithm.kl.coef": number(value)})


def verifiers(value: Any, settings: Settings, row: Row) -> Outcome:
    names = texts(value)
    unknown = [name for name in names if name not in _VERIFIERS]
    if unknown:
        return not_implemented(f"{', '.join(unknown)}: write it as file.py:function under reward.functions")
    found = [_VERIFIERS[name] for name in names]
    return adjusted({row.target: found}, "answers are compared as expressions; demands on the format are left out")


def filter_groups(value: Any, settings: Settings, row: Row) -> Outcome:
    if not flag(value):
        return not_needed("groups without signal stay in the batch, as by default here")
    return mapped({f"{_FILTER}.refill": True, f"{_FILTER}.when_short": "stop"})


def metric(value: Any, settings: Settings, row: Row) -> Any:
    return "accuracy" if text(value).startswith("acc") else "reward"


def overlong(value: Any, settings: Settings, row: Row) -> Outcome:
    if not flag(value):
        return not_needed("no overlong penalty")
    return mapped({}, "overlong behind the functions of verifier_function, with weight 1")


def layers_of_stages(value: Any, settings: Settings, row: Row) -> Outcome:
    if len(set(str(value).split(","))) == 1:
        return not_needed("layers are dealt out evenly to stages")
    return not_implemented("layers are dealt out evenly to stages")


def untied(value: Any, settings: Settings, row: Row) -> bool:
    return not flag(value)


_SHARED = (mindrlhf.weights, verl.kl_estimator, verl.most_draws)
TABLE = load_table("mindspeed", globals() | adapters.FUNCTIONS | {function.__name__: function for function in _SHARED})


def fill(sources: Sequence[Source], experiment: Experiment) -> None:
    """The experiment of a run's file and that of its model: the second source, or `model/<name>.yaml` beside it.

    Raises ConfigError for two of a kind.
    """
    runs = [source for source in sources if not is_model(source)]
    models = [source for source in sources if is_model(source)]
    if len(runs) != 1 or len(models) > 1:
        raise ConfigError(
            f"{sources[0].path}: give one file of a run (with megatron_training) and at most one of configs/model"
        )
    settings = experiment.apply(TABLE, runs[0])
    if experiment.get("algorithm.name") is None:
        experiment.leave_open("algorithm.name", "stage is neither ray_grpo nor ray_dapo; no value model is built")
    models = models or _named_model(settings, runs[0], experiment)
    if models:
        _fill_model(models[0], experiment)
    else:
        _fill_model_by_name(settings, experiment)
    experiment.assume_rounding()
    experiment.assume_device("MindSpeed-RL runs on Ascend")
    _fill_plans(settings, experiment)
    _fill_batches(settings, experiment)
    _fill_overlong(settings, experiment)
    experiment.name_after(runs[0])


def is_model(source: Source) -> bool:
    """Whether a file holds the sizes of a model."""
    return not any(key.partition(".")[0] in (_MEGATRON, _ACTOR, _RL, _GENERATE) for key in source.reading.values)


def _named_model(settings: Settings, run: Source, experiment: Experiment) -> list[Source]:
    """The file that the run names, as far as it is there: in the folder `model` beside it."""
    name = settings[of_megatron(settings, "model")]
    if not isinstance(name, str) or len(name) > 200 or Path(name).name != name:
        return []
    path = run.path.parent / "model" / f"{name}.yaml"
    try:
        if path.is_file():
            return [read_source(path, "mindspeed")]
        why = "not beside the file; give it as a further FILE, or set model.path to a Hugging Face folder"
    except ConfigError as error:
        why = str(error)
    experiment.report(Status.UNREADABLE, f"model/{path.name}", "", why)
    return []


def _fill_model(source: Source, experiment: Experiment) -> None:
    """The sizes; the one section of such a file bears the model's name, which is `model_config` in the table."""
    reading = source.reading
    reading.values = {f"{_MODEL}.{key.partition('.')[2] or key}": value for key, value in reading.values.items()}
    settings = experiment.apply(TABLE, source, with_defaults=False)
    has_norms = settings.is_on(f"{_MODEL}.qk_layernorm")
    family = "qwen2" if settings.is_on(f"{_MODEL}.add_qkv_bias") else "qwen3" if has_norms else "llama"
    if f"{_MODEL}.num_experts" in settings:
        family = "qwen3_moe"
    experiment.set({"model.architecture": family}, "what the layers of the model have")


def _fill_model_by_name(settings: Settings, experiment: Experiment) -> None:
    name = settings[of_megatron(settings, "tokenizer_name_or_path")]
    if name:
        take_sizes(experiment, f"{_MEGATRON}.tokenizer_name_or_path", str(name))


def _fill_plans(settings: Settings, experiment: Experiment) -> None:
    key = f"{_RL}.actor_resource.num_npus"
    cards, block = settings.size(key), 1
    for name, target in (
        ("tensor_model_parallel_size", "model_parallel"),
        ("pipeline_model_parallel_size", "pipeline_stage"),
        ("context_parallel_size", "context_parallel"),
    ):
        size = settings.size(of_megatron(settings, name))
        block *= size
        experiment.set_from(settings, of_megatron(settings, name), f"{TRAIN}.{target}", size)
    _fill_experts_of_training(settings, experiment)
    experiment.fill_replicas(TRAIN, cards, block, "num_npus / (tensor x pipeline x context)")
    for name, target in (
        ("sequence_parallel", "use_seq_parallel"),
        ("use_distributed_optimizer", "optimizer_shard"),
        ("overlap_grad_reduce", "overlap_grad_reduce"),
    ):
        key = of_megatron(settings, name)
        experiment.set_from(settings, key, f"{TRAIN}.{target}", settings.is_on(key))
    key = of_megatron(settings, "recompute_granularity")
    if settings[key] in ("full", "selective"):
        experiment.set({f"{TRAIN}.recompute": settings[key]}, key)
    experiment.drop_what_has_no_effect()
    experiment.assume_micro_batches()
    key = f"{_GENERATE}.infer_tensor_parallel_size"
    slices = settings.size(key)
    experiment.fill_replicas(INFER, cards, slices, "num_npus / infer_tensor_parallel_size")
    experiment.set_from(settings, key, f"{INFER}.model_parallel", slices)
    experiment.split_experts_of_generation(settings, f"{_GENERATE}.infer_expert_parallel_size")


def _fill_experts_of_training(settings: Settings, experiment: Experiment) -> None:
    key, extends = of_megatron(settings, "expert_model_parallel_size"), of_megatron(settings, "moe_tp_extend_ep")
    slices = experiment.count(f"{TRAIN}.model_parallel")
    if not settings.is_on(extends) or slices == 1:
        experiment.set_from(settings, key, f"{TRAIN}.expert_parallel", settings.size(key))
        return
    parts = {"expert_parallel": settings.size(key) * slices, "expert_tensor_parallel": 1}
    experiment.set({f"{TRAIN}.{name}": size for name, size in parts.items()}, extends)


def _fill_batches(settings: Settings, experiment: Experiment) -> None:
    key = f"{_GENERATE}.max_num_seqs"
    if key in settings:
        slots = settings.size(key) * experiment.count(f"{INFER}.data_parallel")
        experiment.set({"rollout.slots": slots}, f"{key} x replicas")
    key = of_megatron(settings, "global_batch_size")
    if filters_groups(settings):
        kept = f"{_RL}.filter_groups_train_batch_size"
        experiment.set({"rollout.prompts_per_step": settings.size(kept)}, kept)
        experiment.set({f"{_FILTER}.prompts_per_draw": settings.size(key)}, key)
    else:
        experiment.set({"rollout.prompts_per_step": settings.size(key)}, key)


def _fill_overlong(settings: Settings, experiment: Experiment) -> None:
    if not penalizes_overlong(settings):
        return
    functions = experiment.get("reward.functions", ["auto"])
    weights_of_functions = experiment.get("reward.weights", [1.0] * len(functions))
    origin = f"{_RL}.verifier_function and {_RL}.overlong_buffer_enable"
    experiment.set(
        {"reward.functions": [*functions, "overlong"], "reward.weights": [*weights_of_functions, 1.0]}, origin
    )
