"""Weight names and shapes of every model family, as tables: ours, Hugging Face's, MindFormers'; and the check that a
file's weights are those of a model. Pure Python.

`{i}` is the layer, `{e}` the expert: the experts' matrices are one parameter [experts, out, in] here, and one tensor
per expert in a file. MindFormers' names are those of a dense model's weights (its Qwen2 and Llama cells with
`qkv_concat=False`); norms of queries and keys and experts have no name there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mindgspo.config import ModelSection
from mindgspo.config.model import FAMILIES, Family
from mindgspo.errors import WeightsError

if TYPE_CHECKING:
    import numpy as np

NO_HEAD_DIM = "config.rules refuses a width that its heads do not divide"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightName:
    """One kind of weight: our parameter's name, its name in a Hugging Face file, and the shape of the latter's
    tensors."""

    ours: str
    hugging_face: str
    shape: Callable[[ModelSection], tuple[int, ...]]
    layers: Callable[[ModelSection], range]
    """Numbers of the layers that have it."""
    part: tuple[int, int] = (0, 1)
    """(number, count): the parameter is one of so many equal runs of rows of its tensor."""


def _head_dim(model: ModelSection) -> int:
    assert model.head_dim is not None, NO_HEAD_DIM
    return model.head_dim


def _query_size(model: ModelSection) -> int:
    return _head_dim(model) * model.num_attention_heads


def _kv_size(model: ModelSection) -> int:
    return _head_dim(model) * model.num_key_value_heads


def _num_experts(model: ModelSection) -> int:
    assert model.num_experts is not None, "config.rules refuses experts without their number"
    return model.num_experts


def _expert_size(model: ModelSection) -> int:
    assert model.moe_intermediate_size is not None, "config.rules refuses experts without their width"
    return model.moe_intermediate_size


def _shared_size(model: ModelSection) -> int:
    return model.n_shared_experts * _expert_size(model)


def _every_layer(model: ModelSection) -> range:
    return range(model.num_hidden_layers)


def _dense_layers(model: ModelSection) -> range:
    return range(model.expert_layers.start)


def _mixtures(model: ModelSection) -> range:
    return model.expert_layers


def _shared_layers(model: ModelSection) -> range:
    return model.expert_layers if model.n_shared_experts else range(0)


def _same(
    name: str, shape: Callable[[ModelSection], tuple[int, ...]], layers: Callable[[ModelSection], range] = _every_layer
) -> WeightName:
    """A weight whose parameter is named as in the file; experts' names without their number."""
    return WeightName(ours=name.replace(".{e}", ""), hugging_face=name, shape=shape, layers=layers)


def _q_lora(model: ModelSection) -> int:
    assert model.q_lora_rank is not None
    return model.q_lora_rank


def _expanded_size(model: ModelSection) -> int:
    """Keys without position and values of all heads."""
    return model.num_attention_heads * (_head_dim(model) - model.latent_dims[1] + model.value_dim)


def _compressed_layers(model: ModelSection) -> range:
    """The layers whose queries have a latent."""
    return range(0 if model.q_lora_rank is None else model.num_hidden_layers)


def _direct_layers(model: ModelSection) -> range:
    return range(model.num_hidden_layers if model.q_lora_rank is None else 0)


