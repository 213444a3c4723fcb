"""verl's overrides as an experiment: the special cases of verl.yaml, and what several of its keys decide together.

Names and defaults are those of verl's trainer configuration (ppo_trainer) and of its DAPO recipe.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import gcd, lcm, prod
from typing import Any

from mindgspo.config.algorithm import POLICY_LOSSES
from mindgspo_migrate import adapters
from mindgspo_migrate.experiment import INFER, TRAIN, Experiment, schema_default
from mindgspo_migrate.models import is_local, take_sizes
from mindgspo_migrate.sources import Source
from mindgspo_migrate.tables import (
    READERS,
    Outcome,
    Reading,
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
    one_line,
    text,
    texts,
    whole,
    whole_list,
)

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT, _MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_EVAL = f"{_ROLLOUT}.val_kwargs"
_CARDS = ("trainer.nnodes", "trainer.n_gpus_per_node")
_MEGATRON = f"{_ACTOR}.megatron"
_MEGATRON_TRAINERS = ("ppo_megatron_trainer", "dapo_megatron_trainer")
_MEGATRON_SIZES = (
    ("tensor_model_parallel_size", "model_parallel"),
    ("pipeline_model_parallel_size", "pipeline_stage"),
    ("context_parallel_size", "context_parallel"),
)
_CORRECTION, _FILTER = "algorithm.rollout_correction", "algorithm.filter_groups"
# policy_loss.loss_mode -> algorithm.name. vanilla is the token-level clip that grpo, dapo and ppo share here.
_LOSS_MODES = {
    **{name: name for name in ("gspo", "sapo", "gpg", "cispo", "dppo_tv", "dppo_kl", "clip_cov", "kl_cov")},
    "vanilla": "grpo",
    "geo_mean": "gmpo",
}
# Losses that verl bounds the log-ratio of, at 20.
_BOUNDED = ("vanilla", "dppo_tv", "dppo_kl")
_ESTIMATORS = {
    **{name: name for name in ("grpo", "rloo", "opo", "gpg", "remax", "reinforce_plus_plus")},
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
    "grpo_passk": "pass_k",
    "grpo_vectorized": "grpo",
    "rloo_vectorized": "rloo",
    "optimal_token_baseline": "optimal_token_baseline",
    "tir_optimal_token_baseline": "optimal_token_baseline",
}
_DISTILLATION = "distillation.distillation_loss"
_TEACHER = re.compile(r"distillation\.teacher_models?\.((?P<name>\w+)\.)?(?P<what>key|model_path)")
_ONLY_TEACHER = "teacher_model"  # verl's entry for a single one
# Losses over likeliest tokens, and how they differ from top_k here.
_LIKELIEST = {
    "forward_kl_topk": "the forward KL, without all other tokens",
    "forward_kl_topk_tail": "the forward KL",
    "reverse_kl_topk": "over the likeliest tokens of the policy",
}
_KL = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
# Programs that train as main_ppo does ("": a list of overrides), and those that generate while they train.
_MAIN_PROGRAMS = re.compile(
    r"(^|\b(main_ppo|main_dapo|main_ppo_sync|async_main_ppo|fully_async_main|grpo_main)(\.py)?)$"
)
_APART = re.compile(r"async_|one_step_off")
_EVAL_SETS = "name each as a set of its own: data.eval.NAME.format=verl and data.eval.NAME.path=..."


# Conditions


def is_megatron(settings: Settings) -> bool:
    """Whether the actor is trained by Megatron: by its strategy, else by the configuration that the command names."""
    if f"{_ACTOR}.strategy" in settings:
        return settings[f"{_ACTOR}.strategy"] == "megatron"
    if "model_engine" in settings:
        return settings["model_engine"] == "megatron"
    return str(settings["--config-name"]).removesuffix(".yaml") in _MEGATRON_TRAINERS


def loss_name(settings: Settings) -> str | None:
    """`algorithm.name` of the file's loss mode; None for one that is not implemented."""
    return _LOSS_MODES.get(str(settings[f"{_ACTOR}.policy_loss.loss_mode"]))


