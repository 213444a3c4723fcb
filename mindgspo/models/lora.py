"""Low-rank adapters outside of graphs: merged into their weights, and as PEFT writes and reads them, in
adapter_config.json and adapter_model.safetensors. Needs no MindSpore.

A setting of PEFT that would change what the weights mean is rejected here, never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from yaml import YAMLError

from mindgspo.config import ModelSection
from mindgspo.config.lora import LoraSection
from mindgspo.config.yaml_dialect import parse_document, write_document
from mindgspo.errors import WeightsError
from mindgspo.io import parse_json, read_bytes, unique_keys
from mindgspo.models.names import adapter_name, adapter_pairs, is_adapter, trained_weight_shapes
from mindgspo.models.weight_check import check_names
from mindgspo.tensor_files.tensors import TensorSource
from mindgspo.text import listed, shorten

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_MOST_BYTES = 1 << 20
# Settings that change no weight's meaning: where the base came from, and how an adapter was drawn or trained.
_FREE = {
    *("task_type", "inference_mode", "base_model_name_or_path", "revision", "auto_mapping", "peft_version"),
    *("lora_dropout", "megatron_core", "qalora_group_size", "layers_pattern", "runtime_config"),
    *("eva_config", "corda_config", "lora_ga_config", "loftq_config"),  # of init_lora_weights
}
_READ = {"peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "init_lora_weights", "bias", "modules_to_save"}
BASE_KEY = "mindgspo_base"
"""Metadata of our adapter files: the digest of the base that they belong to."""
_DRAWN = (True, False, None, "gaussian", "orthogonal", "eva", "mica")
"""Values of init_lora_weights that leave the base weights as they are."""
_MERGE = "where PEFT can merge it into the base (merge_and_unload), set model.path to the result"


def merged_weight(lora: LoraSection, weight: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """W + scale B A in float32."""
    merged = b @ a
    merged *= np.float32(lora.scale)
    merged += weight.astype(np.float32, copy=False)
    return merged


def merged_weights(model: ModelSection, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights of the model without adapters that computes what this one does. tensors: whole, float32, by our names
    or those in a file."""
    assert model.lora is not None
    weights, pairs = {name: array for name, array in tensors.items() if not is_adapter(name)}, adapter_pairs(model)
    for name in weights:
        a, b = pairs.get(name) or (adapter_name(name, matrix) for matrix in "AB")
        if a in tensors:
            weights[name] = merged_weight(model.lora, weights[name], tensors[a], tensors[b])
    return weights


def peft_names(model: ModelSection) -> dict[str, str]:
    """{name in a checkpoint: PEFT's} of everything that is trained. Experts have matrices of their own, as where each
    is an nn.Linear; PEFT stacks these for versions of transformers that stack the experts."""
    return {name: f"base_model.model.{name}" for name in trained_weight_shapes(model)}


def _target_modules(model: ModelSection, lora: LoraSection) -> tuple[str, ...]:
    """The layers with adapters by their names in files, which may join several."""
    present = {name.split(".")[-3] for name in trained_weight_shapes(model) if is_adapter(name)}
    return *(name for name in lora.projections if name in present), *(present - {*lora.projections})


def _saved_modules(model: ModelSection) -> list[str]:
    """PEFT's modules_to_save: the norms, by the last part of their names."""
    return sorted({name.split(".")[-2] for name in trained_weight_shapes(model) if not is_adapter(name)})


def peft_config(model: ModelSection) -> dict[str, object]:
    """The content of adapter_config.json."""
    lora = model.lora
    assert lora is not None
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None if model.path is None else str(model.path),
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha.is_integer() else lora.alpha,
        "use_rslora": lora.use_rslora,
        "lora_dropout": 0.0,
        "target_modules": list(_target_modules(model, lora)),
        "init_lora_weights": True if lora.init == "kaiming" else lora.init,
        "bias": "none",
        "fan_in_fan_out": False,
        "modules_to_save": _saved_modules(model) or None,
        "inference_mode": True,
    }


# Projections in the words of MindFormers' cells, which `target_modules` matches.
_PET_TARGETS = {
    **{"q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo"},
    **{"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"},
}


def pet_config(lora: LoraSection) -> bytes:
    """The section `pet_config` of MindFormers' configuration, as YAML. Its scale is always lora_alpha / lora_rank."""
    section = {
        "pet_type": "lora",
        "lora_rank": lora.rank,
        "lora_alpha": lora.scale * lora.rank,
        "lora_dropout": 0.0,
        "target_modules": "|".join(f".*{_PET_TARGETS[name]}" for name in lora.projections if name in _PET_TARGETS),
    }
    return write_document({"pet_config": section}).encode()