_TABLES = (_same("model.embed_tokens.weight", lambda m: (m.vocab_size, m.hidden_size)),)
_ATTENTION = (
    _same("model.layers.{i}.input_layernorm.weight", lambda m: (m.hidden_size,)),
    _same("model.layers.{i}.self_attn.q_proj.weight", lambda m: (_query_size(m), m.hidden_size)),
    _same("model.layers.{i}.self_attn.q_proj.bias", lambda m: (_query_size(m),)),
    _same("model.layers.{i}.self_attn.k_proj.weight", lambda m: (_kv_size(m), m.hidden_size)),
    _same("model.layers.{i}.self_attn.k_proj.bias", lambda m: (_kv_size(m),)),
    _same("model.layers.{i}.self_attn.v_proj.weight", lambda m: (_kv_size(m), m.hidden_size)),
    _same("model.layers.{i}.self_attn.v_proj.bias", lambda m: (_kv_size(m),)),
    _same("model.layers.{i}.self_attn.o_proj.weight", lambda m: (m.hidden_size, _query_size(m))),
    _same("model.layers.{i}.post_attention_layernorm.weight", lambda m: (m.hidden_size,)),
)
_LATENT_ATTENTION = (
    *(row for row in _ATTENTION if "norm" in row.ours),
    _same("model.layers.{i}.self_attn.q_proj.weight", lambda m: (_query_size(m), m.hidden_size), _direct_layers),
    _same("model.layers.{i}.self_attn.q_a_proj.weight", lambda m: (_q_lora(m), m.hidden_size), _compressed_layers),
    _same("model.layers.{i}.self_attn.q_a_layernorm.weight", lambda m: (_q_lora(m),), _compressed_layers),
    _same("model.layers.{i}.self_attn.q_b_proj.weight", lambda m: (_query_size(m), _q_lora(m)), _compressed_layers),
    _same("model.layers.{i}.self_attn.kv_a_proj_with_mqa.weight", lambda m: (sum(m.latent_dims), m.hidden_size)),
    _same("model.layers.{i}.self_attn.kv_a_layernorm.weight", lambda m: (m.latent_dims[0],)),
    _same("model.layers.{i}.self_attn.kv_b_proj.weight", lambda m: (_expanded_size(m), m.latent_dims[0])),
    _same("model.layers.{i}.self_attn.o_proj.weight", lambda m: (m.hidden_size, m.num_attention_heads * m.value_dim)),
)
_FEED_FORWARD = (
    _same("model.layers.{i}.mlp.gate_proj.weight", lambda m: (m.intermediate_size, m.hidden_size), _dense_layers),
    _same("model.layers.{i}.mlp.up_proj.weight", lambda m: (m.intermediate_size, m.hidden_size), _dense_layers),
    _same("model.layers.{i}.mlp.down_proj.weight", lambda m: (m.hidden_size, m.intermediate_size), _dense_layers),
)
_GATE_UP = "model.layers.{i}.mlp.gate_up_proj.weight"
_JOINED_FEED_FORWARD = (
    *(
        WeightName(
            ours=f"model.layers.{{i}}.mlp.{name}_proj.weight",
            hugging_face=_GATE_UP,
            shape=lambda m: (2 * m.intermediate_size, m.hidden_size),
            layers=_dense_layers,
            part=(number, 2),
        )
        for number, name in enumerate(("gate", "up"))
    ),
    _FEED_FORWARD[-1],
)
_EXPERTS = (
    _same("model.layers.{i}.mlp.gate.weight", lambda m: (_num_experts(m), m.hidden_size), _mixtures),
    _same("model.layers.{i}.mlp.experts.{e}.gate_proj.weight", lambda m: (_expert_size(m), m.hidden_size), _mixtures),
    _same("model.layers.{i}.mlp.experts.{e}.up_proj.weight", lambda m: (_expert_size(m), m.hidden_size), _mixtures),
    _same("model.layers.{i}.mlp.experts.{e}.down_proj.weight", lambda m: (m.hidden_size, _expert_size(m)), _mixtures),
)
_BLOCK = "model.layers.{i}.mlp.shared_experts"
_SHARED_EXPERTS = (
    _same("model.layers.{i}.mlp.gate.e_score_correction_bias", lambda m: (_num_experts(m),), _mixtures),
    _same(f"{_BLOCK}.gate_proj.weight", lambda m: (_shared_size(m), m.hidden_size), _shared_layers),
    _same(f"{_BLOCK}.up_proj.weight", lambda m: (_shared_size(m), m.hidden_size), _shared_layers),
    _same(f"{_BLOCK}.down_proj.weight", lambda m: (m.hidden_size, _shared_size(m)), _shared_layers),
)
_OUTPUT = (
    _same("model.norm.weight", lambda m: (m.hidden_size,)),
    _same("lm_head.weight", lambda m: (m.vocab_size, m.hidden_size)),
)
_SANDWICH_NORMS = tuple(
    _same(f"model.layers.{{i}}.{name}_layernorm.weight", lambda m: (m.hidden_size,))
    for name in ("post_self_attn", "post_mlp")
)
# One weight norms every query head, another every key head.
_HEAD_NORMS = (
    _same("model.layers.{i}.self_attn.q_norm.weight", lambda m: (_head_dim(m),)),
    _same("model.layers.{i}.self_attn.k_norm.weight", lambda m: (_head_dim(m),)),
)


def _table(family: Family) -> tuple[WeightName, ...]:
    feed_forward = _JOINED_FEED_FORWARD if family.joins_gate_and_up else _FEED_FORWARD
    attention = _LATENT_ATTENTION if family.has_latent_attention else _ATTENTION
    return (
        *_TABLES,
        *(row for row in attention if family.has_attention_bias is not False or not row.ours.endswith(".bias")),
        *(() if family.has_experts and not family.has_shared_experts else feed_forward),
        *(_EXPERTS if family.has_experts else ()),
        *(_SHARED_EXPERTS if family.has_shared_experts else ()),
        *_OUTPUT,
        *(_HEAD_NORMS if family.has_head_norms is not False else ()),
        *(_SANDWICH_NORMS if family.has_sandwich_norms else ()),
    )


