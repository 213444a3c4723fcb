"""Products of several pairs of matrices at once: GroupedMatmul, without quantization.

What no group covers is not written.

Legend: E groups, M rows, K summed, N columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ascend_emulator.contract import Relation, Rule, absent, anything, operator, tensor, value
from ascend_emulator.tensors import FLOATS, DeviceTensor
from mindgspo_kernels import binding as kernels

_SOURCE = "ops-transformer gmm/grouped_matmul/README.md"
_SEPARATE, _BY_ROWS, _BY_SUMMED = -1, 0, 2  # groupType
_SEVERAL, _ONE = (0, 1), (2, 3)  # splitItem: outputs in tensors of their own, or in one
_CUMULATIVE, _COUNTS = 0, 1  # groupListType
_MOST_GROUPS, _MOST_TENSORS, _MOST_LAST = 1024, 128, 65535


def _tensors(name: str, dtypes: frozenset[str] | None = None, *, like: str | None = None) -> Rule:
    """A list of tensors of one dtype, that of the list `like`."""

    def check(given: Sequence[DeviceTensor] | None, others: dict[str, Any]) -> str | None:
        if not given or len(given) > _MOST_TENSORS:
            return f"must hold 1 to {_MOST_TENSORS} tensors, not {len(given or ())}"
        for one in given:
            if dtypes is not None and one.dtype not in dtypes:
                return f"must hold {' or '.join(sorted(dtypes))}, not {one.dtype}"
            if like is not None and one.dtype != others[like][0].dtype:
                return f"must hold the dtype of {like}, {others[like][0].dtype}, not {one.dtype}"
        return None

    return Rule(name=name, check=check)


def _bias(name: str) -> Rule:
    def check(given: Sequence[DeviceTensor] | None, others: dict[str, Any]) -> str | None:
        x = others["x"][0].dtype
        wanted = "float32" if x == "bfloat16" else x
        wrong = [one.dtype for one in given or () if one.dtype != wanted]
        return f"must hold {wanted} with {x}, not {wrong[0]}" if wrong else None

    return Rule(name=name, check=check)


def _no_tensors(*names: str) -> tuple[Rule, ...]:
    """Of quantization; a list may also be given empty."""
    return tuple(
        Rule(name=name, check=lambda given, others: "is not emulated, and must be absent" if given else None)
        for name in names
    )


def _results(given: dict[str, Any]) -> list[DeviceTensor]:
    return given["out"] if "out" in given else given["y"]  # so called since the fourth version


def _is_turned(one: DeviceTensor) -> bool | None:
    """Whether its last two axes lie in memory the other way round; None where that cannot be told."""
    if one.bits is None or one.bits.size == 0 or one.rank < 2 or 1 in one.shape[-2:]:
        return None
    return one.bits.strides[-2] < one.bits.strides[-1]


def _innermost(one: DeviceTensor) -> int:
    """Size of the axis that the documentation calls the last: of a turned tensor, the last but one."""
    return one.shape[-2] if _is_turned(one) else max(one.shape[-1:], default=0)


def _shapes(given: dict[str, Any]) -> str | None:
    """Tensors by groupType; what a sum is over and the sizes of the results are compared when it is computed."""
    kind, split = given["groupType"], given["splitItem"]
    x, weight, out = given["x"], given["weight"], _results(given)
    groups = given["groupListOptional"] or None  # MindSpore gives an empty list for an absent one
    for name in ("x", "weight"):
        longest = max(map(_innermost, given[name]))
        if longest > _MOST_LAST:
            return f"{name} must have a last axis of at most {_MOST_LAST}, not {longest}"
    if kind == _SEPARATE:
        if groups is not None or split not in _SEVERAL:
            return f"groupType {kind} must have no groupList and splitItem 0 or 1, not {split}"
        ranks = [(one.rank, other.rank, result.rank) for one, other, result in zip(x, weight, out, strict=False)]
        if not len(x) == len(weight) == len(out) or any(a != c or b != 2 or not 2 <= a <= 6 for a, b, c in ranks):
            return f"groupType {kind} must have as many x, weight [K, N] and out, not {x}, {weight} and {out}"
        return None
    if groups is None or split not in _ONE:
        return f"groupType {kind} must have a groupList and splitItem 2 or 3, not {split}"
    one_weight = len(weight) == 1 and weight[0].rank == (3 if kind == _BY_ROWS else 2)
    many = kind == _BY_ROWS and all(one.rank == 2 for one in weight)
    if len(x) > 1 or len(out) > 1 or x[0].rank != 2 or not (one_weight or many):
        return f"groupType {kind} does not take x {x}, weight {weight} and out {out}"
    count = len(groups) if isinstance(groups, list) else groups.shape[0]
    most = _MOST_GROUPS if one_weight and not isinstance(groups, list) else _MOST_TENSORS
    held = len(weight) if many else (weight if kind == _BY_ROWS else out)[0].shape[0]
    if count != held or count > most:
        return f"groupList must have {held} entries, of at most {most}, not {count}"
    if kind == _BY_SUMMED and given["biasOptional"]:
        return f"groupType {kind} must have no bias"
    sums = kind == _BY_SUMMED
    if _is_turned(x[0]) not in (None, sums) or (sums and _is_turned(weight[0])):
        return f"groupType {kind} must have x {'and not weight ' if sums else 'not '}transposed in memory"
    return None


def _ends(given: dict[str, Any]) -> list[int]:
    groups = given["groupListOptional"]
    numbers = groups if isinstance(groups, list) else groups.values().tolist()
    return numbers if given.get("groupListType", _CUMULATIVE) == _CUMULATIVE else np.cumsum(numbers).tolist()


def _groups_fit(given: dict[str, Any]) -> str | None:
    if given["groupType"] == _SEPARATE:
        return None
    ends, whole = _ends(given), given["x"][0].shape[0 if given["groupType"] == _BY_ROWS else 1]
    if any(end < start for start, end in zip([0, *ends], ends, strict=False)) or ends[-1] > whole:
        return f"groupList must not fall, and must end within the {whole} of x, not {ends}"
    return None


def _groups(given: dict[str, Any]) -> Iterator[tuple[DeviceTensor, DeviceTensor, DeviceTensor]]:
    """x, weight and out of each group, as parts of the tensors' memory."""
    x, weight, out = given["x"], given["weight"], _results(given)
    if given["groupType"] == _SEPARATE:
        yield from zip(x, weight, out, strict=True)
        return
    start = 0
    for group, end in enumerate(_ends(given)):
        part, start = slice(start, end), end
        if given["groupType"] == _BY_SUMMED:
            yield _part(x[0], slice(None), part), _part(weight[0], part), _part(out[0], group)
        else:
            of_group = _part(weight[0], group) if weight[0].rank == 3 else weight[group]
            yield _part(x[0], part), of_group, _part(out[0], part)