def is_sapo(settings: Settings) -> bool:
    return loss_name(settings) == "sapo"


def reads_clip_ratio_c(settings: Settings) -> bool:
    return settings[f"{_ACTOR}.policy_loss.loss_mode"] in _BOUNDED


def is_clip_cov(settings: Settings) -> bool:
    return loss_name(settings) == "clip_cov"


def is_kl_cov(settings: Settings) -> bool:
    return loss_name(settings) == "kl_cov"


def is_discounted(settings: Settings) -> bool:
    return settings["algorithm.adv_estimator"] == "reinforce_plus_plus"


def kl_in_loss(settings: Settings) -> bool:
    return settings.is_on(f"{_ACTOR}.use_kl_loss")


def kl_in_reward(settings: Settings) -> bool:
    return settings.is_on("algorithm.use_kl_in_reward") and not kl_in_loss(settings)


def kl_adapts(settings: Settings) -> bool:
    return kl_in_reward(settings) and settings["algorithm.kl_ctrl.type"] == "adaptive"


def distills(settings: Settings) -> bool:
    return settings.is_on("distillation.enabled")


def distills_likeliest(settings: Settings) -> bool:
    return distills(settings) and settings[f"{_DISTILLATION}.loss_mode"] in _LIKELIEST


def adds_distillation(settings: Settings) -> bool:
    return distills(settings) and settings.is_on(f"{_DISTILLATION}.use_task_rewards")


def corrects(settings: Settings) -> bool:
    is_bypassed = settings.is_on(f"{_CORRECTION}.bypass_mode")
    return settings[f"{_CORRECTION}.rollout_is"] in ("token", "sequence") and not is_bypassed


def filters_groups(settings: Settings) -> bool:
    return flag(settings[f"{_FILTER}.enable"])


def has_adapters(settings: Settings) -> bool:
    return _is_positive(settings[f"{_MODEL}.lora_rank"]) or has_nested_rank(settings)


def has_nested_rank(settings: Settings) -> bool:
    """Whether the section of LoRA that Megatron reads gives a rank, which counts before the key beside it."""
    return _is_positive(settings[f"{_MODEL}.lora.rank"])


def has_flat_rank(settings: Settings) -> bool:
    return has_adapters(settings) and not has_nested_rank(settings)


def _is_positive(value: Any) -> bool:
    try:
        return value is not None and whole(value) > 0
    except ValueError:
        return False


def draws_answers(settings: Settings) -> bool:
    """Whether evaluation draws; at temperature 0, the default there, it does not, whatever do_sample says."""
    temperature = settings[f"{_EVAL}.temperature"]
    several = settings.size(f"{_EVAL}.n") > 1
    return temperature not in (0, None) and (several or settings.is_on(f"{_EVAL}.do_sample"))


def penalizes_overlong(settings: Settings) -> bool:
    switches = (row.source for row in TABLE.rows if row.target == "reward.functions" and "overlong" in row.source)
    return any(str(settings[switch]).lower() == "true" for switch in switches)


def plays_turns(settings: Settings) -> bool:
    return settings.is_on(f"{_ROLLOUT}.multi_turn.enable")


def is_dynamic(settings: Settings) -> bool:
    return settings.is_on(f"{_ACTOR}.use_dynamic_bsz")


def is_not_dynamic(settings: Settings) -> bool:
    return not is_dynamic(settings)


def no_warmup_steps(settings: Settings) -> bool:
    steps = settings[f"{_ACTOR}.optim.lr_warmup_steps"]
    return not (isinstance(steps, int) and steps >= 0)


def profiles(settings: Settings) -> bool:
    return settings.is_on(f"{_ACTOR}.profiler.enable")


def names_ranks(settings: Settings) -> bool:
    return not any(settings.is_on(f"{one}.profiler.all_ranks") for one in (_ACTOR, "actor_rollout_ref"))


