"""The cache of keys and values in blocks, and MindSpore's own attention kernels.

Legend: T tokens, N query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ascend_emulator.contract import absent, anything, operator, same_shape, tensor, value
from ascend_emulator.tensors import DeviceTensor
from mindgspo_kernels import binding as kernels

Arguments = dict[str, Any]

_HALVES = frozenset({"bfloat16", "float16"})
_HEAD_STEP = 16
_BLOCKS = (16, 32, 64, 128)
_MOST_IN_BLOCK = 16_384  # numbers of one head
_WIDEST_LATENT = 576  # with the rotated key; the host code refuses more
_INTERNAL = "MindSpore's internal kernels, ops.PagedAttention and ops.ReshapeAndCache"


def _as_long_on_host(given: Arguments) -> str | None:
    """The kernel is cut up on the host, by the lengths that MindSpore takes from the graph's `batch_valid_length`."""
    host, device = given["kv_seq_len"], given["context_lens"].values().reshape(-1).tolist()
    return None if host == device else f"kv_seq_len of the host {host} must be context_lens of the device {device}"


def _cache_fits(given: Arguments) -> str | None:
    if given["mla_v_dim"]:
        return _latents_fit(given)
    query, keys, heads, kv_heads = (given[name] for name in ("query", "key_cache", "num_heads", "num_kv_heads"))
    size = keys.shape[3]
    if keys.shape[2] != kv_heads or heads % kv_heads or size % _HEAD_STEP:
        return f"{heads} and {kv_heads} heads of a multiple of {_HEAD_STEP} must fit key_cache {list(keys.shape)}"
    if keys.shape[1] not in _BLOCKS or keys.shape[1] * size > _MOST_IN_BLOCK:
        numbers = f"{_MOST_IN_BLOCK} numbers per head, not {keys.shape[1]} x {size}"
        return f"blocks must be of {_BLOCKS} tokens, and at most of {numbers}"
    sequences = given["context_lens"].size
    if query.size != sequences * heads * size:
        return f"query {list(query.shape)} must be {sequences} x {heads} heads x {size}"
    return None


def _latents_fit(given: Arguments) -> str | None:
    """Of latent attention, whose values are the first features of the keys."""
    query, out, keys, heads = (given[name] for name in ("query", "out", "key_cache", "num_heads"))
    size, latent, sequences = keys.shape[3], given["mla_v_dim"], given["context_lens"].size
    if given["num_kv_heads"] != 1 or keys.shape[2] != 1 or not latent <= size <= _WIDEST_LATENT:
        return f"mla_v_dim {latent} takes one head of {latent} to {_WIDEST_LATENT} features, not {list(keys.shape)}"
    if query.shape != (sequences, heads * size) or out.shape != (sequences, heads * latent):
        wanted = f"[{sequences}, {heads} x {size}] and [{sequences}, {heads} x {latent}]"
        return f"query and out must be {wanted}, not {list(query.shape)} and {list(out.shape)}"
    return None


def _out_fits(given: Arguments) -> str | None:
    query, out = given["query"], given["out"]
    if given["mla_v_dim"] or query.shape == out.shape:
        return None
    return f"query {list(query.shape)} and out {list(out.shape)} must have one shape"


@operator(
    "internal:PagedAttention",
    takes=(
        tensor("query", _HALVES, rank=(2, 3)),
        tensor("key_cache", rank=(4, 4), like="query"),
        tensor("value_cache", rank=(4, 4), like="query"),
        tensor("block_tables", frozenset({"int32"}), rank=(2, 2)),
        tensor("context_lens", frozenset({"int32"}), rank=(1, 1)),
        absent("antiquant_scale"),
        absent("antiquant_offset"),
        absent("attn_mask"),
        absent("alibi_mask"),
    ),
    outputs=(tensor("out", like="query"),),
    relations=(_out_fits, same_shape("key_cache", "value_cache"), _cache_fits),
    contents=(_as_long_on_host,),
    source=_INTERNAL,
)
def _paged_attention(inputs: list, outputs: list, parameters: dict) -> None:
    query, keys, values, tables, lengths = inputs[:5]
    rows = (lengths.size, parameters["num_heads"])
    if parameters["mla_v_dim"]:
        values = keys.seen(keys.bits[..., : parameters["mla_v_dim"]])
    kernels.paged_attention(
        query.view(*rows, keys.shape[3]), keys, values, tables, lengths, scale=parameters["scale"],
        out=outputs[0].view(*rows, values.shape[3]),
    )  # fmt: skip


