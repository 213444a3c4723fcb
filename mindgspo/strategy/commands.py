"""Compare strategies, and `mindgspo strategy show | diff | merge`: paths in, lines out."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import lcm
from pathlib import Path
from typing import NamedTuple, TypeVar

from mindgspo.errors import CheckpointError
from mindgspo.parallel.plans.layout import Layout, Shape
from mindgspo.strategy.file import SINGLE, read_folder, read_source, save_strategy
from mindgspo.strategy.layouts import check_fits
from mindgspo.strategy.record import ALL_REPLICAS, StoredLayout, Strategy, splits_of, without_prefixes
from mindgspo.text import aligned, counted

_LAYER = re.compile(r"(?<=\blayers\.)\d+(?=\.)")

Rest = TypeVar("Rest", bound=Hashable)


def collapse_layers(pairs: Iterable[tuple[str, Rest]]) -> list[tuple[str, Rest]]:
    """Pairs that differ only in the layer's number become one, model.layers.{0-13}.mlp.up_proj.weight, where the first
    of them stood."""
    numbers: dict[tuple[str, Rest], list[int]] = {}
    for name, rest in pairs:
        layer = _LAYER.search(name)
        template = _LAYER.sub("{}", name, count=1)
        numbers.setdefault((template, rest), []).extend([int(layer[0])] if layer else [])
    return [(name.replace("{}", _layers(layers), 1), rest) for (name, rest), layers in numbers.items()]


def without_state(pairs: Sequence[tuple[str, Rest]]) -> tuple[list[tuple[str, Rest]], dict[str, int]]:
    """The pairs without those `<prefix>.<parameter>` that have the same layout as the parameter; {prefix: how many} of
    these, e.g. {"adamw.m.": 339}."""
    said = set(pairs)
    kept, left_out = [], {}
    for name, rest in pairs:
        prefix = next((name[: -len(short)] for short in without_prefixes(name) if (short, rest) in said), None)
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
    """The shape of the parameter, or of the one whose state it is (adamw.m.<parameter>)."""
    if stored.shape is not None:
        return stored.shape
    return next((shapes[one] for one in (name, *without_prefixes(name)) if one in shapes), None)


def _slice(stored: StoredLayout, shape: Shape | None) -> str:
    """The part that a rank computes with: its shape, or the share of every axis if the shape is unknown."""
    splits = splits_of(stored.device_matrix, stored.tensor_map)
    if shape is None or len(shape) != len(splits):
        return " x ".join("1" if split == 1 else f"1/{split}" for split in splits)
    return _spelled(tuple(length // split for length, split in zip(shape, splits, strict=True)))


def _shard(stored: StoredLayout) -> str:
    """Text of the cut of axis 0 that optimizer shards add."""
    if stored.opt_weight_shard_size == 0 or stored.opt_weight_shard_step == 0:
        return ""
    size = stored.opt_weight_shard_size
    parts = "all replicas" if size == ALL_REPLICAS else f"1/{size}"
    return f"{parts}, step {stored.opt_weight_shard_step}"


def _spelled(numbers: tuple[object, ...]) -> str:
    return str(numbers).replace(",)", ")")


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """The outcome of `strategy diff`."""

    lines: list[str]
    """To print, the sum last."""
    number: int
    """Number of differences; 0 if the two are equal."""


def show_lines(path: Path, *, shows_all: bool = False, layouts: Mapping[str, Layout] | None = None) -> Iterator[str]:
    """The table of a file or folder. layouts: of the model under any plan, for shapes, which protobuf files lack.

    Raises CheckpointError if it is no strategy, WeightsError if it is another model's.
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
    """List what two files or folders place differently, by parameter; equal layouts written differently are equal.

    shows_all: layers and state with equal layouts get lines of their own. spelling: report other spellings of equal
    layouts, too. common: leave out parameters that only one of the two has. Raises CheckpointError.
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
    """Lines "<parameter> ...": layers and state with equal layouts share one."""
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


def compare_strategies(left: Strategy, right: Strategy, *, spelling: bool = False) -> list[str]:
    """List the differences of two strategies, one line each, by stage and parameter; empty if they place alike.

    Two spellings of one placement, e.g. device matrix (4, 1) with map (1, -1) and (4,) with (0, -1), are no difference;
    `spelling` reports them as such. Shapes are compared if both records hold them.
    """
    lines = []
    for stage in sorted({*left.stages, *right.stages}):
        if stage not in left.stages or stage not in right.stages:
            missing, present = ("left", right) if stage not in left.stages else ("right", left)
            lines.append(f"stage {stage}: missing in {missing} ({len(present.stages[stage])} parameters)")
            continue
        lines += _stage_lines(left, right, stage, spelling)
    return lines


def same_placement(one: StoredLayout, other: StoredLayout) -> bool:
    """Whether every rank of the stage holds the same part under both; shapes are not compared."""
    if one.num_devices != other.num_devices or len(one.tensor_map) != len(other.tensor_map):
        return False
    if one.placement == other.placement:
        return True
    # Slices depend on the shape by scale only: any shape that divides under both shows whether they are the same.
    shape = tuple(lcm(*splits) for splits in zip(one.splits, other.splits, strict=True))
    return _layout(one, shape).same_placement(_layout(other, shape))


def _stage_lines(left: Strategy, right: Strategy, stage: int, spelling: bool) -> Iterator[str]:
    here, there = left.stages[stage], right.stages[stage]
    where = f" (stage {stage})" if len(left.stages) > 1 or len(right.stages) > 1 or stage else ""
    for name in dict.fromkeys((*here, *there)):
        if name not in here or name not in there:
            yield f"{name}{where}: missing in {'left' if name not in here else 'right'}"
            continue
        yield from (f"{name}{where}: {line}" for line in _entry_lines(here[name], there[name], spelling))


def _entry_lines(left: StoredLayout, right: StoredLayout, spelling: bool) -> Iterator[str]:
    if left.shape is not None and right.shape is not None and left.shape != right.shape:
        yield f"shape {left.shape} in left, {right.shape} in right"
    uneven = [(stored.field, stored.param_split_shape, stored.indices_offset) for stored in (left, right)]
    if (left.uneven or right.uneven) and uneven[0] != uneven[1]:
        yield "uneven slices: field, param_split_shape, indices_offset {} in left, {} in right".format(*uneven)
    if not same_placement(left, right):
        yield f"{_described(left, right)} in left, {_described(right, left)} in right"
    elif spelling and _spelling(left) != _spelling(right):
        yield f"same placement, spelled as {_described(left, right)} in left, {_described(right, left)} in right"


def _described(stored: StoredLayout, other: StoredLayout) -> str:
    """A placement as the file spells it; with the optimizer-shard fields only if one of the two has them."""
    text = f"device matrix {stored.device_matrix}, tensor map {stored.tensor_map}"
    if stored.opt_weight_shard_size or other.opt_weight_shard_size:
        text += f", opt_weight_shard step {stored.opt_weight_shard_step} size {stored.opt_weight_shard_size}"
    return text


def _spelling(stored: StoredLayout) -> tuple[object, ...]:
    return stored.device_matrix, stored.tensor_map, stored.opt_weight_shard_step, stored.opt_weight_shard_size


def _layout(stored: StoredLayout, shape: Shape) -> Layout:
    matrix, tensor_map = stored.placement
    return Layout(
        parameter="",
        shape=shape,
        device_matrix=matrix,
        tensor_map=tensor_map,
        rank_list=tuple(range(stored.num_devices)),
    )
