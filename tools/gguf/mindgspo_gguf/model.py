"""A model in a GGUF file, llama.cpp's format, seen as a Hugging Face folder: config.json, tokenizer and weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mindgspo.checkpoint.convert import GENERATION_CONFIG, Description, ModelSource
from mindgspo.config import ModelSection
from mindgspo.config.huggingface_config import model_section
from mindgspo.config.model import FAMILIES
from mindgspo.errors import WeightsError
from mindgspo.io import Closing, json_bytes
from mindgspo.models.weight_check import require_weights
from mindgspo.tensor_files.tensors import CHUNK_BYTES, TensorInfo
from mindgspo.text import listed, shorten
from mindgspo_gguf.file import OpenGguf
from mindgspo_gguf.tokenizer import gguf_tokenizer_files

_FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe"}
# {config.json's name: <key> of the entry `<architecture>.<key>`}.
_CONFIG = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rope_theta": "rope.freq_base",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
# Of all layers together; DeepSeek-V3 has 15,000. The names of more would fill the memory.
_MOST_EXPERTS = 1 << 17
_STOPS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
# What no cell here does, where it is neither absent nor 0.
_FOREIGN = ("attention.sliding_window", "expert_shared_count", "expert_shared_feed_forward_length", "pooling_type")
_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
# Inside `blk.<i>.`, without `.weight` or `.bias`.
_IN_LAYERS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
_EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(\w+)\.(weight|bias)")
# {<key> of the entry `<architecture>.rope.scaling.<key>`: name in config.json}.
_STRETCHING = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
# How many times slower each pair of features turns: Llama 3.1's and 3.2's rule, worked out.
_ROPE_FREQUENCIES = "rope_freqs.weight"
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_LENGTH, _LLAMA3_FACTORS = 8192, (8.0, 32.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The rows of one Hugging Face tensor: `first` and as many as `info` has, of the file's tensor `name`."""

    name: str
    info: TensorInfo
    first: int = 0
    rotated: int = 0
    """Rows of a head whose two halves llama.cpp interleaves, so that the features of a pair lie side by side; or 0."""


