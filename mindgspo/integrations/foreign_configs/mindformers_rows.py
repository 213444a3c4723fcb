"""MindFormers' keys beside the model: run, optimizer, plans, data.

A finetune YAML holds the plan of training, a predict YAML that of generation. Both are supervised or serving
configurations, so what a policy optimisation needs besides (prompts, group, reward) is assumed or still to be set.
"""

from __future__ import annotations

from typing import Any

from mindgspo.integrations.foreign_configs.given import Given, flag, local_path, number, seed, text, whole
from mindgspo.integrations.foreign_configs.table import (
    adjusted,
    joined,
    left_out,
    mapped,
    needless,
    not_built,
    to,
    unbuilt,
)
from mindgspo.integrations.foreign_configs.values import run_name

PLAN, SCHEDULE, OPTIMIZER = "parallel_config", "lr_schedule", "optimizer"
TOKENIZER = "processor.tokenizer"
_SCHEDULES = {"CosineWithWarmUpLR": "cosine", "ConstantWarmUpLR": "constant"}
_RECOMPUTE, _SELECT = "recompute_config.recompute", "recompute_config.select_recompute"
_PLAN_KEYS = ("data_parallel", "model_parallel", "pipeline_stage", "context_parallel", "expert_parallel")


def _run_mode(value: Any, given: Given) -> Any:
    if value not in ("finetune", "train", "predict"):
        raise ValueError(f"expected finetune, train or predict, got {value!r}; read as one that trains")
    return mapped({})


def _weights(value: Any, given: Given) -> Any:
    if not value:
        return left_out("none is given; set model.path to a Hugging Face folder")
    if given["load_ckpt_format"] == "ckpt":
        return not_built("weights are read from Hugging Face folders: `mindgspo convert weights`, then set model.path")
    return mapped({"model.path": local_path(value)}, "must be a Hugging Face folder (config.json + *.safetensors)")


def _pretrained(value: Any, given: Given) -> Any:
    path = local_path(value)
    return mapped({"model.path": path, "tokenizer.path": path}, "sizes from its config.json, or by its name")


def _learning_rate(value: Any, given: Given) -> Any:
    if value is None:
        return left_out("lr_schedule.learning_rate counts")
    if f"{SCHEDULE}.learning_rate" in given:
        return left_out("lr_schedule.learning_rate counts")
    return number(value)


def _betas(value: Any, given: Given) -> Any:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"expected two numbers, got {value!r}")
    return mapped({"optimizer.beta1": number(value[0]), "optimizer.beta2": number(value[1])})


def _schedule(value: Any, given: Given) -> Any:
    return _SCHEDULES[value] if value in _SCHEDULES else not_built("optimizer.schedule is constant or cosine")


def _last_rate(value: Any, given: Given) -> Any:
    if _SCHEDULES.get(given[f"{SCHEDULE}.type"]) != "cosine":
        return left_out("read with a cosine only")
    peak = given.first(f"{SCHEDULE}.learning_rate", f"{OPTIMIZER}.learning_rate")
    if peak is None or number(peak) <= 0:
        return not_built("set optimizer.min_lr_ratio")
    return mapped({"optimizer.min_lr_ratio": number(value) / number(peak)}, "lr_end / learning_rate")


def _warmup_steps(value: Any, given: Given) -> Any:
    if whole(value) == 0:
        return left_out("no rise") if f"{SCHEDULE}.warmup_ratio" in given else mapped({"optimizer.warmup_ratio": 0.0})
    return not_built(f"set optimizer.warmup_ratio to {value} / number of updates")


def _clip_grad(value: Any, given: Given) -> Any:
    if flag(value):
        return left_out("gradients are always clipped, to optimizer.max_grad_norm")
    return not_built("gradients are always clipped; a large optimizer.max_grad_norm clips nothing")


def _resume(value: Any, given: Given) -> Any:
    return "auto" if value is True or (isinstance(value, str) and value) else left_out("resume=never, as by default")


def recompute(value: Any, given: Given) -> Any:
    """`plans.train.recompute` from a switch, or from a list of layers per stage; also of MindRLHF."""
    if isinstance(value, list):
        if not any(value):
            return left_out("no layer is computed again")
        return adjusted({"plans.train.recompute": "full"}, "every layer is computed again, or none")
    return mapped({"plans.train.recompute": "full"}) if flag(value) else left_out("no layer is computed again")


