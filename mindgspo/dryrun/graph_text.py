"""MindSpore's text of a compiled graph -> `GraphFacts`: parameters held, collectives, operators.

The text lists the top graph's parameters, then functions, of which the last is called from outside and others once or
many times. Each node takes lines such as

      %5(CNode_35) = AllReduce(%4) {...} primitive_attrs: {group: "mindgspo_4_1f0c", ...} ...
          : (<Tensor[Float32], (4, 64)>) -> (<Tensor[Float32], (4, 64)>)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

# Fused operators of Ascend that our cells ask for; gradients carry the suffix Grad.
_FUSED = (
    "AdamW",
    "AdamWeightDecay",
    "Adam",
    "FusedCastAdamWeightDecay",
    "ApplyRotaryPosEmb",
    "FlashAttentionScore",
    "FusedInferAttentionScore",
    "GroupedMatmul",
    "IncreFlashAttention",
    "PagedAttention",
    "PromptFlashAttention",
    "ReshapeAndCache",
    "RmsNorm",
    "RotaryPositionEmbedding",
    "Swiglu",
)
_BYTES = {"Float64": 8, "Int64": 8, "UInt64": 8, "Float32": 4, "Int32": 4, "UInt32": 4, "Complex64": 8}
_BYTES |= {"Float16": 2, "BFloat16": 2, "Int16": 2, "UInt16": 2, "Int8": 1, "UInt8": 1, "Bool": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorType:
    """dtype: MindSpore's name, e.g. "BFloat16". shape: -1 stands for a size known only at run time."""

    dtype: str
    shape: tuple[int, ...]

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
class HeldParameter:
    """A parameter as this rank holds it: weight, moment, accumulated gradient, cache, step counter."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def type(self) -> TensorType:
        return TensorType(dtype=self.dtype, shape=self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Collectives of one kind in one group, over one call of the graph.

    kind: "AllReduce", "Send", ...; ranks: who takes part; bytes: what this rank hands in, all `count` of them together
    (what it gets, for Receive); None if a shape is known only at run time.
    """

    kind: str
    group: str
    ranks: tuple[int, ...]
    count: int
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFacts:
    """operators: how often each one runs in one call of the graph, by name. products: matrix products by dtype."""

    parameters: tuple[HeldParameter, ...] = ()
    collectives: tuple[Collective, ...] = ()
    operators: Mapping[str, int] = field(default_factory=dict)
    products: Mapping[str, int] = field(default_factory=dict)

    @property
    def parameter_bytes(self) -> int:
        """Memory that this rank needs for all parameters."""
        return sum(parameter.type.bytes or 0 for parameter in self.parameters)

    @property
    def fused(self) -> dict[str, int]:
        """The fused ones among `operators`."""
        return {name: count for name, count in self.operators.items() if name.removesuffix("Grad") in _FUSED}


def facts_from_json(content: Mapping) -> GraphFacts:
    """What `dataclasses.asdict` and JSON made of a `GraphFacts`."""
    return GraphFacts(
        parameters=tuple(HeldParameter(**_with_tuples(entry, "shape")) for entry in content["parameters"]),
        collectives=tuple(Collective(**_with_tuples(entry, "ranks")) for entry in content["collectives"]),
        operators=content["operators"],
        products=content["products"],
    )


def _with_tuples(entry: Mapping, *keys: str) -> dict:
    return {key: tuple(value) if key in keys else value for key, value in entry.items()}


def total_bytes(types: Iterable[TensorType]) -> int | None:
    """Their sum; None if one is not known."""
    sizes = [entry.bytes for entry in types]
    return None if None in sizes else sum(size for size in sizes if size is not None)


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
    """What stands in one function: operators, matrix products by dtype, collectives with bytes, calls."""

    operators: Counter[str] = field(default_factory=Counter)
    products: Counter[str] = field(default_factory=Counter)
    collectives: Counter[tuple[str, str, int | None]] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)


def read_graph(text: str, world_size: int, groups: Mapping[str, tuple[int, ...]] | None = None) -> GraphFacts:
    """Facts of one call of the graph; a loop's body counts once, for nobody knows how often it runs.

    groups: ranks by name, of all groups but the one of all ranks.
    """
    entry, parameters, functions = _parse(text)
    times = _times_called(entry, functions)
    operators: Counter[str] = Counter()
    products: Counter[str] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    sizes: dict[tuple[str, str], int | None] = {}
    ranks = {_WORLD: tuple(range(world_size)), **(groups or {})}
    for name, function in functions.items():
        for operator, count in function.operators.items():
            operators[operator] += count * times[name]
        for dtype, count in function.products.items():
            products[dtype] += count * times[name]
        for (kind, group, size), count in function.collectives.items():
            key = (kind, group)
            counts[key] += count * times[name]
            before = sizes.get(key, 0)
            sizes[key] = None if before is None or size is None else before + size * count * times[name]
    return GraphFacts(
        parameters=parameters,
        collectives=tuple(
            Collective(kind=kind, group=group, ranks=ranks.get(group, ()), count=counts[kind, group], bytes=size)
            for (kind, group), size in sorted(sizes.items(), key=lambda item: item[0])
        ),
        operators=dict(sorted(operators.items())),
        products=dict(sorted(products.items())),
    )


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
        # A grouped product has its factors in tuples, behind the integers that say where the groups end.
        function.products[next(entry.dtype for entry in _tensors(before) if "Int" not in entry.dtype)] += 1
    if name in COLLECTIVES:
        group = match[1] if (match := _GROUP.search(line)) else _WORLD
        size = total_bytes(_tensors(after if name == "Receive" else before))
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
    """How often each function runs in one call of `entry`; 1 for those that are only handed around."""
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
