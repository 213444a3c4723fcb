"""What CANN's documentation allows an operator to be given, and the refusal of everything else.

`launcher` checks before it runs.

A name is `aclnnX` for CANN's two-phase interface, `aclop:X` for operators of the graph engine, `internal:X` for
MindSpore's own kernels. An operator is called with its arguments in the order of its C prototype; `aclop` and
`internal` ones with (inputs, outputs, attributes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ascend_emulator.tensors import DTYPE_NAMES, DeviceTensor

Relation = Callable[[dict[str, Any]], str | None]


class ContractError(Exception):
    """The operator was given what CANN's documentation does not allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One argument. check: what is wrong with it, as "must be ..., not ..."; None where nothing is. dtypes: that it may
    have, if it is a tensor and they are limited."""

    name: str
    check: Callable[[Any, dict[str, Any]], str | None]
    dtypes: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """rules: one per argument; of `aclop` and `internal` names, per input and attribute, and with `outputs` apart if
    the number of inputs varies. relations: what arguments must be together; each tells what is wrong, or None.

    contents: relations that read what tensors hold, which is there only when the operator is launched.
    source: the document that the rules were read from. compute: in numpy or through `mindgspo_kernels`.
    """

    name: str
    rules: tuple[Rule, ...]
    outputs: tuple[Rule, ...]
    relations: tuple[Relation, ...]
    contents: tuple[Relation, ...]
    source: str
    compute: Callable[..., None] = field(repr=False)

    def check(self, arguments: Sequence[Any]) -> None:
        """Raises ContractError for the first rule that does not hold; memory is not read."""
        by_name = self._by_name(arguments)
        for rule in (*self.rules, *self.outputs):
            if rule.name not in by_name:
                continue
            problem = rule.check(by_name[rule.name], by_name)
            if problem is not None:
                raise ContractError(f"{self.name}: {rule.name} {problem} ({self.source})")
        self._check_relations(self.relations, by_name)

    def run(self, *arguments: Any) -> None:
        """Compute, in the memory of the arguments. Raises ContractError for what they hold."""
        if self.contents:
            self._check_relations(self.contents, self._by_name(arguments))
        self.compute(*arguments)

    def _by_name(self, arguments: Sequence[Any]) -> dict[str, Any]:
        if self.name.startswith("aclnn"):
            return {rule.name: value for rule, value in zip(self.rules, arguments, strict=False)}
        # A rule finds its tensor by position, or its attribute by name.
        inputs, outputs, attributes = arguments
        together = [*inputs] if self.outputs else [*inputs, *outputs]
        by_name = {rule.name: value for rule, value in zip(self.rules, together, strict=False)}
        by_name |= {rule.name: value for rule, value in zip(self.outputs, outputs, strict=False)}
        return by_name | attributes | {"inputs": inputs, "outputs": outputs}

    def _check_relations(self, relations: Sequence[Relation], by_name: dict[str, Any]) -> None:
        for relation in relations:
            problem = relation(by_name)
            if problem is not None:
                raise ContractError(f"{self.name}: {problem} ({self.source})")


OPERATORS: dict[str, Operator] = {}


def operator(
    *names: str,
    takes: Sequence[Rule] = (),
    outputs: Sequence[Rule] = (),
    relations: Sequence[Relation] = (),
    contents: Sequence[Relation] = (),
    source: str,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: enters the function into `OPERATORS` under each name."""

    def enter(compute: Callable[..., None]) -> Callable[..., None]:
        for name in names:
            assert name not in OPERATORS, f"{name} is in the table already"
            OPERATORS[name] = Operator(
                name=name,
                rules=tuple(takes),
                outputs=tuple(outputs),
                relations=tuple(relations),
                contents=tuple(contents),
                source=source,
                compute=compute,
            )
        return compute

    return enter


