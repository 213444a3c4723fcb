"""MindFormers' names: the table by hand, there and back."""

import pytest

from mindgspo.config import ModelSection
from mindgspo.errors import WeightsError
from mindgspo.models.names import hugging_face_name, mindformers_name, weight_shapes


@pytest.mark.parametrize(("name", "theirs"), [
    ("model.embed_tokens.weight", "model.tok_embeddings.embedding_weight"),
    ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.attention.wq.weight"),
    ("model.layers.17.self_attn.k_proj.bias", "model.layers.17.attention.wk.bias"),
    ("model.layers.3.self_attn.v_proj.bias", "model.layers.3.attention.wv.bias"),
    ("model.layers.3.self_attn.o_proj.weight", "model.layers.3.attention.wo.weight"),
    ("model.layers.3.mlp.gate_proj.weight", "model.layers.3.feed_forward.w1.weight"),
    ("model.layers.3.mlp.down_proj.weight", "model.layers.3.feed_forward.w2.weight"),
    ("model.layers.3.mlp.up_proj.weight", "model.layers.3.feed_forward.w3.weight"),
    ("model.layers.3.input_layernorm.weight", "model.layers.3.attention_norm.weight"),
    ("model.layers.3.post_attention_layernorm.weight", "model.layers.3.ffn_norm.weight"),
    ("model.norm.weight", "model.norm_out.weight"),
    ("lm_head.weight", "lm_head.weight"),
])  # fmt: skip
def test_every_kind_of_weight(name: str, theirs: str) -> None:
    assert mindformers_name(name) == theirs
    assert hugging_face_name(theirs) == name


def section(architecture: str) -> ModelSection:
    return ModelSection(
        architecture=architecture, vocab_size=8, hidden_size=4, intermediate_size=6, num_hidden_layers=11,
        num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_a_whole_model_goes_there_and_back(architecture: str) -> None:
    names = list(weight_shapes(section(architecture)))
    assert [hugging_face_name(mindformers_name(name)) for name in names] == names
    assert len({mindformers_name(name) for name in names}) == len(names)


@pytest.mark.parametrize("name", [
    "model.layers.0.self_attn.q_norm.weight",
    "model.layers.0.mlp.experts.3.gate_proj.weight",
    "model.layers.01.mlp.up_proj.weight",
    "layers.0.mlp.up_proj.weight",
])  # fmt: skip
def test_what_mindformers_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(WeightsError, match=f"weight {name}: MindFormers has no name"):
        mindformers_name(name)


@pytest.mark.parametrize("name", ["model.layers.0.attention.w_qkv.weight", "adam_m.model.norm_out.weight", "epoch_num"])
def test_a_name_that_is_no_weight_of_mindformers_is_refused(name: str) -> None:
    with pytest.raises(WeightsError, match="no name of MindFormers' Qwen2 or Llama.*qkv_concat=False"):
        hugging_face_name(name)
