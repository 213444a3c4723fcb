"""Two strategy files side by side: where they would put a parameter's slices on other ranks.

What enters: two records. What leaves: one line per difference. Called by the strategy command and the dry run's check
of our layouts against the compiler's; pure Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from mindgspo.parallel.layout import Layout, Shape
from mindgspo.parallel.strategy.record import StoredLayout, Strategy


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
