"""Attention, its cache in blocks, and rotary position embedding.

What enters: queries, keys and values in the layouts of CANN. What leaves: results computed in float32 and rounded once.
Without a mask tensor an attention operator of CANN attends to everything, whatever its sparseMode says: the modes that
cut attention are refused without one, and a compressed mask has to be the triangle that it stands for.

Legend: B batch, S sequence, T tokens of all sequences, N query heads, K key/value heads (N is a multiple of K), D head
size, H = N * D.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mindgspo.ascend.emulator.contract import (
    Relation,
    Rule,
    absent,
    anything,
    operator,
    same_shape,
    shape_is,
    tensor,
    value,
)
from mindgspo.ascend.emulator.tensors import FLOATS, DeviceTensor
from mindgspo.kernels import binding as kernels

Arguments = dict[str, Any]

_FLOAT32 = frozenset({"float32"})
_HALVES = frozenset({"bfloat16", "float16"})
_FLAGS = frozenset({"bool", "uint8"})
_INTEGERS = frozenset({"int32", "int64"})
_INTERNAL = "MindSpore's internal kernels, ops.PagedAttention and ops.ReshapeAndCache"
_MOST_HEADS, _MOST_SEQUENCES, _MOST_TOKENS, _HEAD_STEP = 256, 2048, 1 << 20, 16
_DENSE = ("BSH", "SBH", "BSND", "BNSD")
_TRIANGLE = 2048  # side of a compressed mask
_ROWS_APART = 127
# sparseMode. 5 to 8, prefixes and sequences cut across cards, are documented and not emulated.
_DEFAULT, _ALL, _CAUSAL, _CAUSAL_FROM_END, _BAND = range(5)
_COMPRESSED = (_CAUSAL, _CAUSAL_FROM_END, _BAND)

# --------------------------------------------------------------------------------------------- what may be given


def _ends_rule(name: str, of: str, *, may_be_empty: bool) -> Rule:
    """Cumulative lengths of the sequences in `of`.

    Empty key sequences: mindspore.ops.speed_fusion_attention excludes them, CANN shows empty ones for queries only.
    """

    def check(given: Sequence[int] | None, others: Arguments) -> str | None:
        if not given or len(given) > _MOST_SEQUENCES:
            return f"must have 1 to {_MOST_SEQUENCES} ends, not {len(given or ())}"
        steps = np.diff(given, prepend=0)
        if (steps < 0).any() or (not may_be_empty and (steps == 0).any()):
            return f"must {'not fall' if may_be_empty else 'rise, as no sequence is empty'}: {given}"
        tokens = others[of].shape[0]
        return None if given[-1] == tokens else f"must end with the {tokens} tokens of {of}, not {given[-1]}"

    return Rule(name=name, check=check)


def _keep_all(given: float, others: Arguments) -> str | None:
    if not 0 < given <= 1:
        return f"must be in (0, 1], not {given}"
    return None if given == 1 else f"{given} is not emulated, and must be 1"


def _leading(is_varlen: bool, key: str, most: int) -> tuple[Rule, ...]:
    rank = (3, 3) if is_varlen else (3, 4)
    return (
        tensor("query", FLOATS, rank=rank),
        tensor(key, FLOATS, rank=rank, like="query"),
        tensor("value", FLOATS, rank=rank, like="query"),
    )


def _settings(is_varlen: bool, is_v2: bool) -> tuple[Rule, ...]:
    ends = (
        _ends_rule("actualSeqQLenOptional", "query", may_be_empty=True),
        _ends_rule("actualSeqKvLenOptional", "value", may_be_empty=False),
    )
    return (
        absent("prefixOptional"),
        *(ends if is_varlen else ()),
        *((anything("qStartIdxOptional"), anything("kvStartIdxOptional")) if is_v2 else ()),
        value("scaleValue"),
        Rule(name="keepProb", check=_keep_all),
        anything("preTokens"),
        anything("nextTokens"),
        value("headNum", low=1, high=_MOST_HEADS),
        value("inputLayout", among=("TND",) if is_varlen else _DENSE),
        anything("innerPrecise"),
        value("sparseMode", among=(_DEFAULT, _ALL, *_COMPRESSED)),
        # Of the kinds of position bias, 2 and 3 are made by the operator itself.
        *((value("pseType", among=(0, 1)),) if is_v2 else ()),
    )


def _heads_fit(key: str, most: int) -> Relation:
    """Heads and head sizes of query, key and value."""

    def check(given: Arguments) -> str | None:
        layout, heads, query = given["inputLayout"], given["headNum"], given["query"]
        if len(layout) != query.rank:
            return f"query must have the axes {layout}, not {list(query.shape)}"
        if query.shape[-1] % heads if layout in ("BSH", "SBH") else query.shape[layout.index("N")] != heads:
            return f"headNum {heads} must be the number of heads of query {layout} {list(query.shape)}"
        q_shape, k_shape, v_shape = (_shape(given[name], given) for name in ("query", key, "value"))
        size = q_shape[3]
        if not 1 <= size <= most or size % _HEAD_STEP:
            return f"the head size must be a multiple of {_HEAD_STEP} up to {most}, not {size}"
        if k_shape[3] != size or v_shape[3] > size or k_shape[:3] != v_shape[:3] or k_shape[0] != q_shape[0]:
            shapes = ", ".join(f"{name} {list(given[name].shape)}" for name in ("query", key, "value"))
            return f"batch, sequence and head size must fit: {shapes}"
        if not k_shape[2] or heads % k_shape[2]:
            return f"headNum {heads} must be a multiple of the {k_shape[2]} heads of {key}"
        longest = max(q_shape[1], k_shape[1])
        return (
            None if 1 <= longest <= _MOST_TOKENS else f"a sequence must have 1 to {_MOST_TOKENS} tokens, not {longest}"
        )

    return check


def _mask_fits(key: str) -> Relation:
    """sparseMode, attenMask, preTokens and nextTokens."""

    def check(given: Arguments) -> str | None:
        mode, mask = given["sparseMode"], given["attenMaskOptional"]
        before, after = given["preTokens"], given["nextTokens"]
        if mode in (_DEFAULT, _BAND) and before + after < 0:
            return f"preTokens {before} and nextTokens {after} must leave a band"
        if mask is None:
            if mode == _DEFAULT:
                return None
            return f"attenMaskOptional must be given with sparseMode {mode}: without it attention is full"
        sides, triangle = list(mask.shape), [_TRIANGLE, _TRIANGLE]
        if mode in _COMPRESSED and sides != triangle:
            return f"attenMaskOptional must be {triangle} with sparseMode {mode}, not {sides}"
        sequences = _lengths(given, key)
        if mode == _CAUSAL_FROM_END and "actualSeqQLenOptional" in given:
            longer = [(q, k) for q, k in sequences if q > k]
            if longer:
                return f"no sequence may have more queries than keys with sparseMode {mode}: {longer[0]}"
        if mode in (_DEFAULT, _ALL):
            wanted = [max(q for q, _ in sequences), max(k for _, k in sequences)]
            if sides[-2:] != wanted:
                return f"attenMaskOptional must be {wanted} in its last axes, not {sides}"
            if mask.rank == 4 and (sides[0] not in (1, len(sequences)) or sides[1] not in (1, given["headNum"])):
                return f"attenMaskOptional {sides} must have 1 or all of the sequences, and of the heads"
        return None

    return check


def _mask_holds(given: Arguments) -> str | None:
    """What the mask has in it."""
    mask = given["attenMaskOptional"]
    if mask is None:
        return None
    if given["sparseMode"] in _COMPRESSED:
        # Some rows of it: all of its four million flags would take longer than a small model's attention.
        is_right = np.array_equal(mask.bits[::_ROWS_APART], _triangle_rows())
        return None if is_right else "attenMaskOptional must be 1 above its diagonal and 0 elsewhere"
    if given["inputLayout"] == "TND" and mask.bits.all(axis=-1).any():
        return "attenMaskOptional must not have a row of ones"
    return None


@functools.cache
def _triangle_rows() -> np.ndarray:
    return np.triu(np.ones((_TRIANGLE, _TRIANGLE), np.uint8), k=1)[::_ROWS_APART]


# ------------------------------------------------------------------------------------------------- what is done


def _shape(x: DeviceTensor, given: Arguments) -> tuple[int, int, int, int]:
    """B, S, N, D of a query, key or value; BSH has no axis of heads, whose size is the query's."""
    layout = given["inputLayout"]
    if layout in ("BSH", "SBH"):
        size = given["query"].shape[-1] // given["headNum"]
        # A value's heads may be smaller than a key's, which BSH does not tell: they are taken to be as large.
        rows = x.shape[:2] if layout == "BSH" else x.shape[1::-1]
        return (*rows, x.shape[2] // size, size)
    if layout == "TND":
        return (1, *x.shape)
    return x.shape if layout == "BSND" else tuple(x.shape[axis] for axis in (0, 2, 1, 3))


def _heads(x: DeviceTensor, given: Arguments) -> DeviceTensor:
    """[B, S, N, D] of any layout."""
    layout, shape = given["inputLayout"], _shape(x, given)
    if layout == "BNSD":
        return x.seen(x.bits.swapaxes(1, 2))
    if layout == "SBH":
        return x.seen(x.bits.reshape(shape[1], shape[0], *shape[2:]).swapaxes(0, 1))
    return x.view(*shape)


def _statistics(x: DeviceTensor, given: Arguments) -> DeviceTensor:
    """[B, S, N, 8] of softmax's maximum or sum."""
    return x.view(1, *x.shape) if given["inputLayout"] == "TND" else x.seen(x.bits.swapaxes(1, 2))


def _statistics_shape(name: str) -> Relation:
    def shape(given: Arguments) -> list[int]:
        batch, length, heads, _ = _shape(given["query"], given)
        return [length, heads, 8] if given["inputLayout"] == "TND" else [batch, heads, length, 8]

    return shape_is(name, shape)


def _lengths(given: Arguments, key: str) -> list[tuple[int, int]]:
    """Queries and keys of each sequence; of a batch that is not packed one pair stands for all."""
    if given["inputLayout"] == "TND":
        ends = given["actualSeqQLenOptional"], given["actualSeqKvLenOptional"]
        return list(zip(*(np.diff(one, prepend=0).tolist() for one in ends), strict=False))
    batch, length, _, _ = _shape(given["query"], given)
    return [(length, _shape(given[key], given)[1])] * batch


def _as_many_ends(given: Arguments) -> str | None:
    q_ends, k_ends = given["actualSeqQLenOptional"], given["actualSeqKvLenOptional"]
    if len(q_ends) == len(k_ends):
        return None
    return f"there must be as many ends of queries as of keys, not {len(q_ends)} and {len(k_ends)}"


def _common(given: Arguments) -> dict[str, Any]:
    """What forward and backward are told alike."""
    mode, mask = given["sparseMode"], given["attenMaskOptional"]
    before, after = given["preTokens"], given["nextTokens"]
    visible = {
        _DEFAULT: kernels.Visible() if mask is None else kernels.Visible(before, after),
        _ALL: kernels.Visible(),
        _CAUSAL: kernels.Visible(after=0),
        _CAUSAL_FROM_END: kernels.Visible(after=0, from_end=True),
        _BAND: kernels.Visible(before, after, from_end=True),
    }[mode]
    if mask is not None:
        mask = None if mode in _COMPRESSED else mask.view(*(1,) * (4 - mask.rank), *mask.shape)
    ends = given.get("actualSeqQLenOptional"), given.get("actualSeqKvLenOptional")
    return {"scale": given["scaleValue"], "visible": visible, "mask": mask, "q_ends": ends[0], "k_ends": ends[1]}


def _forward(given: Arguments) -> None:
    kernels.attention(
        *(_heads(given[name], given) for name in ("query", "key", "value")),
        out=_heads(given["attentionOutOut"], given),
        highest=_statistics(given["softmaxMaxOut"], given),
        total=_statistics(given["softmaxSumOut"], given),
        **_common(given),
    )


def _backward(given: Arguments) -> None:
    kernels.attention_backward(
        *(_heads(given[name], given) for name in ("query", "keyIn", "value")),
        out=_heads(given["attentionInOptional"], given),
        highest=_statistics(given["softmaxMaxOptional"], given),
        total=_statistics(given["softmaxSumOptional"], given),
        d_out=_heads(given["dy"], given),
        d_q=_heads(given["dqOut"], given),
        d_k=_heads(given["dkOut"], given),
        d_v=_heads(given["dvOut"], given),
        **_common(given),
    )


def _enter_attention(
    name: str, run: Callable[[Arguments], None], rules: Sequence[Rule], relations: Sequence[Relation], folder: str
) -> None:
    names = [rule.name for rule in rules]

    @operator(
        name,
        takes=rules,
        relations=relations,
        contents=(_mask_holds,),
        source=f"ops-transformer attention/{folder}/docs/{name}.md",
    )
    def compute(*given: Any) -> None:
        run(dict(zip(names, given, strict=True)))


def _enter_both(forward: str, backward: str, *, is_varlen: bool, is_v2: bool) -> None:
    """An attention operator and its gradient."""
    rank = (3, 3) if is_varlen else (3, 4)
    most = 512 if is_v2 or is_varlen else 768
    masks = (
        absent("realShiftOptional"),
        absent("dropMaskOptional"),
        anything("paddingMaskOptional"),
        tensor("attenMaskOptional", _FLAGS, rank=(2, 4), optional=True),
    )
    ends = (_as_many_ends,) if is_varlen else ()
    statistics = ("softmaxMaxOut", "softmaxSumOut")
    _enter_attention(
        forward,
        _forward,
        (
            *_leading(is_varlen, "key", most),
            *masks,
            *_settings(is_varlen, is_v2),
            *(tensor(name, _FLOAT32) for name in statistics),
            anything("softmaxOutOut"),
            tensor("attentionOutOut", rank=rank, like="query"),
        ),
        (*ends, _heads_fit("key", most), _mask_fits("key"), *map(_statistics_shape, statistics)),
        "flash_attention_score",
    )
    statistics = ("softmaxMaxOptional", "softmaxSumOptional")
    _enter_attention(
        backward,
        _backward,
        (
            *_leading(is_varlen, "keyIn", most),
            tensor("dy", rank=rank, like="query"),
            *masks,
            *(tensor(name, _FLOAT32) for name in statistics),
            anything("softmaxInOptional"),
            tensor("attentionInOptional", rank=rank, like="query"),
            *_settings(is_varlen, is_v2),
            tensor("dqOut", rank=rank, like="query"),
            tensor("dkOut", rank=rank, like="query"),
            tensor("dvOut", rank=rank, like="query"),
            anything("dpseOut"),
        ),
        (
            *ends,
            _heads_fit("keyIn", most),
            _mask_fits("keyIn"),
            *map(_statistics_shape, statistics),
            same_shape("dy", "attentionInOptional"),
            same_shape("query", "dqOut"),
            same_shape("keyIn", "dkOut"),
            same_shape("value", "dvOut"),
        ),
        "flash_attention_score_grad",
    )


for _version in ("", "V2"):
    _enter_both(
        f"aclnnFlashAttentionVarLenScore{_version}",
        f"aclnnFlashAttentionUnpaddingScoreGrad{_version}",
        is_varlen=True,
        is_v2=bool(_version),
    )
    _enter_both(
        f"aclnnFlashAttentionScore{_version}",
        f"aclnnFlashAttentionScoreGrad{_version}",
        is_varlen=False,
        is_v2=bool(_version),
    )

# --------------------------------------------------------------------------------------------- cache in blocks


def _as_long_on_host(given: Arguments) -> str | None:
    """The kernel is cut up on the host, by the lengths that MindSpore takes from the graph's `batch_valid_length`."""
    host, device = given["kv_seq_len"], given["context_lens"].values().reshape(-1).tolist()
    return None if host == device else f"kv_seq_len of the host {host} must be context_lens of the device {device}"


def _cache_fits(given: Arguments) -> str | None:
    query, keys, heads, kv_heads = (given[name] for name in ("query", "key_cache", "num_heads", "num_kv_heads"))
    size = keys.shape[3]
    if keys.shape[2] != kv_heads or heads % kv_heads or size % _HEAD_STEP:
        return f"{heads} and {kv_heads} heads of a multiple of {_HEAD_STEP} must fit key_cache {list(keys.shape)}"
    sequences = given["context_lens"].size
    if query.size != sequences * heads * size:
        return f"query {list(query.shape)} must be {sequences} x {heads} heads x {size}"
    return None


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
        absent("q_seq_lens"),
        absent("alibi_mask"),
    ),
    outputs=(tensor("out", like="query"),),
    relations=(same_shape("query", "out"), same_shape("key_cache", "value_cache"), _cache_fits),
    contents=(_as_long_on_host,),
    source=_INTERNAL,
)
def _paged_attention(inputs: list, outputs: list, parameters: dict) -> None:
    query, keys, values, tables, lengths = inputs[:5]
    shape = (lengths.size, parameters["num_heads"], keys.shape[3])
    kernels.paged_attention(
        query.view(*shape), keys, values, tables, lengths, scale=parameters["scale"], out=outputs[0].view(*shape)
    )


