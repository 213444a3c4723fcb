"""Responses with routing, and plans between which it travels. Imported by workers and by tests."""

from __future__ import annotations

import numpy as np

from mindgspo.batches.micro_batches import BatchLayout, micro_batches
from mindgspo.batches.rows import TrainingSample
from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.types import Batch, FinishReason, Prompt, Response, Routing, Score, ScoredGroup, Verdict

NUM_WORKERS = 4
SECTION = ModelSection(
    architecture="qwen3_moe", vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, head_dim=12, num_experts=300, num_experts_per_tok=2,
    moe_intermediate_size=24,
)  # fmt: skip
WIDTH = 6
# (generating, training) by name.
PLANS = {
    "2x2 to 4x1": (ParallelPlan(data_parallel=2, model_parallel=2), ParallelPlan(data_parallel=4)),
    "4x1 to 2x2": (ParallelPlan(data_parallel=4), ParallelPlan(data_parallel=2, model_parallel=2)),
    "4x1 to 1x4": (ParallelPlan(data_parallel=4), ParallelPlan(model_parallel=4)),
}


def groups() -> list[ScoredGroup]:
    """Six prompts of three responses each."""
    random, made = np.random.default_rng(3), []
    for index in range(6):
        prompt = Prompt(
            index=index, ids=random.integers(2, 60, 3 + index).astype(np.int32), text="", answer="", data_source="test"
        )
        prompt_LX = random.integers(0, 300, (prompt.ids.size - 1, WIDTH)).astype(np.int16)
        responses = []
        for sample in range(3):
            length = int(random.integers(1, 9))
            response_LX = random.integers(0, 300, (length, WIDTH)).astype(np.int16)
            responses.append(
                Response(
                    prompt_index=index, sample_index=sample, ids=random.integers(2, 60, length).astype(np.int32),
                    logprobs=np.zeros(length, np.float32), finish_reason=FinishReason.STOP, temperature=1.0,
                    weight_version=0, routing=Routing(prompt_LX=prompt_LX, response_LX=response_LX),
                )
            )  # fmt: skip
        scores = (Score(value=1.0, verdict=Verdict.CORRECT),) * 3
        made.append(ScoredGroup(prompt=prompt, responses=tuple(responses), scores=scores))
    return made


def mini_batches(made: list[ScoredGroup]) -> list[list[Batch]]:
    """Two, of five and of four micro-batches; one response is not trained."""
    samples = [
        TrainingSample(
            prompt_ids=group.prompt.ids, response_ids=response.ids, rollout_logp=response.logprobs,
            number=3 * place + response.sample_index,
        )
        for place, group in enumerate(made)
        for response in group.responses
    ]  # fmt: skip
    layout = BatchLayout(samples_per_micro_batch=2, length_multiple=4, pad_id=0)
    return [micro_batches(samples[:9], layout), micro_batches(samples[10:], layout)]
