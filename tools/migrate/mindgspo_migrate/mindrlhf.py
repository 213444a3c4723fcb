"""MindRLHF's GRPO YAML as an experiment: the special cases of mindrlhf.yaml, and what several of its keys decide.

Defaults are those of its configuration classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mindgspo.errors import ConfigError
from mindgspo_migrate import mindformers
from mindgspo_migrate.experiment import INFER, SIZES, TRAIN, Experiment
from mindgspo_migrate.models import token_ids
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
    whole,
    whole_list,
)

_RL, _ACTOR, _REF, _GENERATE = "rl_config", "actor_config", "ref_config", "generate_config"
_VERIFIERS = {
    "accuracy_reward": "gsm8k",
    "qwen_accuracy_reward": "math",
    "accuracy_reward_2": "math",
    "format_reward": "format",
}


# Stages of the profiler there -> phases here; the log-probs of both policies are one.
_STAGES = {
    "all": "step",
    "actor_generate": "gen",
    "actor_old_log_prob": "old_log_prob",
    "reference_log_prob": "old_log_prob",
    "actor_update": "update_actor",
}
_MOST_STEPS = 1000


def has_cosine(settings: Settings) -> bool:
    return settings[f"{_ACTOR}.lr_schedule.lr_decay_style"] == "cosine"


def syncs_reference(settings: Settings) -> bool:
    return settings.is_on(f"{_REF}.sync_ref_model") and _has_penalty(settings)


def _has_penalty(settings: Settings) -> bool:
    return number(settings[f"{_RL}.beta"] or 0) != 0


def profiles(settings: Settings) -> bool:
    return settings.is_on("profiler_config.profile")


def recorded_steps(value: Any, settings: Settings, row: Row) -> Any:
    """Steps count from 0 there, and the end is not recorded."""
    if not flag(value):
        return not_needed("none is recorded")
    start, end = (whole(settings[f"profiler_config.profile_step_{side}"]) for side in ("start", "end"))
    if not 0 <= start < end <= start + _MOST_STEPS:
        raise ValueError(
            f"expected profile_step_start < profile_step_end, {_MOST_STEPS} more at most; got {start}, {end}"
        )
    return list(range(start + 1, end + 1))


def stages(value: Any, settings: Settings, row: Row) -> Any:
    names = texts(value)
    if unknown := [name for name in names if name not in _STAGES]:
        return not_implemented(f"{', '.join(unknown)}: set profile.phases")
    return list(dict.fromkeys(_STAGES[name] for name in names))


def ranks(value: Any, settings: Settings, row: Row) -> Any:
    return None if value == "all" else whole_list(value) or not_needed("none is named; rank 0, as by default here")


def experiment_name(value: Any, settings: Settings, row: Row) -> Any:
    return run_name(f"{text(value)}-grpo")


def penalty(value: Any, settings: Settings, row: Row) -> Outcome:
    if number(value) == 0:
        return not_needed("no penalty")
    values = {"algorithm.kl.placement": "loss", "algorithm.kl.coef": number(value)}
    return mapped(values, "k3 in the loss, bounded at |u| = 20 here")


def verifiers(value: Any, settings: Settings, row: Row) -> Outcome:
    names = value if isinstance(value, list) else [value]
    unknown = [name for name in names if str(name) not in _VERIFIERS]
    if unknown:
        return not_implemented(f"{', '.join(map(str, unknown))}: write it as file.py:function under reward.functions")
    # MindRLHF looks for the boxed answer of a model whose name says qwen.
    is_qwen = "qwen" in str(settings[f"{_RL}.model_name"] or "qwen2.5")
    found = ["math" if is_qwen and name == "accuracy_reward" else _VERIFIERS[name] for name in names]
    return mapped({"reward.functions": found}, "here answers are compared as numbers or expressions, not as text")


def weights(value: Any, settings: Settings, row: Row) -> list[float]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list of numbers, got {value!r}")
    return [number(weight) for weight in value]


def load(value: Any, settings: Settings, row: Row) -> Any:
    if not value:
        return not_needed("none is given; set model.path to a Hugging Face folder")
    if settings[f"{_RL}.load_ckpt_format"] not in (None, "hf_safetensors"):  # its default
        return not_implemented(
            "weights are read from Hugging Face folders: `mindgspo convert weights`, then set model.path"
        )
    return local_path(value)


def ref_load(value: Any, settings: Settings, row: Row) -> Outcome:
    if not value or value == settings[f"{_ACTOR}.load"]:
        return not_needed("the reference policy is the first policy")
    return not_implemented("the reference policy is the first policy (model.path)")


def tokenizer(value: Any, settings: Settings, row: Row) -> str:
    path = local_path(value)
    return str(Path(path).parent) if Path(path).suffix in (".json", ".txt") else path


def token_id(value: Any, settings: Settings, row: Row) -> Outcome:
    if not token_ids(value):
        raise ValueError(f"expected a whole number or a list of them, got {value!r}")
    return mapped({})


def dataset(value: Any, settings: Settings, row: Row) -> Outcome:
    if not value:
        return not_needed("none is given")
    return mapped({"data.train.format": "mindrlhf", "data.train.path": local_path(value)})


def last_rate(value: Any, settings: Settings, row: Row) -> Outcome:
    peak = number(settings[f"{_ACTOR}.lr_schedule.lr"])
    if peak <= 0:
        raise ValueError(f"expected lr above 0, got {peak:g}")
    return mapped({row.target: min(1.0, number(value) / peak)}, "min_lr / lr")


def warmup(value: Any, settings: Settings, row: Row) -> Any:
    if whole(value) == 0:
        return 0.0
    return not_implemented(f"set optimizer.warmup_ratio to {value} / number of updates (`mindgspo check` counts them)")


def decay_steps(value: Any, settings: Settings, row: Row) -> Outcome:
    return not_implemented(
        f"the cosine ends with the run; there after {value} updates, so that in a much shorter run the rate hardly "
        "falls: then set optimizer.schedule=constant"
    )


def iterations(value: Any, settings: Settings, row: Row) -> Outcome:
    return not_needed("once, as here") if whole(value) == 1 else not_implemented("every rollout is trained on once")


def old_policy(value: Any, settings: Settings, row: Row) -> Outcome:
    why = "old log-probs are always computed"
    return not_needed(why) if flag(value) else not_implemented(why)


def opt_offload(value: Any, settings: Settings, row: Row) -> Outcome:
    if not flag(value):
        return not_needed("moments stay on the device")
    return adjusted({row.target: True}, "moments leave the device between phases, and are there during updates")


def packing(value: Any, settings: Settings, row: Row) -> Outcome:
    if not flag(value):
        return not_needed("one response per row, as here")
    return not_implemented("set trainer.packing with trainer.max_tokens_per_micro_batch; the result is the same")


def sync(value: Any, settings: Settings, row: Row) -> Any:
    if not flag(value):
        return not_needed("the reference policy stays the first policy, as by default here")
    return "sync" if _has_penalty(settings) else not_needed("no penalty, hence no reference policy")


_SHARED = (mindformers.device, mindformers.recompute, mindformers.selective)
TABLE = load_table("mindrlhf", globals() | {function.__name__: function for function in _SHARED})


def fill(sources: Sequence[Source], experiment: Experiment) -> None:
    """The experiment that the first file describes; the others are the MindFormers files that it names."""
    own = sources[0]
    settings = experiment.apply(TABLE, own)
    named = list(sources[1:]) or _named_files(settings, own, experiment)
    for source in sorted(named, key=mindformers.is_predict):
        mindformers.fill_model(source, experiment)
    experiment.assume("swap.enabled", True, "MindRLHF keeps on the device only what a phase reads")
    remark = "for GSPO: algorithm.name=gspo, no clip range and no KL"
    experiment.assume("algorithm.name", "grpo", "MindRLHF's loss", remark)
    _fill_plans(settings, experiment)
    _fill_batches(settings, experiment)
    for name, target in (("eos_token_id", "tokenizer.eos_tokens"), ("pad_token_id", "tokenizer.pad_token")):
        key = f"{_GENERATE}.sampling_config.{name}"
        if ids := token_ids(settings[key]):
            experiment.end_token_ids[target] = (ids, key)
    key = f"{_GENERATE}.max_num_seqs"
    if key in settings:
        slots = settings.size(key) * experiment.count(f"{INFER}.data_parallel")
        experiment.set({"rollout.slots": slots}, f"{key} x replicas")


def _named_files(settings: Settings, own: Source, experiment: Experiment) -> list[Source]:
    """The MindFormers files that the configuration names, as far as they are there: beside it, or from here."""
    found: dict[Path, Source] = {}
    for key in (f"{_ACTOR}.model_config", f"{_GENERATE}.model_config"):
        name = settings[key]
        if not isinstance(name, str) or not name:
            continue
        why = ""
        if len(name) > 200:
            why = "no path: longer than 200 characters"
        elif not (paths := [path for path in (own.path.parent / name, Path(name)) if path.is_file()]):
            why = "not there; give the file as a further FILE, or set `model` yourself"
        else:
            try:
                found.setdefault(paths[0].resolve(), read_source(paths[0], "mindformers"))
            except ConfigError as error:
                why = str(error)
        if why:
            experiment.report(Status.UNREADABLE, key, name, why)
    return list(found.values())


def _fill_plans(settings: Settings, experiment: Experiment) -> None:
    for plan, section in ((TRAIN, _ACTOR), (INFER, _GENERATE)):
        prefix = f"{section}.parallel_config"
        for name in SIZES:
            experiment.set_from(settings, f"{prefix}.{name}", f"{plan}.{name}", settings.size(f"{prefix}.{name}"))
        key = f"{prefix}.vocab_emb_dp"
        if key in settings or plan == TRAIN:
            experiment.set_from(settings, key, f"{plan}.vocab_emb_dp", settings.is_on(key))
    prefix = f"{_ACTOR}.parallel_config"
    for key, target in (
        (f"{prefix}.use_seq_parallel", "use_seq_parallel"),
        (f"{_ACTOR}.enable_parallel_optimizer", "optimizer_shard"),
    ):
        experiment.set_from(settings, key, f"{TRAIN}.{target}", settings.is_on(key))
    key = f"{prefix}.micro_batch_num"
    experiment.set_from(settings, key, f"{TRAIN}.micro_batch_num", settings.size(key))
    experiment.drop_what_has_no_effect()
    experiment.spread_infer_plan()


def _fill_batches(settings: Settings, experiment: Experiment) -> None:
    """Prompts of a step, and the nearest number of whole groups to the samples of an update."""
    factors = (f"{_RL}.chunk_size", f"{_GENERATE}.parallel_config.data_parallel", f"{_RL}.num_rollouts")
    prompts = settings.size(factors[0]) * settings.size(factors[1]) * settings.size(factors[2])
    experiment.set({"rollout.prompts_per_step": prompts}, " x ".join(factors))
    micro = settings.size(f"{_RL}.batch_size")
    experiment.set({"trainer.samples_per_micro_batch": micro}, f"{_RL}.batch_size")
    group = experiment.get("rollout.num_generations", 8)
    parts = experiment.get(f"{TRAIN}.data_parallel", 1) * experiment.get(f"{TRAIN}.micro_batch_num", 1)
    samples = micro * parts
    experiment.fill_mini_batch(prompts, group, samples, samples, f"{_RL}.batch_size x replicas x micro_batch_num")