def _slots_fit(given: Arguments) -> str | None:
    keys, cache, slots = given["key"], given["key_cache"], given["slot_mapping"]
    row = cache.shape[2] * cache.shape[3]
    if keys.size == slots.size * row == given["value"].size:
        return None
    return f"key and value must be {slots.size} rows of {row}, not {list(keys.shape)} and {list(given['value'].shape)}"


def _slots_are_there(given: Arguments) -> str | None:
    cache, slots = given["key_cache"], given["slot_mapping"].values()
    rows = cache.shape[0] * cache.shape[1]
    return None if not slots.size or slots.max() < rows else f"slot_mapping must be below {rows}, not {slots.max()}"


@operator(
    "internal:ReshapeAndCache",
    takes=(
        tensor("key", _HALVES | {"int8"}, rank=(2, 3)),
        tensor("value", rank=(2, 3), like="key"),
        tensor("key_cache", rank=(4, 4), like="key"),
        tensor("value_cache", rank=(4, 4), like="key"),
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
        rows = cache.view(-1, cache.shape[2] * cache.shape[3]).bits
        rows[slots[is_stored]] = new.bits.reshape(slots.size, -1)[is_stored]


# ------------------------------------------------------------------------------------------ rotary embedding

_HALF, _INTERLEAVED = 0, 1
_MOST_SIZE = 894  # below 896, and even
# By the order of batch, sequence and heads in x: which of these axes cos and sin may have, and where B and N are.
_TABLES = {"BNSD": ("S", "BS", "BNS"), "BSND": ("S", "BS", "BSN"), "SBND": ("S", "SB", "SBN")}


def _tables_fit(x: str, *gradients: str) -> Relation:
    """Shapes and sizes of x and its tables in one of the layouts."""

    def check(given: Arguments) -> str | None:
        whole, table, mode = given[x].shape, given["cos"].shape, given["mode"]
        if table[3] != whole[3] or whole[3] % 2 or whole[3] > _MOST_SIZE:
            return f"the last axis of {x}, cos and sin must be one even number below 896, not {whole[3]} and {table[3]}"
        if any(_is_layout(layout, whole, table, mode, bool(gradients)) for layout in _TABLES):
            return None
        return f"cos {list(table)} and {x} {list(whole)} must fit in one of the layouts {', '.join(_TABLES)}"

    return check


def _is_layout(layout: str, whole: Sequence[int], table: Sequence[int], mode: int, is_backward: bool) -> bool:
    sizes = dict(zip(layout, whole, strict=True))
    shapes = [[sizes[axis] if axis in kept else 1 for axis in layout[:3]] for kept in _TABLES[layout]]
    if mode == _INTERLEAVED:
        return list(table[:3]) == shapes[0] and sizes["B"] * sizes["N"] < 1000
    return list(table[:3]) in shapes and sizes["B"] < 1000 and sizes["N"] < 1000


@operator(
    "aclnnRotaryPositionEmbedding",
    takes=(
        tensor("x", FLOATS, rank=(4, 4)),
        tensor("cos", rank=(4, 4), like="x"),
        tensor("sin", rank=(4, 4), like="x"),
        value("mode", among=(_HALF, _INTERLEAVED)),
        tensor("out", rank=(4, 4), like="x"),
    ),
    relations=(same_shape("x", "out"), same_shape("cos", "sin"), _tables_fit("x")),
    source="ops-transformer posembedding/rotary_position_embedding/docs/aclnnRotaryPositionEmbedding.md",
)
def _rotary(x: DeviceTensor, cos: DeviceTensor, sin: DeviceTensor, mode: int, y: DeviceTensor) -> None:
    kernels.rotary(x, cos, sin, y=y, interleaved=mode == _INTERLEAVED)


@operator(
    "aclnnRotaryPositionEmbeddingGrad",
    takes=(
        tensor("dy", FLOATS, rank=(4, 4)),
        tensor("cos", rank=(4, 4), like="dy"),
        tensor("sin", rank=(4, 4), like="dy"),
        tensor("xOptional", rank=(4, 4), like="dy", optional=True),
        value("mode", among=(_HALF, _INTERLEAVED)),
        tensor("dxOut", rank=(4, 4), like="dy"),
        anything("dcosOut"),
        anything("dsinOut"),
    ),
    relations=(same_shape("dy", "xOptional", "dxOut"), same_shape("cos", "sin"), _tables_fit("dy")),
    source="ops-transformer posembedding/rotary_position_embedding_grad/docs/aclnnRotaryPositionEmbeddingGrad.md",
)
def _rotary_grad(
    d_y: DeviceTensor,
    cos: DeviceTensor,
    sin: DeviceTensor,
    x: DeviceTensor | None,
    mode: int,
    d_x: DeviceTensor,
    d_cos: DeviceTensor | None,
    d_sin: DeviceTensor | None,
) -> None:
    kernels.rotary(d_y, cos, sin, y=d_x, interleaved=mode == _INTERLEAVED, backward=True)
    if x is None or d_cos is None or d_sin is None:
        return
    values, gradient = x.values(), d_y.values()
    spread = tuple(axis for axis in range(4) if cos.shape[axis] == 1 and x.shape[axis] > 1)
    d_cos.store((gradient * values).sum(spread, keepdims=True))
    d_sin.store((gradient * _rotated(values, mode)).sum(spread, keepdims=True))


def _rotated(values: np.ndarray, mode: int) -> np.ndarray:
    """What sin is multiplied by."""
    half = values.shape[-1] // 2
    if mode == _HALF:
        return np.concatenate([-values[..., half:], values[..., :half]], axis=-1)
    return np.stack([-values[..., 1::2], values[..., ::2]], axis=-1).reshape(values.shape)