WEIGHT_NAMES: Mapping[str, tuple[WeightName, ...]] = {name: _table(family) for name, family in FAMILIES.items()}

TABLES = ("model.embed_tokens.weight", "lm_head.weight")
"""Parameters with a row per token."""
CORRECTION = ".e_score_correction_bias"
"""How the names of routers' biases for choosing end, which are never trained."""


def compute_type(name: str, dtype: str) -> str:
    """The type in which a parameter is read. dtype: the model's compute type. The routers of experts compute in
    float32, and their weights are not rounded; adapters are scaled before they are."""
    return "float32" if name.endswith((".mlp.gate.weight", CORRECTION)) or is_adapter(name) else dtype


def is_adapter(name: str) -> bool:
    """Whether a parameter belongs to a low-rank adapter."""
    return name.endswith((".lora_A.weight", ".lora_B.weight"))


def trained_type(name: str, shape: tuple[int, ...], dtype: str) -> str:
    """The type of a parameter whose float32 rows are trained in its place: for layers' matrices, their compute type.
    Norms and biases are small, and the gradient of a table is summed token by token in its own type."""
    return "float32" if len(shape) == 1 or name in TABLES else compute_type(name, dtype)


# The output table is the embedding table where embeddings are tied: one weight under one name.
_UNTIED_ONLY = "lm_head.weight"


