"""TRL's GRPO YAML as an experiment: the special cases of trl.yaml, and what several of its keys decide together.

Names and defaults are those of TRL 1.16: GRPOConfig with transformers' TrainingArguments, ModelConfig and the script's
own arguments. Its batches count responses, its steps are updates.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

from mindgspo.config.algorithm import POLICY_LOSSES
from mindgspo_migrate import adapters, mindrlhf, verl
from mindgspo_migrate.experiment import INFER, TRAIN, Experiment
from mindgspo_migrate.models import take_sizes
from mindgspo_migrate.sources import Source
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
    text,
    texts,
    whole,
)

# loss_type -> algorithm.loss_agg_mode. All but the last two clip the ratio, whose level is then algorithm.name.
_AGGREGATIONS = {"grpo": "seq-mean-token-mean", "dapo": "token-mean", "bnpo": "token-mean",
                 "dr_grpo": "seq-mean-token-sum-norm", "luspo": "seq-mean-token-sum", "cispo": "token-mean",
                 "sapo": "seq-mean-token-mean", "vespo": "token-mean"}  # fmt: skip
_LEVELS = {"token": "grpo", "sequence": "gspo", "sequence_token": "gspo_token"}
_REWARDS = {"accuracy_reward": "math", "reasoning_accuracy_reward": "math", "get_soft_overlong_punishment": "overlong"}
_OVERLONG = {"reward.overlong.max_len": 1280, "reward.overlong.buffer_len": 256}
_OF_8_CARDS = ("multi_gpu", "zero1", "zero2", "zero3", "fsdp1", "fsdp2")
_CORRECTION = "algorithm.rollout_correction"


def loss_name(settings: Settings) -> str | None:
    """`algorithm.name` of the file's loss and its level of ratios; None for what is not implemented."""
    loss, name = str(settings["loss_type"]), _LEVELS.get(str(settings["importance_sampling_level"]))
    if loss in ("cispo", "sapo", "vespo"):
        return loss if name == "grpo" else None
    if loss == "luspo" and name == "gspo":
        return loss
    return name if loss in _AGGREGATIONS else None


def clips(settings: Settings) -> bool:
    name = loss_name(settings)
    return name is not None and POLICY_LOSSES[name].clip is not None


def is_sapo(settings: Settings) -> bool:
    return loss_name(settings) == "sapo"


def is_vespo(settings: Settings) -> bool:
    return loss_name(settings) == "vespo"


def has_penalty(settings: Settings) -> bool:
    return number(settings["beta"] or 0) != 0


def syncs_reference(settings: Settings) -> bool:
    return settings.is_on("sync_ref_model") and has_penalty(settings)


def has_adapters(settings: Settings) -> bool:
    return settings.is_on("use_peft")


def uses_vllm(settings: Settings) -> bool:
    return settings.is_on("use_vllm")


def corrects(settings: Settings) -> bool:
    return uses_vllm(settings) and settings.is_on("vllm_importance_sampling_correction")


def evaluates(settings: Settings) -> bool:
    return settings["eval_strategy"] == "steps"


def saves(settings: Settings) -> bool:
    return settings["save_strategy"] == "steps"


def cards(settings: Settings) -> int:
    is_named = settings["accelerate_config"] in _OF_8_CARDS and "num_processes" not in settings
    return 8 if is_named else settings.size("num_processes")


def batches(settings: Settings) -> tuple[int, int, int]:
    """Responses of a pass on all cards, of an update and of a rollout, which at least one update follows."""
    one = settings.size("per_device_train_batch_size") * cards(settings)
    update = one * settings.size("gradient_accumulation_steps")
    given = settings["generation_batch_size"] is not None
    rollout = settings.size("generation_batch_size") if given else one * settings.size("steps_per_generation")
    return one, update, max(update, rollout)


