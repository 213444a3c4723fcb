"""The model, rollout and loss that every plan is compared on. Imported by workers and by tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mindgspo.algorithms.losses.definition import LossDefinition
from mindgspo.batches.micro_batches import BatchLayout, micro_batches
from mindgspo.batches.routing import with_experts
from mindgspo.batches.rows import TrainingSample, scattered
from mindgspo.types import Batch, Prompt, Routing

MODEL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True, "initializer_range": 0.1,
}  # fmt: skip

TOP_K = 40  # likeliest tokens of a teacher, more than the rows of a rank
GLM4 = MODEL | {"architecture": "glm4", "head_dim": 12, "partial_rotary_factor": 0.5}
# By the name of a model; of the experts' features model_parallel splits 24.
MODELS = {
    "dense": MODEL,
    "deep": MODEL | {"num_hidden_layers": 4},
    "adapters": MODEL | {"lora": {"rank": 4, "alpha": 6.0}},
    "glm4": GLM4,
    "adapted glm4": GLM4 | {"lora": {"rank": 4, "alpha": 6.0}},
    "padded": MODEL | {"vocab_size": 63, "table_rows": 66, "tie_word_embeddings": False},
    "taught": MODEL | {"vocab_size": 63, "table_rows": 66, "tie_word_embeddings": False},
    "experts": MODEL | {"architecture": "qwen3_moe", "head_dim": 12, "num_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "norm_topk_prob": True},
    "shared experts": MODEL | {"architecture": "glm4_moe", "head_dim": 12, "num_experts": 8, "num_experts_per_tok": 3,
        "moe_intermediate_size": 24, "norm_topk_prob": True, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5, "partial_rotary_factor": 0.5},
    "adapted experts": MODEL | {"architecture": "qwen3_moe", "head_dim": 12, "num_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "norm_topk_prob": True,
        "lora": {"rank": 4, "alpha": 6.0, "targets": ("all", "router"), "train_norms": True}},
}  # fmt: skip


def definition(*, is_taught: bool = False) -> LossDefinition:
    """GSPO with a range wide enough that some responses are inside, some outside. is_taught: with the KL to a
    teacher."""
    from mindgspo.algorithms.losses.registry import loss_definition
    from mindgspo.config import AlgorithmSection, with_recipe

    section = AlgorithmSection(name="gspo", clip_low=3e-4, clip_high=4e-4)
    return replace(loss_definition(with_recipe(section, max_new_tokens=16)), distillation_coef=0.5 * is_taught)


def batches_of(section, *, packed_for: int | None = None, **layout_of_device: object) -> list[Batch]:
    """Sixteen responses of several lengths, two in a micro-batch; or packed, and balanced over so many replicas.

    layout_of_device: more of `BatchLayout`, for packed rows."""
    random = np.random.default_rng(11)
    samples = [
        TrainingSample(
            prompt_ids=random.integers(2, section.vocab_size, random.integers(3, 9)).astype(np.int32),
            response_ids=(ids := random.integers(2, section.vocab_size, random.integers(2, 14)).astype(np.int32)),
            rollout_logp=np.full(ids.size, -4.0, np.float32),
            number=number,
        )
        for number in range(16)
    ]
    lengths = [sample.response_ids.size for sample in samples]
    old = [np.random.default_rng([12, n]).uniform(-6, -3, size).astype(np.float32) for n, size in enumerate(lengths)]
    # Of these every micro-batch of two has a gradient, so that none can be lost unseen.
    signs = np.random.default_rng(22).standard_normal(16)
    advantages = [np.full(size, sign, np.float32) for size, sign in zip(lengths, signs, strict=True)]
    layout = BatchLayout(samples_per_micro_batch=2, length_multiple=24, pad_id=0)
    if packed_for is not None:
        layout = BatchLayout(
            max_tokens_per_micro_batch=48, packing=True, length_multiple=8, pad_id=0, replicas=packed_for,
            balanced=True, **layout_of_device,
        )  # fmt: skip
    return [
        replace(batch, old_logp_NK=scattered(batch, old), advantages_NK=scattered(batch, advantages))
        for batch in micro_batches(samples, layout)
    ]


def taught(batches: list[Batch], section, place) -> list[Batch]:
    """The batches with the likeliest tokens of another model under the same plan."""
    from mindgspo.models.policy import build_model
    from mindgspo.models.scoring import PolicyScorer
    from mindgspo.models.weights import initialize_weights

    teacher = build_model(section, place)
    initialize_weights(teacher, section, seed=5)
    scores = PolicyScorer(teacher, temperature=1.0, likeliest=(TOP_K, section.vocab_size)).score(batches)
    return [
        replace(batch, teacher_ids_NKA=one.top_ids_NKA, teacher_logp_NKA=one.top_logp_NKA)
        for batch, one in zip(batches, scores, strict=True)
    ]


def routed(batches: list[Batch], section, *, held: Callable[[int], bool] = lambda number: True) -> list[Batch]:
    """The batches with experts drawn at random for every token, the same whatever the layout; without, where this
    process does not hold the batch of a number."""
    layers = len(section.expert_layers)
    width = layers * section.num_experts_per_tok

    def routing(number: int, num_prompt: int, length: int) -> Routing:
        random = np.random.default_rng([14, number])
        tokens = num_prompt - 1 + length
        drawn = random.permuted(np.tile(np.arange(section.num_experts), (tokens, layers, 1)), axis=2)
        experts = drawn[:, :, : section.num_experts_per_tok].reshape(tokens, width).astype(np.uint8)
        return Routing(prompt_LX=experts[: num_prompt - 1], response_LX=experts[num_prompt - 1 :])

    of_batches = []
    for place, batch in enumerate(batches):
        by_number = {}
        for row, number in enumerate(batch.samples_N.tolist()):
            if number >= 0:
                num_prompt = 1 + int(batch.positions_RT.flat[batch.predict_P[batch.place_NK[row, 0]]])
                by_number[number] = routing(number, num_prompt, int(batch.mask_NK[row].sum()))
        like = np.zeros((0, width), np.uint8)
        of_batches.append(with_experts(batch, by_number, like=like) if held(place) else batch)
    return of_batches


def prompts_of(section) -> list[Prompt]:
    """Six prompts."""
    random = np.random.default_rng(13)
    ids = [random.integers(2, section.vocab_size, random.integers(3, 8)).astype(np.int32) for _ in range(6)]
    return [Prompt(index=n, ids=one, text="", answer="1", data_source="test") for n, one in enumerate(ids)]


def draw_adapters(model, section) -> None:
    """Set A and B of every adapter: B begins with zeros, and with it the gradient of A. Also routers' biases."""
    from mindgspo.models.names import CORRECTION, is_adapter, parameter_shapes
    from mindgspo.models.weights import own_slices
    from mindgspo.parallel.platform.parameter_memory import set_values

    random = np.random.default_rng(15)
    drawn = {name: 0.1 * random.standard_normal(shape, np.float32) for name, shape in parameter_shapes(section).items()}
    for own in own_slices(model, section):
        if is_adapter(own.name) or own.name.endswith(CORRECTION):
            set_values(own.parameter, drawn[own.name][own.index])
