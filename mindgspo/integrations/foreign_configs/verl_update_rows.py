"""verl's keys of the update: optimizer, micro-batches, parallel sizes of the actor. See `verl_data_rows`."""

from __future__ import annotations

from typing import Any

from mindgspo.integrations.foreign_configs.given import Given, flag, is_on, number, whole
from mindgspo.integrations.foreign_configs.table import joined, left_out, mapped, needless, not_built, to, unbuilt
from mindgspo.integrations.foreign_configs.verl_names import ACTOR, MEGATRON_TRAINERS, OPTIM, REF

_MEGATRON = {
    "tensor_model_parallel_size": ("model_parallel", 1),
    "pipeline_model_parallel_size": ("pipeline_stage", 1),
    "context_parallel_size": ("context_parallel", 1),
    "expert_model_parallel_size": ("expert_parallel", 1),
    "sequence_parallel": ("use_seq_parallel", True),
    "use_distributed_optimizer": ("optimizer_shard", True),
}


def _betas(value: Any, given: Given) -> Any:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"expected two numbers, got {value!r}")
    return mapped({"optimizer.beta1": number(value[0]), "optimizer.beta2": number(value[1])})


def _schedule(value: Any, given: Given) -> Any:
    return value if value in ("constant", "cosine") else not_built("optimizer.schedule is constant or cosine")


def _warmup_ratio(value: Any, given: Given) -> Any:
    if _warmup_steps_given(given):
        return left_out("lr_warmup_steps is given, and counts")
    return mapped({"optimizer.warmup_ratio": number(value)})


def _warmup_steps_given(given: Given) -> bool:
    steps = given[f"{OPTIM}.lr_warmup_steps"]
    return isinstance(steps, int) and steps >= 0


def _warmup_steps(value: Any, given: Given) -> Any:
    if value is None or whole(value) < 0:
        return left_out("lr_warmup_steps_ratio counts")
    total = given["trainer.total_training_steps"]
    if whole(value) == 0:
        return mapped({"optimizer.warmup_ratio": 0.0})
    if not isinstance(total, int) or total < 1:
        return not_built(
            f"set optimizer.warmup_ratio to {value} / number of training steps, which `mindgspo check` prints"
        )
    ratio = min(whole(value) / total, 0.999)
    return mapped({"optimizer.warmup_ratio": ratio}, f"{value} of {total} steps")


def _per_pass(value: Any, given: Given) -> Any:
    if is_on(given, f"{ACTOR}.use_dynamic_bsz"):
        return left_out("use_dynamic_bsz is on, and counts")
    return left_out("none is given") if value is None else mapped({"trainer.samples_per_micro_batch": whole(value)})


def _altogether(value: Any, given: Given) -> Any:
    if is_on(given, f"{ACTOR}.use_dynamic_bsz") or given[f"{ACTOR}.ppo_micro_batch_size_per_gpu"] is not None:
        return left_out("use_dynamic_bsz or ppo_micro_batch_size_per_gpu counts")
    return left_out("none is given") if value is None else mapped({}, f"{whole(value)} / replicas")


def _tokens(value: Any, given: Given) -> Any:
    if not is_on(given, f"{ACTOR}.use_dynamic_bsz"):
        return left_out("read with use_dynamic_bsz only")
    return mapped({"trainer.max_tokens_per_micro_batch": whole(value)})


def _offload(value: Any, given: Given) -> Any:
    return mapped({"swap.enabled": True}) if flag(value) else left_out("everything stays on the device")


def _engine(value: Any, given: Given) -> Any:
    if value in ("dp", "megatron"):
        return mapped({}, "as strategy fsdp" if value == "dp" else "as strategy megatron")
    return not_built("sizes of the plans are worked out of FSDP's and Megatron's settings: set plans.train")


def _config_name(value: Any, given: Given) -> Any:
    name = str(value).removesuffix(".yaml")
    if name in ("ppo_trainer", "dapo_trainer"):
        return left_out("its defaults are the table's")
    if name in MEGATRON_TRAINERS:
        return mapped({}, "strategy megatron")
    return not_built("settings of another file are not read: add them as overrides")