def dataset(value: Any, settings: Settings, row: Row) -> Outcome:
    folder = "/".join(str(part) for part in (text(value), settings["dataset_config"]) if part)
    values: dict[str, Any] = {}
    for key, split in (("data.train", "dataset_train_split"), ("data.eval", "dataset_test_split")):
        values |= {f"{key}.format": "columns", f"{key}.path": local_path(f"{folder}/{settings[split]}.parquet")}
        columns = {"prompt": "prompt", "answer": "solution", "data_source_name": value}
        values |= {f"{key}.columns.{name}": column for name, column in columns.items()}
    return adjusted(values, "nothing is downloaded: put its splits there, or set data.train.path and data.eval.path")


def prompt_length(value: Any, settings: Settings, row: Row) -> Outcome:
    return mapped({"data.max_prompt_length": whole(value), "data.truncation": "left"})


def rewards(value: Any, settings: Settings, row: Row) -> Outcome:
    names = texts(value)
    found = [_REWARDS[name] for name in names if name in _REWARDS]
    values = {**({row.target: found} if found else {}), **(_OVERLONG if "overlong" in found else {})}
    if unknown := [name for name in names if name not in _REWARDS]:
        why = f"{', '.join(unknown)}: write it as file.py:function under reward.functions"
        return replace(not_implemented(why), values=values)
    return adjusted(values, "answers are compared as expressions, also where the reasoning has not ended")


def loss(value: Any, settings: Settings, row: Row) -> Outcome:
    name = loss_name(settings)
    if name is None:
        return not_implemented(f"not with that level of ratios; algorithm.name is one of {', '.join(POLICY_LOSSES)}")
    values: dict[str, Any] = {"algorithm.name": name, "algorithm.loss_agg_mode": _AGGREGATIONS[str(value)]}
    if value == "luspo" and name == "gspo_token":
        values["algorithm.allow_token_weighting"] = True
    return adjusted(values, "a mean over an update, not over a pass") if value == "bnpo" else mapped(values)


def clip(value: Any, settings: Settings, row: Row) -> Any:
    bound = number(settings["epsilon"] if value is None else value)
    if loss_name(settings) != "cispo":
        return bound
    if row.source == "epsilon":
        return mapped({row.target: 1.0}, "cispo has no lower bound")
    if bound < 1:
        raise ValueError(f"expected the largest weight of cispo, at least 1, got {bound:g}")
    return bound - 1


def penalty(value: Any, settings: Settings, row: Row) -> Outcome:
    if number(value) == 0:
        return not_needed("no penalty")
    unbounded = dict.fromkeys(("algorithm.kl.exponent_clamp", "algorithm.kl.value_clamp"))
    return mapped({"algorithm.kl.placement": "loss", "algorithm.kl.coef": number(value), **unbounded})


def sync(value: Any, settings: Settings, row: Row) -> Any:
    if not flag(value) or not has_penalty(settings):
        return not_needed("the reference policy stays the first policy, as by default here")
    kept = round(1 - number(settings["ref_model_mixup_alpha"]), 12)
    return mapped({row.target: "ema", "algorithm.kl.reference.decay": kept}) if kept else "sync"


def saved(value: Any, settings: Settings, row: Row) -> Any:
    is_norms = all(name.endswith("norm") for name in texts(value))
    return adjusted({row.target: True}, "all norms") if is_norms else not_implemented("beside adapters norms alone")


def steps(value: Any, settings: Settings, row: Row) -> Outcome:
    """Training steps of a number of updates; eval_steps null is logging_steps."""
    count = number(settings["logging_steps"] or 10 if value is None else value)
    _, update, rollout = batches(settings)
    each = rollout / update * settings.size("num_iterations")
    if count <= 0:
        return not_needed("none is set")
    if count < 1:
        return not_implemented(f"a share of the run; set {row.targets[0]}")
    found = {row.targets[0]: ceil(whole(count) / each)}
    why = f"{count:g} updates, {each:g} in a step" if each != 1 else ""
    return adjusted(found, why) if count % each else mapped(found, why)


