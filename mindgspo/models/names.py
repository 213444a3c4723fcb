"""Weight names and shapes of every model family, as tables: ours on the left, Hugging Face's on the right.

What enters: the model section. What leaves: for each parameter its name in a Hugging Face file and its shape. `{i}`
stands for the layer. Called by `models.weights`, which refuses whatever a table does not name, and by the makers of
strategy files. Needs no MindSpore.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mindgspo.config import ModelSection

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightName:
    """One kind of weight: our parameter's name, its name in a Hugging Face file, and its shape."""

    ours: str
    hugging_face: str
    shape: Callable[[ModelSection], Shape]


def _head_dim(model: ModelSection) -> int:
    assert model.head_dim is not None, "config.validate refuses a width that its heads do not divide"
    return model.head_dim


def _query_size(model: ModelSection) -> int:
    return _head_dim(model) * model.num_attention_heads


def _kv_size(model: ModelSection) -> int:
    return _head_dim(model) * model.num_key_value_heads


def _same(name: str, shape: Callable[[ModelSection], Shape]) -> WeightName:
    return WeightName(ours=name, hugging_face=name, shape=shape)


_QWEN2 = (
    _same("model.embed_tokens.weight", lambda m: (m.vocab_size, m.hidden_size)),
    _same("model.layers.{i}.input_layernorm.weight", lambda m: (m.hidden_size,)),
    _same("model.layers.{i}.self_attn.q_proj.weight", lambda m: (_query_size(m), m.hidden_size)),
    _same("model.layers.{i}.self_attn.q_proj.bias", lambda m: (_query_size(m),)),
    _same("model.layers.{i}.self_attn.k_proj.weight", lambda m: (_kv_size(m), m.hidden_size)),
    _same("model.layers.{i}.self_attn.k_proj.bias", lambda m: (_kv_size(m),)),
    _same("model.layers.{i}.self_attn.v_proj.weight", lambda m: (_kv_size(m), m.hidden_size)),
    _same("model.layers.{i}.self_attn.v_proj.bias", lambda m: (_kv_size(m),)),
    _same("model.layers.{i}.self_attn.o_proj.weight", lambda m: (m.hidden_size, _query_size(m))),
    _same("model.layers.{i}.post_attention_layernorm.weight", lambda m: (m.hidden_size,)),
    _same("model.layers.{i}.mlp.gate_proj.weight", lambda m: (m.intermediate_size, m.hidden_size)),
    _same("model.layers.{i}.mlp.up_proj.weight", lambda m: (m.intermediate_size, m.hidden_size)),
    _same("model.layers.{i}.mlp.down_proj.weight", lambda m: (m.hidden_size, m.intermediate_size)),
    _same("model.norm.weight", lambda m: (m.hidden_size,)),
    _same("lm_head.weight", lambda m: (m.vocab_size, m.hidden_size)),
)

# No biases; every query head is normed by one weight, every key head by another.
_QWEN3 = (
    *(row for row in _QWEN2 if not row.ours.endswith(".bias")),
    _same("model.layers.{i}.self_attn.q_norm.weight", lambda m: (_head_dim(m),)),
    _same("model.layers.{i}.self_attn.k_norm.weight", lambda m: (_head_dim(m),)),
)

WEIGHT_NAMES: Mapping[str, tuple[WeightName, ...]] = {"qwen2": _QWEN2, "qwen3": _QWEN3}

# The output table is the embedding table where embeddings are tied: one weight under one name.
_UNTIED_ONLY = "lm_head.weight"


def hugging_face_names(model: ModelSection) -> dict[str, str]:
    """{our parameter name: Hugging Face name} for every weight of this model, in table order."""
    return {ours: name for ours, name, _ in _expand(model)}


def weight_shapes(model: ModelSection) -> dict[str, Shape]:
    """{Hugging Face name: shape} for every weight of this model, in table order."""
    return {name: shape for _, name, shape in _expand(model)}


def parameter_shapes(model: ModelSection) -> dict[str, Shape]:
    """{our parameter name: shape of the whole tensor} of every weight of this model, in table order."""
    return {ours: shape for ours, _, shape in _expand(model)}


def _expand(model: ModelSection) -> list[tuple[str, str, Shape]]:
    expanded = []
    for row in WEIGHT_NAMES[model.architecture]:
        if row.ours == _UNTIED_ONLY and model.tie_word_embeddings:
            continue
        layers = range(model.num_hidden_layers) if "{i}" in row.ours else (0,)
        for i in layers:
            expanded.append((row.ours.format(i=i), row.hugging_face.format(i=i), row.shape(model)))
    return expanded