ROWS = (
    # optimizer
    to(f"{OPTIM}.lr", "optimizer.lr", number, default=1e-6),
    to(f"{OPTIM}.weight_decay", "optimizer.weight_decay", number, default=0.01),
    to(f"{OPTIM}.betas", "optimizer.beta1, optimizer.beta2", _betas, default=[0.9, 0.999]),
    to(f"{ACTOR}.grad_clip", "optimizer.max_grad_norm", number),
    to(f"{OPTIM}.clip_grad", "optimizer.max_grad_norm", number),
    to(f"{OPTIM}.lr_warmup_steps", "optimizer.warmup_ratio", _warmup_steps, note="steps / total_training_steps"),
    to(f"{OPTIM}.lr_warmup_steps_ratio", "optimizer.warmup_ratio", _warmup_ratio, default=0.0),
    to(f"{OPTIM}.lr_scheduler_type", "optimizer.schedule", _schedule),
    to(f"{OPTIM}.warmup_style", "optimizer.schedule", _schedule, note="older name of lr_scheduler_type"),
    to(f"{OPTIM}.lr_decay_style", "optimizer.schedule", _schedule, note="Megatron's name"),
    to(f"{OPTIM}.min_lr_ratio", "optimizer.min_lr_ratio", lambda value, given: number(value or 0.0)),
    unbuilt(f"{OPTIM}.optimizer", "AdamW", harmless=("AdamW", "adam", "adamw")),
    unbuilt(f"{OPTIM}.lr_decay_steps", "the schedule ends with the run", harmless=(None,)),
    needless(f"{OPTIM}.total_training_steps", "trainer.max_steps, or trainer.epochs"),
    unbuilt(f"{OPTIM}.*", "see the section `optimizer`", harmless=(None, 0.0, -1, "constant")),
    # batches and graphs
    to(f"{ACTOR}.ppo_mini_batch_size", "trainer.prompts_per_mini_batch", whole, note="prompts in both", default=256),
    to(
        f"{ACTOR}.ppo_micro_batch_size_per_gpu",
        "trainer.samples_per_micro_batch",
        _per_pass,
        note="responses of one pass, unless use_dynamic_bsz",
    ),
    to(
        f"{ACTOR}.ppo_micro_batch_size",
        "trainer.samples_per_micro_batch",
        _altogether,
        note="altogether there, per replica here",
    ),
    joined(
        f"{ACTOR}.use_dynamic_bsz",
        "trainer.max_tokens_per_micro_batch",
        "true: in the place of trainer.samples_per_micro_batch",
        default=False,
    ),
    to(
        f"{ACTOR}.ppo_max_token_len_per_gpu",
        "trainer.max_tokens_per_micro_batch",
        _tokens,
        note="with use_dynamic_bsz",
        default=16384,
    ),
    to(f"{ACTOR}.ppo_epochs", "trainer.epochs_per_rollout"),
    unbuilt(f"{ACTOR}.shuffle", "mini-batches are made in the order of the prompts", harmless=(False,)),
    needless(f"{ACTOR}.data_loader_seed", "one seed for everything"),
    unbuilt(
        f"{ACTOR}.ulysses_sequence_parallel_size",
        "plans.train.context_parallel is not built; model_parallel with use_seq_parallel splits activations",
        harmless=(1,),
    ),
    to("--config-name", "plans.train", _config_name, note="of ppo_megatron_trainer: strategy megatron"),
    to("model_engine", "plans.train", _engine, note="dp: as strategy fsdp; megatron"),
    needless("--config-path", "settings of other files are not read; see --config-name"),
    joined(f"{ACTOR}.strategy", "plans.train", "fsdp, fsdp2: the rollout's split; megatron: its sizes", default="fsdp"),
    *(
        joined(f"{ACTOR}.megatron.{key}", f"plans.train.{target}", "with strategy megatron", default=default)
        for key, (target, default) in _MEGATRON.items()
    ),
    joined(
        f"{ACTOR}.megatron.override_transformer_config.recompute_granularity",
        "plans.train.recompute",
        "with strategy megatron: full, or selective",
    ),
    unbuilt(f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size", "stages are not interleaved", harmless=(None,)),
    to(f"{ACTOR}.megatron.*offload", "swap.enabled", _offload, note="true: what a phase does not read"),
    needless(f"{ACTOR}.megatron.*", "a setting of Megatron"),
    to(f"{ACTOR}.fsdp_config.*offload", "swap.enabled", _offload, note="true: what a phase does not read"),
    needless(f"{ACTOR}.fsdp_config.*", "a setting of FSDP"),
    needless(f"{ACTOR}.*checkpointing", "plans.train.recompute"),
    needless(f"{ACTOR}.entropy_from_logits_with_chunking", "entropy is computed in blocks"),
    needless(f"{ACTOR}.use_prefix_grouper", "how prompts are computed, not what"),
    needless(f"{ACTOR}.freeze_vision_tower", "text only"),
    needless(f"{ACTOR}.use_torch_compile", "graphs are always compiled"),
    needless(f"{ACTOR}.use_remove_padding", "rows are cut to trainer.length_multiple"),
    needless(f"{ACTOR}.use_fused_kernels", "fused operators are used on Ascend where they exist"),
    needless(f"{ACTOR}.calculate_*", "entropy is always measured"),
    needless(f"{ACTOR}.checkpoint.*", "checkpoints hold model, optimizer and the rest"),
    unbuilt(f"{ACTOR}.veomni.*", "set plans.train"),
    unbuilt(f"{ACTOR}.profiler.*", "timing_s/* metrics tell where time goes", harmless=(False,)),
    unbuilt(f"{ACTOR}.router_replay.*", "experts are routed anew", harmless=("disabled", None)),
    needless(f"{REF}.*", "the reference policy is computed with plans.train, or set plans.reference"),
    needless("actor_rollout_ref.hybrid_engine", "training and generation always share the cards"),
    needless("actor_rollout_ref.nccl_timeout", "`watch` reports stalls"),
)
