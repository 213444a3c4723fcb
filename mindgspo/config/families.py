"""What tells the model families apart: the one table that cells, weight names, layouts and rules go by.

Called wherever code depends on `model.architecture`. Pure Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One value of `model.architecture`.

    huggingface_class: in config.json's `architectures`. has_attention_bias: of q, k and v. has_head_norms: an RMSNorm
    of every query and key head. has_own_head_dim: the width of a head need not be hidden_size / num_attention_heads.
    has_experts: every layer's feed-forward is a mixture of experts. scales_rope: `model.rope_scaling` may be set.
    """

    huggingface_class: str
    has_attention_bias: bool = False
    has_head_norms: bool = False
    has_own_head_dim: bool = True
    has_experts: bool = False
    scales_rope: bool = False


FAMILIES: Mapping[str, Family] = {
    "qwen2": Family(huggingface_class="Qwen2ForCausalLM", has_attention_bias=True, has_own_head_dim=False),
    "qwen3": Family(huggingface_class="Qwen3ForCausalLM", has_head_norms=True),
    "qwen3_moe": Family(huggingface_class="Qwen3MoeForCausalLM", has_head_norms=True, has_experts=True),
    "llama": Family(huggingface_class="LlamaForCausalLM", scales_rope=True),
}