def keeps_overlong_prompts(settings: Settings) -> bool:
    return settings["data.filter_overlong_prompts"] is not True


# Values


def files(value: Any, settings: Settings, row: Row) -> Outcome:
    target = row.target.partition(".format")[0]
    names = texts(value)
    if len(names) > 1 and target == "data.eval":
        return not_implemented(f"{len(names)} files; {_EVAL_SETS}")
    if len(names) > 1:
        pairs = zip(names, _names_of(names), strict=True)
        sources = [{"format": "verl", "path": local_path(file), "name": name} for file, name in pairs]
        return mapped({target: sources}, "without weights, so all rows are drawn equally often, as there")
    return mapped({f"{target}.format": "verl", f"{target}.path": local_path(names[0])})


def _names_of(files: Sequence[str]) -> list[str]:
    """A name of its own for each file, after its folder and itself."""
    ends = ("/".join(file.rpartition(".")[0].split("/")[-2:]) for file in files)
    names = ["-".join(re.findall(r"[A-Za-z0-9]+", end)) or "source" for end in ends]
    return [name if names.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(names)]


def most_rows(value: Any, settings: Settings, row: Row) -> Any:
    """Of all files together there; here each source has a number of its own."""
    files, count = settings["data.train_files"], READERS["count_if_positive"](value)
    if isinstance(files, list) and len(files) > 1 and isinstance(count, int):
        return not_implemented("of all files together; set max_rows of each source of data.train")
    return count


def column(value: Any, settings: Settings, row: Row) -> Outcome:
    usual = "prompt" if row.source == "data.prompt_key" else "data_source"
    if value == usual:
        return not_needed("the column that the format verl reads")
    return not_implemented(f"set data.train.format=columns and data.train.columns.{usual}={value} (data.eval likewise)")


def model_path(value: Any, settings: Settings, row: Row) -> Outcome:
    path = local_path(value)
    values = {"model.path": path, **({} if settings["data.tokenizer"] else {"tokenizer.path": path})}
    if is_local(text(value)):
        return mapped(values)
    why = "a name on a hub: nothing is downloaded, a folder is read; set model.path and tokenizer.path to yours"
    return adjusted(values, why)


def eval_samples(value: Any, settings: Settings, row: Row) -> Outcome:
    samples = whole(value)
    if samples > 1 and not draws_answers(settings):
        return adjusted({"eval.num_samples": 1}, "1: at temperature 0 all of them are the greedy answer")
    return mapped({"eval.num_samples": samples, **({"eval.pass_at_k": [1, samples]} if samples > 1 else {})})


def eval_do_sample(value: Any, settings: Settings, row: Row) -> Outcome:
    if not flag(value):
        return not_needed("one answer is greedy, more are drawn, as here")
    if settings.size(f"{_EVAL}.n") > 1:
        return not_needed("several answers are always drawn")
    return mapped({row.target: True}) if draws_answers(settings) else not_needed("temperature 0 is greedy")


def eval_cut(value: Any, settings: Settings, row: Row) -> Outcome:
    """top_p or top_k."""
    key = row.source.rpartition(".")[2]
    read = number if key == "top_p" else READERS["top_k"]
    training = settings[f"{_ROLLOUT}.{key}"]
    if training is not None and read(value) == read(training):
        return not_needed(f"as in training, which {row.target} follows")
    return mapped({row.target: read(value)})


def engine_replicas(value: Any, settings: Settings, row: Row) -> Outcome:
    """Replicas that share one engine there; here each is by itself, and they fill the cards."""
    slices, cards = settings.size(f"{_ROLLOUT}.tensor_model_parallel_size"), _cards(settings)
    together = slices * whole(value)
    if _unsaid_cards(settings) or together < 1 or cards % together == 0:
        return mapped({})
    return adjusted({}, f"{cards // slices}, as {cards} cards allow; its engine takes {together} of them")


def slots(value: Any, settings: Settings, row: Row) -> Outcome:
    return mapped({}, "times plans.infer.data_parallel, because slots are counted over all replicas")


