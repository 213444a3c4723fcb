"""A strategy as a table, one row per parameter and stage.

What enters: a record, with shapes where it lacks them. What leaves: lines. Called by the commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mindgspo.parallel.layout import Shape
from mindgspo.parallel.strategy.optimizer_shard import ALL_REPLICAS, device_axes
from mindgspo.parallel.strategy.record import StoredLayout, Strategy
from mindgspo.strategies.folding import collapse_layers, ranges, without_state


class _Cells(NamedTuple):
    shape: str
    device_matrix: str
    tensor_map: str
    slice: str
    optimizer_shard: str
    ranks: str


_HEADER = ("parameter", *(name.replace("_", " ") for name in _Cells._fields))


def table_lines(strategy: Strategy, *, shows_all: bool, shapes: Mapping[str, Shape] | None = None) -> Iterator[str]:
    """The header and a line per parameter. Unless `shows_all`, layers that are alike have one line, and state that is
    laid out as its parameter is only counted."""
    pairs = [
        (name, _cells(strategy, stage, stored, _shape(name, stored, shapes or {})))
        for stage, entries in strategy.stages.items()
        for name, stored in entries.items()
    ]
    state: dict[str, int] = {}
    if not shows_all:
        pairs, state = without_state(pairs)
        pairs = collapse_layers(pairs)
    yield from _aligned([_HEADER, *((name, *cells) for name, cells in pairs)])
    for prefix, number in state.items():
        yield f"{prefix}*: {number} entries, laid out as their parameters"


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """A column that has nothing to say is left out."""
    columns = [column for column in zip(*rows, strict=True) if set(column[1:]) != {""}]
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _cells(strategy: Strategy, stage: int, stored: StoredLayout, shape: Shape | None) -> _Cells:
    size = strategy.stage_size
    return _Cells(
        shape="" if shape is None else _spelled(shape),
        device_matrix=_spelled(stored.device_matrix),
        tensor_map=_spelled(stored.tensor_map),
        slice=_slice(stored, shape),
        optimizer_shard=_shard(stored),
        ranks=ranges(range(stage * size, (stage + 1) * size)),
    )


def _shape(name: str, stored: StoredLayout, shapes: Mapping[str, Shape]) -> Shape | None:
    """Of the parameter, or of the one whose state it is (adamw.m.<parameter>)."""
    if stored.shape is not None:
        return stored.shape
    while name not in shapes and "." in name:
        name = name.split(".", 1)[1]
    return shapes.get(name)


def _slice(stored: StoredLayout, shape: Shape | None) -> str:
    """What a rank computes with: its shape, or the share of every axis where the shape is not known."""
    last = len(stored.device_matrix) - 1
    splits = []
    for entry in stored.tensor_map:
        split = 1
        for axis in device_axes(entry):
            split *= stored.device_matrix[last - axis]
        splits.append(split)
    if shape is None or len(shape) != len(splits):
        return " x ".join("1" if split == 1 else f"1/{split}" for split in splits)
    return _spelled(tuple(length // split for length, split in zip(shape, splits, strict=True)))


def _shard(stored: StoredLayout) -> str:
    """How axis 0 of the slice is cut once more where it is kept."""
    if stored.opt_weight_shard_size == 0 or stored.opt_weight_shard_step == 0:
        return ""
    size = stored.opt_weight_shard_size
    parts = "all replicas" if size == ALL_REPLICAS else f"1/{size}"
    return f"{parts}, step {stored.opt_weight_shard_step}"


def _spelled(numbers: tuple[object, ...]) -> str:
    return str(numbers).replace(",)", ")")
