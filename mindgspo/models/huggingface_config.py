"""Hugging Face's config.json and generation_config.json, to and from the model section.

What enters: a folder, or the model section. What leaves: a `ModelSection`, or JSON-able mappings. Needs neither
MindSpore nor numpy. An architecture detail that the cells do not implement is refused here, never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from mindgspo.config import ModelSection
from mindgspo.errors import WeightsError

_ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

# Fields that mean the same under the same name.
_SHARED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "initializer_range",
)
# What the cells assume of fields that they do not read. Qwen2's cells have biases and no switch for them.
_ASSUMED: Mapping[str, object] = {"hidden_act": "silu", "use_sliding_window": False, "use_mrope": False}
_ASSUMED_OF_QWEN3: Mapping[str, object] = {**_ASSUMED, "attention_bias": False}
# What transformers takes for a Qwen3 whose config.json does not say.
_QWEN3_HEAD_DIM = 128


def read_model_section(folder: Path) -> ModelSection:
    """The architecture that `folder/config.json` describes, with `path` set to the folder and dtype float32.

    Raises WeightsError: no config.json, another family, or a detail that is not implemented.
    """
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror}); give a Hugging Face model folder") from error
    except ValueError as error:
        raise WeightsError(f"{path}: is not JSON ({error})") from error
    family = raw.get("model_type") if isinstance(raw, dict) else None
    if family not in _ARCHITECTURES:
        raise WeightsError(f"{path}: model_type is {family!r}; supported: {', '.join(_ARCHITECTURES)}")
    _refuse_unimplemented(raw, path)
    values = {key: raw[key] for key in _SHARED if key in raw}
    # The families' own defaults, which a config.json may leave out.
    values.setdefault("num_key_value_heads", raw.get("num_attention_heads"))
    values.setdefault("tie_word_embeddings", False)
    if family == "qwen3":
        values["head_dim"] = raw.get("head_dim", _QWEN3_HEAD_DIM)
    try:
        section = ModelSection(path=folder, architecture=family, rope_theta=_rope_theta(raw), **values)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise WeightsError(f"{path}: {problems}") from error
    _refuse_odd_heads(section, path)
    return section


def huggingface_config(model: ModelSection, *, eos_ids: Sequence[int], pad_id: int) -> dict[str, object]:
    """The content of config.json for an export (float32 weights)."""
    own = {"head_dim": model.head_dim, "attention_bias": False} if model.architecture == "qwen3" else {}
    return {
        "architectures": [_ARCHITECTURES[model.architecture]],
        "model_type": model.architecture,
        **{key: getattr(model, key) for key in _SHARED},
        **own,
        "rope_theta": model.rope_theta,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "use_cache": True,
        "eos_token_id": list(eos_ids),
        "pad_token_id": pad_id,
        "torch_dtype": "float32",
    }


def generation_config(*, eos_ids: Sequence[int], pad_id: int, max_new_tokens: int) -> dict[str, object]:
    """The content of generation_config.json: greedy, with the stop tokens the run used."""
    return {
        "do_sample": False,
        "eos_token_id": list(eos_ids),
        "pad_token_id": pad_id,
        "max_new_tokens": max_new_tokens,
    }


def _rope_theta(raw: Mapping[str, object]) -> object:
    """transformers 5 nests it in rope_parameters; before it stood at the top. Its own default is 10,000."""
    nested = raw.get("rope_parameters")
    if isinstance(nested, dict) and "rope_theta" in nested:
        return nested["rope_theta"]
    return raw.get("rope_theta", 10_000.0)


def _refuse_unimplemented(raw: Mapping[str, object], path: Path) -> None:
    is_qwen2 = raw["model_type"] == "qwen2"
    for key, assumed in (_ASSUMED if is_qwen2 else _ASSUMED_OF_QWEN3).items():
        if raw.get(key, assumed) != assumed:
            raise WeightsError(f"{path}: {key} is {raw[key]!r}; only {assumed!r} is implemented")
    for key in ("rope_scaling", "rope_parameters"):
        scaling = raw.get(key)
        kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else "default"
        if kind != "default":
            raise WeightsError(f"{path}: {key} of type {kind!r} is not implemented; only unscaled RoPE is")
    layer_types = raw.get("layer_types") or []
    others = [kind for kind in layer_types if kind != "full_attention"] if isinstance(layer_types, list) else []
    if others:
        raise WeightsError(f"{path}: layer_types has {others[0]!r}; only full_attention is implemented")
    head_dim, hidden, heads = raw.get("head_dim"), raw.get("hidden_size"), raw.get("num_attention_heads")
    numbers = all(isinstance(value, int) for value in (head_dim, hidden, heads))
    if is_qwen2 and numbers and head_dim * heads != hidden:
        raise WeightsError(
            f"{path}: head_dim {head_dim} x {heads} heads is not hidden_size {hidden}; not implemented for qwen2"
        )


def _refuse_odd_heads(model: ModelSection, path: Path) -> None:
    hidden, heads, kv_heads = model.hidden_size, model.num_attention_heads, model.num_key_value_heads
    if model.head_dim is None or (model.architecture == "qwen2" and model.head_dim % 2):
        raise WeightsError(
            f"{path}: hidden_size {hidden} / num_attention_heads {heads} = {hidden / heads:g} must be an even whole "
            "number (RoPE turns pairs)"
        )
    if model.head_dim % 2:
        raise WeightsError(f"{path}: head_dim {model.head_dim} must be even (RoPE turns pairs)")
    if heads % kv_heads:
        raise WeightsError(f"{path}: num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