def multi_turn(value: Any, settings: Settings, row: Row) -> Outcome:
    """The class that answers is not in verl's settings: `_leave_open` asks for it."""
    return mapped({}) if flag(value) else not_needed("one turn per prompt, as without an environment here")


def reward_file(value: Any, settings: Settings, row: Row) -> Outcome:
    name = settings[f"{row.source.removesuffix('.path')}.name"] or "compute_score"
    return mapped({"reward.functions": [f"{local_path(value)}:{name}"]})


def reward_manager(value: Any, settings: Settings, row: Row) -> Outcome:
    if value in ("naive", "dapo", "prime", "batch"):
        return not_needed("reward.functions=[auto] goes by the rows' data_source, as it does there")
    return not_implemented("name functions under reward.functions")


def keep_checkpoints(value: Any, settings: Settings, row: Row) -> Any:
    return not_implemented("set trainer.keep_checkpoints") if value is None else whole(value)


def recorded_steps(value: Any, settings: Settings, row: Row) -> Any:
    return whole_list(value) or not_needed("none is recorded")


def recorded_ranks(value: Any, settings: Settings, row: Row) -> Any:
    return whole_list(value) or not_needed("none is named; rank 0, as by default here")


def device(value: Any, settings: Settings, row: Row) -> Any:
    if value == "npu":
        return "Ascend"
    return adjusted({"device": "Ascend"}, "runs on Ascend or CPU only; set device=CPU for a CPU")


def loggers(value: Any, settings: Settings, row: Row) -> Outcome:
    names = texts(value)
    trackers = [name for name in names if name in ("tensorboard", "swanlab", "wandb")]
    others = [name for name in names if name not in ("console", "file", "none", *trackers)]
    values = {"logging.trackers": trackers} if trackers else {}
    if others:
        why = f"no {', '.join(others)}; metrics.jsonl always, logging.trackers on request"
        return replace(not_implemented(why), values=values)
    return mapped(values) if values else not_needed("console and metrics.jsonl always")


def loss_mode(value: Any, settings: Settings, row: Row) -> Any:
    if str(value) not in _LOSS_MODES:
        return not_implemented(f"algorithm.name is one of {', '.join(POLICY_LOSSES)}")
    name = _LOSS_MODES[value]
    if value not in _BOUNDED:
        return name
    return mapped(
        {"algorithm.name": name, "algorithm.log_ratio_max": 20.0, "algorithm.log_ratio_min": -20.0},
        "log-ratios are bounded at 20, as there",
    )


def clip(value: Any, settings: Settings, row: Row) -> Any:
    name = loss_name(settings)
    if name is None or POLICY_LOSSES[name].clip is None:
        return not_needed(f"the loss {settings[f'{_ACTOR}.policy_loss.loss_mode']} clips nothing")
    return number(settings[f"{_ACTOR}.clip_ratio"] if value is None else value)


def clip_ratio(value: Any, settings: Settings, row: Row) -> Outcome:
    if all(f"{_ACTOR}.clip_ratio_{side}" in settings for side in ("low", "high")):
        return not_needed("clip_ratio_low and clip_ratio_high are given")
    return not_implemented(
        "versions of verl differ on whether it stands in for clip_ratio_low and _high, which are 0.2 by default; "
        "set algorithm.clip_low and algorithm.clip_high"
    )


def aggregation(value: Any, settings: Settings, row: Row) -> Any:
    name = loss_name(settings)
    if name == "gmpo":
        return not_needed("gmpo has one loss per response; the mode is not read there either")
    if name in ("gspo", "sapo") and value != "seq-mean-token-mean":
        return not_needed(f"{name} averages over responses there whatever the mode, and so it does here")
    return text(value)


def estimator(value: Any, settings: Settings, row: Row) -> Any:
    if value == "gae":
        return not_implemented("it needs a value model; set algorithm.advantage.estimator, e.g. grpo")
    if str(value) not in _ESTIMATORS:
        names = ", ".join(sorted(set(_ESTIMATORS.values())))
        return not_implemented(f"algorithm.advantage.estimator is one of {names}")
    return _ESTIMATORS[value]


