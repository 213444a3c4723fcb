"""Hugging Face's config.json and generation_config.json, to and from the model section; and what `model.path` alone
says.

Needs neither MindSpore nor numpy. An architecture detail that the cells do not implement is rejected here, never
ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mindgspo.config.messages import config_error
from mindgspo.config.model import (
    EXPERT_FIELDS,
    FAMILIES,
    LATENT_FIELDS,
    ROPE_FIELDS,
    SHARED_EXPERT_FIELDS,
    Family,
    ModelSection,
    RopeScalingSection,
)
from mindgspo.config.model_rules import model_problems
from mindgspo.errors import ConfigError, WeightsError
from mindgspo.io import parse_json, read_bytes, unique_keys
from mindgspo.text import did_you_mean, hub_hint, listed, shorten

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
# The number of experts is written under the first name, and read under any.
_NUMBER_OF_EXPERTS: Mapping[str, tuple[str, ...]] = {
    "qwen3_moe": ("num_experts", "num_local_experts"),
    "glm4_moe": ("n_routed_experts", "num_local_experts"),
    "deepseek_v3": ("n_routed_experts", "num_local_experts"),
}
# Values that transformers uses if a config.json leaves them out, and that the cells assume for fields they do not read.
# Qwen2's attention has biases and no switch for them.
_QWEN: Mapping[str, object] = {"hidden_act": "silu", "use_sliding_window": False, "use_mrope": False}
_ASSUMED: Mapping[str, Mapping[str, object]] = {
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "attention_bias": False},
    "qwen3_moe": {**_QWEN, "attention_bias": False, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "llama": {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    "mistral": {"hidden_act": "silu"},
    "glm": {"hidden_act": "silu"},
    "glm4": {"hidden_act": "silu"},
    "glm4_moe": {"hidden_act": "silu"},
    "deepseek_v3": {
        **{"hidden_act": "silu", "attention_bias": False, "rope_interleave": True, "moe_layer_freq": 1},
        **{"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    },
}
_GLM: Mapping[str, object] = {
    **{"num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131_072, "rms_norm_eps": 1.5625e-07},
    **{"attention_bias": True, "partial_rotary_factor": 0.5},
}
_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "qwen2": {},
    "qwen3": {"head_dim": 128},
    "qwen3_moe": {},
    "llama": {"max_position_embeddings": 2048},
    "mistral": {"max_position_embeddings": 131_072, "num_key_value_heads": 8},
    "glm": _GLM,
    "glm4": _GLM,
    "glm4_moe": {
        **{"max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "norm_topk_prob": True},
        **{"n_shared_experts": 1, "first_k_dense_replace": 1, "attention_bias": False, "partial_rotary_factor": 0.5},
    },
    "deepseek_v3": {
        **{"max_position_embeddings": 4096, "norm_topk_prob": True, "n_shared_experts": 1, "first_k_dense_replace": 3},
        **{"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "q_lora_rank": 1536, "kv_lora_rank": 512},
        **{"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    },
}
_SCALING = tuple(RopeScalingSection.model_fields)
_ROPE = (*_SCALING, "type", "rope_theta", "partial_rotary_factor")
# Features that no cell has, whatever the family: quantised weights, shared experts that are weighted.
_FOREIGN = ("quantization_config", "compression_config", "shared_expert_intermediate_size")
_LEFT_OUT = "mindgspo_left_out"
"""Key in config.json of exports: layers of the model's files that are not in the export; nothing reads it."""
FILE = "config.json"
_MOST_BYTES = 1 << 20
"""Real ones have a few KB."""


def read_model_section(folder: Path) -> ModelSection:
    """The architecture that `folder/config.json` describes, with `path` set to the folder and dtype float32.

    Raises WeightsError: no config.json, another family, or a detail that is not implemented.
    """
    path = folder / FILE
    return model_section(_read(path), path)