def warmup(value: Any, settings: Settings, row: Row) -> Outcome:
    if settings["lr_scheduler_type"] == "constant":
        return mapped({"optimizer.warmup_ratio": 0.0}, "constant has no rise there")
    if row.source == "warmup_steps" and number(value) >= 1:
        return steps(value, settings, row)
    if row.source == "warmup_steps" and not number(value) and settings["warmup_ratio"]:
        return not_needed("warmup_ratio counts")
    return mapped({"optimizer.warmup_ratio": number(value)})


_SHARED = (mindrlhf.weights, verl.model_path, verl.keep_checkpoints, verl.loggers)
TABLE = load_table("trl", globals() | adapters.FUNCTIONS | {function.__name__: function for function in _SHARED})


def fill(source: Source, experiment: Experiment) -> None:
    """The experiment of a file that `trl grpo --config` takes."""
    settings = experiment.apply(TABLE, source)
    if loss_name(settings) is None:
        experiment.leave_open("algorithm.name", "that loss_type is not built, or not with that level of ratios")
    experiment.assume_device("TRL takes what torch finds")
    experiment.assume("algorithm.advantage.eps", 1e-4, "TRL adds it to the deviation")
    if experiment.get(f"{_CORRECTION}.mode") == "mask" and settings["vllm_importance_sampling_clip_min"] is None:
        experiment.assume(f"{_CORRECTION}.min", 1e-36, "vllm_importance_sampling_clip_min, its default", "no bound")
    if has_adapters(settings) and "lora_r" not in settings:
        experiment.assume("model.lora.rank", 16, "lora_r, its default")
    if settings["max_prompt_length"] is None:
        experiment.assume("data.max_prompt_length", 512, "TRL sets no limit", "set what your rows need")
    if "model_name_or_path" in settings:
        take_sizes(experiment, "model_name_or_path", str(settings["model_name_or_path"]))
    _fill_dtype(settings, experiment)
    _fill_plans(settings, experiment)
    _fill_batches(settings, experiment)
    experiment.name_after(source)


def _fill_dtype(settings: Settings, experiment: Experiment) -> None:
    """The type that is computed with: that of bf16, which is on unless fp16 is, else that of the weights."""
    loaded, key = str(settings.first("dtype", "torch_dtype")), "fp16" if settings.is_on("fp16") else "bf16"
    is_loaded = settings["bf16"] is not None and not settings.is_on("bf16")
    found = loaded if is_loaded and loaded in ("bfloat16", "float16") else "float32" if is_loaded else "bfloat16"
    experiment.set_from(settings, key, "model.dtype", "float16" if key == "fp16" else found)
    experiment.assume_rounding()


def _fill_plans(settings: Settings, experiment: Experiment) -> None:
    if settings.first("num_processes", "accelerate_config") is None:
        why = "batches count per card, and accelerate is told how many; add num_processes to the file"
        experiment.report(Status.ASSUMED, "num_processes", 1, why)
    key = "vllm_tensor_parallel_size"
    slices = settings.size(key) if uses_vllm(settings) else 1
    experiment.fill_replicas(TRAIN, cards(settings), 1, "num_processes")
    experiment.fill_replicas(INFER, cards(settings), slices, f"num_processes / {key}")
    experiment.set_from(settings, key, f"{INFER}.model_parallel", slices)
    key = "activation_checkpointing" if "activation_checkpointing" in settings else "gradient_checkpointing"
    if settings.is_on(key):
        experiment.set_from(settings, key, f"{TRAIN}.recompute", "full")
    experiment.drop_what_has_no_effect()


def _fill_batches(settings: Settings, experiment: Experiment) -> None:
    one, update, rollout = batches(settings)
    group = settings.size("num_generations")
    prompts, key = max(1, rollout // group), "rollout.prompts_per_step"
    experiment.set({key: prompts}, f"{rollout} responses of a rollout / num_generations")
    if prompts * group != rollout:
        why = f"{rollout} responses of a rollout are no whole groups of {group}"
        experiment.report(Status.NOT_IMPLEMENTED, key, prompts, why)
    experiment.fill_mini_batch(prompts, group, update, one, f"{update} responses of an update / num_generations")