class GgufModel(Closing):
    """An open GGUF file as a `TensorSource` of float32 tensors with Hugging Face's names; `source`: the model."""

    def __init__(self, path: Path) -> None:
        """Raises WeightsError, TokenizerError: damaged, another family, or a detail that is not implemented."""
        self.path = path
        self.metadata: Mapping[str, str] = {}
        self._file = OpenGguf(path)
        try:
            raw = _config(self._file)
            section = model_section(raw, path)
            self._parts = _parts(self._file, section)
            self.tensors: Mapping[str, TensorInfo] = {name: part.info for name, part in self._parts.items()}
            tokenizer = gguf_tokenizer_files(self._file.entries, str(path))
            stored_names = require_weights(section, self, {name: name for name in self.tensors})
        except BaseException:
            self.close()
            raise
        found = {key: self._file.entries.get(f"tokenizer.ggml.{theirs}_token_id") for key, theirs in _STOPS.items()}
        stops = {key: number for key, number in found.items() if number is not None}
        files = {**tokenizer.contents, GENERATION_CONFIG: json_bytes({"do_sample": False, **stops})}
        self.source = ModelSource(
            tensors=self,
            stored_names=stored_names,
            description=Description(section=section, config=json_bytes({**raw, **stops}), files=files),
        )

    def read(self, name: str) -> NDArray[np.float32]:
        """A whole tensor."""
        return np.concatenate([*self.chunks(name)]).reshape(self.tensors[name].shape)

    def read_slice(self, name: str, index: tuple[slice, ...]) -> NDArray[np.float32]:
        """A part of a tensor."""
        return self.read(name)[index]

    def chunks(self, name: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[NDArray[np.float32]]:
        """The tensor, flat, in runs of rows; of whole heads where rows of a head change places."""
        part = self._parts[name]
        packed = self._file.tensors[part.name]
        stop = part.first + part.info.num_elements // packed.shape[-1]
        step = max(chunk_bytes // (4 * packed.shape[-1]), 1)
        step = max(step // part.rotated, 1) * part.rotated if part.rotated else step
        for first in range(part.first, stop, step):
            rows = self._file.rows(part.name, first, min(first + step, stop))
            if part.rotated:
                rows = rows.reshape(-1, part.rotated // 2, 2, rows.shape[-1]).swapaxes(1, 2)
            yield np.ascontiguousarray(rows).reshape(-1)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _config(file: OpenGguf) -> dict[str, object]:
    """The content of config.json."""
    architecture, entries = file.entries.get("general.architecture"), file.entries
    family = _FAMILIES.get(str(architecture))
    if family is None:
        raise WeightsError(f"{file.path}: architecture {shorten(architecture)}; supported: {listed([*_FAMILIES])}")
    if entries.get("split.count", 0) not in (0, 1):
        raise WeightsError(f"{file.path}: one of {entries['split.count']} parts; join them (llama-gguf-split --merge)")
    for key in _FOREIGN:
        if entries.get(f"{architecture}.{key}"):
            raise WeightsError(f"{file.path}: {key} is {shorten(entries[f'{architecture}.{key}'])}; not implemented")
    found = {ours: entries.get(f"{architecture}.{theirs}") for ours, theirs in _CONFIG.items()}
    config = {key: _shortest(value) for key, value in found.items() if value is not None}
    table = file.tensors.get("token_embd.weight")
    heads, width = config.get("num_attention_heads"), config.get("hidden_size")
    if table is None or type(heads) is not int or type(width) is not int or heads < 1:
        raise WeightsError(f"{file.path}: no token_embd.weight, or no {architecture}.attention.head_count")
    head_dim = config.setdefault("head_dim", width // heads)
    layers, experts_of = config.get("num_hidden_layers"), config.get("num_experts", 0)
    if not (isinstance(layers, int) and isinstance(experts_of, int) and layers * max(experts_of, 1) <= _MOST_EXPERTS):
        raise WeightsError(f"{file.path}: {layers} layers with {experts_of} experts; at most {_MOST_EXPERTS} of all")
    for key in ("rope.dimension_count", "attention.value_length"):
        if entries.get(f"{architecture}.{key}", head_dim) != head_dim:
            raise WeightsError(f"{file.path}: {key} is {entries[f'{architecture}.{key}']}, not head_dim {head_dim}")
    experts = {"norm_topk_prob": True} if FAMILIES[family].has_experts else {}  # as llama.cpp computes
    return {
        "architectures": [FAMILIES[family].huggingface_class],
        "model_type": family,
        "vocab_size": table.shape[0],
        **config,
        **experts,
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_scaling": _rope_scaling(file, str(architecture), config),
        "torch_dtype": "float32",
    }


def _shortest(value: object) -> object:
    """A number as it was before it became float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _rope_scaling(file: OpenGguf, architecture: str, config: Mapping[str, object]) -> dict[str, object] | None:
    """linear and YaRN, which the entries name, or Llama 3's rule, where the file holds its frequencies. Raises
    WeightsError: another rule."""
    at = f"{architecture}.rope.scaling."
    given = {key.removeprefix(at): _shortest(value) for key, value in file.entries.items() if key.startswith(at)}
    kind = given.pop("type", "none")
    if kind in ("linear", "yarn"):
        given.pop("finetuned", None)
        strange = sorted(given.keys() - _STRETCHING)
        if strange:
            raise WeightsError(f"{file.path}: rope.scaling.{listed(strange)} with {kind}; not implemented")
        return {"rope_type": kind} | {_STRETCHING[key]: value for key, value in given.items()}
    if kind != "none":
        raise WeightsError(f"{file.path}: rope.scaling.type is {shorten(kind)}; not implemented")
    if _ROPE_FREQUENCIES not in file.tensors:
        return None
    found = file.rows(_ROPE_FREQUENCIES, 0, file.tensors[_ROPE_FREQUENCIES].num_rows).reshape(-1)
    theta = config.get("rope_theta", 10000.0)
    for factor in _LLAMA3_FACTORS:
        if not isinstance(theta, float) or 2 * found.size != config["head_dim"]:
            break
        waves = 2 * np.pi * np.power(theta, np.arange(found.size) / found.size)
        smooth = np.clip((_LLAMA3_LENGTH / waves - 1) / (4 - 1), 0, 1)
        expected = 1 / ((1 - smooth) / factor + smooth)
        if np.allclose(found, expected, rtol=1e-4):
            return {**_LLAMA3, "factor": factor, "original_max_position_embeddings": _LLAMA3_LENGTH}
    raise WeightsError(f"{file.path}: {_ROPE_FREQUENCIES} is not Llama 3's with factor 8 or 32; not implemented")


def _parts(file: OpenGguf, section: ModelSection) -> dict[str, _Part]:
    """{Hugging Face name: where it lies}. Names that nobody knows stay, so that they are reported as unexpected."""
    parts: dict[str, _Part] = {}
    for name, tensor in file.tensors.items():
        match = _LAYER.fullmatch(name)
        layer, part, ending = match.groups() if match else ("", "", "")
        is_stack = len(tensor.shape) == 3 and tensor.shape[0] == section.num_experts
        if part in _EXPERTS and is_stack and int(layer) < section.num_hidden_layers:
            rows = tensor.shape[1]
            for expert in range(tensor.shape[0]):
                ours = f"model.layers.{layer}.mlp.experts.{expert}.{_EXPERTS[part]}.{ending}"
                info = TensorInfo(dtype="F32", shape=tensor.shape[1:])
                parts[ours] = _Part(name=name, info=info, first=expert * rows)
        elif name != _ROPE_FREQUENCIES:
            ours = (
                f"model.layers.{layer}.{_IN_LAYERS[part]}.{ending}" if part in _IN_LAYERS else _OUTSIDE.get(name, name)
            )
            is_rotated = section.architecture == "llama" and part in ("attn_q", "attn_k")
            info = TensorInfo(dtype="F32", shape=tensor.shape)
            parts[ours] = _Part(name=name, info=info, rotated=(section.head_dim or 0) if is_rotated else 0)
    return parts