def model_section(raw: Any, path: Path) -> ModelSection:
    """The architecture that the content of a config.json describes. path: the file it came from.

    Raises WeightsError as `read_model_section`.
    """
    architecture = raw.get("model_type") if isinstance(raw, dict) else None
    if not isinstance(architecture, str) or architecture not in FAMILIES:
        raise WeightsError(f"{path}: model_type is {architecture!r}; supported: {', '.join(FAMILIES)}")
    for problem in _unimplemented(raw):
        raise WeightsError(f"{path}: {problem}")
    values = {**_DEFAULTS[architecture], **{key: raw[key] for key in _read_keys(architecture) if key in raw}}
    # The families' own defaults, which a config.json may leave out.
    values.setdefault("num_key_value_heads", raw.get("num_attention_heads"))
    values.setdefault("tie_word_embeddings", False)
    longest = values.setdefault("max_position_embeddings", 32768)
    for key in _NUMBER_OF_EXPERTS.get(architecture, ()):
        if key in raw:
            values.setdefault("num_experts", raw[key])
    if values.get("head_dim") is None:
        values.pop("head_dim", None)
    if FAMILIES[architecture].has_partial_rotary:
        values["partial_rotary_factor"] = _rope(raw).get("partial_rotary_factor", values["partial_rotary_factor"])
    values |= {"architecture": architecture, "rope_theta": _rope_theta(raw), "rope_scaling": _scaling(raw, longest)}
    try:
        section = ModelSection.model_validate_json(json.dumps({"path": str(path.parent), **values}), strict=True)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc']))}: {e['msg']}, got {shorten(e['input'])}" for e in error.errors()
        )
        raise WeightsError(f"{path}: {problems}") from error
    for problem in model_problems(section):
        raise WeightsError(f"{path}: {problem.removeprefix('model.')}")
    return section


def huggingface_config(model: ModelSection, *, eos_ids: Sequence[int], pad_id: int) -> dict[str, object]:
    """The content of config.json for an export (float32 weights)."""
    family = FAMILIES[model.architecture]
    own: dict[str, object] = {"head_dim": model.head_dim} if _has_head_dim(family) else {}
    own |= {key: getattr(model, key) for key in _chosen_keys(family)}
    if model.num_experts is not None:
        own |= {_NUMBER_OF_EXPERTS[model.architecture][0]: model.num_experts}
    own |= left_out_record(model)
    if model.architecture == "mistral":
        own["sliding_window"] = None  # transformers would take 4096
    scaling = model.rope_scaling
    return {
        "architectures": [family.huggingface_class],
        "model_type": model.architecture,
        **{key: getattr(model, key) for key in _SHARED},
        **own,
        **{key: value for key, value in _ASSUMED[model.architecture].items() if key not in ("use_mrope", "hidden_act")},
        "rope_theta": model.rope_theta,
        **({} if scaling is None else {"rope_scaling": scaling.model_dump(exclude_none=True)}),
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "use_cache": True,
        "eos_token_id": list(eos_ids),
        "pad_token_id": pad_id,
        "torch_dtype": "float32",
    }


def left_out_record(model: ModelSection) -> dict[str, object]:
    """What config.json says of layers of the model's files that are left out of others; nothing without any."""
    if not model.left_out_layers:
        return {}
    return {"num_nextn_predict_layers": 0, _LEFT_OUT: [f"model.layers.{i}" for i in model.left_out_layers]}


# How a published model should be sampled. Lengths are left out: training's bound says nothing about answers.
_SAMPLING = ("bos_token_id", "do_sample", "temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def generation_config(*, eos_ids: Sequence[int], pad_id: int, base: Path | None = None) -> dict[str, object]:
    """The content of generation_config.json: the stop tokens of the run; sampling as the folder of the first weights
    says, greedy where it does not. Raises WeightsError if that folder's file is damaged."""
    path = None if base is None else base / "generation_config.json"
    found = _read(path) if path is not None and path.is_file() else {}
    found = found if isinstance(found, dict) else {}
    kept = {key: found[key] for key in _SAMPLING if isinstance(found.get(key), (bool, int, float))}
    return {"do_sample": False, **kept, "eos_token_id": list(eos_ids), "pad_token_id": pad_id}


def nearest_model(folder: Path) -> Path | None:
    """The model that a run's folder holds."""
    export = folder / "export"
    return export if (export / FILE).is_file() else None


def _read(path: Path) -> Any:
    try:
        return parse_json(read_bytes(path, _MOST_BYTES), object_pairs_hook=unique_keys)
    except FileNotFoundError:
        what = f"holds no {path.name}" if path.parent.is_dir() else "no such folder"
        mend = hub_hint(path.parent) or f"; give {nearest_model(path.parent) or 'a Hugging Face model folder'}"
        raise WeightsError(f"{path.parent}: {what}{mend}") from None
    except NotADirectoryError:
        raise WeightsError(f"{path.parent}: is a file; give a Hugging Face model folder") from None
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror}); give a Hugging Face model folder") from error
    except ValueError as error:
        raise WeightsError(f"{path}: {error}") from error


def _read_keys(architecture: str) -> tuple[str, ...]:
    family = FAMILIES[architecture]
    return (
        *_SHARED,
        *(("head_dim",) if _has_head_dim(family) else ()),
        *_chosen_keys(family),
    )