def tensor(
    name: str,
    dtypes: frozenset[str] | None = None,
    *,
    rank: tuple[int, int] = (0, 8),
    like: str | None = None,
    optional: bool = False,
    multiple_of: int | None = None,
) -> Rule:
    """A tensor argument. dtypes: the allowed ones, any by default. like: the argument whose dtype it must have.

    rank: fewest and most axes. multiple_of: what the last axis must be a multiple of.
    """

    def check(value: Any, others: dict[str, Any]) -> str | None:
        if value is None:
            return None if optional else "is required, not given"
        assert isinstance(value, DeviceTensor), f"{name}: {value!r} where a tensor belongs"
        if dtypes is not None and value.dtype not in dtypes:
            return f"must be {' or '.join(sorted(dtypes))}, not {value.dtype}"
        if not rank[0] <= value.rank <= rank[1]:
            return f"must have {_span(rank)} axes, not {value.rank} {list(value.shape)}"
        other = others.get(like) if like else None
        if other is not None and value.dtype != other.dtype:
            return f"must have the dtype of {like}, {other.dtype}, not {value.dtype}"
        if multiple_of and value.rank and value.shape[-1] % multiple_of:
            return f"must have a last axis that is a multiple of {multiple_of}, not {value.shape[-1]}"
        return None

    return Rule(name=name, check=check, dtypes=dtypes)


def tensors(name: str, dtypes: frozenset[str] | None = None, *, rank: tuple[int, int] = (0, 8)) -> Rule:
    """A list of tensors, at least one, each as `tensor` says."""
    one = tensor(name, dtypes, rank=rank)

    def check(given: Any, others: dict[str, Any]) -> str | None:
        return next(filter(None, (one.check(each, others) for each in given)), None) if given else "must not be empty"

    return Rule(name=name, check=check, dtypes=dtypes)


def value(
    name: str, *, among: Sequence[Any] | None = None, low: float | None = None, high: float | None = None
) -> Rule:
    """A number, a flag or a text: one of `among`, or within [low, high]."""

    def check(given: Any, others: dict[str, Any]) -> str | None:
        if among is not None and given not in among:
            return f"must be {' or '.join(map(repr, among))}, not {given!r}"
        if low is not None and given is not None and given < low:
            return f"must be at least {low}, not {given}"
        if high is not None and given is not None and given > high:
            return f"must be at most {high}, not {given}"
        return None

    return Rule(name=name, check=check)


def anything(name: str) -> Rule:
    """An argument that the documentation does not limit, or that this emulator does not read."""
    return Rule(name=name, check=lambda given, others: None)


def absent(name: str) -> Rule:
    """An optional argument that is documented and not emulated; MindSpore gives empty arrays and tensors for absent
    ones."""

    def check(given: Any, others: dict[str, Any]) -> str | None:
        is_absent = given is None or given == [] or (isinstance(given, DeviceTensor) and not given.size)
        return None if is_absent else "is not emulated, and must be absent"

    return Rule(name=name, check=check)


def same_shape(*names: str) -> Relation:
    """A relation: these tensors have one shape, as far as they are given."""

    def check(arguments: dict[str, Any]) -> str | None:
        shapes = {name: arguments[name].shape for name in names if arguments.get(name) is not None}
        if len(set(shapes.values())) <= 1:
            return None
        return "must have one shape: " + ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())

    return check


def shape_is(name: str, shape: Callable[[dict[str, Any]], Sequence[int] | str]) -> Relation:
    """A relation: `name` has the shape that follows from the arguments; a text says why there is none."""

    def check(arguments: dict[str, Any]) -> str | None:
        given = arguments.get(name)
        if given is None:
            return None
        expected = shape(arguments)
        if isinstance(expected, str):
            return expected
        return None if given.shape == tuple(expected) else f"{name} must be of shape {list(expected)}, not {given}"

    return check


def broadcasts(*names: str, to: str = "out") -> Relation:
    """A relation: the shape of `to` is what these tensors, as far as they are given, broadcast to."""

    def shape(arguments: dict[str, Any]) -> Sequence[int] | str:
        given = {name: arguments[name] for name in names if isinstance(arguments[name], DeviceTensor)}
        try:
            return np.broadcast_shapes(*(tensor.shape for tensor in given.values()))
        except ValueError:
            texts = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in given.items())
            return f"shapes must broadcast: {texts}"

    return shape_is(to, shape)