def kl_estimator(value: Any, settings: Settings, row: Row) -> Outcome:
    name = str(value).removesuffix("+")
    if name not in _KL:
        return not_implemented(f"algorithm.kl.estimator is one of {', '.join(sorted(set(_KL.values())))}")
    straight = {"algorithm.kl.straight_through": True} if str(value).endswith("+") else {}
    return mapped({"algorithm.kl.estimator": _KL[name], **straight})


def kl_placement(value: Any, settings: Settings, row: Row) -> Any:
    if not flag(value):
        return not_needed("no penalty in the reward")
    if kl_in_loss(settings):
        return not_implemented("a penalty in the loss and one in the reward; one of the two: algorithm.kl.placement")
    return "reward"


def distillation(value: Any, settings: Settings, row: Row) -> Outcome:
    """`_fill_teachers` puts the teachers together."""
    return mapped({}) if flag(value) else not_needed("no teacher, as by default here")


def teacher_path(value: Any, settings: Settings, row: Row) -> Outcome:
    if value is None or (local_path(value) and is_local(text(value))):
        return mapped({})
    return adjusted({}, "a name on a hub: nothing is downloaded, a folder is read; set path to yours, or url")


def teacher_source(value: Any, settings: Settings, row: Row) -> Outcome:
    return mapped({})


def distillation_loss(value: Any, settings: Settings, row: Row) -> Outcome:
    if value in ("k1", "kl"):
        return adjusted({row.target: "k1"}, "part of the advantage, so under one clip; there a loss with its own")
    if value in _LIKELIEST:
        return adjusted({row.target: "top_k"}, f"the reverse KL, all other tokens as one; there {_LIKELIEST[value]}")
    return not_implemented("algorithm.distillation.loss is k1 or top_k")


def distillation_gradient(value: Any, settings: Settings, row: Row) -> Outcome:
    has_own_gradient = distills_likeliest(settings)
    if flag(value) != has_own_gradient:
        return not_needed("as it is here")
    how = "top_k is a loss with its exact gradient" if has_own_gradient else "k1 is part of the advantage"
    return not_implemented(f"{how}: algorithm.distillation.loss")


def correction_level(value: Any, settings: Settings, row: Row) -> Any:
    if value in (None, "null", "None"):
        return not_needed("no correction")
    if settings.is_on(f"{_CORRECTION}.bypass_mode"):
        return not_needed("with bypass_mode the ratio carries the mismatch")
    return value if value in ("token", "sequence") else not_implemented(f"{_CORRECTION}.level is token or sequence")


def filter_groups(value: Any, settings: Settings, row: Row) -> Outcome:
    if not flag(value):
        return not_needed("groups without signal stay in the batch, as by default here")
    return mapped({f"{_FILTER}.refill": True, f"{_FILTER}.when_short": "stop"}, "stop: as its DAPO recipe does")


def filter_metric(value: Any, settings: Settings, row: Row) -> Any:
    if value == "acc":
        return "accuracy"
    if value in ("score", "seq_reward"):
        return "reward"
    if value == "seq_final_reward":
        return adjusted({f"{_FILTER}.metric": "reward"}, "compared before a KL penalty is taken off")
    return not_implemented(f"{_FILTER}.metric is reward, accuracy or one of reward.functions")


def most_draws(value: Any, settings: Settings, row: Row) -> Any:
    if whole(value) > 0:
        return whole(value)
    return adjusted({f"{_FILTER}.max_num_gen_batches": 1000}, "0 is no limit there; 1,000 draws come close")


def warmup_steps(value: Any, settings: Settings, row: Row) -> Any:
    if value is None or whole(value) < 0:
        return not_needed("lr_warmup_steps_ratio counts")
    return whole(value)


def last_rate(value: Any, settings: Settings, row: Row) -> float:
    return number(value or 0.0)