def _slots_fit(given: Arguments) -> str | None:
    keys, values, cache, slots = (given[name] for name in ("key", "value", "key_cache", "slot_mapping"))
    row = cache.shape[2] * cache.shape[3]
    if slots.size > cache.shape[0] * cache.shape[1]:
        return f"{slots.size} tokens must be no more than {cache.shape[0]} blocks of {cache.shape[1]}"
    if (values is None) != (given["value_cache"] is None):
        return "value and value_cache must both be given or both be absent"
    if keys.size == slots.size * row:
        return None
    return f"key and value must be {slots.size} rows of {row}, not {list(keys.shape)}"


def _slots_are_there(given: Arguments) -> str | None:
    cache, slots = given["key_cache"], given["slot_mapping"].values()
    rows = cache.shape[0] * cache.shape[1]
    return None if not slots.size or slots.max() < rows else f"slot_mapping must be below {rows}, not {slots.max()}"


@operator(
    "internal:ReshapeAndCache",
    takes=(
        tensor("key", _HALVES | {"int8"}, rank=(2, 3)),
        tensor("value", rank=(2, 3), like="key", optional=True),
        tensor("key_cache", rank=(4, 4), like="key"),
        tensor("value_cache", rank=(4, 4), like="key", optional=True),
        tensor("slot_mapping", frozenset({"int32"}), rank=(1, 1)),
    ),
    outputs=(anything("out"),),
    relations=(same_shape("key", "value"), same_shape("key_cache", "value_cache"), _slots_fit),
    contents=(_slots_are_there,),
    source=_INTERNAL,
)
def _reshape_and_cache(inputs: list, outputs: list, parameters: dict) -> None:
    """The output is nothing that anyone reads. A negative slot is not stored."""
    slots = inputs[4].values()
    is_stored = slots >= 0
    for new, cache in zip(inputs[:2], inputs[2:4], strict=True):
        if new is None:
            continue
        rows = cache.view(-1, cache.shape[2] * cache.shape[3]).bits
        rows[slots[is_stored]] = new.bits.reshape(slots.size, -1)[is_stored]


_TND, _TH = 4, 5  # layouts of packed sequences, of FlashAttentionScoreParam::InputLayoutMode
_DEFAULT, _CAUSAL_FROM_END = 0, 3


def _mask_is_triangle(given: Arguments) -> str | None:
    if given["attn_mask"] is None or given["sparse_mode"] == _CAUSAL_FROM_END:
        return None
    return f"attn_mask is emulated with sparse_mode {_CAUSAL_FROM_END} only, not {given['sparse_mode']}"


def _lengths_are_there(given: Arguments) -> str | None:
    """Nothing else tells packed sequences apart."""
    q, k = given["q_seq_len"], given["kv_seq_len"]
    if not q or not k:
        return "q_seq_len and kv_seq_len of the host must be given with packed sequences"
    tokens = given["query"].shape[0], given["key"].shape[0]
    if (sum(q), sum(k)) != tokens or len(q) != len(k):
        return f"q_seq_len {q} and kv_seq_len {k} must be the {tokens[0]} and {tokens[1]} tokens of query and key"
    return None


@operator(
    "internal:FlashAttentionScore",
    takes=(
        tensor("query", _HALVES, rank=(2, 3)),
        tensor("key", rank=(2, 3), like="query"),
        tensor("value", rank=(2, 3), like="query"),
        absent("real_shift"),
        anything("attn_mask"),
        value("input_layout", among=(_TND, _TH)),
        value("sparse_mode", among=(_DEFAULT, _CAUSAL_FROM_END)),
    ),
    outputs=(tensor("out", like="query"),),
    relations=(same_shape("query", "out"), same_shape("key", "value"), _mask_is_triangle, _lengths_are_there),
    source=_INTERNAL,
)
def _flash_attention(inputs: list, outputs: list, parameters: dict) -> None:
    """Of packed sequences only. A mask stands for the triangle of sparse_mode 3."""
    query, key, values, _, mask = inputs
    heads, (tokens, size) = parameters["num_heads"], (query.shape[0], query.size // query.shape[0])
    size //= heads
    statistics = DeviceTensor.zeros((1, tokens, heads, 1))
    kernels.attention(
        *(one.view(1, one.shape[0], -1, size) for one in (query, key, values)),
        scale=parameters["scale"],
        out=outputs[0].view(1, tokens, heads, size),
        highest=statistics,
        total=DeviceTensor.zeros(statistics.shape),
        visible=kernels.Visible() if mask is None else kernels.Visible(after=0, from_end=True),
        q_ends=np.cumsum(parameters["q_seq_len"]).tolist(),
        k_ends=np.cumsum(parameters["kv_seq_len"]).tolist(),
    )
