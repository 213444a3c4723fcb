"""Experiments whose memory the tests of `tests/unit/planner` plan: model, plans, and the sizes that count. No files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from small_plans import QWEN_7B

from mindgspo.config import ExperimentConfig, ModelSection, resolve
from mindgspo.config.huggingface_config import huggingface_config

QWEN2_5_7B = QWEN_7B.model_dump(exclude_unset=True) | {"max_position_embeddings": 131072, "dtype": "bfloat16"}


def qwen2(**changes: Any) -> dict[str, Any]:
    """The model section of a small Qwen2."""
    small = {
        "vocab_size": 1024,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
    return small | changes


def teacher_folder(folder: Path, model: dict[str, Any]) -> str:
    """The path of a folder whose config.json has this model's sizes."""
    folder.mkdir()
    content = huggingface_config(ModelSection(**model), eos_ids=[1], pad_id=0)
    (folder / "config.json").write_text(json.dumps(content))
    return str(folder)


def experiment_of(
    model: dict[str, Any],
    *,
    train: dict[str, Any] | None = None,
    infer: dict[str, Any] | None = None,
    device: str = "CPU",
    rows: int = 4,
    prompt: int = 64,
    response: int = 64,
    slots: int = 16,
    group: int = 4,
    multiple: int = 16,
    prompts: int | None = None,
    **sections: Any,
) -> ExperimentConfig:
    """A resolved experiment. prompts: per step and update; None: as many as fill the slots with their siblings."""
    prompts = prompts or max(1, slots // group)
    source = {"format": "arithmetic"}
    data = {"train": source | {"split": "train"}, "eval": source | {"split": "test"}, "max_prompt_length": prompt}
    rollout = {"prompts_per_step": prompts, "num_generations": group, "max_new_tokens": response, "slots": slots}
    trainer = {"max_steps": 1, "prompts_per_mini_batch": prompts, "samples_per_micro_batch": rows}
    plans = {"train": train or {}, "infer": infer or {}}
    given = {"device": device, "model": ModelSection(**model), "plans": plans, "data": data, "rollout": rollout}
    given |= {"experiment": "planned", "trainer": trainer | {"length_multiple": multiple}}
    return resolve(ExperimentConfig.model_validate(given | sections))
