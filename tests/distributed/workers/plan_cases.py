"""The model, rollout and loss that every plan is compared on. Imported by workers and by tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mindgspo.algorithms.definition import LossDefinition
from mindgspo.data.rows import TrainingSample, lay_out
from mindgspo.types import Batch, Prompt

MODEL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "initializer_range": 0.1,
}

# By the name of a model; of the experts' features model_parallel splits 24.
MODELS = {
    "dense": MODEL,
    "experts": MODEL
    | {
        "architecture": "qwen3_moe",
        "head_dim": 12,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
    },
}


def definition() -> LossDefinition:
    """GSPO with a range wide enough that some responses are inside, some outside."""
    from mindgspo.algorithms.registry import loss_definition
    from mindgspo.config import AlgorithmSection, with_recipe

    section = AlgorithmSection(name="gspo", clip_low=3e-4, clip_high=4e-4)
    return loss_definition(with_recipe(section, max_new_tokens=16))


def batches_of(section) -> list[Batch]:
    """Eight micro-batches of two responses, of several lengths."""
    random = np.random.default_rng(11)
    samples = [
        TrainingSample(
            prompt_ids=random.integers(2, section.vocab_size, random.integers(3, 9)).astype(np.int32),
            response_ids=random.integers(2, section.vocab_size, random.integers(2, 14)).astype(np.int32),
            rollout_logp=np.zeros(0, np.float32),
            number=number,
        )
        for number in range(16)
    ]
    samples = [
        TrainingSample(
            prompt_ids=sample.prompt_ids,
            response_ids=sample.response_ids,
            rollout_logp=np.full(sample.response_ids.size, -4.0, np.float32),
            number=sample.number,
        )
        for sample in samples
    ]
    laid_out = lay_out(samples, samples_per_micro_batch=2, length_multiple=24, pad_id=0)
    return [_judged(batch, np.random.default_rng([12, index])) for index, batch in enumerate(laid_out)]


def _judged(batch: Batch, random: np.random.Generator) -> Batch:
    shape = batch.mask_NK.shape
    old = np.where(batch.mask_NK, random.uniform(-6, -3, shape), 0).astype(np.float32)
    advantages = np.where(batch.mask_NK, random.standard_normal((shape[0], 1)) + np.zeros(shape), 0)
    return replace(batch, old_logp_NK=old, advantages_NK=advantages.astype(np.float32))


def prompts_of(section) -> list[Prompt]:
    """Six prompts."""
    random = np.random.default_rng(13)
    return [
        Prompt(
            index=index,
            ids=random.integers(2, section.vocab_size, random.integers(3, 8)).astype(np.int32),
            text="",
            answer="1",
            data_source="test",
            solution="",
            extra_info={},
        )
        for index in range(6)
    ]