def micro_batch_of_all(value: Any, settings: Settings, row: Row) -> Outcome:
    if is_dynamic(settings) or settings[f"{_ACTOR}.ppo_micro_batch_size_per_gpu"] is not None:
        return not_needed("use_dynamic_bsz or ppo_micro_batch_size_per_gpu counts")
    return not_needed("none is given") if value is None else mapped({}, f"{whole(value)} / replicas")


def engine(value: Any, settings: Settings, row: Row) -> Outcome:
    if value in ("dp", "megatron"):
        return mapped({}, "as strategy fsdp" if value == "dp" else "as strategy megatron")
    return not_implemented("sizes of the plans are worked out of FSDP's and Megatron's settings: set plans.train")


def config_name(value: Any, settings: Settings, row: Row) -> Outcome:
    name = str(value).removesuffix(".yaml")
    if name in ("ppo_trainer", "dapo_trainer"):
        return not_needed("its defaults are the table's")
    if name in _MEGATRON_TRAINERS:
        return mapped({}, "strategy megatron")
    return not_implemented("settings of another file are not read: add them as overrides")


TABLE = load_table("verl", globals() | adapters.FUNCTIONS)


# Several keys at once


def fill(source: Source, experiment: Experiment) -> None:
    """The experiment that the overrides describe."""
    settings = experiment.apply(TABLE, source)
    _fill_teachers(settings, source.reading, experiment)
    _leave_open(settings, source.reading, experiment)
    experiment.assume_device("verl's own default is cuda")
    _fill_model(settings, experiment)
    _fill_plans(settings, experiment)
    _fill_micro_batches(settings, experiment)
    key = f"{_ROLLOUT}.max_num_seqs"
    if key in settings:
        experiment.set({"rollout.slots": settings.size(key) * experiment.count(f"{INFER}.data_parallel")}, key)
    experiment.name_after(source)


def _leave_open(settings: Settings, reading: Reading, experiment: Experiment) -> None:
    """What decides which training it is, where the file does not say it or this project does not have it."""
    keys = (f"{_ACTOR}.policy_loss.loss_mode", "algorithm.adv_estimator")
    mode, estimator = (one_line(str(settings[key])) for key in keys)
    whys = [f"the value of {key} is not in the file" for key in keys if reading.is_unread(key)]
    if keys[0] in settings and mode not in _LOSS_MODES:
        whys.append(f"the loss {mode} is not built")
    if keys[0] not in settings and _MAIN_PROGRAMS.search(reading.program) is None:
        whys.append(f"the loss of {one_line(reading.program)} is not known")
    if estimator == "gae" and (mode == "vanilla" or keys[1] in settings):
        whys.append("adv_estimator gae needs a value model, which is not built")
    elif estimator != "gae" and not reading.is_unread(keys[1]) and estimator not in _ESTIMATORS:
        whys.append(f"the estimator {estimator} is not built")
    if whys:
        experiment.leave_open("algorithm.name", whys[0])
    if plays_turns(settings):
        experiment.leave_open("environment.path", "tools and users are a class of yours, see docs/environments.md")
    if _APART.search(reading.program):
        experiment.leave_open("trainer.schedule", f"{one_line(reading.program)} generates on cards of its own")


def _fill_teachers(settings: Settings, reading: Reading, experiment: Experiment) -> None:
    if not distills(settings):
        return
    found: dict[str, dict[str, Any]] = {}
    for key, value in reading.values.items():
        if match := _TEACHER.fullmatch(key):
            found.setdefault(match["name"] or _ONLY_TEACHER, {})[match["what"]] = value
    if len(found) > 1:
        found.pop(_ONLY_TEACHER, None)  # as verl does
    teachers = []
    for one in found.values():
        with suppress(ValueError):  # none is given, or what the report calls unreadable
            teachers.append({"path": local_path(one.get("model_path"))} | _sources(one, found))
    target = "algorithm.distillation.teachers"
    if teachers:
        experiment.set({target: teachers}, "distillation.teacher_models")
    else:
        experiment.leave_open(target, "no model_path of a teacher is in the file")


