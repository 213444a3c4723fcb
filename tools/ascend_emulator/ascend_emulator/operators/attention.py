"""Attention and its gradients.

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

from ascend_emulator.contract import (
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
from ascend_emulator.tensors import FLOATS, DeviceTensor
from mindgspo_kernels import binding as kernels

Arguments = dict[str, Any]

_FLOAT32 = frozenset({"float32"})
_FLAGS = frozenset({"bool", "uint8"})
_MOST_HEADS, _MOST_SEQUENCES, _MOST_TOKENS = 256, 2048, 1 << 20
_HEAD_STEP = 16  # of mindspore.ops.speed_fusion_attention; CANN's documents name none
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


def _leading(is_varlen: bool, key: str) -> tuple[Rule, ...]:
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
    most, most_backward = 512 if is_v2 else 768, 512 if is_v2 or is_varlen else 768  # head sizes
    masks = (
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
            *_leading(is_varlen, "key"),
            absent("realShiftOptional"),
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
            *_leading(is_varlen, "keyIn"),
            tensor("dy", rank=rank, like="query"),
            absent("pseShiftOptional"),
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
            _heads_fit("keyIn", most_backward),
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
