"""Where every tensor of a checkpoint lies: a strategy and shapes become layouts.

What enters: the tensors, as whole shapes or as the slices of ranks, and a strategy or none. What leaves: {name: Layout}
over all ranks, or an error that says why the two do not belong together. Called for both sides of a transform; pure
Python.

A tensor without an entry is held whole by every rank: scalars, counters, tables that nothing splits. That a tensor of
this kind was merely forgotten would go unnoticed, so two cases are refused: one whose name differs from an entry's in
the layer's number alone, and optimizer state of a parameter that is split.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping

from mindgspo.errors import CheckpointError
from mindgspo.parallel.layout import NOT_SPLIT, Layout, Shape
from mindgspo.parallel.ranks import Ranks
from mindgspo.parallel.strategy.fit import check_fits
from mindgspo.parallel.strategy.layouts import strategy_layouts
from mindgspo.parallel.strategy.record import Strategy

OPTIMIZER_PREFIX = "adamw."
"""Names of a run's optimizer state begin with it."""

_NUMBER = re.compile(r"\d+")
_LISTED = 3


def num_ranks(strategy: Strategy | None) -> int:
    """Ranks that a strategy arranges; 1 without one.

    Raises CheckpointError for the strategy of some stages only.
    """
    if strategy is None:
        return 1
    missing = sorted(set(range(max(strategy.stages) + 1)) - set(strategy.stages))
    if missing:
        raise CheckpointError(
            f"{strategy.source}: it is of pipeline stage {max(strategy.stages)} alone, stage {missing[0]} is missing; "
            "give the folder with the files of all stages, or merge them (`mindgspo strategy merge`)"
        )
    return len(strategy.stages) * strategy.stage_size


def whole_layouts(shapes: Mapping[str, Shape], ranks: Ranks = (0,)) -> dict[str, Layout]:
    """Everything whole on each of these ranks."""
    return {name: whole_layout(name, shape, ranks) for name, shape in shapes.items()}


def whole_layout(name: str, shape: Shape, ranks: Ranks) -> Layout:
    """One tensor whole on each of these ranks."""
    return Layout(
        parameter=name,
        shape=shape,
        device_matrix=(len(ranks),),
        tensor_map=(NOT_SPLIT,) * len(shape),
        rank_list=ranks,
    )


def place(shapes: Mapping[str, Shape], strategy: Strategy | None) -> dict[str, Layout]:
    """{name: layout} of tensors of these full shapes, in their order.

    Raises WeightsError for a strategy of another model, CheckpointError for one without entries that it should have.
    """
    if strategy is None:
        return whole_layouts(shapes)
    _check_fits(strategy, shapes)
    everywhere = tuple(range(num_ranks(strategy)))
    placed = strategy_layouts(strategy, shapes)
    layouts = {name: placed.get(name) or whole_layout(name, shape, everywhere) for name, shape in shapes.items()}
    _refuse_forgotten(strategy, [name for name in shapes if name not in placed], placed, everywhere)
    return layouts


def full_shapes(slices: Mapping[str, Shape], strategy: Strategy | None) -> dict[str, Shape]:
    """The shapes of the whole tensors of which some rank has these slices."""
    parameters = {} if strategy is None else strategy.parameters
    return {name: _full(shape, parameters.get(name)) for name, shape in slices.items()}


def without_entry(shapes: Mapping[str, Shape], strategy: Strategy | None) -> list[str]:
    """What the strategy does not name."""
    named = None if strategy is None else strategy.parameters
    return [] if named is None else [name for name in shapes if name not in named]


def is_optimizer_state(name: str, names: Container[str]) -> bool:
    """Whether it is a run's optimizer state, or state of a parameter beside it, e.g. adam_m.<parameter>."""
    return name.startswith(OPTIMIZER_PREFIX) or state_of(name, names) is not None


def state_of(name: str, names: Container[str]) -> str | None:
    """The parameter among `names` whose state this is: `adamw.m.<parameter>`, `adam_v.<parameter>`; None if none."""
    while "." in name:
        name = name.split(".", 1)[1]
        if name in names:
            return name
    return None


def _full(shape: Shape, by_stage: Mapping | None) -> Shape:
    if not by_stage:
        return shape
    splits = next(iter(by_stage.values())).splits
    if len(splits) != len(shape):  # for `check_fits` to name
        return shape
    return tuple(length * split for length, split in zip(shape, splits, strict=True))


def _check_fits(strategy: Strategy, shapes: Mapping[str, Shape]) -> None:
    """What is named must be there, with as many axes, and divide."""
    entries = strategy.parameters
    common = [name for name in shapes if name in entries]
    foreign = [name for name in entries if name not in shapes and not _is_known(name, entries, shapes)]
    # Where names are foreign, those that no entry has help to say of what the strategy is.
    others = [name for name in shapes if name not in entries and state_of(name, shapes) is None]
    compared = common if common and not foreign else [*common, *others]
    check_fits(strategy, whole_layouts({name: shapes[name] for name in compared}))


def _is_known(name: str, entries: Mapping[str, Mapping], shapes: Mapping[str, Shape]) -> bool:
    """Whether a strategy may name what the checkpoint lacks: a scalar, or state of a parameter that is there."""
    is_scalar = not any(stored.tensor_map for stored in entries[name].values())
    return is_scalar or state_of(name, shapes) is not None


def _refuse_forgotten(strategy: Strategy, names: list[str], placed: Mapping[str, Layout], everywhere: Ranks) -> None:
    patterns = {_NUMBER.sub("{}", name) for name in placed}
    alike = [name for name in names if _NUMBER.sub("{}", name) in patterns]
    if alike:
        raise CheckpointError(
            f"{strategy.source}: {_counted(alike)} no entry, though others of that kind have one; it is of a smaller "
            "model or of one pipeline stage: give the strategy of the model in use, all stages merged"
        )
    state = list(_state_of_split(names, placed, everywhere))
    if state:
        raise CheckpointError(
            f"{strategy.source}: {_counted(state)} no entry, though the parameters are split, so where to put this "
            "optimizer state is not known; give the strategy of the training graph, which names it, or leave it out "
            "with --weights-only"
        )


def _state_of_split(names: Iterable[str], placed: Mapping[str, Layout], everywhere: Ranks) -> Iterator[str]:
    for name in names:
        parameter = state_of(name, placed)
        if parameter is None:
            continue
        layout = placed[parameter]
        if layout.slice_shape != layout.shape or set(layout.rank_list) != set(everywhere):
            yield name


def _counted(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more have" if len(names) > _LISTED else " have" if len(names) > 1 else " has"
    return ", ".join(names[:_LISTED]) + more
