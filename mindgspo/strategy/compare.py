"""Whether two strategy files place alike, and whether one belongs to a model. Pure Python."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import lcm

from mindgspo.errors import WeightsError
from mindgspo.parallel.plans.layout import Layout, Shape
from mindgspo.strategy.record import StoredLayout, Strategy
from mindgspo.text import closest, listed

# How many names of one kind the message shows.
_LISTED = 3
_LAYER = re.compile(r"\.layers\.(\d+)\.")


def compare_strategies(left: Strategy, right: Strategy, *, spelling: bool = False) -> list[str]:
    """Everything in which the two differ, one line each, by stage and parameter; empty where they place alike.

    Two spellings of one placement, e.g. device matrix (4, 1) with map (1, -1) and (4,) with (0, -1), are no difference;
    `spelling` reports them as such. Shapes are compared where both records hold them.
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
    """Whether every rank of the stage holds the same part under both; shapes are not looked at."""
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
    """A placement as the file spells it; the optimizer-shard fields only where one of the two has them."""
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


def check_fits(strategy: Strategy, layouts: Mapping[str, Layout]) -> None:
    """Refuse a strategy of another model: names and shapes, not placement.

    layouts: of the whole model under any plan. Where the record's stages are as large as the plan's, only what lives on
    the stages of the record is expected, else all of it. Scalars and, under a prefix such as `adam_m.`, the optimizer
    state of the model's parameters may stand in the file as well.
    Raises WeightsError with counts, the first names and the nearest fix.
    """
    found = strategy.parameters
    expected = _expected(strategy, layouts)
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if not _known(name, found, layouts)]
    other = [
        f"{name} ({problem})"
        for name, by_stage in found.items()
        if name in layouts
        for problem in _shape_problems(layouts[name], by_stage)
    ]
    if not missing and not extra and not other:
        return
    counts = [
        f"{len(names)} of {total} {kind}: {listed(names, _LISTED)}"
        for names, total, kind in (
            (missing, len(expected), "parameters of the model are not in it"),
            (extra, len(found), "names in it are not the model's"),
            (other, len(expected), "have another shape"),
        )
        if names
    ]
    raise WeightsError(
        f"{strategy.source}: the strategy does not fit the model; {'; '.join(counts)}; "
        f"{_fix(strategy, expected, missing, extra)}"
    )


def _expected(strategy: Strategy, layouts: Mapping[str, Layout]) -> list[str]:
    """The parameters that must be there."""
    size = strategy.stage_size
    if min((len(layout.rank_list) for layout in layouts.values()), default=0) != size:
        return list(layouts)
    return [
        name for name, layout in layouts.items() if any(rank // size in strategy.stages for rank in layout.rank_list)
    ]


def _known(name: str, found: Mapping[str, Mapping[int, StoredLayout]], layouts: Mapping[str, Layout]) -> bool:
    """Whether the model has it: a parameter, a scalar (step, learning rate), or state of a parameter beside it."""
    if name in layouts or not any(stored.tensor_map for stored in found[name].values()):
        return True
    return any(parameter in layouts and parameter in found for parameter in _without_prefixes(name))


def _shape_problems(layout: Layout, by_stage: Mapping[int, StoredLayout]) -> Iterator[str]:
    """The first reason why the stored layout is not one of this parameter."""
    for stored in by_stage.values():
        if stored.shape is not None and stored.shape != layout.shape:
            yield f"{stored.shape} in the file, {layout.shape} in the model"
            return
        if len(stored.tensor_map) != len(layout.shape):
            yield f"{len(stored.tensor_map)} axes in the file, {len(layout.shape)} in the model"
            return
        splits = stored.splits
        if any(length % split for length, split in zip(layout.shape, splits, strict=True)):
            yield f"{layout.shape} in the model does not divide into {splits} slices"
            return


def _fix(strategy: Strategy, expected: Sequence[str], missing: Sequence[str], extra: Sequence[str]) -> str:
    prefix = _common_prefix(missing, extra)
    if prefix:
        return f"its names begin with {prefix!r}: give the file of the network without that wrapper"
    here, wanted = _num_layers(strategy.parameters), _num_layers(expected)
    if here < wanted and missing and not extra:
        stages = ", ".join(map(str, strategy.stages))
        return (
            f"it has {here} of {wanted} layers: if it is of one pipeline stage (it says {stages}), merge the files of "
            "all stages first; if not, it is of a smaller model"
        )
    if here != wanted:
        return f"it has {here} layers, the model {wanted}: give the file of the model in use"
    close = closest(extra[0], missing) if extra else None
    if close:
        return f"{extra[0]} is nearest to {close}: give the file of the model in use"
    return "give the file of the model in use, or write one from its plan"


def _common_prefix(missing: Sequence[str], extra: Sequence[str]) -> str:
    """What all unknown names have in front of a name that is missing; empty if it is not the same for all."""
    lacking = set(missing)
    prefixes = {next((name[: -len(rest)] for rest in _without_prefixes(name) if rest in lacking), "") for name in extra}
    return prefixes.pop() if len(prefixes) == 1 else ""


def _without_prefixes(name: str) -> Iterator[str]:
    """`a.b.c` gives `b.c` and `c`."""
    while "." in name:
        name = name.split(".", 1)[1]
        yield name


def _num_layers(names: Iterable[str]) -> int:
    return len({match[1] for match in map(_LAYER.search, names) if match})