def _sources(teacher: Mapping[str, Any], teachers: Mapping[str, Any]) -> dict[str, list[str]]:
    """A single teacher has all of them, whatever its key."""
    return {} if len(teachers) == 1 or teacher.get("key") is None else {"sources": [str(teacher["key"])]}


def _fill_model(settings: Settings, experiment: Experiment) -> None:
    key = f"{_MODEL}.path"
    if key in settings:
        take_sizes(experiment, key, str(settings[key]))
    key = f"{_MODEL}.override_config.max_position_embeddings"
    if settings[key] is not None:
        experiment.set({"model.max_position_embeddings": settings[key]}, key)
    experiment.assume("model.dtype", "bfloat16", "verl computes in bfloat16")
    experiment.assume_rounding()


def _fill_plans(settings: Settings, experiment: Experiment) -> None:
    key = f"{_ROLLOUT}.tensor_model_parallel_size"
    slices = settings.size(key)
    together = slices * settings.size(f"{_ROLLOUT}.data_parallel_size")  # cards of one engine of vLLM
    cards, unsaid = _cards(settings), _unsaid_cards(settings)
    if unsaid:
        cards = lcm(cards, together, *_megatron_blocks(settings)) if is_megatron(settings) else lcm(cards, together)
        why = "not in the file; the fewest that both plans fit on; set both plans' data_parallel"
        experiment.report(Status.ASSUMED, " x ".join(unsaid), cards, why)
    experiment.fill_replicas(INFER, cards, slices, f"cards / {key}")
    experiment.set_from(settings, key, f"{INFER}.model_parallel", slices)
    experiment.split_experts_of_generation(settings, f"{_ROLLOUT}.expert_parallel_size")
    fill_train_plan: Callable[[Settings, Experiment, int], None] = (
        _fill_megatron_plan if is_megatron(settings) else _fill_fsdp_plan
    )
    fill_train_plan(settings, experiment, cards)


def _cards(settings: Settings) -> int:
    """Cards of all machines, as far as the file says."""
    return prod(settings.size(key) for key in _CARDS)


def _unsaid_cards(settings: Settings) -> list[str]:
    """Of these two numbers, those that cannot be read."""
    return [key for key in _CARDS if settings[key] is None]


def _fill_fsdp_plan(settings: Settings, experiment: Experiment, cards: int) -> None:
    """FSDP cuts every weight over all cards; here slices and stages do."""
    slices = settings.size(f"{_ROLLOUT}.tensor_model_parallel_size")
    why = "FSDP cuts weights over all cards, which is not implemented here"
    how = "cut as for generation; `mindgspo plan` shows whether it fits; model_parallel and pipeline_stage cut more"
    experiment.assume(f"{TRAIN}.model_parallel", slices, why, how)
    context = _fill_context(settings, experiment, slices)
    block = "model_parallel" if context == 1 else "(model_parallel x context_parallel)"
    if experiment.fill_replicas(TRAIN, cards, slices * context, f"cards / {block}") * context > 1:
        why = "FSDP cuts moments over all cards"
        experiment.assume(f"{TRAIN}.optimizer_shard", True, why, "over the replicas here")
    key = f"{_MODEL}.enable_gradient_checkpointing"
    if settings.is_on(key):
        experiment.set_from(settings, key, f"{TRAIN}.recompute", "full")


def _ranks_of_sequence(settings: Settings) -> tuple[int, str]:
    """Cards that split a sequence outside of Megatron's tensor parallelism, and the key that says so."""
    if is_megatron(settings):
        key = f"{_MEGATRON}.context_parallel_size"
        return settings.size(key), key
    keys = [f"{_ACTOR}.{section}ulysses_sequence_parallel_size" for section in ("", "fsdp_config.")]
    return max((settings.size(key), key) for key in keys)


