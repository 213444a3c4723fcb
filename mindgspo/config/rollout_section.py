"""The section `rollout`: how responses are sampled.

What enters: plain values from `config.load`. What leaves: a frozen `RolloutSection`, read by the rollout room and the
trainer.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mindgspo.config.section import Section


class RolloutSection(Section):
    """How responses are sampled."""

    prompts_per_step: int = Field(ge=1)
    """Prompts drawn per training step (verl: train_batch_size)."""
    num_generations: int = Field(ge=1)
    """Responses per prompt: the group size G, at least 2 for an advantage within the group. Usual: 8 or
    16 (verl: n)."""
    max_new_tokens: int = Field(ge=1)
    """Longest response in tokens, EOS included (verl: max_response_length; TRL: max_completion_length)."""
    temperature: float = Field(default=1.0, ge=0)
    """Softmax temperature; also applied to the log-probs that are trained. 1 is the paper's; 0 (greedy) is
    refused, because all responses of a group would be the same."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the smallest set of tokens that holds this probability mass; 1 switches it off, as in the
    paper."""
    top_k: int = Field(default=0, ge=0)
    """Sample from the k likeliest tokens; 0 switches it off, as in the paper."""
    slots: int = Field(default=64, ge=1)
    """Sequences decoded at the same time; a finished sequence's slot is refilled at once. Sets the size of
    the key/value cache, not the result."""
    cache_dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Type of the key/value cache; a smaller one than model.dtype takes less memory and rounds keys and values. On
    Ascend bfloat16 or float16, on CPU float32 or float16. None: model.dtype, but bfloat16 where that is float32 on
    Ascend; `mindgspo check` and the start of a run say so (vLLM: kv_cache_dtype)."""