def deduces(*names: str, to: str | None = "out") -> Relation:
    """A relation: a common dtype can be deduced from these tensors, lists of them and numbers, and be converted to
    that of `to`."""

    def check(arguments: dict[str, Any]) -> str | None:
        given = {name: arguments[name] for name in names if arguments[name] is not None}
        common = deduced_dtype(*(each for one in given.values() for each in (one if isinstance(one, list) else [one])))
        if common is None:
            return "no common dtype can be deduced: " + ", ".join(f"{name} {one}" for name, one in given.items())
        out = arguments[to] if to else None
        if out is None or out.dtype == common or _kind(out.dtype) in _CONVERTIBLE[_kind(common)]:
            return None
        return f"{to} is {out.dtype}, to which the deduced {common} does not convert"

    return check


_CONVERTIBLE = {"b": "iuf", "i": "iuf", "u": "iuf", "f": "iuf", "c": "c"}


def _kind(dtype: str) -> str:
    """numpy's letter of a kind of dtype, which it does not have for bfloat16."""
    return "f" if dtype == "bfloat16" else np.dtype(dtype).kind


def dtype_number(name: str, of: str = "out") -> Relation:
    """A relation: the aclDataType `name` is that of the tensor `of`."""

    def check(arguments: dict[str, Any]) -> str | None:
        given = DTYPE_NAMES.get(arguments[name], f"aclDataType {arguments[name]}")
        dtype = arguments[of].dtype
        return None if given == dtype else f"{name} must be the dtype of {of}, {dtype}, not {given}"

    return check


def deduced_dtype(*operands: Any) -> str | None:
    """The dtype that an operator computes in, from tensors and numbers; None where CANN deduces none.

    Source: ops-math docs/zh/context/deduction_relationship.md.
    """
    tensors = [operand.dtype for operand in operands if isinstance(operand, DeviceTensor)]
    common = tensors[0] if tensors else "bool"
    for dtype in tensors[1:]:
        if dtype == common:
            continue
        if {dtype, common} & {"uint16", "uint32", "uint64"}:
            return None
        if {dtype, common} == {"float16", "bfloat16"}:
            common = "float32"
        elif (_kind(dtype) == "f") != (_kind(common) == "f"):
            common = dtype if _kind(dtype) == "f" else common
        else:  # the one that holds both, which bfloat16 never is: it is the narrowest float
            common = np.result_type(*({dtype, common} - {"bfloat16"})).name
    for operand in operands:
        if isinstance(operand, DeviceTensor):
            continue
        if isinstance(operand, float) and _kind(common) != "f":
            common = "float32"
        elif isinstance(operand, int) and not isinstance(operand, bool) and common == "bool":
            common = "int64"
    return common


def axis_of(name: str, of: str = "self") -> Rule:
    """An axis of the tensor `of`, negative ones counted from the end; a tensor without axes counts as of one."""

    def check(given: Any, others: dict[str, Any]) -> str | None:
        rank = max(1, others[of].rank)
        return None if -rank <= given < rank else f"must be an axis of {of} {list(others[of].shape)}, not {given}"

    return Rule(name=name, check=check)


def axes_of(name: str, of: str = "self") -> Rule:
    """Axes of the tensor `of`, each at most once."""
    one = axis_of(name, of)

    def check(given: Any, others: dict[str, Any]) -> str | None:
        rank = max(1, others[of].rank)
        if len({axis % rank for axis in given or ()}) < len(given or ()):
            return f"must name each axis once, not {given}"
        return next(filter(None, (one.check(axis, others) for axis in given or ())), None)

    return Rule(name=name, check=check)


def _span(limits: tuple[int, int]) -> str:
    low, high = limits
    return f"{low}" if low == high else f"{low} to {high}"
