"""verl's keys of data and model.

Names and defaults are those of verl's trainer configuration (ppo_trainer) and of its DAPO recipe, here and in the other
tables of verl. What several keys decide together (plans, micro-batches) is worked out in `verl`.
"""

from __future__ import annotations

from typing import Any

from mindgspo.integrations.foreign_configs.given import Given, flag, local_path, seed, text, whole
from mindgspo.integrations.foreign_configs.known_models import is_local
from mindgspo.integrations.foreign_configs.table import (
    Outcome,
    joined,
    left_out,
    mapped,
    needless,
    not_built,
    to,
    unbuilt,
)
from mindgspo.integrations.foreign_configs.values import file_list, unlimited_below_one
from mindgspo.integrations.foreign_configs.verl_names import MODEL

_TOGETHER = "one file is read: put them together, then set data.train.path"
_NAMED = "name each as a set of its own: data.eval.NAME.format=verl and data.eval.NAME.path=..."


def _files(target: str, several: str) -> Any:
    def convert(value: Any, given: Given) -> Any:
        files = file_list(value)
        if len(files) > 1:
            return not_built(f"{len(files)} files; {several}")
        return mapped({f"{target}.format": "verl", f"{target}.path": local_path(files[0])})

    return convert


def _overlong_prompts(value: Any, given: Given) -> Any:
    if not flag(value):
        return left_out("then data.truncation decides, as it does here")
    return mapped({"data.truncation": "drop"}, "longer prompts are dropped and counted")


def _truncation(value: Any, given: Given) -> Any:
    if given["data.filter_overlong_prompts"] is True:
        return left_out("no longer prompt is left: data.filter_overlong_prompts drops them")
    return text(value)


def _column(usual: str, key: str) -> Any:
    def convert(value: Any, given: Given) -> Outcome:
        if value == usual:
            return left_out("the column that the format verl reads")
        return not_built(f"set data.train.format=columns and data.train.columns.{key}={value} (data.eval likewise)")

    return convert


def _model_path(value: Any, given: Given) -> Any:
    if not is_local(text(value)):
        return not_built("a name on a hub: nothing is downloaded; set model.path and tokenizer.path to a local folder")
    path = local_path(value)
    tokenizer = {} if given["data.tokenizer"] else {"tokenizer.path": path}
    return mapped({"model.path": path, **tokenizer})


ROWS = (
    # data
    to(
        "data.train_files",
        "data.train.format, data.train.path",
        _files("data.train", _TOGETHER),
        note="one file of rows",
    ),
    to("data.val_files", "data.eval.format, data.eval.path", _files("data.eval", _NAMED), note="one file of rows"),
    to("data.train_batch_size", "rollout.prompts_per_step", whole, default=1024),
    to("data.max_prompt_length", "data.max_prompt_length", whole, default=512),
    to("data.max_response_length", "rollout.max_new_tokens", whole, default=512),
    to("data.shuffle", "data.shuffle", flag),
    to(
        "data.seed",
        "seed",
        lambda value, given: left_out("none is set") if value is None else seed(value),
        note="there the order of prompts only; here one seed for everything",
    ),
    to("data.filter_overlong_prompts", "data.truncation", _overlong_prompts, note="true: drop"),
    to("data.truncation", "data.truncation", _truncation, note="unless filter_overlong_prompts drops them"),
    to("data.train_max_samples", "data.train.max_rows", unlimited_below_one),
    to("data.val_max_samples", "data.eval.max_rows", unlimited_below_one),
    to("data.prompt_key", "", _column("prompt", "prompt"), note="another than `prompt`: format columns"),
    to("data.reward_fn_key", "", _column("data_source", "data_source"), note="another: format columns"),
    to(
        "data.tokenizer",
        "tokenizer.path",
        lambda value, given: left_out("that of the model") if value is None else local_path(value),
    ),
    unbuilt("data.custom_cls.*", "data.train.format=columns reads any rows", harmless=(None,)),
    unbuilt("data.apply_chat_template_kwargs*", "data.system_prompt and instruction_prefix/suffix", harmless=({},)),
    unbuilt("data.return_multi_modal_inputs", "text only", harmless=(True, False)),
    unbuilt("data.image_key", "text only", harmless=("images",)),
    needless("data.trust_remote_code", "nothing of a data or model folder is executed"),
    needless("data.use_shm", "files are read where they are"),
    needless("data.return_*", "prompts keep text and ids"),
    needless("data.val_batch_size", "rollout.slots sets how many problems are answered at once"),
    needless("data.dataloader_num_workers", "rows are prepared once, before the run"),
    needless("data.filter_overlong_prompts_workers", "rows are prepared once, by one process per processor"),
    needless("data.validation_shuffle", "accuracy does not depend on the order"),
    unbuilt("data.sampler.*", "data.shuffle draws prompts in a seeded order", harmless=(None,)),
    # model
    to(
        f"{MODEL}.path",
        "model.path, tokenizer.path, model.*",
        _model_path,
        note="a local folder; sizes from its config.json, or by its name",
    ),
    joined(f"{MODEL}.enable_gradient_checkpointing", "plans.train.recompute", "true: full", default=True),
    joined(f"{MODEL}.override_config.max_position_embeddings", "model.max_position_embeddings", "longest sequence"),
    needless(f"{MODEL}.override_config.*dropout", "no dropout"),
    needless(f"{MODEL}.override_config.*_pdrop", "no dropout"),
    unbuilt(f"{MODEL}.override_config*", "sizes stand in the section `model`", harmless=({},)),
    to(
        f"{MODEL}.tokenizer_path",
        "tokenizer.path",
        lambda value, given: left_out("that of the model") if value is None else local_path(value),
    ),
    needless(f"{MODEL}.use_remove_padding", "rows are cut to trainer.length_multiple; the result is the same"),
    needless(f"{MODEL}.use_fused_kernels", "fused operators are used on Ascend where they exist"),
    needless(f"{MODEL}.use_liger", "fused operators are used on Ascend where they exist"),
    needless(f"{MODEL}.use_shm", "files are read where they are"),
    needless(f"{MODEL}.trust_remote_code", "nothing of a data or model folder is executed"),
    unbuilt(f"{MODEL}.lora_rank", "all weights are trained", harmless=(0,)),
    unbuilt(f"{MODEL}.lora*", "all weights are trained", harmless=(None,)),
    unbuilt(f"{MODEL}.mtp.*", "one token is predicted at a time", harmless=(False,)),
    needless(f"{MODEL}.exclude_modules", "read with LoRA only"),
    needless(f"{MODEL}.fused_kernel_options.*", "fused operators are used on Ascend where they exist"),
    needless(f"{MODEL}.target_modules", "read with LoRA only"),
    unbuilt(
        f"{MODEL}.enable_activation_offload", "plans.train.recompute=full keeps activations small", harmless=(False,)
    ),
)
