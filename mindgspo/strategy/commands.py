"""`mindgspo strategy show | diff | merge`: paths in, lines out."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TypeVar

from mindgspo.errors import CheckpointError
from mindgspo.parallel.plans.layout import Layout, Shape
from mindgspo.strategy.compare import check_fits, compare_strategies
from mindgspo.strategy.file import SINGLE, read_folder, read_source, save_strategy
from mindgspo.strategy.record import ALL_REPLICAS, StoredLayout, Strategy, device_axes
from mindgspo.text import aligned, counted

_LAYER = re.compile(r"(?<=\blayers\.)\d+(?=\.)")

Rest = TypeVar("Rest", bound=Hashable)


def collapse_layers(pairs: Iterable[tuple[str, Rest]]) -> list[tuple[str, Rest]]:
    """Pairs that differ in the layer's number alone become one, model.layers.{0-13}.mlp.up_proj.weight, where the first
    of them stood."""
    numbers: dict[tuple[str, Rest], list[int]] = {}
    for name, rest in pairs:
        layer = _LAYER.search(name)
        template = _LAYER.sub("{}", name, count=1)
        numbers.setdefault((template, rest), []).extend([int(layer[0])] if layer else [])
    return [(name.replace("{}", _layers(layers), 1), rest) for (name, rest), layers in numbers.items()]


def without_state(pairs: Sequence[tuple[str, Rest]]) -> tuple[list[tuple[str, Rest]], dict[str, int]]:
    """The pairs without those `<prefix>.<parameter>` of which the same is said as of the parameter; {prefix: how many}
    of these, e.g. {"adamw.m.": 339}."""
    said = set(pairs)
    kept, left_out = [], {}
    for name, rest in pairs:
        prefix = next((name[: -len(short)] for short in _shorter(name) if (short, rest) in said), None)
        if prefix is None:
            kept.append((name, rest))
        else:
            left_out[prefix] = left_out.get(prefix, 0) + 1
    return kept, left_out


def ranges(numbers: Iterable[int]) -> str:
    """[0, 1, 2, 3, 8] -> "0-3, 8"."""
    runs = []
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        runs.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ", ".join(runs)


def _layers(layers: list[int]) -> str:
    return str(layers[0]) if len(layers) == 1 else f"{{{ranges(layers)}}}"


def _shorter(name: str) -> Iterable[str]:
    """`a.b.c` gives `b.c` and `c`."""
    while "." in name:
        name = name.split(".", 1)[1]
        yield name


class _Cells(NamedTuple):
    shape: str
    device_matrix: str
    tensor_map: str
    slice: str
    optimizer_shard: str
    ranks: str


_HEADER = ("parameter", *(name.replace("_", " ") for name in _Cells._fields))


def strategy_table(strategy: Strategy, *, shows_all: bool, shapes: Mapping[str, Shape] | None = None) -> Iterator[str]:
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
    columns = zip(_HEADER, *((name, *cells) for name, cells in pairs), strict=True)
    filled = [column for column in columns if set(column[1:]) != {""}]
    yield from aligned(list(zip(*filled, strict=True)))
    for prefix, number in state.items():
        yield f"{prefix}*: {number} entries, laid out as their parameters"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """What `strategy diff` found."""

    lines: list[str]
    """To print, the sum last."""
    number: int
    """Of differences; 0: the two are equal."""


def show_lines(path: Path, *, shows_all: bool = False, layouts: Mapping[str, Layout] | None = None) -> Iterator[str]:
    """The table of a file or folder. layouts: of the model under any plan, for shapes, which protobuf files lack.

    Raises CheckpointError for what is no strategy, WeightsError where it is another model's.
    """
    shapes = {name: layout.shape for name, layout in (layouts or {}).items()}
    for name, strategy in read_source(path).items():
        if layouts is not None:
            check_fits(strategy, layouts)
        yield f"{_label(name)}{_summary(strategy)}"
        yield from strategy_table(strategy, shows_all=shows_all, shapes=shapes)


def diff_lines(
    left: Path, right: Path, *, shows_all: bool = False, spelling: bool = False, common: bool = False
) -> Differences:
    """What two files or folders place differently, by parameter; equal layouts written differently are equal.

    shows_all: layers and state of which the same is said have lines of their own. spelling: report other spellings of
    equal layouts, too. common: leave out parameters that only one of the two has. Raises CheckpointError.
    """
    one, other = read_source(left), read_source(right)
    lines, number, equal = [f"left   {left}", f"right  {right}"], 0, []
    for name in dict.fromkeys((*one, *other)):
        if name not in one or name not in other:
            found = [f"missing in {'left' if name not in one else 'right'}"]
        else:
            pair = _common(one[name], other[name]) if common else (one[name], other[name])
            found = compare_strategies(*pair, spelling=spelling)
            equal.append(f"{_label(name)}{_summary(pair[0])}")
        number += len(found)
        lines += [f"{_label(name)}{line}" for line in (found if shows_all else _folded(found))]
    lines.append(counted(number, "difference") if number else f"equal: {'; '.join(equal)}")
    return Differences(lines=lines, number=number)


def _folded(lines: list[str]) -> list[str]:
    """Lines "<parameter> ...": layers and state of which the same is said in one."""
    pairs, state = without_state([(name, rest) for name, _, rest in (line.partition(" ") for line in lines)])
    folded = [f"{name} {rest}" for name, rest in collapse_layers(pairs)]
    return [*folded, *(f"{prefix}*: {number} entries, as their parameters" for prefix, number in state.items())]


def merge_files(folder: Path, out: Path) -> str:
    """Write the record of all stages in a folder of ranks' files to one file; returns the line to print."""
    merged = read_folder(folder)
    save_strategy(out, merged)
    return f"merged {_summary(merged)} into {out}"


def _label(name: str) -> str:
    return "" if name == SINGLE else f"{name}: "


def _summary(strategy: Strategy) -> str:
    stages, ranks = len(strategy.stages), strategy.stage_size
    return f"{counted(len(strategy.parameters), 'parameter')} on {counted(stages, 'stage')} of {counted(ranks, 'rank')}"


def _common(left: Strategy, right: Strategy) -> tuple[Strategy, Strategy]:
    """Both without what the other lacks on the same stage."""

    def cut(one: Strategy, other: Strategy) -> Strategy:
        stages = {
            stage: {name: stored for name, stored in entries.items() if name in other.stages.get(stage, {})}
            for stage, entries in one.stages.items()
        }
        kept: Mapping[int, Mapping] = {stage: entries for stage, entries in stages.items() if entries}
        if not kept:
            raise CheckpointError(f"{one.source} and {other.source} have no parameter of one stage in common")
        return replace(one, stages=kept)

    return cut(left, right), cut(right, left)