def _part(of: DeviceTensor, *index: Any) -> DeviceTensor:
    return of.seen(of.bits[index])


def _compute(given: dict[str, Any]) -> None:
    bias = given["biasOptional"]
    for group, (x, weight, out) in enumerate(_groups(given)):
        added = None
        if bias:
            added = _part(bias[0], group) if bias[0].rank == 2 else bias[group]
        if out.size:
            kernels.matmul(x, weight, out, bias=added)


def _enter(version: str, groups: Rule, rest: Sequence[Rule], middle: Sequence[Rule] = (), last: Sequence[Rule] = ()):
    rules = (
        _tensors("x", FLOATS),
        _tensors("weight", like="x"),
        _bias("biasOptional"),
        *_no_tensors("scaleOptional", "offsetOptional", "antiquantScaleOptional", "antiquantOffsetOptional"),
        *middle,
        groups,
        *rest,
        _tensors("out" if version == "V4" else "y", like="x"),
        *last,
    )
    names = [rule.name for rule in rules]
    on_host = version == "V2"  # where the list is checked before the launch
    relations: tuple[Relation, ...] = (_shapes, _groups_fit) if on_host else (_shapes,)

    @operator(
        f"aclnnGroupedMatmul{version}",
        takes=rules,
        relations=relations,
        contents=() if on_host else (_groups_fit,),
        source=_SOURCE,
    )
    def run(*given: Any) -> None:
        _compute(dict(zip(names, given, strict=True)))


_GROUP_TENSOR = tensor("groupListOptional", frozenset({"int64"}), rank=(1, 1), optional=True)
_KINDS = value("splitItem", among=(*_SEVERAL, *_ONE)), value("groupType", among=(_SEPARATE, _BY_ROWS, _BY_SUMMED))
_enter("V2", anything("groupListOptional"), _KINDS)
_enter("V3", _GROUP_TENSOR, _KINDS)
_enter(
    "V4",
    _GROUP_TENSOR,
    (
        *_no_tensors("activationInputOptional", "activationQuantScaleOptional", "activationQuantOffsetOptional"),
        *_KINDS,
        value("groupListType", among=(_CUMULATIVE, _COUNTS)),
        value("actType", among=(0,)),  # activations come with quantization
    ),
    middle=_no_tensors("perTokenScaleOptional"),
    last=_no_tensors("activationFeatureOutOptional", "dynQuantScaleOutOptional"),
)


@operator(
    "internal:GroupedMatmul",
    takes=(
        tensor("x", FLOATS, rank=(2, 2)),
        tensor("weight", rank=(3, 3), like="x"),
        absent("bias"),
        absent("scale"),
        tensor("group_list", frozenset({"int32", "int64"}), rank=(1, 1)),
        value("transpose_a", among=(False,)),
        anything("transpose_b"),
    ),
    outputs=(tensor("out", rank=(2, 2), like="x"),),
    source="MindSpore's internal kernels, internal_kernel/include/op_param.h",
)
def _internal(inputs: list, outputs: list, parameters: dict) -> None:
    x, weight, _, _, groups = inputs
    weight = weight.seen(weight.bits.swapaxes(1, 2)) if parameters["transpose_b"] else weight
    _compute(
        {
            "x": [x],
            "weight": [weight],
            "biasOptional": None,
            "groupListOptional": groups,
            "groupType": _BY_ROWS,
            "out": outputs,
        }
    )