class InFile(NamedTuple):
    """Where a parameter is in a Hugging Face file."""

    names: tuple[str, ...]
    """Of its tensor; of experts' matrices those of all experts, which the parameter stacks."""
    part: tuple[int, int] = (0, 1)
    """See `WeightName.part`."""

    def rows_of(self, tensor: tuple[int, ...]) -> slice:
        """The parameter's rows of a tensor of this shape."""
        number, count = self.part
        return slice(tensor[0] // count * number, tensor[0] // count * (number + 1))


def hugging_face_names(model: ModelSection) -> dict[str, InFile]:
    """{our parameter name: its place in a Hugging Face file} for every weight of this model, in table order."""
    return {weight.ours: InFile(weight.theirs, weight.part) for weight in _expand(model)}


def weight_shapes(model: ModelSection) -> dict[str, tuple[int, ...]]:
    """{Hugging Face name: shape} for every tensor of a file of this model, in table order."""
    return {name: weight.shape for weight in _expand(model) for name in weight.theirs}


def parameter_shapes(model: ModelSection) -> dict[str, tuple[int, ...]]:
    """{our parameter name: shape of the whole tensor} of every weight of this model, in table order. Tables have
    `model.table_rows`."""
    return {
        weight.ours: (model.rows, *weight.shape[1:])
        if weight.ours in TABLES
        else (len(weight.theirs), *weight.shape)
        if weight.is_stacked
        else (weight.shape[0] // weight.part[1], *weight.shape[1:])
        for weight in _expand(model)
    }


def adapter_name(weight: str, matrix: str) -> str:
    """Name of matrix A or B of a weight's adapter."""
    return f"{weight.removesuffix('.weight')}.lora_{matrix}.weight"


def adapter_pairs(model: ModelSection) -> dict[str, tuple[str, str]]:
    """{our name of a weight: those of A and B} of every weight that has an adapter."""
    pairs, a = {}, ""
    for weight in _expand(model):
        if weight.ours.endswith(".lora_A.weight"):
            a = weight.ours
        elif weight.ours.endswith(".lora_B.weight"):
            pairs[f"{weight.ours.removesuffix('.lora_B.weight')}.weight"] = (a, weight.ours)
    return pairs


def is_trained(model: ModelSection, name: str) -> bool:
    """Whether a parameter, or a tensor of a file, is trained: every one but routers' biases, or adapters and perhaps
    norms."""
    lora = model.lora
    if lora is None:
        return not name.endswith(CORRECTION)
    return is_adapter(name) or (lora.train_norms and name.endswith("norm.weight"))


def trained_shapes(model: ModelSection) -> dict[str, tuple[int, ...]]:
    """The part of `parameter_shapes` that is trained."""
    return {name: shape for name, shape in parameter_shapes(model).items() if is_trained(model, name)}


def stored_shapes(model: ModelSection) -> dict[str, tuple[int, ...]]:
    """The part of `parameter_shapes` that a run's checkpoint holds: all of it, or beside a base what is trained."""
    return parameter_shapes(model) if model.lora is None else trained_shapes(model)


def trained_weight_shapes(model: ModelSection) -> dict[str, tuple[int, ...]]:
    """The part of `weight_shapes` that is trained."""
    return {name: shape for name, shape in weight_shapes(model).items() if is_trained(model, name)}


def to_hugging_face(model: ModelSection, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """{Hugging Face name: tensor} of whole arrays under our names, tables without their padding; a view where experts
    are taken apart. Parameters that `arrays` lacks are left out; of one tensor it has all or none."""
    import numpy as np  # the tables above need none

    found: dict[str, list[np.ndarray]] = {}
    for weight in _expand(model):
        if (array := arrays.get(weight.ours)) is not None:
            for number, name in enumerate(weight.theirs):
                parts = found.setdefault(name, [])
                assert len(parts) == weight.part[0], f"{weight.ours} is there without the rows before it"
                parts.append(array[number] if weight.is_stacked else array[: weight.shape[0]])
    return {name: parts[0] if len(parts) == 1 else np.concatenate(parts) for name, parts in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weight:
    """One parameter of one layer. theirs: names of its tensors in a file. shape: of each of them. part: see
    `WeightName`."""

    ours: str
    theirs: tuple[str, ...]
    shape: tuple[int, ...]
    is_stacked: bool
    part: tuple[int, int]


def _expand(model: ModelSection) -> list[_Weight]:
    expanded = []
    for row in WEIGHT_NAMES[model.architecture]:
        if row.ours == _UNTIED_ONLY and model.tie_word_embeddings:
            continue
        if row.ours.endswith(".bias") and not model.attention_bias:
            continue
        is_stacked = "{e}" in row.hugging_face
        if row in _HEAD_NORMS and not model.has_head_norms:
            continue
        layers = row.layers(model) if "{i}" in row.ours else (0,)
        experts = range(_num_experts(model)) if is_stacked else (0,)
        for i in layers:
            weight = _Weight(
                ours=row.ours.format(i=i),
                theirs=tuple(row.hugging_face.format(i=i, e=e) for e in experts),
                shape=row.shape(model),
                is_stacked=is_stacked,
                part=row.part,
            )
            expanded += [weight, *_adapter(model, weight)]
    return expanded


def _adapter(model: ModelSection, weight: _Weight) -> list[_Weight]:
    """The adapter of a weight, where it has one; experts' matrices are stacked as their weights are. Rows of one tensor
    of a file share its A, and B is divided as they are."""
    layer, _, kind = weight.ours.rpartition(".")
    if model.lora is None or kind != "weight" or layer.rpartition(".")[2] not in model.lora.projections:
        return []
    a, b = (tuple(adapter_name(name, matrix) for name in weight.theirs) for matrix in "AB")
    is_joined, own = weight.part[1] > 1, {"is_stacked": weight.is_stacked}
    of_a = _Weight(
        ours=a[0] if is_joined else adapter_name(weight.ours, "A"),
        theirs=a,
        shape=(model.lora.rank, weight.shape[1]),
        part=(0, 1),
        **own,
    )
    of_b = _Weight(
        ours=adapter_name(weight.ours, "B"), theirs=b, shape=(weight.shape[0], model.lora.rank), part=weight.part, **own
    )
    return [of_b] if weight.part[0] else [of_a, of_b]


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


# Matrices of adapters, whose shapes are PEFT's.
_ADAPTERS = {"lora_A.weight": "mindpet_delta_lora_a", "lora_B.weight": "mindpet_delta_lora_b"}


def mindformers_name(hugging_face_name: str) -> str:
    """MindFormers' name of a weight or of a matrix of its adapter (as its `pet` names them). Raises WeightsError: a
    weight that its cells do not have."""
    for ours, theirs in _ADAPTERS.items():
        if hugging_face_name.endswith(f".{ours}"):
            weight = mindformers_name(f"{hugging_face_name.removesuffix(ours)}weight")
            return f"{weight.removesuffix('weight')}{theirs}"
    return _renamed(hugging_face_name, _OUTSIDE_LAYERS, _IN_LAYERS, "MindFormers has no name for it")


def mindformers_names(model: ModelSection) -> dict[str, str]:
    """{our parameter name: its name in MindFormers' model} of every weight, in table order. Raises WeightsError: a
    weight that its cells do not have."""
    return {weight.ours: mindformers_name(weight.theirs[0]) for weight in _expand(model)}


def hugging_face_name(mindformers_name: str) -> str:
    """Hugging Face's name of a weight, PEFT's of a matrix of its adapter. Raises WeightsError: no name of MindFormers'
    Qwen2 or Llama cells."""
    for name, theirs in _ADAPTERS.items():
        if mindformers_name.endswith(f".{theirs}"):
            weight = hugging_face_name(f"{mindformers_name.removesuffix(theirs)}weight")
            return f"{weight.removesuffix('weight')}{name}"
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
