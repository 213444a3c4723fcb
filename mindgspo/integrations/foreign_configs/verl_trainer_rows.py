"""verl's keys of the trainer, and of whatever this project has no counterpart of. See `verl_data_rows`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mindgspo.integrations.foreign_configs.given import Given, flag, local_path, whole
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
from mindgspo.integrations.foreign_configs.values import file_list, never_below_one, run_name, unlimited_below_one


def _max_steps(value: Any, given: Given) -> Any:
    return left_out("trainer.epochs decides") if value is None else never_below_one(value)


def _resume(value: Any, given: Given) -> Any:
    if value in ("auto", "disable"):
        return "auto" if value == "auto" else "never"
    return not_built("resume=auto continues from the newest checkpoint of run_dir; model.path starts from weights")


def _device(value: Any, given: Given) -> Any:
    if value == "npu":
        return "Ascend"
    return adjusted({"device": "Ascend"}, "runs on Ascend or CPU only; set device=CPU for a CPU")


def _loggers(value: Any, given: Given) -> Any:
    names = file_list(value)
    others = [name for name in names if name not in ("console", "tensorboard", "file")]
    values = {"logging.tensorboard": True} if "tensorboard" in names else {}
    if others:
        text = f"no {', '.join(others)}; metrics.jsonl always, logging.tensorboard on request"
        return replace(not_built(text), values=values)
    return mapped(values) if values else left_out("console and metrics.jsonl always")


ROWS = (
    # trainer
    to("trainer.total_epochs", "trainer.epochs", whole, default=30),
    to("trainer.total_training_steps", "trainer.max_steps", _max_steps),
    to("trainer.test_freq", "eval.every", unlimited_below_one, note="-1: before and after training only"),
    to("trainer.save_freq", "trainer.save_every", unlimited_below_one, note="-1: at the end only"),
    to(
        "trainer.max_actor_ckpt_to_keep",
        "trainer.keep_checkpoints",
        lambda value, given: not_built("set trainer.keep_checkpoints") if value is None else whole(value),
    ),
    to("trainer.experiment_name", "experiment", run_name),
    to("trainer.default_local_dir", "run_dir", local_path),
    to("trainer.resume_mode", "resume", _resume, note="disable: never", default="auto"),
    to("trainer.logger", "logging.tensorboard", _loggers, note="console and metrics.jsonl always"),
    to("trainer.device", "device", _device, note="npu: Ascend", default="npu"),
    joined("trainer.nnodes", "plans.train, plans.infer", "cards = nnodes x n_gpus_per_node", default=1),
    joined("trainer.n_gpus_per_node", "plans.train, plans.infer", "cards = nnodes x n_gpus_per_node", default=8),
    to("trainer.balance_batch", "trainer.balance_batches", flag, default=True),
    to("trainer.val_before_train", "eval.before", flag),
    unbuilt("trainer.val_only", "`mindgspo eval` measures a model", harmless=(False,)),
    unbuilt("trainer.resume_from_path", "resume=auto continues the run of run_dir", harmless=(None, False)),
    needless("trainer.project_name", "runs are named by `experiment`"),
    needless("trainer.critic_warmup", "there is no critic"),
    to("trainer.log_val_generations", "eval.logged_problems", whole, note="of each set"),
    needless("trainer.*_data_dir", "samples.jsonl holds the samples"),
    needless("trainer.*hdfs*", "files are local"),
    needless("trainer.del_local_ckpt_after_load", "trainer.keep_checkpoints clears old ones"),
    needless("trainer.ray_wait_register_center_timeout", "there is no Ray"),
    needless("trainer.use_legacy_worker_impl", "a switch between two implementations of verl"),
    needless("trainer.esi_redundant_time", "a setting of another platform"),
    needless("trainer.max_critic_ckpt_to_keep", "there is no critic"),
    # what this project has no counterpart of
    needless("critic.*", "there is no value model"),
    needless("ray_kwargs.*", "there is no Ray"),
    needless("ray_init.*", "there is no Ray"),
    needless("transfer_queue.*", "samples stay in memory"),
    needless("hydra.*", "settings of the configuration tool"),
    unbuilt("async_training.*", "training and generation take turns on the same cards"),
    unbuilt("global_profiler.*", "timing_s/* metrics tell where time goes"),
    unbuilt("distillation.*", "no teacher model", harmless=(False,)),
)