def read_pet_config(path: Path) -> LoraSection:
    """The adapters that a section `pet_config` describes. Raises WeightsError."""
    try:
        section = parse_document(read_bytes(path, _MOST_BYTES).decode())["pet_config"]
        theirs = {name: ours for ours, name in _PET_TARGETS.items()}
        named = [name.strip().removeprefix(".*") for name in section["target_modules"].split("|")]
        if section["pet_type"] != "lora" or not set(named) <= theirs.keys():
            raise ValueError(f"pet_type lora and target_modules of {', '.join(f'.*{name}' for name in theirs)}")
        targets = [theirs[name] for name in named]
        given = {"rank": section["lora_rank"], "alpha": float(section["lora_alpha"]), "targets": targets}
        return LoraSection.model_validate_json(json.dumps(given))
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, TypeError, KeyError, AttributeError, YAMLError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else shorten(str(error))
        raise WeightsError(
            f"{path}: {what}; it must hold pet_config with pet_type, lora_rank, lora_alpha and target_modules"
        ) from error


def check_peft_folder(model: ModelSection, folder: Path, weights: TensorSource, *, base: str | None = None) -> None:
    """Raises WeightsError unless the folder holds an adapter of this rank, scale and these targets, whole and of
    nothing else. base: digest of the base, which must be the one that the file names, if it names one."""
    path = folder / ADAPTER_CONFIG
    try:
        raw = parse_json(read_bytes(path, _MOST_BYTES), object_pairs_hook=unique_keys)
        if not isinstance(raw, dict):
            raise ValueError("no JSON object")
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", error)
        raise WeightsError(f"{path}: cannot be read ({what}); give a folder that PEFT has saved") from error
    for problem in _problems(model, raw):
        raise WeightsError(f"{path}: {problem}")
    if base is not None and weights.metadata.get(BASE_KEY, base) != base:
        raise WeightsError(
            f"{folder / ADAPTER_WEIGHTS}: was trained on another base than {model.path or 'the random one'} (digest "
            f"{shorten(weights.metadata[BASE_KEY])}, here {base}); set model.path to the folder that it was trained on"
        )
    shapes = trained_weight_shapes(model)
    expected = {theirs: shapes[ours] for ours, theirs in peft_names(model).items()}
    check_names(expected, weights.tensors, where=folder / ADAPTER_WEIGHTS, mend="set model.path to the adapter's base")


def _problems(model: ModelSection, raw: Mapping[str, Any]) -> Iterator[str]:
    lora = model.lora
    assert lora is not None
    if raw.get("peft_type") != "LORA":
        yield f"peft_type is {shorten(repr(raw.get('peft_type')))}; only LORA is implemented; {_MERGE}"
    for key in sorted(raw.keys() - _FREE - _READ):
        if raw[key]:
            yield f"{key} is set ({shorten(raw[key])}); not implemented; {_MERGE}"
    if raw.get("bias", "none") != "none":
        yield f"bias is {shorten(repr(raw['bias']))}; biases are not trained beside adapters, so only none is legal"
    if raw.get("init_lora_weights", True) not in _DRAWN:
        yield (
            f"init_lora_weights is {shorten(repr(raw['init_lora_weights']))}, which changes the base weights too; "
            "convert the adapter with PEFT (save_pretrained with path_initial_model_for_weight_conversion)"
        )
    for key, field in (("r", "rank"), ("lora_alpha", "alpha"), ("use_rslora", "use_rslora")):
        given, ours = raw.get(key, 8 if field != "use_rslora" else False), getattr(lora, field)
        if given != ours:
            yield f"{key} is {shorten(repr(given))}, and model.lora.{field} is {ours!r}; set them alike"
    saved, ours = raw.get("modules_to_save") or [], _saved_modules(model)
    if not isinstance(saved, list) or sorted(map(str, saved)) != ours:
        yield (
            f"modules_to_save is {shorten(repr(saved))}, and model.lora.train_norms={str(lora.train_norms).lower()} "
            f"means {listed(ours) if ours else 'none'}; only all norms can be trained beside adapters"
        )
    targets = raw.get("target_modules")
    if not isinstance(targets, list) or not all(isinstance(one, str) for one in targets):
        yield f"target_modules is {shorten(repr(targets))}; a list of names is read"
    elif (given := {one.rpartition(".")[2] for one in targets}) != (ours := set(_target_modules(model, lora))):
        yield (
            f"target_modules is {shorten(listed(sorted(given)))}, and model.lora.targets means "
            f"{listed(sorted(ours))}; set them alike"
        )
