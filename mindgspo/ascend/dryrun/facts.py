"""What is known of a compiled graph: parameters held, collectives, operators.

Made by `graph_text` in the child, read by `report` and tests in the parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
