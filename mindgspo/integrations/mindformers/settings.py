"""Our model section in the words of MindFormers' legacy LlamaConfig.

What enters: the model section and the longest row. What leaves: keyword arguments. Pure Python; called by `model`.
"""

from __future__ import annotations

from mindgspo.config import ModelSection
from mindgspo.config.device_rules import mindformers_problems
from mindgspo.config.model import FAMILIES
from mindgspo.errors import ConfigError

# In every run: float32 throughout, and none of the fused operators, which exist on Ascend alone. Rows may be shorter
# than seq_length only where it is dynamic. input_sliced_sig: nothing is cut off the ids, in training neither.
_ALWAYS: dict[str, object] = {
    "compute_dtype": "float32",
    "param_init_type": "float32",
    "layernorm_compute_type": "float32",
    "softmax_compute_type": "float32",
    "rotary_dtype": "float32",
    "use_flash_attention": False,
    "fused_rms_norm": False,
    "use_rope_slice": True,
    "qkv_concat": False,
    "is_dynamic": True,
    "input_sliced_sig": True,
}

# MindFormers masks every token that has the pad id, wherever it stands. Rows are padded on the right, where causal
# attention does not look, so nothing needs that mask; with an id that no token has, it never acts.
_NO_TOKEN = -1


def llama_settings(model: ModelSection, *, longest_row: int) -> dict[str, object]:
    """Arguments of LlamaConfig for rows of at most `longest_row` tokens (its causal mask has that many squared).

    Raises ConfigError: an architecture or a detail that those cells do not have.
    """
    problems = list(mindformers_problems(model))
    if problems:
        raise ConfigError("\n".join(problems))
    return {
        **_ALWAYS,
        **_rope(model),
        "seq_length": longest_row,
        "max_position_embedding": model.max_position_embeddings,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_layers": model.num_hidden_layers,
        "num_heads": model.num_attention_heads,
        "n_kv_heads": model.num_key_value_heads,
        "rms_norm_eps": model.rms_norm_eps,
        "qkv_has_bias": FAMILIES[model.architecture].has_attention_bias,
        "tie_word_embeddings": model.tie_word_embeddings,
        "pad_token_id": _NO_TOKEN,
    }


def _rope(model: ModelSection) -> dict[str, object]:
    if model.rope_scaling is None:
        return {"theta": model.rope_theta}
    scaling = model.rope_scaling
    assert scaling.rope_type == "llama3", scaling
    return {
        "theta": model.rope_theta,
        "extend_method": "LLAMA3",
        "scaling_factor": {
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position_embeddings,
        },
    }
