"""Where every tensor of a checkpoint lies: a strategy and shapes become layouts; do the ranks' files agree with them?

A tensor without an entry is held whole by every rank: scalars, counters, tables that nothing splits. A forgotten
entry would go unnoticed, so two cases are refused: a name that differs from an entry's in the layer's number alone, and
optimizer state of a parameter that is split.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping

from mindgspo.errors import CheckpointError
from mindgspo.parallel.plans.layout import NOT_SPLIT, Layout, Shape
from mindgspo.parallel.plans.ranks import Ranks
from mindgspo.strategy.compare import check_fits
from mindgspo.strategy.layouts import strategy_layouts
from mindgspo.strategy.record import Strategy
from mindgspo.tensor_files.reader import TensorFile
from mindgspo.text import listed

OPTIMIZER_PREFIX = "adamw."
"""Names of a run's optimizer state begin with it."""

_NUMBER = re.compile(r"\d+")
_LISTED = 3
RankTensors = Mapping[str, TensorFile]
"""One rank's tensors: in which file each of them lies."""
_SAMPLE_BYTES = 4096
_REMEDY = "give the strategy of the run that wrote this checkpoint"


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
            f"{strategy.source}: no entry for {listed(alike, _LISTED)}, though others of that kind have one; it "
            "is of a smaller model or of one pipeline stage: give the strategy of the model in use, all stages merged"
        )
    state = list(_state_of_split(names, placed, everywhere))
    if state:
        raise CheckpointError(
            f"{strategy.source}: no entry for {listed(state, _LISTED)}, though the parameters are split, so where to "
            "put this optimizer state is not known; give the strategy of the training graph, which names it, or leave "
            "it out with --weights-only"
        )


def _state_of_split(names: Iterable[str], placed: Mapping[str, Layout], everywhere: Ranks) -> Iterator[str]:
    for name in names:
        parameter = state_of(name, placed)
        if parameter is None:
            continue
        layout = placed[parameter]
        if layout.slice_shape != layout.shape or set(layout.rank_list) != set(everywhere):
            yield name


def held_layouts(
    layouts: Mapping[str, Layout], ranks: Mapping[int, RankTensors], strategy: Strategy
) -> dict[str, Layout]:
    """The layouts, those of tensors without an entry over the ranks that do hold them."""
    held = dict(layouts)
    for name in without_entry(layouts, strategy):
        holders = tuple(sorted(rank for rank, tensors in ranks.items() if name in tensors))
        held[name] = whole_layout(name, layouts[name].shape, holders)
    return held


def check_ranks(layouts: Mapping[str, Layout], ranks: Mapping[int, RankTensors], source: str) -> None:
    """Compare every rank's tensors with the layouts.

    Raises CheckpointError: a tensor is missing on a rank or does not belong there, has another shape or dtype than the
    strategy or the other ranks say, or differs between ranks that should hold the same.
    """
    for name, layout in layouts.items():
        holders = {rank for rank, tensors in ranks.items() if name in tensors}
        _check_holders(name, layout, holders, source)
        infos = {rank: ranks[rank][name].tensors[name] for rank in sorted(holders)}
        first_rank, first = next(iter(infos.items()))
        for rank, info in infos.items():
            path = ranks[rank][name].path
            if info.shape != layout.slice_shape:
                raise CheckpointError(
                    f"{path}: {name} has the shape {info.shape}, {source} says {layout.slice_shape} on rank {rank}; "
                    f"{_REMEDY}"
                )
            if info.dtype != first.dtype:
                raise CheckpointError(
                    f"{path}: {name} is {info.dtype} on rank {rank} and {first.dtype} on rank {first_rank}; "
                    "all ranks' files must come from one save"
                )
        _compare_samples(name, layout, ranks, source)


def _check_holders(name: str, layout: Layout, holders: set[int], source: str) -> None:
    lacking = sorted(set(layout.rank_list) - holders)
    foreign = sorted(holders - set(layout.rank_list))
    if lacking or foreign:
        which, verb = (lacking, "lacks") if lacking else (foreign, "has")
        says = "puts it there" if lacking else f"puts it on ranks {min(layout.rank_list)} to {max(layout.rank_list)}"
        cause = "the file may be cut short; if it is not, " if lacking else ""
        raise CheckpointError(f"rank {which[0]} {verb} {name}, and {source} {says}; {cause}{_REMEDY}")


def _compare_samples(name: str, layout: Layout, ranks: Mapping[int, RankTensors], source: str) -> None:
    """Replicas must begin alike."""
    for index in layout.slice_indices():
        first, *others = layout.holders(index)
        if not others:
            continue
        expected = _sample(ranks[first][name], name)
        for other in others:
            if _sample(ranks[other][name], name) != expected:
                raise CheckpointError(
                    f"{ranks[other][name].path}: {name} differs from that of rank {first}, and {source} says that both "
                    f"hold the same part of it; {_REMEDY}"
                )


def _sample(file: TensorFile, name: str) -> bytes:
    """The first bytes of a tensor."""
    found = bytearray(min(_SAMPLE_BYTES, file.tensors[name].num_bytes))
    file.read_into(name, 0, memoryview(found))
    return bytes(found)
