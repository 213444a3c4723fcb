"""MindFormers' keys below model.model_config: the sizes of a model, in the names of LlamaConfig and of Hugging Face.

Read from finetune and predict YAML, and from the files that a MindRLHF configuration names. What tells the family is
put together in `architecture`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindgspo.config.model import FAMILIES
from mindgspo.integrations.foreign_configs.given import Given, flag, is_on, number, whole
from mindgspo.integrations.foreign_configs.table import Row, joined, left_out, mapped, needless, not_built, to, unbuilt

CONFIG = "model.model_config"
SEQ_LENGTH = f"{CONFIG}.seq_length"
_LAYERS_TELL = "LlamaConfig"
_TYPES = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}
_SIZES: Mapping[str, tuple[str, ...]] = {
    "vocab_size": ("vocab_size",),
    "hidden_size": ("hidden_size",),
    "intermediate_size": ("intermediate_size",),
    "num_hidden_layers": ("num_layers", "num_hidden_layers"),
    "num_attention_heads": ("num_heads", "num_attention_heads"),
    "num_key_value_heads": ("n_kv_heads", "num_key_value_heads"),
    "head_dim": ("head_dim",),
    "max_position_embeddings": ("max_position_embedding", "max_position_embeddings"),
    "num_experts": ("num_experts",),
    "num_experts_per_tok": ("num_experts_per_tok",),
    "moe_intermediate_size": ("moe_intermediate_size",),
}
FAMILY_KEYS = ("type", "model_type", "architectures", "qkv_has_bias", "attention_bias", "add_qkv_bias", "qk_layernorm")
_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def architecture(given: Given) -> str | None:
    """`model.architecture`: by model_type, else by what the layers have; None if the file holds no sizes of a model.

    The name of a family that is not built stays, so that it is refused and not taken for another.
    """
    named, kind = given[f"{CONFIG}.model_type"], given[f"{CONFIG}.type"]
    if named is not None:
        return str(named)
    if kind not in (None, _LAYERS_TELL):
        return str(kind)
    if given.first(f"{CONFIG}.num_layers", f"{CONFIG}.num_hidden_layers") is None:
        return None
    if f"{CONFIG}.num_experts" in given:
        return "qwen3_moe"
    if is_on(given, f"{CONFIG}.qk_layernorm"):
        return "qwen3"
    has_bias = any(is_on(given, f"{CONFIG}.{key}") for key in ("qkv_has_bias", "attention_bias", "add_qkv_bias"))
    return "qwen2" if has_bias else "llama"


def _config_class(value: Any, given: Given) -> Any:
    if value == _LAYERS_TELL:
        return mapped({}, "the layers tell the family")
    return not_built(f"model.architecture is one of {', '.join(FAMILIES)}")


def _model_type(value: Any, given: Given) -> Any:
    return mapped({}) if value in FAMILIES else not_built(f"model.architecture is one of {', '.join(FAMILIES)}")


def _dtype(value: Any, given: Given) -> Any:
    if value not in _TYPES:
        raise ValueError(f"expected one of {', '.join(_TYPES)}, got {value!r}")
    return _TYPES[value]


def _head_dim_of_kv(value: Any, given: Given) -> Any:
    heads = given.first(f"{CONFIG}.num_heads", f"{CONFIG}.num_attention_heads")
    hidden = given[f"{CONFIG}.hidden_size"]
    if isinstance(heads, int) and isinstance(hidden, int) and heads > 0 and whole(value) * heads == hidden:
        return left_out("hidden_size / num_heads, as without it")
    return mapped({"model.head_dim": whole(value)})


def _untied(value: Any, given: Given) -> Any:
    if f"{CONFIG}.tie_word_embeddings" in given:
        return left_out("tie_word_embeddings is given")
    return not flag(value)


def _extension(value: Any, given: Given) -> Any:
    if str(value).lower() == "none":
        return left_out("no extension")
    if str(value).upper() == "LLAMA3":
        return left_out("scaling_factor has its numbers")
    return not_built("model.rope_scaling is Llama 3.1's rule only")


def _scaling(name: str) -> Any:
    def convert(value: Any, given: Given) -> Any:
        found = whole(value) if name.startswith("original") else number(value)
        return mapped({f"model.rope_scaling.{name}": found})

    return convert


def _bare_scaling(value: Any, given: Given) -> Any:
    return (
        left_out("1: not stretched") if number(value) == 1 else not_built("model.rope_scaling is Llama 3.1's rule only")
    )


def _row_of_size(target: str, name: str) -> Row:
    return to(f"{CONFIG}.{name}", f"model.{target}", whole)


def _of_generation(name: str) -> Row:
    return needless(f"{CONFIG}.{name}", "sampling of a served model; GSPO samples at rollout.temperature, top_p, top_k")


ROWS = (
    *(_row_of_size(target, name) for target, names in _SIZES.items() for name in names),
    to(f"{CONFIG}.type", "model.architecture", _config_class, note="LlamaConfig: the layers tell the family"),
    to(f"{CONFIG}.model_type", "model.architecture", _model_type, note="the same names"),
    *(joined(f"{CONFIG}.{key}", "model.architecture", "tells the family") for key in FAMILY_KEYS[2:]),
    to(f"{CONFIG}.rms_norm_eps", "model.rms_norm_eps", number),
    to(f"{CONFIG}.theta", "model.rope_theta", number),
    to(f"{CONFIG}.rope_theta", "model.rope_theta", number),
    to(f"{CONFIG}.tie_word_embeddings", "model.tie_word_embeddings", flag),
    to(f"{CONFIG}.untie_embeddings_and_output_weights", "model.tie_word_embeddings", _untied, note="the opposite"),
    to(f"{CONFIG}.initializer_range", "model.initializer_range", number),
    to(f"{CONFIG}.norm_topk_prob", "model.norm_topk_prob", flag),
    to(f"{CONFIG}.kv_channels", "model.head_dim", _head_dim_of_kv),
    to(f"{CONFIG}.compute_dtype", "model.dtype", _dtype),
    to(f"{CONFIG}.extend_method", "", _extension, note="None, or LLAMA3 with scaling_factor"),
    to(f"{CONFIG}.scaling_factor", "", _bare_scaling, note="1 only"),
    *(
        to(f"{CONFIG}.scaling_factor.{name}", f"model.rope_scaling.{name}", _scaling(name), note="Llama 3.1")
        for name in _SCALING
    ),
    joined(SEQ_LENGTH, "data.max_prompt_length, rollout.max_new_tokens", "prompt and response together"),
    unbuilt(f"{CONFIG}.multiple_of", "give model.intermediate_size, which follows from it"),
    unbuilt(f"{CONFIG}.ffn_dim_multiplier", "give model.intermediate_size, which follows from it", harmless=(None,)),
    unbuilt(f"{CONFIG}.rotary_pct", "all of a head turns", harmless=(1.0, 1)),
    unbuilt(f"{CONFIG}.*dropout*", "no dropout", harmless=(0.0, 0)),
    unbuilt(f"{CONFIG}.add_bias_linear", "no biases but those of q, k and v", harmless=(False,)),
    unbuilt(f"{CONFIG}.hidden_act", "SwiGLU", harmless=("silu", "swiglu")),
    unbuilt(f"{CONFIG}.gated_linear_unit", "SwiGLU", harmless=(True,)),
    unbuilt(f"{CONFIG}.position_embedding_type", "rotary", harmless=("rope",)),
    unbuilt(f"{CONFIG}.offset", "stages get equal numbers of layers", harmless=(0,)),
    unbuilt(f"{CONFIG}.pp_interleave_num", "stages are not interleaved", harmless=(1,)),
    unbuilt(f"{CONFIG}.fine_grain_interleave", "stages are not interleaved", harmless=(1,)),
    unbuilt(f"{CONFIG}.use_ring_attention", "context_parallel is not built", harmless=(False,)),
    unbuilt(f"{CONFIG}.*aux_loss*", "the router is trained by the policy loss alone", harmless=(0, 0.0)),
    unbuilt(f"{CONFIG}.moe_router_load_balancing_type", "the router is trained by the policy loss alone"),
    unbuilt(f"{CONFIG}.routed_scaling_factor", "the router's weights are not scaled", harmless=(1.0, None)),
    unbuilt(f"{CONFIG}.moe_router_pre_softmax", "softmax over all experts first, as in Qwen3", harmless=(True,)),
    unbuilt(f"{CONFIG}.moe_token_drop_policy", "no token is dropped"),
    needless(f"{CONFIG}.moe_grouped_gemm", "how experts are computed, not what"),
    needless(f"{CONFIG}.router_dense_type", "the router computes in float32"),
    needless(f"{CONFIG}.rotary_emb_base", "rope_theta says it"),
    needless(f"{CONFIG}.*_token_id", "tokens are named: tokenizer.eos_tokens, tokenizer.pad_token"),
    *map(
        _of_generation,
        ("repetition_penalty", "max_decode_length", "min_decode_length", "top_k", "top_p", "do_sample", "temperature"),
    ),
    needless(f"{CONFIG}.checkpoint_name_or_path", "model.path is the folder of the weights"),
    needless(f"{CONFIG}.batch_size", "trainer.samples_per_micro_batch"),
    needless(f"{CONFIG}.block_size", "the cache has one slot per sequence (rollout.slots)"),
    needless(f"{CONFIG}.num_blocks", "the cache has one slot per sequence (rollout.slots)"),
    needless(f"{CONFIG}.params_dtype", "the optimizer keeps float32 weights"),
    needless(f"{CONFIG}.param_init_type", "the optimizer keeps float32 weights"),
    needless(f"{CONFIG}.*_type", "norms, softmax and rotary embedding compute in float32"),
    needless(f"{CONFIG}.*_dtype", "norms, softmax and rotary embedding compute in float32"),
    needless(f"{CONFIG}.fp32_residual_connection", "the residual stream has model.dtype"),
    needless(f"{CONFIG}.qkv_concat", "q, k and v are matrices of their own"),
    needless(f"{CONFIG}.auto_register", "nothing of a data or model folder is executed"),
    needless(f"{CONFIG}.auto_map.*", "the tokenizer is read from tokenizer.path"),
    needless(f"{CONFIG}.use_*", "attention and cache are this project's own"),
    needless(f"{CONFIG}.is_dynamic", "attention and cache are this project's own"),
    needless(f"{CONFIG}.compute_in_2d", "how layers are computed, not what"),
    needless(f"{CONFIG}.input_sliced_sig", "how labels are shifted, not what is trained"),
    needless(f"{CONFIG}.ignore_token_id", "masks say what is trained"),
    needless("model.arch.*", "the family follows from the layers"),
)
