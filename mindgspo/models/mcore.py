"""Weights of MindFormers' mcore models, its classes that are not legacy: their names, and how matrices are fused.

The rows of q, k and v are one matrix, and those of gate and up; they take turns: head group by head group (the queries
of one key/value head, its key, its value), and row by row. Experts are stacked, each transposed: [experts x in, out].
Where a configuration has use_contiguous_weight_layout_attention true, or use_interleaved_weight_layout_mlp false, the
rows of a part stay together, which a file does not say. Needs no MindSpore.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from mindgspo.config import ModelSection
from mindgspo.errors import WeightsError
from mindgspo.models.names import InFile, hugging_face_names, weight_shapes
from mindgspo.models.weight_check import check_names
from mindgspo.tensor_files.tensors import ArraySource, TensorInfo, TensorSource

ARCHITECTURES = ("qwen3", "qwen3_moe", "glm4")
"""Those whose mcore classes were read. Of GLM-4 there is one for generation alone, which reads this layout, too."""
MARK = "embedding.word_embeddings.weight"
"""A tensor that every file of an mcore model has, and no other."""
Contiguous = Collection[Literal["qkv", "fc1"]]
"""The fused matrices whose parts stay together: linear_qkv, linear_fc1."""

# Ours on the left, mcore's on the right; inside layers without `.weight` or `.bias`.
_OUTSIDE_LAYERS = {
    "model.embed_tokens.weight": MARK,
    "model.norm.weight": "decoder.final_layernorm.weight",
    "lm_head.weight": "output_layer.weight",
}
_QKV, _FC1 = "self_attention.linear_qkv", "mlp.linear_fc1"
_IN_LAYERS = {
    "input_layernorm": "input_layernorm",
    **dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), _QKV),
    "self_attn.o_proj": "self_attention.linear_proj",
    "self_attn.q_norm": "self_attention.q_layernorm",
    "self_attn.k_norm": "self_attention.k_layernorm",
    "post_self_attn_layernorm": "post_self_attn_layernorm",
    "post_attention_layernorm": "pre_mlp_layernorm",
    **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), _FC1),
    "mlp.down_proj": "mlp.linear_fc2",
    "mlp.gate": "mlp.router",
    "post_mlp_layernorm": "post_mlp_layernorm",
}
_EXPERTS = {"gate_proj": "weight1", "up_proj": "weight1", "down_proj": "weight2"}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(?:(.+)(\.weight|\.bias))")


def _name(ours: str) -> tuple[str, str]:
    """(mcore's name of our parameter, its kind without the layer)."""
    if ours in _OUTSIDE_LAYERS:
        return _OUTSIDE_LAYERS[ours], ""
    match = _LAYER.fullmatch(ours)
    assert match is not None, ours
    layer, kind, ending = match.groups()
    if kind.startswith("mlp.experts."):
        return f"decoder.layers.{layer}.mlp.experts.{_EXPERTS[kind.rpartition('.')[2]]}", kind
    return f"decoder.layers.{layer}.{_IN_LAYERS[kind]}{ending}", _IN_LAYERS[kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedTensor:
    """One tensor of an mcore model's file."""

    name: str
    blocks: tuple[tuple[InFile, ...], ...]
    """Per expert, else once: where the parts are whose rows it joins."""
    heights: tuple[int, ...]
    """Rows of each part."""
    width: tuple[int, ...]
    """Of a row; () of a bias or norm."""
    num_runs: int
    """The rows of the parts take turns in so many equal runs."""

    @property
    def is_transposed(self) -> bool:
        """Whether it holds experts."""
        return len(self.blocks) > 1

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of one block in the file."""
        rows = sum(self.heights)
        return (*self.width, rows) if self.is_transposed else (rows, *self.width)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        return (len(self.blocks) * self.block_shape[0], *self.block_shape[1:])

    def fused(self, source: TensorSource, stored_names: Mapping[str, str]) -> Iterator[np.ndarray]:
        """The tensor, flat, block by block. stored_names: {Hugging Face name: name in the source}."""
        for block in self.blocks:
            runs = []
            for part in block:
                name = stored_names[part.names[0]]
                rows = source.read_slice(name, (part.rows_of(source.tensors[name].shape),))
                runs.append(rows.reshape(self.num_runs, -1, *self.width))
            joined = np.concatenate(runs, axis=1).reshape(-1, *self.width)
            yield (joined.T if self.is_transposed else joined).reshape(-1)

    def part(self, source: TensorSource, block: int, number: int) -> np.ndarray:
        """The rows of one part of one block, from a source of mcore's tensors."""
        size = source.tensors[self.name].shape[0] // len(self.blocks)
        found = source.read_slice(self.name, (slice(block * size, (block + 1) * size),)).reshape(self.block_shape)
        runs = (found.T if self.is_transposed else found).reshape(self.num_runs, -1, *self.width)
        ends = [0, *itertools.accumulate(height // self.num_runs for height in self.heights)]
        return runs[:, ends[number] : ends[number + 1]].reshape(-1, *self.width)


def fused_tensors(model: ModelSection, contiguous: Contiguous = ()) -> list[FusedTensor]:
    """Every tensor of the model's file. Raises WeightsError: MindFormers has no mcore class of the architecture, or
    the model has adapters."""
    if model.architecture not in ARCHITECTURES:
        raise WeightsError(
            f"{model.architecture}: only {', '.join(ARCHITECTURES)} have names of MindFormers' mcore models here; "
            "Qwen2 and Llama take --layout mindformers"
        )
    if model.lora is not None:
        raise WeightsError("adapters have no names in MindFormers' mcore models; export merged weights first (--merge)")
    shapes = weight_shapes(model)
    placed: dict[str, list[InFile]] = {}
    turns: dict[str, int] = {}
    for ours, place in hugging_face_names(model).items():
        name, kind = _name(ours)
        placed.setdefault(name, []).append(place)
        turns[name] = 1
        if kind == _QKV and "qkv" not in contiguous:
            turns[name] = model.num_key_value_heads
        elif kind == _FC1 and "fc1" not in contiguous:
            turns[name] = model.intermediate_size
    found = []
    for name, places in placed.items():
        whole = [shapes[place.names[0]] for place in places]
        found.append(
            FusedTensor(
                name=name,
                blocks=tuple(
                    tuple(place._replace(names=(place.names[block],)) for place in places)
                    for block in range(len(places[0].names))
                ),
                heights=tuple(shape[0] // place.part[1] for shape, place in zip(whole, places, strict=True)),
                width=whole[0][1:],
                num_runs=turns[name],
            )
        )
    return found


class UnfusedTensors(ArraySource):
    """A `TensorSource` of Hugging Face's tensors, taken out of a source of mcore's.

    Raises WeightsError: names or shapes are not those of the model. Experts may have an axis of their own, as those of
    MindFormers' PyNative cells do.
    """

    def __init__(self, source: TensorSource, model: ModelSection, contiguous: Contiguous = ()) -> None:
        self.path, self.metadata = source.path, source.metadata
        self._source = source
        fused = {tensor.name: tensor for tensor in fused_tensors(model, contiguous)}
        found = dict(source.tensors)
        for name, info in found.items():
            if name in fused and fused[name].is_transposed and len(info.shape) == 3:
                found[name] = replace(info, shape=(info.shape[0] * info.shape[1], info.shape[2]))
        check_names({name: tensor.shape for name, tensor in fused.items()}, found, where=source.path)
        self._places: dict[str, list[tuple[FusedTensor, int, int]]] = {}
        for tensor in fused.values():
            for block, parts in enumerate(tensor.blocks):
                for number, part in enumerate(parts):
                    self._places.setdefault(part.names[0], []).append((tensor, block, number))
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(dtype=found[self._places[name][0][0].name].dtype, shape=shape)
            for name, shape in weight_shapes(model).items()
        }

    def read(self, name: str) -> np.ndarray:
        """A whole tensor; the matrix that it is a part of is read for it."""
        parts = [tensor.part(self._source, block, number) for tensor, block, number in self._places[name]]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
