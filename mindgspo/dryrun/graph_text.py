"""MindSpore's text of a compiled graph -> `GraphFacts`: parameters held, collectives, operators.

The text lists the top graph's parameters, then functions, of which the last is called from outside and others once or
many times. Each node takes lines such as

      %5(CNode_35) = AllReduce(%4) {...} primitive_attrs: {group: "mindgspo_4_1f0c", ...} ...
          : (<Tensor[Float32], (4, 64)>) -> (<Tensor[Float32], (4, 64)>)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

# Fused operators of Ascend that our cells ask for; gradients carry the suffix Grad.
_FUSED = frozenset(
    (
        *("AdamW", "AdamWeightDecay", "Adam", "FusedCastAdamWeightDecay", "ApplyRotaryPosEmb", "FlashAttentionScore"),
        *("FusedInferAttentionScore", "GroupedMatmul", "IncreFlashAttention", "PagedAttention"),
        *("PromptFlashAttention", "ReshapeAndCache", "RmsNorm", "RotaryPositionEmbedding", "Swiglu"),
    )
)
_BYTES = {"Float64": 8, "Int64": 8, "UInt64": 8, "Float32": 4, "Int32": 4, "UInt32": 4, "Complex64": 8}
_BYTES |= {"Float16": 2, "BFloat16": 2, "Int16": 2, "UInt16": 2, "Int8": 1, "UInt8": 1, "Bool": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorType:
    """Type of one tensor."""

    dtype: str
    """MindSpore's name, e.g. "BFloat16"."""
    shape: tuple[int, ...]
    """-1 stands for a size known only at run time."""

    @property
    def count(self) -> int:
        """Elements; meaningless for a shape that is not known."""
        return prod(self.shape)

    @property
    def bytes(self) -> int | None:
        """Size in memory; None if the shape or the dtype does not tell."""
        size = _BYTES.get(self.dtype)
        return None if size is None or any(axis < 0 for axis in self.shape) else size * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldParameter(TensorType):
    """A parameter as this rank holds it: weight, moment, accumulated gradient, cache, step counter."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Collectives of one kind in one group, over one call of the graph."""

    kind: str
    """E.g. "AllReduce", "Send"."""
    group: str
    ranks: tuple[int, ...]
    """Ranks of the group."""
    count: int
    bytes: int | None
    """Bytes that this rank sends in all of them together (receives, for Receive); None if a shape is known only at run
    time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFacts:
    """Facts of one call of a compiled graph."""

    parameters: tuple[HeldParameter, ...] = ()
    collectives: tuple[Collective, ...] = ()
    operators: Mapping[str, int] = field(default_factory=dict)
    """Runs of each operator, by name."""
    products: Mapping[str, int] = field(default_factory=dict)
    """Matrix products by dtype."""

    @property
    def parameter_bytes(self) -> int:
        """Memory that this rank needs for all parameters."""
        return sum(parameter.bytes or 0 for parameter in self.parameters)

    @property
    def fused(self) -> dict[str, int]:
        """The fused ones among `operators`."""
        return {name: count for name, count in self.operators.items() if name.removesuffix("Grad") in _FUSED}


COLLECTIVES = frozenset(
    (
        *("AllGather", "AllGatherV", "AllReduce", "AllToAll", "AlltoAll", "AlltoAllV", "AllToAllv", "Barrier"),
        *("Broadcast", "CollectiveGather", "CollectiveScatter", "NeighborExchange", "NeighborExchangeV2"),
        *("Receive", "Reduce", "ReduceScatter", "ReduceScatterV", "Send"),
    )
)
_PRODUCTS = frozenset(
    ("Addmm", "BatchMatMul", "BatchMatMulExt", "Dense", "GroupedMatmul", "MatMul", "MatMulExt", "Matmul", "Mm")
)
_WORLD = "hccl_world_group"

_ENTRY = re.compile(r"# IR entry: @(\S+)")
_PARAMETER = re.compile(r"%para\d+_\S*: <Ref\[Tensor\[(\w+)\]\], \(([-\d, ]*)\), ref_key=([^,>\s]+)")
_FUNCTION = re.compile(r"subgraph @([^(\s]+)\(")
_NODE = re.compile(r"  %\d+(?:\([^)]*\))? = (?P<callee>call @[^(\s]+|%\d+\[[^\]]*\]|[^(\s]+)\(")
_PREFIX = re.compile(r"^(?:PrimFunc|PrimAlias|S_Prim)_")
_TENSOR = re.compile(r"<(?:Ref\[)?Tensor\[(\w+)\]\]?, \(([-\d, ]*)\)")
_TUPLE = re.compile(r"<Tuple\[(.+?)\], TupleShape\((.*?\))\)")
_ELEMENT = re.compile(r"Tensor\[(\w+)\](?:\*(\d+))?")
_SHAPE = re.compile(r"\(([-\d, ]*)\)")
_GROUP = re.compile(r'[{ ]group: "([^"]*)"')


@dataclass
class _Function:
    """Content of one function: operators, matrix products by dtype, collectives with bytes, calls."""

    operators: Counter[str] = field(default_factory=Counter)
    products: Counter[str] = field(default_factory=Counter)
    collectives: Counter[tuple[str, str, int | None]] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)


def read_graph(text: str, world_size: int, groups: Mapping[str, tuple[int, ...]] | None = None) -> GraphFacts:
    """Facts of one call of the graph; a loop's body counts once, because the number of its iterations is unknown.

    groups: ranks by name, of all groups but the one of all ranks.
    """
    entry, parameters, functions = _parse(text)
    times = _times_called(entry, functions)
    operators: Counter[str] = Counter()
    products: Counter[str] = Counter()
    found: dict[tuple[str, str], list[tuple[int, int | None]]] = {}
    ranks = {_WORLD: tuple(range(world_size)), **(groups or {})}
    for name, function in functions.items():
        for total, counts in ((operators, function.operators), (products, function.products)):
            for key, count in counts.items():
                total[key] += count * times[name]
        for (kind, group, size), count in function.collectives.items():
            found.setdefault((kind, group), []).append((count * times[name], size))
    return GraphFacts(
        parameters=parameters,
        collectives=tuple(
            Collective(
                kind=kind,
                group=group,
                ranks=ranks.get(group, ()),
                count=sum(count for count, _ in calls),
                bytes=_total(calls),
            )
            for (kind, group), calls in sorted(found.items())
        ),
        operators=dict(sorted(operators.items())),
        products=dict(sorted(products.items())),
    )


def _total(calls: list[tuple[int, int | None]]) -> int | None:
    """Bytes of (calls, bytes of one); None if one is unknown."""
    sizes = [None if size is None else count * size for count, size in calls]
    return None if None in sizes else sum(size or 0 for size in sizes)


def _parse(text: str) -> tuple[str, tuple[HeldParameter, ...], dict[str, _Function]]:
    entry = ""
    parameters = []
    functions: dict[str, _Function] = {}
    current = _Function()
    lines = iter(text.splitlines())
    for line in lines:
        if (node := _NODE.match(line)) is not None:
            _add_node(current, node["callee"], line, next(lines, ""))
        elif (match := _FUNCTION.match(line)) is not None:
            current = functions.setdefault(match[1], _Function())
        elif (match := _PARAMETER.match(line)) is not None:
            parameters.append(HeldParameter(name=match[3], dtype=match[1], shape=_shape(match[2])))
        elif (match := _ENTRY.match(line)) is not None:
            entry = match[1]
    assert entry in functions, f"no function {entry!r} in MindSpore's text of the graph"
    return entry, tuple(parameters), functions


def _add_node(function: _Function, callee: str, line: str, types: str) -> None:
    if callee.startswith(("call @", "%")):
        function.calls.update(re.findall(r"@([^@()\[\],\s]+)", callee))
        return
    name = _PREFIX.sub("", callee)
    function.operators[name] += 1
    before, _, after = types.partition(") -> (")
    if name in _PRODUCTS:
        # A grouped product has its factors in tuples, after the integers that say where the groups end.
        function.products[next(entry.dtype for entry in _tensors(before) if "Int" not in entry.dtype)] += 1
    if name in COLLECTIVES:
        group = match[1] if (match := _GROUP.search(line)) else _WORLD
        sizes = [entry.bytes for entry in _tensors(after if name == "Receive" else before)]
        size = None if None in sizes else sum(size for size in sizes if size is not None)
        function.collectives[name, group, size] += 1


def _tensors(types: str) -> Iterator[TensorType]:
    """Tensors in the text of types, those in tuples after the others."""
    for dtype, shape in _TENSOR.findall(types):
        yield TensorType(dtype=dtype, shape=_shape(shape))
    for elements, shapes in _TUPLE.findall(types):
        dtypes: list[str] = []
        for dtype, times in _ELEMENT.findall(elements):
            dtypes += [dtype] * int(times or 1)
        for dtype, shape in zip(dtypes, _SHAPE.findall(shapes), strict=False):
            yield TensorType(dtype=dtype, shape=_shape(shape))


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(axis) for axis in text.split(",") if axis.strip())


def _times_called(entry: str, functions: dict[str, _Function]) -> Counter[str]:
    """Number of runs of each function in one call of `entry`; 1 for those that are only handed around."""
    times: Counter[str] = Counter()

    def call(name: str, count: int, callers: tuple[str, ...]) -> None:
        if name not in functions or name in callers:
            return
        times[name] += count
        for callee, calls in functions[name].calls.items():
            call(callee, count * calls, (*callers, name))

    call(entry, 1, ())
    for name in functions:
        if name not in times:
            call(name, 1, ())
    return times
