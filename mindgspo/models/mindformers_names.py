"""MindFormers' names of a dense model's weights (its Qwen2 and Llama cells with `qkv_concat=False`), both ways.

What enters: one weight's name. What leaves: its other name. The tensors are the same, no axis moves. Called by the
conversion of weights and by the MindFormers backend. Needs nothing but the errors.

Norms of queries and keys and experts have no name there: such a model is refused.
"""

from __future__ import annotations

import re

from mindgspo.errors import WeightsError

# Hugging Face on the left, MindFormers on the right.
_OUTSIDE_LAYERS = {
    "model.embed_tokens.weight": "model.tok_embeddings.embedding_weight",
    "model.norm.weight": "model.norm_out.weight",
    "lm_head.weight": "lm_head.weight",
}
# Inside `model.layers.<i>.`, without `.weight` or `.bias`.
_IN_LAYERS = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
}
_LAYER = re.compile(r"(?P<layer>model\.layers\.(?:0|[1-9][0-9]*)\.)(?P<part>.+)(?P<ending>\.(?:weight|bias))")


def mindformers_name(hugging_face_name: str) -> str:
    """MindFormers' name of a weight. Raises WeightsError: a weight that its cells do not have."""
    return _renamed(hugging_face_name, _OUTSIDE_LAYERS, _IN_LAYERS, "MindFormers has no name for it")


def hugging_face_name(mindformers_name: str) -> str:
    """Hugging Face's name of a weight. Raises WeightsError: no name of MindFormers' Qwen2 or Llama cells."""
    outside = {theirs: name for name, theirs in _OUTSIDE_LAYERS.items()}
    in_layers = {theirs: name for name, theirs in _IN_LAYERS.items()}
    return _renamed(mindformers_name, outside, in_layers, "no name of MindFormers' Qwen2 or Llama")


def _renamed(name: str, outside: dict[str, str], in_layers: dict[str, str], refusal: str) -> str:
    if name in outside:
        return outside[name]
    match = _LAYER.fullmatch(name)
    if match is None or match["part"] not in in_layers:
        raise WeightsError(
            f"weight {name}: {refusal}; the table covers dense Qwen2 and Llama without q/k norms, and MindFormers' "
            "files written with qkv_concat=False"
        )
    return match["layer"] + in_layers[match["part"]] + match["ending"]