def selective(switch: str) -> Any:
    """A converter: the same from the switch or the list of operators beside the key `switch`; also of MindRLHF."""

    def convert(value: Any, given: Given) -> Any:
        whole_layers = given[switch]
        if whole_layers is True or (isinstance(whole_layers, list) and any(whole_layers)):
            return left_out("every layer is computed again as a whole")
        if not value or (isinstance(value, list) and not any(value)):
            return left_out("no operator is computed again")
        return mapped({"plans.train.recompute": "selective"})

    return convert


def device(value: Any, given: Given) -> Any:
    """`device`; also of MindRLHF."""
    if value in ("Ascend", "CPU"):
        return value
    return adjusted({"device": "Ascend"}, "runs on Ascend or CPU only")


def _experiment(value: Any, given: Given) -> Any:
    return run_name(f"{text(value)}-gspo")


def _tokenizer_file(value: Any, given: Given) -> Any:
    return mapped({}) if value else left_out("none is given")


def _eos(value: Any, given: Given) -> Any:
    return left_out("none is given") if value is None else [text(value)]


def _pad(value: Any, given: Given) -> Any:
    return left_out("none is given") if value is None else text(value)


ROWS = (
    to("run_mode", "plans.train, plans.infer", _run_mode, note="finetune, train: plans.train; predict: plans.infer"),
    to("seed", "seed", seed),
    to("trainer.model_name", "experiment", _experiment, note="with -gspo behind it"),
    to("load_checkpoint", "model.path", _weights, note="a Hugging Face folder"),
    to("pretrained_model_dir", "model.path, tokenizer.path", _pretrained, note="sizes from its config.json or name"),
    to("resume_training", "resume", _resume, note="true: auto"),
    # optimizer
    to("runner_config.epochs", "trainer.epochs", whole),
    joined("runner_config.batch_size", "trainer.samples_per_micro_batch", "sequences of one pass of one replica"),
    to("runner_wrapper.max_grad_norm", "optimizer.max_grad_norm", number),
    to("runner_wrapper.use_clip_grad", "", _clip_grad, note="always true here"),
    unbuilt(f"{OPTIMIZER}.type", "AdamW", harmless=("AdamW", "adamw", "PmaAdamW")),
    to(f"{OPTIMIZER}.betas", "optimizer.beta1, optimizer.beta2", _betas, default=[0.9, 0.999]),
    to(f"{OPTIMIZER}.eps", "optimizer.eps", number),
    to(f"{OPTIMIZER}.weight_decay", "optimizer.weight_decay", number, default=0.0),
    to(f"{OPTIMIZER}.learning_rate", "optimizer.lr", _learning_rate, note="where lr_schedule gives none"),
    unbuilt(f"{OPTIMIZER}.*", "see the section `optimizer`"),
    to(f"{SCHEDULE}.type", "optimizer.schedule", _schedule, note="CosineWithWarmUpLR, ConstantWarmUpLR"),
    to(f"{SCHEDULE}.learning_rate", "optimizer.lr", number),
    to(f"{SCHEDULE}.lr_end", "optimizer.min_lr_ratio", _last_rate, note="lr_end / learning_rate", default=0.0),
    to(f"{SCHEDULE}.warmup_ratio", "optimizer.warmup_ratio", number, default=0.0),
    to(f"{SCHEDULE}.warmup_steps", "optimizer.warmup_ratio", _warmup_steps, note="0 only: runs differ in length"),
    unbuilt(f"{SCHEDULE}.warmup_lr_init", "the rise begins at 0", harmless=(0, 0.0)),
    needless(f"{SCHEDULE}.total_steps", "trainer.max_steps, or trainer.epochs"),
    # plans
    joined("use_parallel", "plans.train, plans.infer", "false: one card, whatever parallel_config says", default=True),
    *(joined(f"{PLAN}.{key}", f"plans.train.{key}, plans.infer.{key}", "by run_mode", default=1) for key in _PLAN_KEYS),
    joined(f"{PLAN}.micro_batch_num", "plans.train.micro_batch_num", "with pipeline stages", default=1),
    joined(f"{PLAN}.use_seq_parallel", "plans.train.use_seq_parallel", "with model_parallel", default=False),
    joined(f"{PLAN}.vocab_emb_dp", "plans.train.vocab_emb_dp, plans.infer.vocab_emb_dp", "by run_mode", default=True),
    joined(f"{PLAN}.optimizer_shard", "plans.train.optimizer_shard", "as enable_parallel_optimizer"),
    joined("parallel.enable_parallel_optimizer", "plans.train.optimizer_shard", "with data_parallel", default=False),
    needless(f"{PLAN}.gradient_aggregation_group", "how gradients are gathered, not what they are"),
    unbuilt(f"{PLAN}.seq_split_num", "stages take whole sequences", harmless=(1,)),
    unbuilt("micro_batch_interleave_num", "micro-batches are not interleaved", harmless=(1,)),
    unbuilt("parallel.pipeline_config.*", "stages are not interleaved", harmless=(False,)),
    unbuilt(
        "parallel.parallel_optimizer_config.gradient_accumulation_shard", "gradients stay whole", harmless=(False,)
    ),
    to(_RECOMPUTE, "plans.train.recompute", recompute, note="true, or a list of layers: full"),
    to(f"{_SELECT}*", "plans.train.recompute", selective(_RECOMPUTE), note="selective, unless recompute"),
    needless("recompute_config.*", "what of the communication is computed again"),
    needless("parallel.*", "set by the plan itself"),
    # device
    to("context.device_target", "device", device),
    needless("context.max_device_memory", "`mindgspo plan` compares with the memory of a card"),
    needless("context.*", "set by the program"),
    # tokens
    to(f"{TOKENIZER}.eos_token", "tokenizer.eos_tokens", _eos),
    to(f"{TOKENIZER}.pad_token", "tokenizer.pad_token", _pad),
    to(f"{TOKENIZER}.vocab_file", "tokenizer.path", _tokenizer_file, note="the folder of both files"),
    to(f"{TOKENIZER}.merges_file", "tokenizer.path", _tokenizer_file, note="the folder of both files"),
    unbuilt(f"{TOKENIZER}.chat_template", "the template of tokenizer_config.json in tokenizer.path"),
    needless(f"{TOKENIZER}.*", "read from tokenizer.path"),
    needless("processor.*", "read from tokenizer.path"),
    # saving
    to("callbacks.CheckpointMonitor.keep_checkpoint_max", "trainer.keep_checkpoints", whole),
    unbuilt(
        "callbacks.CheckpointMonitor.save_checkpoint_steps",
        "it counts updates; trainer.save_every counts training steps, each a rollout with its updates",
    ),
    needless("callbacks.*", "metrics and checkpoints are always written"),
    # what a policy optimisation does not have
    unbuilt("train_dataset*", "tokens with labels; data.train is a file of questions and answers", harmless=(None,)),
    unbuilt("eval_dataset*", "tokens with labels; data.eval is a file of questions and answers", harmless=(None,)),
    needless("do_eval", "eval.every"),
    needless("eval_*", "eval.every"),
    needless("metric.*", "accuracy of answers is measured"),
    needless("runner_config.gradient_accumulation_steps", "trainer.prompts_per_mini_batch sets the size of an update"),
    needless("runner_config.*", "how data is fed, not what"),
    unbuilt("runner_wrapper.scale_sense*", "no loss scaling: bfloat16 does not need it", harmless=(1, 1.0)),
    needless("runner_wrapper.*", "the update is this project's own"),
    needless("trainer.type", "the trainer is this project's own"),
    needless("load_ckpt_format", "weights are read from Hugging Face folders"),
    needless("src_strategy_path_or_dir", "weights of a Hugging Face folder fit any plan"),
    needless("auto_trans_ckpt", "weights of a Hugging Face folder fit any plan"),
    needless("only_save_strategy", "tools/generate_strategy.py writes strategy files"),
    needless("output_dir", "runs/<experiment>, or run_dir"),
    needless("use_legacy", "one implementation"),
    unbuilt("moe_config.*", "experts in the names of Hugging Face: model.model_config.num_experts, ..."),
    needless("*profil*", "timing_s/* metrics tell where time goes"),
    needless("auto_tune", "of MindFormers' own tools"),
    needless("autotune_per_step", "of MindFormers' own tools"),
    needless("filepath_prefix", "of MindFormers' own tools"),
    needless("remote_save_url", "files are local"),
    needless("print_separate_loss", "metrics are always separate"),
    needless("layer_scale", "of vision models"),
    needless("layer_decay", "of vision models"),
    needless("lr_scale_factor", "of vision models"),
    needless("lr_scale", "of vision models"),
)