def _has_head_dim(family: Family) -> bool:
    """Whether head_dim is read. Where heads have parts, transformers writes the rotated one, and reads it nowhere."""
    return family.has_own_head_dim and not family.has_latent_attention


def _chosen_keys(family: Family) -> tuple[str, ...]:
    """Fields that config.json has in this family alone."""
    return (
        *(EXPERT_FIELDS[1:] if family.has_experts else ()),
        *(SHARED_EXPERT_FIELDS if family.has_shared_experts else ()),
        *(LATENT_FIELDS if family.has_latent_attention else ()),
        *(("use_qk_norm",) if family.has_head_norms is None else ()),
        *(("attention_bias",) if family.has_attention_bias is None else ()),
        *(("partial_rotary_factor",) if family.has_partial_rotary else ()),
    )


def _rope(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Settings of the rotary embedding in config.json beside its base: transformers 5 has rope_parameters, before it
    was rope_scaling."""
    for key in ("rope_scaling", "rope_parameters"):  # where both are there, transformers takes the former
        found = raw.get(key)
        if isinstance(found, dict) and found:
            return found
    return {}


def _rope_type(raw: Mapping[str, object]) -> object:
    rope = _rope(raw)
    return rope.get("rope_type", rope.get("type", "default"))


def _rope_theta(raw: Mapping[str, object]) -> object:
    """transformers 5 nests it in rope_parameters; earlier versions have it at the top level. Its own default is
    10,000."""
    return _rope(raw).get("rope_theta", raw.get("rope_theta", 10_000.0))


def _scaling(raw: Mapping[str, object], longest: object) -> dict[str, object] | None:
    """As transformers completes it. longest: max_position_embeddings."""
    rope, kind, key = _rope(raw), str(_rope_type(raw)), "original_max_position_embeddings"
    if kind == "default":
        return None
    found = {name: value for name, value in rope.items() if name in _SCALING and value is not None}
    if key in ROPE_FIELDS[kind]:
        found[key] = raw.get(key) or found.get(key, longest)  # at the top level it counts more
    if kind == "yarn" and rope.get("truncate", True) is None:
        found["truncate"] = False
    length = found.get(key)
    if kind == "yarn" and rope.get("factor", 1) is None and isinstance(longest, int) and isinstance(length, int):
        found["factor"] = longest / length if 0 < length <= longest < 1 << 40 else None
    return found | {"rope_type": kind}


def _unimplemented(raw: Mapping[str, object]) -> Iterator[str]:
    architecture = str(raw["model_type"])
    family = FAMILIES[architecture]
    for key, assumed in _ASSUMED[architecture].items():
        if (raw.get(key, assumed) or None) != (assumed or None):  # null is the same as false and as an empty list
            yield f"{key} is {raw[key]!r}; only {assumed!r} is implemented"
    if architecture == "mistral":
        window = raw.get("sliding_window", 4096)  # transformers' own default
        longest = raw.get("max_position_embeddings", _DEFAULTS[architecture]["max_position_embeddings"])
        if window is not None and not (isinstance(window, int) and isinstance(longest, int) and window >= longest):
            yield (
                f"sliding_window {shorten(window)} is less than max_position_embeddings {shorten(longest)}; not "
                "implemented. Sequences that a window holds need none: set the latter to the former"
            )
    slices = raw.get("pretraining_tp")  # products cut into so many and summed up, which changes rounding alone
    if slices is not None and (type(slices) is not int or slices < 1):
        yield f"pretraining_tp is {slices!r}; it is a whole number from 1 on, and changes nothing here"
    kind, kinds = _rope_type(raw), ("default", *ROPE_FIELDS)
    key = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
    if kind not in kinds:
        yield f"{key} of type {kind!r} is not implemented; only {', '.join(kinds)} are{did_you_mean(kind, kinds)}"
    for name, value in _rope(raw).items():
        if name not in _ROPE and value is not None:
            yield f"{key}.{shorten(name)} is {shorten(value)}; not implemented"
    partial = _rope(raw).get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in (None, 1) and not family.has_partial_rotary:
        yield f"partial_rotary_factor is {partial!r}; only 1 is implemented"
    for key in (*_FOREIGN, *(() if family.has_shared_experts else ("n_shared_experts",))):
        if raw.get(key):
            mend = "; cast the weights to bfloat16 first, and remove it (DeepSeek: inference/fp8_cast_bf16.py)"
            yield f"{key} is set ({shorten(raw[key])}); not implemented{mend if key == _FOREIGN[0] else ''}"
    layer_types = raw.get("layer_types") or []
    others = (
        [kind for kind in layer_types if kind != "full_attention"] if isinstance(layer_types, list) else [layer_types]
    )
    if others:
        yield f"layer_types has {others[0]!r}; only full_attention is implemented"
    head_dim, hidden, heads = raw.get("head_dim"), raw.get("hidden_size"), raw.get("num_attention_heads")
    if family.has_own_head_dim or not isinstance(hidden, int):
        return
    if isinstance(head_dim, int) and isinstance(heads, int) and head_dim * heads != hidden:
        yield f"head_dim {head_dim} x {heads} heads is not hidden_size {hidden}; not implemented for {architecture}"


# Not part of the architecture: where weights lie, whose cells compute, in which type, how random ones are drawn, how
# tables are padded, adapters beside the weights, and layers that are left out.
_FREE = {"path", "backend", "dtype", "initializer_range", "table_rows", "lora", "num_nextn_predict_layers"}
# What a model's card may tell its users to change in config.json, for longer sequences than the published ones.
_STRETCHED = ("rope_theta", "rope_scaling", "max_position_embeddings")


def check_architecture(configured: ModelSection, found: ModelSection) -> None:
    """Raises ConfigError naming every field of the `model` section that the folder's config.json contradicts."""
    differing = contradictions(configured, found)
    if differing:
        raise ConfigError("\n  ".join([f"{found.path}: another model than the `model` section", *differing]))


def contradictions(configured: ModelSection, found: ModelSection, among: Collection[str] | None = None) -> list[str]:
    """One line per field in which the section contradicts config.json. among: names of fields; None: all."""
    ours, theirs = configured.model_dump(exclude=_FREE), found.model_dump(exclude=_FREE)
    return [
        f"model.{key}: {ours[key]!r}, but {found.path}/{FILE} says {theirs[key]!r}; leave it out, or "
        + (f"write it into {FILE}" if key in _STRETCHED else "give another model.path")
        for key in ours
        if ours[key] != theirs[key] and (among is None or key in among)
    ]


_TOKENIZER_FILES = ("tokenizer.json", "vocab.json")
_SENTENCEPIECE = "*.model"
_NEEDED = tuple(name for name, field in ModelSection.model_fields.items() if field.is_required())


def with_model_folder(source: str, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of an experiment, or of a file of model_configs/, whose section `model` has all that config.json of
    `model.path` says. Unchanged if the folder need not be read: no path, or no config.json and every size set.

    source: its name in errors. Raises ConfigError: a value contradicts config.json, the model is not implemented, or
    sizes are missing.
    """
    given = mapping.get("model")
    path = given.get("path") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or not isinstance(path, str):
        return dict(mapping)
    folder = Path(path)
    if not os.path.isfile(folder / FILE):
        missing = [name for name in _NEEDED if name not in given]
        if missing:
            what = f"has no {FILE}" if os.path.isdir(folder) else "is no folder"
            fix = f"give {nearest_model(folder) or 'a Hugging Face folder'}, or set them"
            raise config_error(
                source, [f"model.path: {folder} {what}, and model.{listed(missing)} are read from there; {fix}"]
            )
        return dict(mapping)
    try:
        found = read_model_section(folder)
    except WeightsError as error:
        raise config_error(source, [f"model.path: {error}"]) from None
    merged = {**found.model_dump(mode="json", exclude={"dtype", "backend", "lora"}), **given}
    try:
        configured = ModelSection.model_validate_json(json.dumps(merged), strict=True)
    except ValidationError:
        return {**mapping, "model": merged}  # for the whole configuration's validation to say
    problems = contradictions(configured, found, given)
    if problems:
        raise config_error(source, problems)
    return {**mapping, "model": merged}


def with_tokenizer_folder(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of an experiment whose tokenizer is that of `model.path`, where it sets no `tokenizer.path` and that
    folder has one."""
    model, tokenizer = mapping.get("model"), mapping.get("tokenizer", {})
    path = model.get("path") if isinstance(model, Mapping) else None
    if not isinstance(path, str) or not isinstance(tokenizer, Mapping) or "path" in tokenizer:
        return dict(mapping)
    return {**mapping, "tokenizer": {"path": path, **tokenizer}} if has_tokenizer(Path(path)) else dict(mapping)


def has_tokenizer(folder: Path) -> bool:
    """Whether files of a tokenizer lie in the folder."""
    named = any(os.path.isfile(folder / name) for name in _TOKENIZER_FILES)
    return named or (os.path.isdir(folder) and any(folder.glob(_SENTENCEPIECE)))