def _fill_context(settings: Settings, experiment: Experiment, slices: int) -> int:
    """Ulysses under FSDP: matrices are cut here, which splits heads too, so that context_parallel is what is left of
    it; returns that."""
    ranks, key = _ranks_of_sequence(settings)
    context = ranks // gcd(ranks, slices)
    if ranks == 1:
        return 1
    experiment.set({f"{TRAIN}.context_parallel": context}, key)
    if slices > 1:
        experiment.set({f"{TRAIN}.use_seq_parallel": True}, key)
        how = f"model_parallel {slices} x context_parallel {context} with use_seq_parallel"
        experiment.report(
            Status.ADJUSTED, key, ranks, f"cards per sequence: {how}", targets=(f"{TRAIN}.context_parallel",)
        )
    return context


def _megatron_blocks(settings: Settings) -> tuple[int, int]:
    """Cards of a replica, and those that have all experts in all stages: both divide the cards."""
    replica = prod(settings.size(f"{_MEGATRON}.{name}") for name, _ in _MEGATRON_SIZES)
    slices = "expert_tensor_parallel_size"
    if settings[f"{_MEGATRON}.{slices}"] is None:
        slices = "tensor_model_parallel_size"
    names = ("expert_model_parallel_size", "pipeline_model_parallel_size", slices)
    return replica, prod(settings.size(f"{_MEGATRON}.{name}") for name in names)


def _fill_megatron_plan(settings: Settings, experiment: Experiment, cards: int) -> None:
    for key, target in (*_MEGATRON_SIZES, ("expert_model_parallel_size", "expert_parallel")):
        experiment.set_from(settings, f"{_MEGATRON}.{key}", f"{TRAIN}.{target}", settings.size(f"{_MEGATRON}.{key}"))
    key = f"{_MEGATRON}.expert_tensor_parallel_size"
    if settings[key] is not None:
        experiment.set({f"{TRAIN}.expert_tensor_parallel": settings.size(key)}, key)
    block, _ = _megatron_blocks(settings)
    experiment.fill_replicas(TRAIN, cards, block, "cards / (model x pipeline x context)")
    for key, target in (("sequence_parallel", "use_seq_parallel"), ("use_distributed_optimizer", "optimizer_shard")):
        key = f"{_MEGATRON}.{key}"
        experiment.set_from(settings, key, f"{TRAIN}.{target}", settings.is_on(key))
    key = f"{_MEGATRON}.override_transformer_config.recompute_granularity"
    if settings[key] in ("full", "selective"):
        experiment.set({f"{TRAIN}.recompute": settings[key]}, key)
    experiment.drop_what_has_no_effect()
    experiment.assume_micro_batches()


def _fill_micro_batches(settings: Settings, experiment: Experiment) -> None:
    """Responses of one pass as given per card, or its tokens: at least those of the longest sample."""
    key = "trainer.samples_per_micro_batch"
    if is_dynamic(settings):
        key, multiple = "trainer.max_tokens_per_micro_batch", schema_default("trainer.length_multiple")
        longest = experiment.count("data.max_prompt_length") + experiment.count("rollout.max_new_tokens")
        longest = -(-longest // multiple) * multiple
        origin = f"{_ACTOR}.ppo_max_token_len_per_gpu"
        ranks, of_ranks = _ranks_of_sequence(settings)
        tokens = settings.size(origin) * ranks
        experiment.set_from(settings, origin, key, max(tokens, longest))
        if ranks > 1:
            experiment.report(Status.ADJUSTED, key, tokens, f"{origin} x {of_ranks}: those of all cards of a sequence")
        if tokens < longest:
            why = f"{longest}, the longest prompt and response; verl raises it as well"
            experiment.report(Status.ADJUSTED, key, tokens, why)
    elif experiment.get(key) is None:
        of_all = f"{_ACTOR}.ppo_micro_batch_size"
        if settings[of_all] is not None:
            samples = max(1, settings.size(of_all) // experiment.count(f"{TRAIN}.data_parallel"))
            experiment.set({key: samples}, of_all)
        else:
            experiment.assume(key, 1, "no micro-batch is given", "more is faster where memory allows")
